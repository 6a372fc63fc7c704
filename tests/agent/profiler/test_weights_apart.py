"""What a backward takes in two parts. Nothing here looks at how long something takes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from edgeswarm.model.export import export_model
from edgeswarm.model.probe import random_inputs_for, random_tensors
from edgeswarm.model.stage import StageModule
from edgeswarm_agent.profiler.layer_timing import time_layer
from edgeswarm_agent.profiler.profile import curve_of
from edgeswarm_agent.profiler.weights_apart import Apart, measure_apart, size_for_apart

IMAGES = torch.zeros(4, 8, 12, 12)


def no_halt() -> None:
    pass


class ConvolvedAndNormed(nn.Module):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.block(images)
        return found


def stage_of(model: nn.Module) -> StageModule:
    graph = export_model(model, (IMAGES,)).layer_graph
    stage = graph.stage(0, len(graph.layers))
    return StageModule(stage, random_tensors(stage, seed=0, device="cpu"))


def apart_of(model: nn.Module) -> Apart:
    module = stage_of(model)
    return measure_apart(module, 4, random_inputs_for(module, 4, seed=0), check_halt=no_halt)


def test_a_convolution_has_both_parts() -> None:
    found = apart_of(nn.Sequential(nn.Conv2d(8, 32, 3), nn.BatchNorm2d(32), nn.ReLU()))
    assert found.rest > 0
    assert found.weights > 0
    assert 1.0 - 1e-9 <= found.rest + found.weights <= 1.5 + 1e-9


def test_without_weights_that_can_wait_all_is_rest() -> None:
    assert apart_of(nn.Sequential(nn.BatchNorm2d(8), nn.ReLU())) == Apart(1.0, 0.0)
    frozen = nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8))
    frozen[0].requires_grad_(False)
    assert apart_of(frozen) == Apart(1.0, 0.0)


def test_gradients_are_summed_up_as_ever_and_a_halt_goes_through() -> None:
    class Halted(Exception):
        pass

    def halt() -> None:
        raise Halted

    module = stage_of(nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)))
    inputs = random_inputs_for(module, 4, seed=0)
    measure_apart(module, 4, inputs, check_halt=no_halt)
    assert all(parameter.grad is not None for parameter in module.parameters.values())
    assert all(tensor.grad is None for tensor in inputs)
    with pytest.raises(Halted):
        measure_apart(module, 4, inputs, check_halt=halt)


def test_it_is_measured_at_about_what_a_micro_batch_has() -> None:
    assert size_for_apart([1, 4, 16, 64]) == 16
    assert size_for_apart([1, 2, 4]) == 4
    assert size_for_apart([64, 256]) == 64
    assert size_for_apart([]) is None


def test_a_curve_tells_it_where_it_was_asked_for() -> None:
    graph = export_model(ConvolvedAndNormed(), (IMAGES,)).layer_graph
    for asked in (True, False):
        timings = time_layer(
            graph.stage(0, 1),
            [1, 4],
            longest_seconds=0.0,
            memory_budget=1 << 40,
            slow_down=1.0,
            check_halt=no_halt,
            apart=asked,
        )
        assert [timing.apart is not None for timing in timings] == [False, asked]
        curve = curve_of("conv", timings)
        assert (curve.weights_part > 0) == (curve.rest_part > 0) == asked
