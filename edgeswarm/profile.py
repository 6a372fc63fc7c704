"""What the planner knows: a model's costs, measured times of devices, the network. Pure data; its JSON is in profile_json.py.

A profile holds, for each layer, the seconds of forward and backward at the batch sizes that were measured. What they are in
between and beyond is in layer_curves.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from .layer_curves import layer_seconds
from .model_costs import FloatArray, IntArray, ModelCosts
from .plan import Plan

UNKNOWN_BANDWIDTH = 125e6  # bytes per second where there is no link to measure: a gigabit card


@dataclass(frozen=True)
class Overheads:
    """What one class of device spends beside the layers, in seconds of its processor, by which it computes that much less.

    action_seconds: for each forward or backward of a micro-batch. frame_seconds and byte_seconds: for each frame, and
    each byte of it, sent or received. round_seconds: once a round, beside the optimizer's step. burst_seconds: by which it
    is earlier done with its first work after idling for as long: a quota of the processor is there at once after a pause.
    """

    action_seconds: float = 0.0
    frame_seconds: float = 0.0
    byte_seconds: float = 0.0
    round_seconds: float = 0.0
    burst_seconds: float = 0.0

    def __post_init__(self) -> None:
        for what in ("action_seconds", "frame_seconds", "byte_seconds", "round_seconds", "burst_seconds"):
            if not getattr(self, what) >= 0:
                raise ValueError(f"overheads.{what} is below 0")


@dataclass(frozen=True)
class DeviceProfile:
    """Measured seconds of every layer on one class of device.

    batch_sizes: rising, in samples. forward_seconds[i][l], backward_seconds[i][l]: layer l at batch_sizes[i].
    update_seconds[l]: the optimizer's step over layer l's parameters, once a round; empty where it takes no time.
    layer_errors[l]: by which part layer l's seconds may be off, one standard error; empty where unknown. sums_error: by
    which part sums over layers are off from stages, root mean square, whatever the layers. largest_measured[l]: the largest
    batch size at which layer l itself was measured; empty where unknown.
    rest_parts[l], weights_parts[l]: where gradients of layer l's weights come apart, what the rest of its backward takes and what
    they do, in times of its backward in one go; empty where unknown.
    """

    batch_sizes: tuple[int, ...]
    forward_seconds: tuple[tuple[float, ...], ...]
    backward_seconds: tuple[tuple[float, ...], ...]
    update_seconds: tuple[float, ...] = ()
    overheads: Overheads = Overheads()
    layer_errors: tuple[float, ...] = ()
    sums_error: float = 0.0
    largest_measured: tuple[int, ...] = ()
    rest_parts: tuple[float, ...] = ()
    weights_parts: tuple[float, ...] = ()
    # Not of the constructor: a `replace` with other seconds must not get what these ones added up to.
    _before: dict[int, tuple[FloatArray, FloatArray]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_sizes", tuple(self.batch_sizes))
        if not self.batch_sizes or self.batch_sizes[0] < 1:
            raise ValueError("batch_sizes needs at least one size, and sizes of at least 1 sample")
        if any(b <= a for a, b in zip(self.batch_sizes, self.batch_sizes[1:], strict=False)):
            raise ValueError("batch_sizes must rise")
        for what in ("forward_seconds", "backward_seconds"):
            rows = tuple(tuple(row) for row in getattr(self, what))
            object.__setattr__(self, what, rows)
            if len(rows) != len(self.batch_sizes):
                raise ValueError(f"{what} has {len(rows)} rows for {len(self.batch_sizes)} batch sizes")
            if any(len(row) != self.layer_count for row in rows):
                raise ValueError(f"the rows of {what} differ in length")
            if any(not value >= 0 for row in rows for value in row):
                raise ValueError(f"{what} has an entry below 0")
        for what in ("update_seconds", "layer_errors", "largest_measured", "rest_parts", "weights_parts"):
            values = tuple(getattr(self, what))
            object.__setattr__(self, what, values)
            if values and len(values) != self.layer_count:
                raise ValueError(f"{what} has {len(values)} entries for {self.layer_count} layers")
            if any(not value >= 0 for value in values):
                raise ValueError(f"{what} has an entry below 0")
        if not self.sums_error >= 0:
            raise ValueError("sums_error is below 0")
        if len(self.rest_parts) != len(self.weights_parts):
            raise ValueError("rest_parts and weights_parts come together")
        if 0 in self.largest_measured:
            raise ValueError("largest_measured has an entry below 1")

    @property
    def layer_count(self) -> int:
        return len(self.forward_seconds[0])

    def update(self, first_layer: int, end_layer: int) -> float:
        """Seconds of the optimizer's step over layers [first_layer, end_layer)."""
        return sum(self.update_seconds[first_layer:end_layer])

    def seconds_before(self, batch: int) -> tuple[FloatArray, FloatArray]:
        """Forward and backward seconds at a batch of the layers before each cut: two arrays [layer_count + 1].

        The time of layers [i, j) is the difference of entries j and i, so that any stage's is looked up at once.
        """
        if batch not in self._before:
            forward, backward = self._table(np.array([batch]))
            self._before[batch] = (forward[0], backward[0])
        return self._before[batch]

    def seconds_table(self, most: int) -> tuple[FloatArray, FloatArray]:
        """What `seconds_before` says of 0, 1, ... `most` samples: two arrays [most + 1, layer_count + 1]."""
        return self._table(np.arange(most + 1))

    def with_seconds_times(self, factors: FloatArray) -> DeviceProfile:
        """The same device, were each layer so much slower, or quicker. factors: [layer_count]."""
        forward, backward = (
            tuple(tuple((np.array(row) * factors).tolist()) for row in rows)
            for rows in (self.forward_seconds, self.backward_seconds)
        )
        return replace(self, forward_seconds=forward, backward_seconds=backward)

    def forward(self, batch: int, first_layer: int, end_layer: int) -> float:
        """Seconds to run layers [first_layer, end_layer) forward on `batch` samples; 0 samples take no time."""
        before = self.seconds_before(batch)[0]
        return float(before[end_layer] - before[first_layer])

    def backward(self, batch: int, first_layer: int, end_layer: int) -> float:
        """Seconds to run layers [first_layer, end_layer) backward on `batch` samples."""
        before = self.seconds_before(batch)[1]
        return float(before[end_layer] - before[first_layer])

    def backward_apart(self, batch: int, first_layer: int, end_layer: int) -> tuple[float, float]:
        """Seconds of the same where gradients of weights come apart: of the rest, and of these. Without `weights_parts` all is
        rest.
        """
        layers = np.diff(self.seconds_before(batch)[1][first_layer : end_layer + 1])
        if not self.weights_parts:
            return float(layers.sum()), 0.0
        return (
            float(layers @ np.array(self.rest_parts[first_layer:end_layer])),
            float(layers @ np.array(self.weights_parts[first_layer:end_layer])),
        )

    def _table(self, batches: IntArray) -> tuple[FloatArray, FloatArray]:
        return (
            _sums_before_float(layer_seconds(self.batch_sizes, self._forward_rows, batches)),
            _sums_before_float(layer_seconds(self.batch_sizes, self._backward_rows, batches)),
        )

    @cached_property
    def _forward_rows(self) -> FloatArray:
        return np.array(self.forward_seconds, dtype=np.float64)

    @cached_property
    def _backward_rows(self) -> FloatArray:
        return np.array(self.backward_seconds, dtype=np.float64)


