from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import pytest
import torch
from torch import nn

from edgeswarm_agent.worker.backward import edges_of, run_backward


def outputs_of(model: nn.Module, inputs: torch.Tensor) -> list[torch.Tensor]:
    hidden = model(inputs)
    return [hidden, hidden.square().mean()]


def test_gradients_are_those_of_torch_and_add_up() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    twin = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    twin.load_state_dict(model.state_dict())
    for _ in range(2):
        inputs = torch.randn(5, 4)
        given = [torch.randn(5, 3), None]
        run_backward(outputs_of(model, inputs), given)
        torch.autograd.backward(outputs_of(twin, inputs), given)
    for parameter, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert parameter.grad is not None
        assert other.grad is not None
        assert torch.equal(parameter.grad, other.grad)


def test_a_backward_needs_of_the_outputs_their_place_alone() -> None:
    torch.manual_seed(0)
    weight, inputs = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    gradients = [torch.randn(5, 4), torch.randn(5, 3), torch.randn(5, 3)]

    def forward() -> list[torch.Tensor]:
        hidden = (inputs @ weight.T).tanh()
        # One that goes through unchanged, one that another needs for its own backward, and one that nobody needs.
        return [inputs, hidden, hidden.square() + 1.0]

    torch.autograd.backward(forward(), gradients)
    wanted = [tensor.grad for tensor in (weight, inputs)]
    weight.grad = inputs.grad = None
    outputs = forward()
    last = weakref.ref(outputs[2])
    edges = edges_of(outputs)
    del outputs
    gc.collect()
    assert last() is None
    run_backward([edge for edge in edges if edge is not None], gradients)
    for tensor, gradient in zip((weight, inputs), wanted, strict=True):
        assert tensor.grad is not None
        assert gradient is not None
        assert torch.equal(tensor.grad, gradient)
    assert edges_of([inputs.detach()]) == [None]


def test_a_gradient_of_another_shape_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"\[5, 2\].*\[5, 3\]"):
        run_backward([nn.Linear(4, 3)(torch.randn(5, 4))], [torch.randn(5, 2)])
    (edge,) = edges_of([nn.Linear(4, 3)(torch.randn(5, 4))])
    assert edge is not None
    with pytest.raises(RuntimeError, match=r"\[5, 2\].*\[5, 3\]"):
        run_backward([edge], [torch.randn(5, 2)])


@pytest.mark.thorough
def test_nothing_of_what_torch_loads_for_symbolic_shapes_is_loaded() -> None:
    code = """
import sys, torch
from edgeswarm_agent.worker.backward import run_backward
weight = torch.ones(3, 2, requires_grad=True)
run_backward([torch.ones(4, 2) @ weight.T], [torch.ones(4, 3)])
print(weight.grad.tolist(), [name for name in sys.modules if name in ("sympy", "torch.fx.experimental.symbolic_shapes")])
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout == "[[4.0, 4.0], [4.0, 4.0], [4.0, 4.0]] []\n", ended.stderr
