"""Small instances and plans for the simulator's tests, by hand and by hypothesis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import strategies as st

from edgeswarm.model_costs import LayerCosts, ModelCosts
from edgeswarm.plan import Plan, Stage
from edgeswarm.profile import (
    DataSource,
    DeviceDescription,
    DeviceProfile,
    Network,
    Overheads,
    PlanningInstance,
    TrainingSettings,
)
from edgeswarm.schedule.policies import ONE_FORWARD_ONE_BACKWARD, SCHEDULES

NO_OVERHEADS = Overheads()


def make_instance(
    layer_seconds: Sequence[tuple[float, float]],
    *,
    devices: int = 1,
    mini_batch: int = 4,
    bandwidth: float | Sequence[Sequence[float]] = float("inf"),
    latency: float = 0.0,
    cut_bytes: int = 0,
    input_bytes: int = 0,
    gradient_bytes: int = 0,
    statistics_bytes: int = 0,
    saved_bytes: int = 0,
    update_seconds: Sequence[float] = (),
    overheads: Overheads = NO_OVERHEADS,
    data_source: DataSource | None = None,
    apart: tuple[float, float] | None = None,
) -> PlanningInstance:
    """Devices a, b, c, ... of one class. layer_seconds: forward and backward of one sample; more take that much longer.

    apart: rest and weights of each layer's backward, in parts of it.
    """
    rates = ((bandwidth,) * devices,) * devices if isinstance(bandwidth, (int, float)) else bandwidth
    layers = tuple(
        LayerCosts(f"layer{index}", gradient_bytes, cut_bytes, saved_bytes, statistics_bytes=statistics_bytes)
        for index in range(len(layer_seconds))
    )
    profile = DeviceProfile(
        (1,),
        (tuple(forward for forward, _ in layer_seconds),),
        (tuple(backward for _, backward in layer_seconds),),
        tuple(update_seconds),
        overheads,
        rest_parts=() if apart is None else (apart[0],) * len(layers),
        weights_parts=() if apart is None else (apart[1],) * len(layers),
    )
    return PlanningInstance(
        model=ModelCosts(input_bytes, layers),
        profiles={"box": profile},
        devices=tuple(DeviceDescription(chr(ord("a") + place), "box", 10**15) for place in range(devices)),
        network=Network(latency, tuple(tuple(row) for row in rates)),
        training=TrainingSettings(mini_batch, 1.0),
        name="by hand",
        data_source=data_source,
    )


def make_plan(
    *stages: tuple[int, Mapping[str, int], int],
    micro_batches: int,
    last_micro_batch: int | None = None,
    schedule: str = ONE_FORWARD_ONE_BACKWARD,
) -> Plan:
    """Each stage by its number of layers, its shares and its K."""
    made, first = [], 0
    for layers, shares, in_flight in stages:
        made.append(Stage(first, first + layers, shares, in_flight))
        first += layers
    return Plan(
        planner="by hand",
        micro_batch=made[0].samples,
        micro_batches=micro_batches,
        last_micro_batch=last_micro_batch,
        stages=tuple(made),
        schedule=schedule,
    )


@st.composite
def planned(draw: st.DrawFn, *, most_devices: int = 5, most_in_flight: int = 4) -> tuple[PlanningInstance, Plan]:
    """A random instance with a random plan for it, most of them bad ones."""
    device_count = draw(st.integers(1, most_devices))
    layer_count = draw(st.integers(1, 6))
    bytes_ = st.integers(0, 1000)
    answered, waiting = st.sampled_from([None, None, 0]), st.sampled_from([None, 0, 300])
    layers = tuple(
        LayerCosts(
            *(f"layer{index}", draw(bytes_), draw(bytes_), draw(bytes_)),
            answered_bytes=draw(answered),
            waiting_bytes=draw(waiting),
        )
        for index in range(layer_count)
    )
    overheads = draw(st.sampled_from([Overheads(), Overheads(0.01, 0.003, 1e-5, 0.02)]))
    profiles = {
        kind: _profile(draw, layer_count, overheads=overheads) for kind in ("fast", "slow")[: min(2, device_count)]
    }
    speeds = st.sampled_from([200.0, 2_000.0, 50_000.0])
    names = [f"device{place}" for place in range(device_count)]
    source = None
    if draw(st.booleans()):
        source = DataSource(
            tuple(draw(speeds) for _ in names),
            draw(speeds),
            draw(st.integers(0, 20)),
            on_its_machine=tuple(draw(st.booleans()) for _ in names),
        )
    micro_batch, micro_batches = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    last = draw(st.integers(1, micro_batch - 1)) if micro_batch > 1 and draw(st.booleans()) else None
    stages = _stages(draw, names, layer_count, micro_batch=micro_batch, most_in_flight=most_in_flight)
    plan = Plan(
        planner="random",
        micro_batch=micro_batch,
        micro_batches=micro_batches,
        last_micro_batch=last,
        stages=stages,
        schedule=draw(st.sampled_from(sorted(SCHEDULES))),
    )
    instance = PlanningInstance(
        model=ModelCosts(draw(bytes_), layers),
        profiles=profiles,
        devices=tuple(DeviceDescription(name, draw(st.sampled_from(sorted(profiles))), 10**9) for name in names),
        network=Network(draw(st.sampled_from([0.0, 0.05])), tuple(tuple(draw(speeds) for _ in names) for _ in names)),
        training=TrainingSettings(plan.mini_batch, 1.0),
        data_source=source,
    )
    return instance, plan


def _profile(draw: st.DrawFn, layer_count: int, *, overheads: Overheads) -> DeviceProfile:
    seconds = st.floats(0.01, 1.0)
    first = [draw(seconds) for _ in range(layer_count)]
    more = [value + draw(seconds) for value in first]
    rows = (tuple(first), tuple(more))
    twice = tuple(tuple(2 * value for value in row) for row in rows)
    update = tuple(draw(seconds) for _ in range(layer_count)) if draw(st.booleans()) else ()
    weights = tuple(draw(st.sampled_from([0.0, 0.4, 0.6])) for _ in range(layer_count)) if draw(st.booleans()) else ()
    rest = tuple(1.05 - part for part in weights)
    return DeviceProfile((1, 4), rows, twice, update, overheads, rest_parts=rest, weights_parts=weights)


def _stages(
    draw: st.DrawFn, names: Sequence[str], layer_count: int, *, micro_batch: int, most_in_flight: int
) -> tuple[Stage, ...]:
    free = list(draw(st.permutations(names)))
    stage_count = draw(st.integers(1, min(layer_count, len(free))))
    cuts = sorted(draw(st.permutations(range(1, layer_count)))[: stage_count - 1])
    bounds = [0, *cuts, layer_count]
    stages = []
    for index in range(stage_count):
        spare = len(free) - (stage_count - index - 1)
        size = draw(st.integers(1, min(spare, micro_batch)))
        group, free = free[:size], free[size:]
        shares = dict.fromkeys(group, 1)
        for _ in range(micro_batch - size):
            shares[draw(st.sampled_from(group))] += 1
        stages.append(Stage(bounds[index], bounds[index + 1], shares, draw(st.integers(1, most_in_flight))))
    return tuple(stages)
