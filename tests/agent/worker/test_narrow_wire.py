"""A job whose activations and gradients travel narrowed, over real streams."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from edgeswarm.job import Job
from edgeswarm.model.export import export_model
from edgeswarm.plan import Stage

from .lan import Lan
from .stage_run import StageRun, layer_states

pytestmark = pytest.mark.thorough

A, B, C, D, E = (f"{name}-00000{number}" for number, name in enumerate("abcde"))


class Data:
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        self.inputs = torch.randn(40, 6, generator=generator)
        self.targets = torch.randn(40, 2, generator=generator)

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.targets[index]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))


def job(wire_dtype: str | None) -> Job:
    return Job(
        model=model,
        dataset=Data,
        loss=functional.mse_loss,
        optimizer=lambda named: torch.optim.SGD([parameter for _, parameter in named], lr=0.1, momentum=0.9),
        batch_size=8,
        epochs=4,
        wire_dtype=wire_dtype,
        data="local",
    )


def trained(folder: Path, wire_dtype: str | None) -> tuple[dict[str, dict[str, Tensor]], int]:
    """Each replica's parameters, and the bytes that all of them sent."""
    shares = [{A: 2, B: 2}, {C: 2, D: 1, E: 1}]
    graph = export_model(model(), (torch.zeros(4, 6),)).layer_graph
    stages = [Stage(0, 1, shares[0], 2), Stage(1, len(graph.layers), shares[1], 1)]
    with Lan(folder, [A, B, C, D, E]) as lan:
        lan.connect()
        run = StageRun(lan, job(wire_dtype), graph, stages, layer_states(graph, model()))
        lan.at_once(run.train)
        found = {
            name: {key: parameter.detach() for key, parameter in compute.module.parameters.items()}
            for name, compute in run.computes.items()
        }
        sent = sum(end.egress.sent_bytes for end in lan.ends.values())
        run.close()
    return found, sent


@pytest.mark.parametrize(("wire_dtype", "error"), [("float16", 4e-3), ("bfloat16", 3e-2)])
def test_replicas_stay_the_same_and_the_weights_are_near_those_of_a_wide_wire(
    tmp_path: Path, wire_dtype: str, error: float
) -> None:
    wide, wide_bytes = trained(tmp_path / "wide", None)
    narrow, narrow_bytes = trained(tmp_path / "narrow", wire_dtype)
    assert narrow_bytes < 0.75 * wide_bytes  # headers, statistics and losses are as wide as ever
    for replica, other in ((A, B), (C, D), (C, E)):
        for name, parameter in narrow[replica].items():
            assert torch.equal(parameter, narrow[other][name]), name
    for replica, parameters in narrow.items():
        for name, parameter in parameters.items():
            assert not torch.equal(parameter, wide[replica][name])
            assert float((parameter - wide[replica][name]).norm() / wide[replica][name].norm()) < error, name