@dataclass(frozen=True)
class DeviceDescription:
    """One device. profile: its class in `PlanningInstance.profiles`. memory_bytes: what training may use.

    base_bytes: what a worker uses there that has computed, but holds no layer. board: for a person; empty where unknown.
    """

    name: str
    profile: str
    memory_bytes: int
    base_bytes: int = 0
    board: str = ""


@dataclass(frozen=True)
class Network:
    """The links between devices, each direction of a pair apart.

    bandwidth[from][to]: bytes per second; latencies[from][to]: seconds one way, empty where all pairs have the same; the
    diagonals are not read. latency_seconds: of any pair, or of the one with the most where they differ.
    """

    latency_seconds: float
    bandwidth: tuple[tuple[float, ...], ...]
    latencies: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        for name in ("bandwidth", "latencies"):
            object.__setattr__(self, name, tuple(tuple(row) for row in getattr(self, name)))
        if any(len(row) != len(self.bandwidth) for row in self.bandwidth):
            raise ValueError("the bandwidth matrix is not square")
        if self.latencies and [len(row) for row in self.latencies] != [len(self.bandwidth)] * len(self.bandwidth):
            raise ValueError("the matrix of latencies is not as large as that of bandwidths")
        if not self.latency_seconds >= 0 or any(not latency >= 0 for _, _, latency in self._differing()):
            raise ValueError("a latency is below 0")
        for sender, row in enumerate(self.bandwidth):
            if any(not value > 0 for receiver, value in enumerate(row) if receiver != sender):
                raise ValueError("a bandwidth is not above 0")

    @classmethod
    def uniform(cls, device_count: int, *, bytes_per_second: float, latency_seconds: float) -> Network:
        """Every pair of devices has the same link."""
        return cls(latency_seconds, ((bytes_per_second,) * device_count,) * device_count)

    @classmethod
    def of_pairs(cls, latencies: Sequence[Sequence[float]], bandwidth: Sequence[Sequence[float]]) -> Network:
        """Each pair has a latency of its own."""
        made = cls(0.0, tuple(map(tuple, bandwidth)), tuple(map(tuple, latencies)))
        return replace(made, latency_seconds=max((latency for _, _, latency in made._differing()), default=0.0))

    def _differing(self) -> Iterator[tuple[int, int, float]]:
        return (
            (sender, receiver, latency)
            for sender, row in enumerate(self.latencies)
            for receiver, latency in enumerate(row)
            if sender != receiver
        )

    def latency(self, sender: int, receiver: int) -> float:
        """Seconds one way, between two devices by their indices."""
        return self.latencies[sender][receiver] if self.latencies else self.latency_seconds

    def most_latency(self, places: Sequence[int]) -> float:
        """Seconds one way, between any two of several devices."""
        if not self.latencies:
            return self.latency_seconds
        return max((self.latencies[a][b] for a in places for b in places if a != b), default=0.0)

    @property
    def least_latency_seconds(self) -> float:
        return min((latency for _, _, latency in self._differing()), default=self.latency_seconds)

    @property
    def usual_latency_seconds(self) -> float:
        """The median of devices' nearest neighbours, there and back by halves: one that is far from all others counts once."""
        if not self.latencies:
            return self.latency_seconds
        places = range(len(self.latencies))
        nearest = [
            min(((self.latencies[a][b] + self.latencies[b][a]) / 2 for b in places if b != a), default=0.0)
            for a in places
        ]
        return statistics.median_low(nearest)

    def only(self, places: Sequence[int]) -> Network:
        """Between these devices alone, in this order."""
        rows = tuple(tuple(self.bandwidth[a][b] for b in places) for a in places)
        if not self.latencies:
            return Network(self.latency_seconds, rows)
        return Network.of_pairs([[self.latencies[a][b] for b in places] for a in places], rows)

    @cached_property
    def matrix(self) -> FloatArray:
        """[from, to] bytes per second; infinite on the diagonal."""
        matrix = np.array(self.bandwidth, dtype=np.float64).reshape(len(self.bandwidth), len(self.bandwidth))
        np.fill_diagonal(matrix, np.inf)
        return matrix

    def slowest(self, pairs: Iterable[tuple[int, int]]) -> float:
        """The smallest bandwidth over pairs of device indices (from, to); infinite for no pairs."""
        return min((float(self.matrix[pair]) for pair in pairs), default=float("inf"))


