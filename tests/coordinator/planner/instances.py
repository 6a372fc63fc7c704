"""Small planning instances for the planner's tests, by hand and by hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from edgeswarm.model_costs import LayerCosts, ModelCosts, TiedCosts
from edgeswarm.profile import (
    DataSource,
    DeviceDescription,
    DeviceProfile,
    Network,
    Overheads,
    PlanningInstance,
    TrainingSettings,
)

PLENTY = 10**15


def linear_profile(layer_seconds: Sequence[float], *, slower: float = 1.0) -> DeviceProfile:
    """Times in proportion to the batch: forward as given per sample, backward twice that."""
    forward = tuple(seconds * slower for seconds in layer_seconds)
    return DeviceProfile((1,), (forward,), (tuple(2 * seconds for seconds in forward),))


def with_rest(instance: PlanningInstance, samples: int) -> PlanningInstance:
    """The same where the last mini-batch of an epoch has so many."""
    return replace(instance, training=replace(instance.training, rest=samples))


def with_weights_apart(instance: PlanningInstance, weights: float, *, rest: float | None = None) -> PlanningInstance:
    """The same where it is known what every backward takes with gradients of weights apart, in parts of it; rest: by default
    what is left of one.
    """
    layers = instance.model.layer_count
    of_rest = 1 - weights if rest is None else rest
    profiles = {
        kind: replace(profile, rest_parts=(of_rest,) * layers, weights_parts=(weights,) * layers)
        for kind, profile in instance.profiles.items()
    }
    return replace(instance, profiles=profiles)


def make_instance(
    layer_seconds: Sequence[float] = (1.0, 1.0, 1.0, 1.0),
    slower: Sequence[float] = (1.0, 1.0),
    memory_bytes: Sequence[int] | None = None,
    *,
    param_bytes: int = 100,
    output_bytes: int = 10,
    saved_bytes: int = 50,
    least_batch: int = 1,
    bandwidth: float = 1e9,
    latency: float = 0.0,
    mini_batch: int = 16,
    optimizer_state: float = 1.0,
) -> PlanningInstance:
    """Devices a, b, c, ... of classes of their own; every layer has the same bytes."""
    names = [chr(ord("a") + place) for place in range(len(slower))]
    memory = memory_bytes or [PLENTY - place for place in range(len(slower))]
    return PlanningInstance(
        model=ModelCosts(
            output_bytes,
            tuple(
                LayerCosts(f"layer{index}", param_bytes, output_bytes, saved_bytes, least_batch=least_batch)
                for index in range(len(layer_seconds))
            ),
        ),
        profiles={
            f"class-{name}": linear_profile(layer_seconds, slower=factor)
            for name, factor in zip(names, slower, strict=True)
        },
        devices=tuple(
            DeviceDescription(name, f"class-{name}", budget) for name, budget in zip(names, memory, strict=True)
        ),
        network=Network.uniform(len(names), bytes_per_second=bandwidth, latency_seconds=latency),
        training=TrainingSettings(mini_batch, optimizer_state),
        name="by hand",
    )


@st.composite
def instances(
    draw: st.DrawFn, *, most_layers: int = 5, most_devices: int = 4, uniform_links: bool = True
) -> PlanningInstance:
    """Random ones with curves that are no lines, memory that is tight now and then, and slow and fast links."""
    layer_count = draw(st.integers(1, most_layers))
    device_count = draw(st.integers(1, most_devices))
    bytes_ = st.integers(0, 1000)
    layers = tuple(
        LayerCosts(f"layer{index}", draw(bytes_), draw(bytes_), draw(bytes_)) for index in range(layer_count)
    )
    seconds = st.floats(0.01, 1.0)
    profiles = {}
    for name in ("fast", "slow"):
        first = [draw(seconds) for _ in range(layer_count)]
        more = [value + draw(seconds) for value in first]
        rows = (tuple(first), tuple(more))
        profiles[name] = DeviceProfile((1, 4), rows, tuple(tuple(2 * value for value in row) for row in rows))
    memory = st.sampled_from([1_500, 4_000, 12_000, 60_000])
    devices = tuple(
        DeviceDescription(f"device{place}", draw(st.sampled_from(["fast", "slow"])), draw(memory) + place)
        for place in range(device_count)
    )
    speed = st.sampled_from([200.0, 2_000.0, 50_000.0])
    if uniform_links:
        network = Network.uniform(
            device_count, bytes_per_second=draw(speed), latency_seconds=draw(st.sampled_from([0.0, 0.1]))
        )
    else:
        network = Network(0.0, tuple(tuple(draw(speed) for _ in range(device_count)) for _ in range(device_count)))
    return PlanningInstance(
        model=ModelCosts(100, layers),
        profiles=profiles,
        devices=devices,
        network=network,
        training=TrainingSettings(draw(st.sampled_from([4, 6, 8])), draw(st.sampled_from([0.0, 2.0]))),
    )


@st.composite
def whole_instances(draw: st.DrawFn) -> PlanningInstance:
    """Likewise, with all that real ones have beside: what a process holds, links and frames, overheads, a data source."""
    plain = draw(instances(uniform_links=False))
    some = st.sampled_from([0, 0, 100, 400])
    overheads = Overheads(
        action_seconds=draw(st.sampled_from([0.0, 0.1])), byte_seconds=draw(st.sampled_from([0.0, 1e-4]))
    )
    speeds = st.sampled_from([200.0, 2_000.0, 50_000.0])
    source = DataSource(
        tuple(draw(speeds) for _ in plain.devices),
        egress=draw(speeds),
        label_bytes=draw(some),
        input_bytes=draw(st.sampled_from([None, 25, 400])),
        on_its_machine=tuple(draw(st.sampled_from([False, False, True])) for _ in plain.devices),
        joint_bytes=draw(st.sampled_from([None, 400])),
        epochs=draw(st.sampled_from([1, 1, 3])),
    )
    # Frozen layers: their gradients are none, and what crosses a cut before any that are trained has none either.
    nothing = st.sampled_from([None, None, 0])
    layers = tuple(
        replace(layer, trained_bytes=draw(nothing), answered_bytes=draw(nothing), kernel_bytes=draw(some))
        for layer in plain.model.layers
    )
    return replace(
        plain,
        model=replace(plain.model, layers=layers, tied=draw(tied_parameters(layers))),
        profiles={name: replace(profile, overheads=overheads) for name, profile in plain.profiles.items()},
        devices=tuple(replace(device, base_bytes=draw(some)) for device in plain.devices),
        training=replace(
            plain.training, frames_held=draw(st.integers(0, 2)), peer_bytes=draw(some), reduce_bytes=draw(some)
        ),
        data_source=source if draw(st.booleans()) else None,
    )


@st.composite
def tied_parameters(draw: st.DrawFn, layers: Sequence[LayerCosts]) -> tuple[TiedCosts, ...]:
    """Of no more bytes than each of their layers has; none mostly."""
    if len(layers) < 2 or not draw(st.booleans()):
        return ()
    places = sorted(draw(st.permutations(range(len(layers))))[: draw(st.integers(2, len(layers)))])
    size = min(layers[place].param_bytes for place in places)
    trained = all(layers[place].trained_bytes is None for place in places)
    return (TiedCosts(tuple(places), size, size if trained else 0),)
