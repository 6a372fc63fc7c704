from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from edgeswarm.model import draws
from edgeswarm.model import stage as stage_module
from edgeswarm.model.draws import DrawKey, SeededCalls, Turns, WatchedGenerator, drawing_from, restored_generators
from edgeswarm.model.export import export_model
from edgeswarm.model.stage import StageModule
from edgeswarm.model.stage_graph import StageGraph

from .pipeline import all_tensors


def draw_of_each() -> list[float]:
    return [float(torch.rand(())), random.random(), float(np.random.rand()), float(np.random.randn())]


def seeded(seed: int) -> list[float]:
    with drawing_from(torch.Generator().manual_seed(seed)):
        return draw_of_each()


def test_the_processs_generators_draw_from_the_seed_alone_and_go_on_as_before() -> None:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    np.random.randn()  # a second normal number is kept for the next call
    torch_state, python_state, numpy_state = torch.get_rng_state(), random.getstate(), np.random.get_state()
    with restored_generators():
        first = [seeded(seed) for seed in (7, 8, 7)]
        draw_of_each()
        assert seeded(8) == first[1]
    assert first[0] == first[2]
    assert not set(first[0]) & set(first[1])
    assert not torch.equal(torch_state, torch.get_rng_state())  # what was drawn between two transforms counts
    torch.set_rng_state(torch_state)
    with restored_generators():
        seeded(9)
    assert torch.equal(torch_state, torch.get_rng_state())
    assert python_state == random.getstate()
    assert all(np.array_equal(one, other) for one, other in zip(numpy_state, np.random.get_state(), strict=True))


def test_the_generator_itself_draws_other_numbers_and_is_left_alone() -> None:
    generator = torch.Generator().manual_seed(7)
    before = generator.get_state()
    with restored_generators(), drawing_from(generator):
        drawn = torch.rand(8)
    assert torch.equal(before, generator.get_state())
    assert not bool(torch.isclose(drawn, torch.rand(8, generator=generator)).any())


@pytest.mark.parametrize(
    ("draw", "told"),
    [
        (lambda _: None, False),
        (lambda _: float(torch.zeros(3).sum()), False),
        (lambda _: torch.rand(()), True),
        (lambda _: random.random(), True),
        (lambda _: random.seed(1), True),
        (lambda _: np.random.rand(), True),
        (lambda _: np.random.randn(), True),
        (lambda generator: torch.rand((), generator=generator), True),
        (lambda generator: generator.manual_seed(4), True),
        (lambda generator: generator.initial_seed(), True),
        (lambda generator: generator.get_state(), True),
    ],
)
def test_it_tells_whether_anything_was_drawn(draw: Callable[[torch.Generator], Any], told: bool) -> None:
    state = torch.get_rng_state(), random.getstate()
    for seed in range(3):
        generator = WatchedGenerator().manual_seed(seed)
        with restored_generators(), drawing_from(generator) as drew:
            draw(generator)
            assert drew() is told
    assert torch.equal(state[0], torch.get_rng_state())
    assert state[1] == random.getstate()


def test_an_error_inside_restores_all_the_same() -> None:
    state = torch.get_rng_state()

    def fail() -> None:
        with restored_generators(), drawing_from(torch.Generator().manual_seed(3)):
            torch.rand(3)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert torch.equal(state, torch.get_rng_state())
    seeded(4)  # the turn was given back


def test_two_that_draw_at_once_restore_what_was_there_before_both() -> None:
    state = random.getstate()
    first, second = restored_generators(), restored_generators()
    first.__enter__()
    seeded(1)
    second.__enter__()
    first.__exit__(None, None, None)
    seeded(2)
    second.__exit__(None, None, None)
    assert random.getstate() == state


def test_those_that_come_first_wait_for_one_other_at_most() -> None:
    turns, began, stop = Turns(), threading.Event(), threading.Event()
    others = others_meanwhile = 0

    def busy() -> None:
        nonlocal others, others_meanwhile
        while not stop.is_set():
            with turns.after_others():
                others += 1
                others_meanwhile += turns.first_waits
                began.set()
                time.sleep(0.002)

    threads = [threading.Thread(target=busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert began.wait(10.0)
    most = 0
    for _ in range(30):
        before = others_meanwhile
        with turns.first():
            most = max(most, others_meanwhile - before)
            during = others
            time.sleep(0.003)
            assert others == during
    stop.set()
    for thread in threads:
        thread.join()
    assert most <= 1  # the one that held it when our wish was noted


def stage_of(model: nn.Module, *inputs: torch.Tensor) -> StageModule:
    exported = export_model(model.train(), inputs)
    layers = len(exported.layer_graph.layers)
    graph = StageGraph.from_json(exported.layer_graph.stage(0, layers).to_json())
    return StageModule(graph, all_tensors(model, exported))


def test_dropout_draws_the_same_beside_a_thread_that_transforms() -> None:
    stage = stage_of(
        nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)) for _ in range(6))), torch.rand(4, 64)
    )
    samples = torch.rand(4, 64)

    def outputs() -> list[torch.Tensor]:
        keys = [DrawKey(1, number, 0, 0, 4) for number in range(60)]
        return [stage.forward(4, [samples], draw=key)[0].detach() for key in keys]

    def transforms() -> None:
        while not stop.is_set():
            numbers.add(tuple(seeded(5)))

    expected, stop, numbers = outputs(), threading.Event(), set[tuple[float, ...]]()
    thread = threading.Thread(target=transforms)
    with restored_generators():
        thread.start()
        while thread.is_alive() and not numbers:
            time.sleep(0.001)
        found = outputs()
        stop.set()
        thread.join()
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
    assert len(numbers) == 1


def test_a_model_without_random_layers_takes_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(Turns):
        taken = 0

        def first(self) -> Any:
            self.taken += 1
            return super().first()

    turns = Counting()
    monkeypatch.setattr(stage_module, "TURNS", turns)
    for dropout, expected in ((nn.Identity(), 0), (nn.Dropout(0.5), 1)):
        stage = stage_of(nn.Sequential(nn.Linear(4, 4), dropout, nn.Linear(4, 2)), torch.rand(3, 4))
        stage.forward(3, [torch.rand(3, 4)], draw=DrawKey(1, 0, 0, 0, 3))
        assert turns.taken == expected


def test_a_loss_that_draws_has_the_numbers_of_its_seed_and_disturbs_no_transform() -> None:
    cpu = torch.device("cpu")

    def noisy(output: torch.Tensor, targets: object) -> torch.Tensor:
        return output + torch.rand(())

    calls = SeededCalls(noisy)
    found = [float(calls(torch.zeros(()), None, seed=seed, device=cpu)) for seed in (3, 4, 3)]
    assert found[0] == found[2] != found[1]
    expected = seeded(7)
    over = threading.Event()

    def draw_on() -> None:
        while not over.is_set():
            calls(torch.zeros(()), None, seed=1, device=cpu)

    drawing = threading.Thread(target=draw_on)
    drawing.start()
    try:
        assert all(seeded(7) == expected for _ in range(50))
    finally:
        over.set()
        drawing.join()


def test_a_loss_that_does_not_draw_waits_for_nobody() -> None:
    calls = SeededCalls(lambda output, targets: output + targets)
    assert calls(1, 2, seed=0, device=torch.device("cpu")) == 3
    with draws.TURNS.first():
        assert calls(1, 3, seed=0, device=torch.device("cpu")) == 4