@dataclass(frozen=True)
class DataSource:
    """The machine that serves the samples, where devices don't have them already; it takes part in no stage by itself.

    bandwidth[device]: bytes per second from it to each device, in the order of devices. egress: bytes per second of its
    own card, which its transfers share. label_bytes: what the last stage gets of one sample. input_bytes: what the
    first stage gets of one, None for as much as the model's own input. joint_bytes: what a stage gets that is both, None for
    the sum. on_its_machine[device]: an agent runs there, too, and what it gets doesn't go over the card; none does where it is
    left empty. epochs: of the training; devices keep what they fetched, and each epoch has the samples in another order.
    """

    bandwidth: tuple[float, ...]
    egress: float
    label_bytes: int = 0
    input_bytes: int | None = None
    on_its_machine: tuple[bool, ...] = ()
    joint_bytes: int | None = None
    epochs: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "bandwidth", tuple(self.bandwidth))
        object.__setattr__(self, "on_its_machine", tuple(self.on_its_machine) or (False,) * len(self.bandwidth))
        if len(self.on_its_machine) != len(self.bandwidth):
            raise ValueError(
                f"the data source's bandwidth is for {len(self.bandwidth)} devices, its on_its_machine for "
                f"{len(self.on_its_machine)}"
            )
        if not self.egress > 0 or any(not value > 0 for value in self.bandwidth):
            raise ValueError("a bandwidth of the data source is not above 0")
        if self.label_bytes < 0 or (self.input_bytes or 0) < 0 or (self.joint_bytes or 0) < 0:
            raise ValueError("the data source's label_bytes, input_bytes or joint_bytes is below 0")
        if self.epochs < 1:
            raise ValueError("the data source's epochs are below 1")

    def fetched(self, part: float) -> float:
        """Of the samples of a replica that takes this part of each micro-batch, how many it fetches, in the mean of all epochs.

        In the e-th one it has each with 1 - (1 - part)^(e - 1): a replica alone fetches in the first one only.
        """
        if self.epochs == 1 or part <= 0:
            return 1.0
        return (1 - (1 - min(1.0, part)) ** self.epochs) / (part * self.epochs)


