"""Which card a worker may use, and whose memory is the limit."""

from __future__ import annotations

import pytest
import torch

from edgeswarm_agent.telemetry.card import chosen_card, read_card, read_training_memory, scarcer
from edgeswarm_agent.telemetry.hardware import read_hardware
from edgeswarm_agent.telemetry.memory import Memory, read_memory
from tests.card_here import needs_card

GIBIBYTE = 2**30


@pytest.mark.parametrize(
    ("visible", "chosen"),
    [
        (None, "0"),
        ("", None),
        ("-1", None),
        ("none", None),
        ("1", "1"),
        (" 2 , 0", "2"),
        ("GPU-8932f937,1", "GPU-8932f937"),
        ("MIG-1b2c", "MIG-1b2c"),
    ],
)
def test_the_card_is_the_first_that_may_be_seen(visible: str | None, chosen: str | None) -> None:
    assert chosen_card({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) == chosen


def test_without_a_card_to_see_there_is_none() -> None:
    assert read_card({"CUDA_VISIBLE_DEVICES": ""}) is None


def test_the_memory_is_that_of_the_scarcer_one() -> None:
    device, small_card = Memory(16 * GIBIBYTE, 12 * GIBIBYTE), Memory(8 * GIBIBYTE, 7 * GIBIBYTE)
    assert scarcer(device, small_card) == small_card
    assert scarcer(device, Memory(24 * GIBIBYTE, 23 * GIBIBYTE)) == device
    assert scarcer(device, None) == device


def test_on_the_processor_it_is_the_devices() -> None:
    assert read_training_memory("cpu").total == read_memory().total


class TestWithACard:
    pytestmark = needs_card

    def test_it_is_the_one_that_torch_sees(self) -> None:
        card = read_card()
        assert card is not None
        properties = torch.cuda.get_device_properties(0)
        assert card.name == properties.name
        assert card.memory is not None
        # The driver keeps some for itself.
        assert 0.95 * card.memory.total <= properties.total_memory <= card.memory.total

    def test_by_its_identity_it_is_the_same(self) -> None:
        identity = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
        assert read_card({"CUDA_VISIBLE_DEVICES": identity[:12]}) == read_card({"CUDA_VISIBLE_DEVICES": "0"})

    def test_a_profile_holds_for_this_card(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with_card = read_hardware()
        assert with_card.values["card"] == torch.cuda.get_device_name(0)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        without = read_hardware()
        assert without.accelerator == "cpu"
        assert "card" not in without.values
        assert without.key != with_card.key
