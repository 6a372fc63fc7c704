"""Times one layer's forward and backward at a few batch sizes, as far as memory and patience go.

    warm-up | forward backward | forward backward | ...   medians of each
              \\_ 3 pairs at least, 20 ms of the processor at least; two where a pair takes long; _/
                 of a second look one less, and half the time; some more where they took new memory

Which batch sizes is decided as the curve shows (batch_choice.py); where the processor stalls, CPU seconds count (repeats.py).
Beside each pair stands how quick the processor was about it (reference_work.py).
The gradients of parameters are summed over the repeats, as a round sums them over its micro-batches.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from edgeswarm.model.probe import random_inputs_for, random_like, random_tensors
from edgeswarm.model.stage import StageModule
from edgeswarm.model.stage_graph import StageGraph
from edgeswarm.process_memory import anonymous_bytes, peak_anonymous_bytes

from ..out_of_memory import is_out_of_memory
from ..worker.accelerator import give_back_free_memory, reset_peak
from ..worker.backward import run_backward
from .batch_choice import expected_seconds, next_batch, smaller_choice
from .reference_work import Pace, Paces, steady
from .repeats import Stretch, settled, typical, wants_more
from .weights_apart import Apart, measure_apart, size_for_apart

LEAST_REPEATS, LEAST_STEADY_REPEATS = 3, 2
MOST_REPEATS = 100
SHORTEST_TOTAL_SECONDS = 0.02  # of the processor
STEADY_SECONDS = 0.03  # of the processor for one pair: so long that few measurements after the warm-up say it
SAME_PACE_SECONDS = 0.01  # of the processor, after which its pace is looked at again
# A step up by more than this factor must leave so many times the room that is expected: small batches tell little of it.
LONG_STEP, LONG_STEP_MARGIN = 4, 2
_SEED = 0


@dataclass(frozen=True)
class Timing:
    """Seconds of one forward and one backward of a layer at a batch size, as long as they take in the long run, at the base pace.

    relative_error: of their sum, estimated from the repeats. peak_bytes: taken beyond parameters and the sums of their gradients.
    apart: of the backward, where that was measured at this batch size.
    """

    batch_size: int
    forward_seconds: float
    backward_seconds: float
    relative_error: float = 0.0
    peak_bytes: int = 0
    apart: Apart | None = None

    @property
    def seconds(self) -> float:
        return self.forward_seconds + self.backward_seconds


@dataclass(frozen=True)
class _Pair:
    """Clock and processor seconds of a forward, then of a backward; a card is a processor that never pauses.

    page_faults: of the process in both.
    """

    forward: tuple[float, float]
    backward: tuple[float, float]
    page_faults: int = 0

    @property
    def cpu_seconds(self) -> float:
        return self.forward[1] + self.backward[1]

    def at_another_pace(self, times_as_quick: Pace) -> _Pair:
        """As it would have been."""
        wall, cpu = times_as_quick.wall_seconds, times_as_quick.cpu_seconds
        return replace(
            self,
            forward=(self.forward[0] / wall, self.forward[1] / cpu),
            backward=(self.backward[0] / wall, self.backward[1] / cpu),
        )


def time_layer(
    stage_graph: StageGraph,
    batch_sizes: Sequence[int],
    *,
    longest_seconds: float,
    memory_budget: int,
    slow_down: float,
    check_halt: Callable[[], None],
    accelerator: str = "cpu",
    stretch: Stretch | None = None,
    paces: Paces | None = None,
    apart: bool = False,
    is_second_look: bool = False,
) -> list[Timing]:
    """The layer's curve over a few of `batch_sizes` (ascending); shorter where the next size would take too much.

    longest_seconds: no larger batch is tried where one forward and backward takes longer (0 or less: no limit).
    memory_budget: bytes that may be taken, the layer itself among them. slow_down: factor on every figure.
    stretch: of this device, over everything measured so far; the measurements are added to it. paces: likewise.
    check_halt: called between repeats; whatever it raises goes through. apart: looks at weights apart, too.
    is_second_look: at what was timed before, which takes less.
    Raises: GRAPH_REFUSED where this torch can't build the layer; nothing where memory ends: the curve ends there. One that has no
    room for its gradients is empty, and isn't tried: a kernel that is out of memory raises nothing, but kills.
    """
    stretch = Stretch() if stretch is None else stretch
    paces = Paces(steady) if paces is None else paces
    candidates = list(batch_sizes)
    timings: dict[int, Timing] = {}
    gradients = [spec.bytes for spec in stage_graph.parameters if spec.trainable]
    beyond_layer = memory_budget - sum(spec.bytes for spec in stage_graph.tensors) - sum(gradients)
    if beyond_layer < max(gradients, default=0):
        return []
    # Nothing else holds the tensors: what stays of one layer would be missing from the next one's peak.
    module = StageModule(
        stage_graph, random_tensors(stage_graph, seed=_SEED, device=accelerator), accelerator, fast_layout=True
    )
    try:
        if not _make_gradients(module):
            return []
        # What making them left lying around would be missing from the first batch's peak, by which larger ones are judged.
        give_back_free_memory(accelerator)
        limits = _Limits(longest_seconds / slow_down, beyond_layer, gradient_bytes=max(gradients, default=0))
        while (batch_size := _affordable(timings, candidates, limits)) is not None:
            try:
                timing = _time_batch(
                    module,
                    batch_size,
                    stretch=stretch,
                    paces=paces,
                    check_halt=check_halt,
                    is_second_look=is_second_look,
                )
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                candidates = [size for size in candidates if size < batch_size]
                continue
            finally:
                give_back_free_memory(accelerator)
            timings[batch_size] = timing
        size = size_for_apart(timings) if apart else None
        if size is not None:
            inputs = random_inputs_for(module, size, seed=_SEED)
            timings[size] = replace(timings[size], apart=_apart(module, size, inputs, check_halt=check_halt))
            del inputs
    finally:
        del module
        give_back_free_memory(accelerator)
    return [_slowed(timings[size], slow_down) for size in sorted(timings)]


def _make_gradients(module: StageModule) -> bool:
    """Their sums are there from the beginning, as in a round: the first batch takes no more. False: no memory for them."""
    try:
        for parameter in module.parameters.values():
            if parameter.requires_grad:
                # Filled: bare zeros take memory when they are touched.
                parameter.grad = torch.zeros_like(parameter).fill_(0.0)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return False
    return True


@dataclass(frozen=True)
class _Limits:
    """longest_seconds: see `time_layer`. memory_budget: bytes beyond parameters and the sums of their gradients.

    gradient_bytes: of the largest gradient, which a backward makes beside its sum, whatever the batch.
    """

    longest_seconds: float
    memory_budget: int
    gradient_bytes: int


def _affordable(timings: dict[int, Timing], candidates: Sequence[int], limits: _Limits) -> int | None:
    """The size to time next: as the curve asks, or a smaller one where that would take too much memory or time."""
    known = [timings[size] for size in sorted(timings)]
    seconds = [(timing.batch_size, timing.seconds) for timing in known]
    needs = [(timing.batch_size, timing.peak_bytes) for timing in known]
    wanted = next_batch(seconds, candidates)
    while wanted is not None and known and wanted > known[-1].batch_size:
        slow = 0 < limits.longest_seconds < max(expected_seconds(seconds, wanted), known[-1].seconds)
        margin = LONG_STEP_MARGIN if wanted > LONG_STEP * known[-1].batch_size else 1
        needed = expected_bytes(needs, wanted, gradient_bytes=limits.gradient_bytes)
        if not slow and margin * needed <= limits.memory_budget:
            break
        candidates = [size for size in candidates if size < wanted]
        wanted = smaller_choice(wanted, seconds, candidates) or next_batch(seconds, candidates)
    return wanted


def _slowed(timing: Timing, factor: float) -> Timing:
    return replace(
        timing,
        forward_seconds=timing.forward_seconds * factor,
        backward_seconds=timing.backward_seconds * factor,
    )


def expected_bytes(needs: Sequence[tuple[int, int]], batch_size: int, *, gradient_bytes: int = 0) -> int:
    """What `batch_size` will need, from (batch size, bytes) measured so far; 0 where nothing was.

    In proportion to the largest so far, but for the gradients, which are as large for any batch; or along the last two where
    that is more (memory that grows faster than the batch means that small ones were served from what lay around).
    """
    if not needs:
        return 0
    last_size, last_bytes = needs[-1]
    # Less than the gradients alone is no measure of them: then nothing says what is whatever the batch.
    fixed = gradient_bytes if last_bytes > gradient_bytes else 0
    proportional = fixed + (last_bytes - fixed) * batch_size // last_size
    if len(needs) < 2:
        return proportional
    before_size, before_bytes = needs[-2]
    slope = (last_bytes - before_bytes) / (last_size - before_size)
    return max(proportional, int(last_bytes + slope * (batch_size - last_size)))


def _apart(
    module: StageModule, batch_size: int, inputs: Sequence[torch.Tensor], *, check_halt: Callable[[], None]
) -> Apart | None:
    """None where memory ends: of that it takes a little more."""
    try:
        return measure_apart(module, batch_size, inputs, check_halt=check_halt)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return None


def _time_batch(
    module: StageModule,
    batch_size: int,
    *,
    stretch: Stretch,
    paces: Paces,
    check_halt: Callable[[], None],
    is_second_look: bool,
) -> Timing:
    """The timing, not slowed down."""
    memory = _PeakMemory(module.device.type)
    inputs = random_inputs_for(module, batch_size, seed=_SEED)
    pairs = _PacedPairs(paces, lambda: _time_pair(module, batch_size, inputs))
    pairs.measure()
    computed = 0.0
    is_long = pairs.done[0].cpu_seconds >= STEADY_SECONDS
    least = (LEAST_STEADY_REPEATS if is_long else LEAST_REPEATS) - (1 if is_second_look else 0)
    shortest = SHORTEST_TOTAL_SECONDS / (2 if is_second_look else 1)
    while (
        len(pairs.done) < 1 + least
        or (computed < shortest and len(pairs.done) <= MOST_REPEATS)
        or wants_more([pair.page_faults for pair in pairs.done[1:]], least=least)
    ):
        check_halt()
        pairs.measure()
        tried = pairs.done[-1]
        computed += tried.cpu_seconds
        if module.device.type == "cpu":
            stretch.add(tried.forward[0] + tried.backward[0], tried.cpu_seconds)
    warm_up, *paced = pairs.at_base_pace()
    kept = [paced[place] for place in settled([pair.page_faults for pair in paced], least=least)]
    if is_long and max(pair.cpu_seconds for pair in kept) > warm_up.cpu_seconds:
        kept.append(warm_up)  # slower than the first one, which also took the memory: something was in the way
    by_processor = module.device.type == "cpu" and stretch.is_stalled
    clock, factor = (1, stretch.factor) if by_processor else (0, 1.0)
    forward = typical([pair.forward[clock] for pair in kept])
    backward = typical([pair.backward[clock] for pair in kept])
    both = typical([pair.forward[clock] + pair.backward[clock] for pair in kept])
    return Timing(batch_size, forward.seconds * factor, backward.seconds * factor, both.relative_error, memory.taken())


class _PacedPairs:
    """Pairs one after the other, between looks at the pace. done: as measured."""

    def __init__(self, paces: Paces, measure: Callable[[], _Pair]) -> None:
        self._paces = paces
        self._measure = measure
        self._looks = [paces.look(0.0)]
        self._since_look = 0.0  # seconds of the processor
        self._looks_before: list[int] = []  # of each pair
        self.done: list[_Pair] = []

    def measure(self) -> None:
        """One more."""
        if self._since_look >= SAME_PACE_SECONDS:
            self._look()
        self.done.append(self._measure())
        self._looks_before.append(len(self._looks))
        self._since_look += self.done[-1].cpu_seconds

    def at_base_pace(self) -> list[_Pair]:
        """All of them. No more come after it."""
        self._look()
        found = []
        for pair, looks in zip(self.done, self._looks_before, strict=True):
            pace = Pace.between(self._looks[looks - 1], self._looks[looks])
            self._paces.add(pace, cpu_seconds=pair.cpu_seconds)
            found.append(pair.at_another_pace(pace.slower_than(self._paces.base)))
        return found

    def _look(self) -> None:
        self._looks.append(self._paces.look(self._since_look))
        self._since_look = 0.0


def _time_pair(module: StageModule, batch_size: int, inputs: Sequence[torch.Tensor]) -> _Pair:
    """One forward and one backward. A layer where nothing is trained has no backward."""
    faults = _page_faults()
    started = _now(module.device)
    outputs = module.forward(batch_size, inputs, draw=None)
    forward = _since(started, module.device)
    module.take_batch_statistics()
    needing = [output for output in outputs if output.requires_grad]
    if not needing:
        return _Pair(forward, (0.0, 0.0), _page_faults() - faults)
    gradients = [random_like(output) for output in needing]
    started = _now(module.device)
    run_backward(needing, gradients)
    backward = _since(started, module.device)
    for tensor in inputs:
        # A pipeline's inputs are new for each micro-batch: nothing is summed into them.
        tensor.grad = None
    return _Pair(forward, backward, _page_faults() - faults)


def _page_faults() -> int:
    """Of this process so far, each for memory that it had not used before."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _now(device: torch.device) -> tuple[float, float]:
    """Seconds by the clock and of the processor, after everything that was handed to the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return (seconds := time.perf_counter()), seconds
    return time.perf_counter(), time.process_time()


def _since(started: tuple[float, float], device: torch.device) -> tuple[float, float]:
    clock, processor = _now(device)
    return clock - started[0], processor - started[1]


class _PeakMemory:
    """How much memory is taken from now on, at its peak. On a card by tensors alone: meanwhile the process grows by kernels."""

    def __init__(self, accelerator: str) -> None:
        self._accelerator = accelerator
        reset_peak(accelerator)
        self._before = torch.cuda.memory_allocated() if accelerator == "cuda" else anonymous_bytes()

    def taken(self) -> int:
        """Bytes. Where the kernel doesn't let a process reset its peak, it is that of its whole life: too much, never
        too little."""
        peak = torch.cuda.max_memory_allocated() if self._accelerator == "cuda" else peak_anonymous_bytes()
        return max(0, peak - self._before)