@dataclass(frozen=True)
class TrainingSettings:
    """mini_batch: samples of one optimizer step. rest: of the last one of an epoch, where that has fewer; else 0.

    optimizer_state_bytes_per_parameter_byte: 1.0 for SGD with momentum, 2.0 for Adam; gradients come on top of it.
    frames_held: micro-batches whose frames, at both cuts of a stage, a worker holds beside what its layers save.
    inputs_ahead: micro-batches of the model's inputs that a worker of the first stage has fetched ahead, as far as its feed's
    bytes go (feed_ahead.py), and of targets one of the last stage.
    saved_growth: by which the micro-batch at hand takes more for what it saves than those that wait; 1 for no more.
    on_top: the part of what a layer takes while it computes that comes on top of all that a stage saves, since what the other
    layers held lies free in pieces.
    peer_bytes: what a worker holds for each device that it is linked with, beyond the first two. reduce_bytes: what one of
    two replicas holds of pieces of gradients that come and go.
    """

    mini_batch: int
    optimizer_state_bytes_per_parameter_byte: float = 0.0
    rest: int = 0
    frames_held: int = 0
    inputs_ahead: int = 0
    saved_growth: float = 1.0
    on_top: float = 1.0
    peer_bytes: int = 0
    reduce_bytes: int = 0

    def __post_init__(self) -> None:
        if self.mini_batch < 1:
            raise ValueError(f"mini_batch is {self.mini_batch}; it must be at least 1")
        if not 0 <= self.rest < self.mini_batch:
            raise ValueError(f"rest is {self.rest}; it must be 0 or more, and less than mini_batch ({self.mini_batch})")
        if not self.optimizer_state_bytes_per_parameter_byte >= 0:
            raise ValueError("optimizer_state_bytes_per_parameter_byte is below 0")
        if not self.saved_growth >= 1:
            raise ValueError("saved_growth is below 1")
        if not 0 <= self.on_top <= 1:
            raise ValueError("on_top is not from 0 to 1")
        for what in ("frames_held", "inputs_ahead", "peer_bytes", "reduce_bytes"):
            if getattr(self, what) < 0:
                raise ValueError(f"{what} is below 0")


