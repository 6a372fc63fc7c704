"""Random small planning instances: what a comparison with the exhaustive optimum is made on.

2 to 8 layers, 2 to 4 devices of one to three classes, mini-batches of 4 to 32 samples. A seed and a number give the same
instance always. What varies:

- curves: a fixed part, a part for each sample, and a bend where a batch fills the device; what a layer takes differs by
  class by up to 30 per cent beside the class's speed; the backward takes 1 to 3 times the forward; noise of a few per
  cent, so that a curve may fall here and there
- links: slow, medium, fast: 50 times as fast as slow; one in
  three instances has two rooms or links of two speeds, each direction its own
- memory: plenty; so that the largest device just holds the model; or so that it takes about half of all devices
- a data source in one of three, an optimizer's step and overheads in half of them
"""

from __future__ import annotations

import math
import random

from edgeswarm.model_costs import LayerCosts, ModelCosts
from edgeswarm.profile import (
    DataSource,
    DeviceDescription,
    DeviceProfile,
    Network,
    Overheads,
    PlanningInstance,
    TrainingSettings,
)

SIZES = (1, 2, 4, 8, 16, 32)
SPEEDS = {"slow": 0.2, "medium": 1.0, "fast": 10.0}


def random_instance(
    seed: int,
    number: int,
    *,
    most_layers: int = 8,
    most_devices: int = 4,
    most_mini_batch: int = 32,
) -> PlanningInstance:
    """The instance of that number; its name says what it is like."""
    chance = random.Random(f"{seed}/{number}")
    layers = chance.randint(2, most_layers)
    devices = chance.randint(2, most_devices)
    mini_batch = chance.choice([size for size in (4, 6, 8, 12, 16, 24, 32) if size <= most_mini_batch])
    model = _model(chance, layers)
    kinds = {f"class{index}": chance.choice([1.0, 1.5, 2.5, 4.0]) for index in range(chance.randint(1, 3))}
    per_sample = [chance.uniform(0.2, 1.0) for _ in range(layers)]
    with_overheads = chance.random() < 0.5
    profiles = {
        kind: _profile(chance, per_sample, slower=slower, with_overheads=with_overheads)
        for kind, slower in kinds.items()
    }
    speed = chance.choice(list(SPEEDS))
    tightness = chance.choice(["plenty", "just", "tight"])
    classes = [chance.choice(list(kinds)) for _ in range(devices)]
    memory = _memory(chance, model, tightness, devices=devices, mini_batch=mini_batch)
    # A sample's activations over this take about as long as a layer's forward, at medium speed.
    rate = 100 / 0.6 * SPEEDS[speed]
    links = chance.choice(["alike", "alike", "uneven"])
    source = None
    if chance.random() < 1 / 3:
        to_devices = rate * chance.choice([0.5, 1.0, 2.0])
        source = DataSource((to_devices,) * devices, to_devices, label_bytes=chance.choice([0, 8]))
    return PlanningInstance(
        model=model,
        profiles=profiles,
        devices=tuple(DeviceDescription(f"device{place}", kind, memory[place]) for place, kind in enumerate(classes)),
        network=_network(chance, devices, rate, links=links),
        training=TrainingSettings(mini_batch, chance.choice([0.0, 1.0, 2.0])),
        name=f"{seed}/{number}: {layers} layers, {devices} devices, {speed} {links} links, {tightness} memory",
        data_source=source,
    )


def _model(chance: random.Random, layers: int) -> ModelCosts:
    return ModelCosts(
        chance.choice([10, 50, 100]),
        tuple(
            LayerCosts(
                f"layer{index}",
                param_bytes=chance.choice([0, 50, 200, 1000]),
                output_bytes=chance.choice([10, 50, 100, 400]),
                saved_bytes=chance.choice([20, 100, 300]),
            )
            for index in range(layers)
        ),
    )


def _profile(chance: random.Random, per_sample: list[float], *, slower: float, with_overheads: bool) -> DeviceProfile:
    fixed = chance.choice([0.0, 0.5, 2.0])
    bend = chance.choice([2, 4, 16])
    per_sample = [seconds * chance.uniform(0.7, 1.3) for seconds in per_sample]
    ratio = chance.uniform(1.0, 3.0)
    forward = []
    for size in SIZES:
        # Up to the bend samples fill the device and cost a third; behind it each costs its full time.
        work = min(size, bend) / 3 + max(0, size - bend)
        forward.append(tuple(slower * (fixed + work) * seconds * chance.uniform(0.97, 1.03) for seconds in per_sample))
    backward = [tuple(ratio * seconds for seconds in row) for row in forward]
    if not with_overheads:
        return DeviceProfile(SIZES, tuple(forward), tuple(backward))
    return DeviceProfile(
        SIZES,
        tuple(forward),
        tuple(backward),
        update_seconds=tuple(slower * chance.uniform(0.0, 0.3) for _ in per_sample),
        overheads=Overheads(action_seconds=0.02 * slower, frame_seconds=0.01 * slower, byte_seconds=1e-5 * slower),
    )


def _memory(chance: random.Random, model: ModelCosts, tightness: str, *, devices: int, mini_batch: int) -> list[int]:
    """Bytes of each device."""
    layers = model.layer_count
    smallest = 4 * model.param_bytes(0, layers) + model.saved_bytes(0, layers)
    if tightness == "plenty":
        return [math.ceil(100 * smallest * mini_batch * chance.uniform(1.0, 2.0)) for _ in range(devices)]
    whole = smallest if tightness == "just" else math.ceil(2 * smallest / devices) + 500
    return [math.ceil(whole * chance.choice([1.0, 1.5, 2.0])) for _ in range(devices)]


def _network(chance: random.Random, devices: int, rate: float, *, links: str) -> Network:
    latency = chance.choice([0.0, 0.01, 0.1])
    if links == "alike":
        return Network.uniform(devices, bytes_per_second=rate, latency_seconds=latency)
    if chance.random() < 0.5:
        rows = [[rate if a % 2 == b % 2 else rate / 10 for b in range(devices)] for a in range(devices)]
    else:
        rows = [[rate * chance.choice([0.3, 1.0]) for _ in range(devices)] for _ in range(devices)]
    for place, row in enumerate(rows):
        row[place] = rows[0][1]  # isn't read
    return Network(latency, tuple(map(tuple, rows)))
