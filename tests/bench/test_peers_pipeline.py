"""How activations and their gradients lie in memory inside of a stage of 1F1B, and between stages."""

from __future__ import annotations

import torch

from bench.peers.pipeline import LaidOut, filled_up


def test_images_lie_one_way_in_a_stage_and_the_other_between_stages() -> None:
    first = LaidOut(activations=torch.channels_last, gradients=torch.contiguous_format)
    received = torch.randn(2, 3, 4, 5, requires_grad=True)
    sent_back: list[torch.Tensor] = []
    received.register_hook(sent_back.append)  # type: ignore[no-untyped-call]
    inside = first(received)
    assert inside.is_contiguous(memory_format=torch.channels_last)
    inside.backward(torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last))
    assert sent_back[0].is_contiguous()
    last = LaidOut(activations=torch.contiguous_format, gradients=torch.channels_last)
    made = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last).requires_grad_()
    gradients: list[torch.Tensor] = []
    made.register_hook(gradients.append)  # type: ignore[no-untyped-call]
    sent = last(made)
    assert sent.is_contiguous()
    sent.backward(torch.randn(2, 3, 4, 5))
    assert gradients[0].is_contiguous(memory_format=torch.channels_last)


def test_what_is_no_image_is_contiguous() -> None:
    layout = LaidOut(activations=torch.channels_last, gradients=torch.channels_last)
    words = torch.arange(6)
    assert layout(words) is words
    scores = torch.randn(3, 2).T.requires_grad_()
    assert layout(scores).is_contiguous()
    layout(scores).sum().backward()
    assert scores.grad is not None


def test_parts_of_one_size() -> None:
    assert filled_up(torch.arange(10), 4).tolist() == [*range(10), 0, 1]
    assert filled_up(torch.arange(8), 4).tolist() == list(range(8))