@dataclass(frozen=True)
class PlanningInstance:
    """All that a planner is told: numbers in, a plan out. profiles: by class of device.

    data_source: None where the devices have the samples: `local` data.
    Raises ValueError where the parts don't belong together.
    """

    model: ModelCosts
    profiles: Mapping[str, DeviceProfile]
    devices: tuple[DeviceDescription, ...]
    network: Network
    training: TrainingSettings
    name: str = ""
    data_source: DataSource | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "profiles", dict(self.profiles))
        object.__setattr__(self, "devices", tuple(self.devices))
        for kind, profile in self.profiles.items():
            if profile.layer_count != self.model.layer_count:
                raise ValueError(
                    f"profiles.{kind} has {profile.layer_count} layers, but the model has {self.model.layer_count}"
                )
        names = [device.name for device in self.devices]
        for index, device in enumerate(self.devices):
            if device.profile not in self.profiles:
                raise ValueError(f"devices[{index}].profile is {device.profile!r}, which is not among the profiles")
            if device.name in names[:index]:
                raise ValueError(f"devices[{index}].name is {device.name!r}, which another device has already")
        if not self.devices:
            raise ValueError("devices is empty; a plan needs at least one device")
        if len(self.network.bandwidth) != len(self.devices):
            raise ValueError(
                f"network.bandwidth_bytes_per_second is for {len(self.network.bandwidth)} devices, "
                f"but there are {len(self.devices)}"
            )
        if self.data_source is not None and len(self.data_source.bandwidth) != len(self.devices):
            raise ValueError(
                f"data_source.bandwidth_bytes_per_second is for {len(self.data_source.bandwidth)} devices, "
                f"but there are {len(self.devices)}"
            )

    @property
    def served_input_bytes(self) -> int:
        """Per sample, what a device of the first stage gets from the data source; 0 where there is none."""
        source = self.data_source
        if source is None:
            return 0
        return self.model.input_bytes if source.input_bytes is None else source.input_bytes

    def served_bytes(self, *, is_first: bool, is_last: bool) -> int:
        """The same of any stage, of a sample that it fetches."""
        source = self.data_source
        if source is None:
            return 0
        if is_first and is_last and source.joint_bytes is not None:
            return source.joint_bytes
        return self.served_input_bytes * is_first + source.label_bytes * is_last

    @property
    def device_names(self) -> tuple[str, ...]:
        return tuple(device.name for device in self.devices)

    @cached_property
    def resident_bytes_before(self) -> FloatArray:
        """[layer_count + 1]: bytes that the layers before each cut hold all the time: weights, kernels for one batch size, and of
        what is trained gradients and the optimizer's state. Tied parameters are in it with each of their layers.
        """
        weights = self.model.param_bytes_before + self._bytes_of_a_trained_byte * self.model.trained_bytes_before
        result: FloatArray = weights + self.model.kernel_bytes_before
        return result

    def resident_bytes(self, first_layer: int, end_layer: int) -> float:
        """The same of a stage of these layers; a tied parameter once."""
        if self.model.tied:
            return float(self.resident_bytes_of_runs(np.array(first_layer), np.array(end_layer)))
        return float(self.resident_bytes_before[end_layer] - self.resident_bytes_before[first_layer])

    def resident_bytes_of_runs(self, first_layers: IntArray, end_layers: IntArray) -> FloatArray:
        """The same of many, in the shape of both."""
        whole = self.resident_bytes_before[end_layers] - self.resident_bytes_before[first_layers]
        sizes = [
            tensor.param_bytes * (1.0 + (self._bytes_of_a_trained_byte if tensor.gradient_bytes else 0.0))
            for tensor in self.model.tied
        ]
        result: FloatArray = whole - self.model.counted_again(first_layers, end_layers, sizes)
        return result

    @property
    def _bytes_of_a_trained_byte(self) -> float:
        """Bytes of gradient and optimizer's state for each byte of a trained parameter."""
        return 1.0 + self.training.optimizer_state_bytes_per_parameter_byte

    @cached_property
    def index_of(self) -> dict[str, int]:
        """Place of each device by name, as in the bandwidth matrix."""
        return {device.name: index for index, device in enumerate(self.devices)}

    def profile_of(self, device: str) -> DeviceProfile:
        return self.profiles[self.devices[self.index_of[device]].profile]

    def only(self, names: Sequence[str]) -> PlanningInstance:
        """The same instance with just these devices, in the order given."""
        places = [self.index_of[name] for name in names]
        source = self.data_source
        if source is not None:
            source = replace(
                source,
                bandwidth=tuple(source.bandwidth[place] for place in places),
                on_its_machine=tuple(source.on_its_machine[place] for place in places),
            )
        return PlanningInstance(
            model=self.model,
            profiles=self.profiles,
            devices=tuple(self.devices[place] for place in places),
            network=self.network.only(places),
            training=self.training,
            name=self.name,
            data_source=source,
        )

    def too_few_samples(self, plan: Plan) -> str:
        """Which replica would take fewer samples than a layer needs, in a round or in an epoch's last one; empty for none."""
        rounds = filter(None, (self.training.mini_batch, self.training.rest))
        told = (plan.too_few_samples(samples, self.model.least_batches) for samples in rounds)
        return next(filter(None, told), "")

    def validate_plan(self, plan: Plan) -> None:
        """Check that a plan is one for this instance; raises EdgeswarmError(PLAN_INVALID)."""
        plan.validate_for(
            layer_count=self.model.layer_count,
            mini_batch=self.training.mini_batch,
            devices=self.device_names,
            least_batch=self.model.least_batches,
        )


def _sums_before_float(rows: FloatArray) -> FloatArray:
    """[rows, columns] -> [rows, columns + 1]."""
    return np.concatenate([np.zeros((len(rows), 1)), np.cumsum(rows, axis=1)], axis=1)
