"""A planning instance with as many layers as Asteroid's paper counts in EfficientNet-B1: 213, on six devices.

The model's own cuts give 44 layers, since inside a block two tensors are alive. Here every module is a layer of its own: the
rescaling and the normalisation of the images, then

    stem    convolution, batch norm, activation                                            3
    block   [convolution, batch norm, activation] to 6 times the channels, where it widens
            depthwise convolution, batch norm, activation, squeeze-and-excite,
            convolution, batch norm with the addition                                      6, or 9 where it widens
    head    convolution, batch norm, activation, pooling, flattening, dropout, linear      7

2 + 3 + 2 x 6 + 21 x 9 + 7 = 213. Parameters, FLOPs and tensors follow from the architecture, for images of 32 x 32 in 10
classes; inside a block with an addition its input crosses every cut too.

The seconds are no measurement: FLOPs and bytes moved say how a device's time is spread over the layers, and the whole is
scaled to what an epoch of 50 000 images took in the paper (Nano 26.7 min, TX2 11.2 min; an NX is taken to be twice as fast as
a TX2), at 32 images a batch. A batch costs a fixed part of as much as 16 images take, as GPUs are slow with few.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from edgeswarm.model_costs import LayerCosts, ModelCosts
from edgeswarm.profile import DeviceDescription, DeviceProfile, Network, PlanningInstance, TrainingSettings

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
EPOCH_IMAGES, EPOCH_BATCH, FIXED_IMAGES = 50_000, 32, 16
EPOCH_SECONDS = {"nx": 11.2 * 60 / 2, "tx2": 11.2 * 60, "nano": 26.7 * 60}
MEMORY_BYTES = {"nx": 6_000_000_000, "tx2": 6_000_000_000, "nano": 3_000_000_000}
DEVICES = ("nx", "tx2", "tx2", "nano", "nano", "nano")
CLASSES = 10
FLOAT_BYTES = 4
FLOPS_A_BYTE = 10.0  # a byte that moves takes as long as so many FLOPs

# Of each group of blocks: how much wider inside, channels, blocks, stride of the first, side of the depthwise kernel.
BLOCKS = (
    (1, 16, 2, 1, 3),
    (6, 24, 3, 2, 3),
    (6, 40, 3, 2, 5),
    (6, 80, 4, 2, 3),
    (6, 112, 4, 1, 5),
    (6, 192, 5, 2, 5),
    (6, 320, 2, 1, 3),
)
STEM, HEAD = 32, 1280


@dataclass(frozen=True)
class Module:
    """One module on one image. inputs, outputs: numbers in its tensors. kept: in a tensor that only passes by."""

    name: str
    parameters: int
    flops: float
    inputs: int
    outputs: int
    kept: int = 0


def efficientnet_instance(*, mini_batch: int = 2048, mbps: float = 100.0) -> PlanningInstance:
    """The instance; mbps: of every link."""
    found = list(modules())
    return PlanningInstance(
        model=ModelCosts(
            input_bytes=FLOAT_BYTES * found[0].inputs,
            layers=tuple(
                LayerCosts(
                    module.name,
                    param_bytes=FLOAT_BYTES * module.parameters,
                    output_bytes=FLOAT_BYTES * (module.outputs + module.kept),
                    saved_bytes=FLOAT_BYTES * module.inputs,
                    flops_forward=module.flops,
                    flops_backward=2 * module.flops,
                )
                for module in found
            ),
        ),
        profiles={kind: _profile(found, seconds) for kind, seconds in EPOCH_SECONDS.items()},
        devices=tuple(
            DeviceDescription(f"{kind}{DEVICES[:place].count(kind) + 1}", kind, MEMORY_BYTES[kind])
            for place, kind in enumerate(DEVICES)
        ),
        network=Network.uniform(len(DEVICES), bytes_per_second=mbps * 125_000, latency_seconds=1e-3),
        training=TrainingSettings(mini_batch, optimizer_state_bytes_per_parameter_byte=1.0),
        name=f"efficientnet-b1 in {len(found)} layers",
    )


def modules(side: int = 32) -> Iterator[Module]:
    """All 213 of them, in order, for images of side x side."""
    image = 3 * side * side
    yield Module("rescaling", 0, image, image, image)
    yield Module("normalisation", 0, 2 * image, image, image)
    channels, side = STEM, side // 2
    yield from _convolved("stem", 3, channels, side, kernel=3, taken=image)
    number = 0
    for wider, out, count, stride, kernel in BLOCKS:
        for repeat in range(count):
            step = stride if repeat == 0 else 1
            yield from _block(f"block{number}", channels, out, side, wider=wider, stride=step, kernel=kernel)
            channels, side = out, side // step
            number += 1
    yield from _convolved("head", channels, HEAD, side, kernel=1, taken=channels * side * side)
    yield Module("head.pool", 0, HEAD * side * side, HEAD * side * side, HEAD)
    yield Module("head.flatten", 0, 0, HEAD, HEAD)
    yield Module("head.dropout", 0, HEAD, HEAD, HEAD)
    yield Module("head.linear", (HEAD + 1) * CLASSES, 2 * HEAD * CLASSES, HEAD, CLASSES)


def _block(name: str, channels: int, out: int, side: int, *, wider: int, stride: int, kernel: int) -> Iterator[Module]:
    """A mobile inverted bottleneck; where it keeps channels and side, its input is added to what comes out."""
    entry = channels * side * side
    kept = entry if channels == out and stride == 1 else 0
    inner = wider * channels
    if wider > 1:
        yield from _convolved(f"{name}.expand", channels, inner, side, kernel=1, taken=entry, kept=kept)
    before, side = inner * side * side, side // stride
    size = inner * side * side
    depthwise = 2 * kernel**2 * size
    yield Module(f"{name}.depthwise", kernel**2 * inner, depthwise, before, size, kept)
    yield Module(f"{name}.depthwise.norm", 2 * inner, 4 * size, size, size, kept)
    yield Module(f"{name}.depthwise.activation", 0, 4 * size, size, size, kept)
    squeezed = max(1, channels // 4)
    weights = 2 * inner * squeezed
    yield Module(f"{name}.excite", weights + inner + squeezed, 2 * weights + 2 * size, size, size, kept)
    narrow = out * side * side
    yield Module(f"{name}.project", inner * out, 2 * inner * narrow, size, narrow, kept)
    yield Module(f"{name}.project.norm", 2 * out, 5 * narrow, narrow, narrow)


def _convolved(
    name: str, channels: int, out: int, side: int, *, kernel: int, taken: int, kept: int = 0
) -> Iterator[Module]:
    """Convolution, batch norm, activation; side: of what comes out. taken: numbers that go in."""
    size = out * side * side
    weights = kernel**2 * channels * out
    yield Module(name, weights, 2 * weights * side * side, taken, size, kept)
    yield Module(f"{name}.norm", 2 * out, 4 * size, size, size, kept)
    yield Module(f"{name}.activation", 0, 4 * size, size, size, kept)


def _profile(found: list[Module], epoch_seconds: float) -> DeviceProfile:
    work = [module.flops + FLOPS_A_BYTE * FLOAT_BYTES * (module.inputs + module.outputs) for module in found]
    batch_seconds = epoch_seconds / EPOCH_IMAGES * EPOCH_BATCH
    unit = batch_seconds / (FIXED_IMAGES + EPOCH_BATCH) / sum(work) / 3  # forward once, backward twice that
    forward = tuple(tuple(unit * part * (FIXED_IMAGES + size) for part in work) for size in SIZES)
    backward = tuple(tuple(2 * seconds for seconds in row) for row in forward)
    return DeviceProfile(SIZES, forward, backward)
