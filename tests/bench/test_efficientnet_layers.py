"""The instance is EfficientNet-B1 indeed: its layers, parameters and tensors, and the paper's seconds."""

from __future__ import annotations

import itertools

import pytest

from bench.efficientnet_layers import EPOCH_IMAGES, EPOCH_SECONDS, efficientnet_instance, modules


def test_layers_and_parameters_are_those_of_the_model() -> None:
    found = list(modules())
    assert len(found) == 213
    # As published, 7 794 184 with 1000 classes, less the linear layer's rows for 990 of them.
    assert sum(module.parameters for module in found) == 7_794_184 - 990 * 1281
    assert len({module.name for module in found}) == len(found)


def test_each_module_takes_what_the_one_before_gives() -> None:
    found = list(modules())
    assert all(before.outputs == after.inputs for before, after in itertools.pairwise(found))
    assert found[-1].outputs == 10


def test_inside_a_block_with_an_addition_its_input_goes_along() -> None:
    layers = {layer.name: layer for layer in efficientnet_instance().model.layers}
    # Block 3, the second of 24 channels, on 8 x 8: 144 channels inside, and the 24 beside them.
    assert layers["block3.expand"].output_bytes == 4 * 64 * (144 + 24)
    assert layers["block3.project.norm"].output_bytes == 4 * 64 * 24
    assert layers["block2.project.norm"].output_bytes == 4 * 64 * 24
    assert layers["block2.excite"].output_bytes == 4 * 64 * 96  # it makes 24 channels of 16: nothing to add


@pytest.mark.parametrize("kind", ["nx", "tx2", "nano"])
def test_an_epoch_takes_as_long_as_it_is_scaled_to(kind: str) -> None:
    profile = efficientnet_instance().profiles[kind]
    batch = profile.forward(32, 0, 213) + profile.backward(32, 0, 213)
    assert batch * EPOCH_IMAGES / 32 == pytest.approx(EPOCH_SECONDS[kind])
    single = profile.forward(1, 0, 213) + profile.backward(1, 0, 213)
    assert single > batch / 4, "few images are dear"
