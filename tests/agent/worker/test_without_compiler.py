"""In processes of their own: what is imported once stays."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.thorough

PREPARE = """
import sys
import torch
from edgeswarm_agent.worker.without_compiler import leave_out_compiler

leave_out_compiler()
"""
STEPS = """
parameter = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.{optimizer}
parameter.grad = torch.full((3,), 0.5)
for _ in range(3):
    optimizer.step()
optimizer.load_state_dict(optimizer.state_dict())
optimizer.zero_grad()
print(parameter.tolist())
"""


def run(code: str) -> str:
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param("SGD([parameter], lr=0.1, momentum=0.9)", marks=pytest.mark.soak, id="sgd"),
        pytest.param("AdamW([parameter], lr=0.1)", id="adamw"),
    ],
)
def test_steps_are_the_same_and_load_no_compiler(optimizer: str) -> None:
    steps = STEPS.format(optimizer=optimizer)
    modules = "print([m for m in sys.modules if m.startswith(('torch._dynamo.', 'torch._inductor', 'sympy'))])\n"
    with_it, without = run("import torch\n" + steps), run(PREPARE + steps + modules)
    assert without == with_it + "[]\n"


def test_whoever_compiles_gets_the_real_one() -> None:
    code = """
double = torch.compile(lambda values: values * 2, backend="eager")
print(double(torch.ones(2)).tolist(), "torch._dynamo.eval_frame" in sys.modules, "eval_frame" in vars(torch._dynamo))
"""
    assert run(PREPARE + code) == "[2.0, 2.0] True True\n"
