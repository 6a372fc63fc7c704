from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from edgeswarm.model.draws import TURNS
from edgeswarm.model.export import export_model
from edgeswarm.model.stage import StageModule
from edgeswarm_agent.worker import rehearsal
from edgeswarm_agent.worker.backward import run_backward, run_later
from edgeswarm_agent.worker.rehearsal import rehearse


def test_it_draws_in_its_turn() -> None:
    """The feed's thread may be transforming at that time, and has seeded the very generator that dropout draws from."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    graph = export_model(model, (torch.zeros(3, 4),)).layer_graph
    module = StageModule(graph.stage(0, len(graph.layers)), dict(model.named_parameters()))
    peaks: list[int] = []

    def run() -> None:
        peaks.append(rehearse(module, batch=3, in_flight=2, device="nano-1", check_halt=lambda: None))

    beside = threading.Thread(target=run)
    with TURNS.after_others():
        torch.manual_seed(3)
        state = torch.get_rng_state()
        beside.start()
        until = time.monotonic() + 20
        while not TURNS._waiting_first and time.monotonic() < until:
            time.sleep(0.01)
        assert TURNS._waiting_first
        assert torch.equal(state, torch.get_rng_state())
    beside.join()
    assert peaks[0] > 0


@pytest.mark.parametrize(("in_full", "expected"), [(None, "FFFBBBWWW"), (2, "FFBFBBWWW"), (1, "FBFBFBWWW")])
def test_no_more_is_held_in_full_than_the_schedule_holds(in_full: int | None, expected: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 2), nn.GELU())
    graph = export_model(model, (torch.zeros(3, 4),)).layer_graph
    module = StageModule(graph.stage(0, len(graph.layers)), dict(model.named_parameters()))
    done: list[str] = []

    def told(what: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            done.append(what)
            return run(*args, **kwargs)

        return wrapped

    with (
        mock.patch.object(module, "forward", told("F", module.forward)),
        mock.patch.object(rehearsal, "run_backward", told("B", run_backward)),
        mock.patch.object(rehearsal, "run_later", told("W", run_later)),
    ):
        rehearse(
            module,
            batch=3,
            in_flight=3,
            device="nano-1",
            check_halt=lambda: None,
            weights_apart=True,
            in_full=in_full,
        )
    assert "".join(done) == expected


def test_gradients_of_weights_that_wait_are_rehearsed_too() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 2), nn.GELU())
    graph = export_model(model, (torch.zeros(3, 4),)).layer_graph
    module = StageModule(graph.stage(0, len(graph.layers)), dict(model.named_parameters()))
    computed: list[str] = []
    for name, parameter in module.parameters.items():
        parameter.grad = torch.ones_like(parameter)
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: computed.append(name))  # type: ignore[no-untyped-call]
    rehearse(module, batch=3, in_flight=2, device="nano-1", check_halt=lambda: None, weights_apart=True)
    # Once as nothing, in each backward, and once as what they are.
    assert all(computed.count(name) == 4 for name in module.parameters)
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in module.parameters.values())
