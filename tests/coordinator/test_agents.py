from __future__ import annotations

import dataclasses

from edgeswarm.wire.v1 import agent_pb2
from edgeswarm_coordinator.agents import device_of

CLIPBOARD = "\x1b]52;c;cm0gLXJm\x07"


def test_what_a_device_says_of_itself_moves_no_terminal() -> None:
    said = agent_pb2.DeviceDescription(
        version=CLIPBOARD,
        board=f"Jetson Nano {CLIPBOARD}",
        platform=CLIPBOARD,
        hardware={CLIPBOARD: CLIPBOARD},
        hardware_key=CLIPBOARD,
        torch_version=CLIPBOARD,
        accelerator=CLIPBOARD,
        busy_with_job=CLIPBOARD,
        busy_since=CLIPBOARD,
    )
    device = device_of(said, node_id="nano-1-0000aa", address="192.168.1.20:7600", asked_at=0.0)
    assert device.board.startswith("Jetson Nano ")
    texts = [text for text in dataclasses.asdict(device).values() if isinstance(text, str)]
    assert len(texts) == 10
    assert all(text.isprintable() for text in (*texts, *device.hardware, *device.hardware.values()))
