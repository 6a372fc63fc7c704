"""What a device holds beside weights and saved activations: by hand, in every run of layers, and in every plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeswarm.model_costs import LayerCosts, ModelCosts
from edgeswarm.plan import Plan, Stage
from edgeswarm.profile import PlanningInstance
from edgeswarm.profile_json import instance_from_json, instance_to_json
from edgeswarm_coordinator.planner.cost_model import held_bytes, plan_memory_bytes
from edgeswarm_coordinator.planner.passing_memory import (
    HALF_OF_GAPS,
    SLOWER_LINK,
    TURNS_GAPS,
    Line,
    PassingMemory,
    passing_bytes,
    passing_of_runs,
    passing_table,
)
from edgeswarm_coordinator.planner.planners import PLANNERS, make_plan
from edgeswarm_coordinator.planner.prediction import predict
from edgeswarm_coordinator.simulator.simulate import simulate

from .instances import instances, make_instance
from .test_planners import plan_or_error


def with_passing(instance: PlanningInstance) -> PlanningInstance:
    layers = tuple(
        replace(
            layer,
            transient_bytes=100 * (1 + index % 3),
            workspace_bytes=7 * index,
            joint_workspace_bytes=3 * index,
            held_input_bytes=5 * index,
        )
        for index, layer in enumerate(instance.model.layers)
    )
    return replace(
        instance,
        model=ModelCosts(instance.model.input_bytes, layers),
        training=replace(instance.training, frames_held=2, inputs_ahead=8, on_top=0.8),
    )


def test_the_sum_by_hand() -> None:
    plain = make_instance(memory_bytes=(20_000, 20_000))
    layers = (
        LayerCosts("a", 0, 10, 0, transient_bytes=5, workspace_bytes=100),
        LayerCosts("b", 0, 20, 0, transient_bytes=9, workspace_bytes=50),
        *plain.model.layers[2:],
    )
    instance = replace(
        plain,
        model=ModelCosts(30, layers),
        training=replace(plain.training, frames_held=2, inputs_ahead=8),
    )
    # Workspace 100, 9 a sample of the layers, 2 x 20 of frames, 8 x 30 of inputs, which don't come as frames.
    assert passing_bytes(instance, first_layer=0, end_layer=2, samples=4) == 100 + 4 * (9 + 40 + 240)
    assert passing_bytes(instance, first_layer=1, end_layer=2, samples=4) == 50 + 4 * (9 + 2 * (10 + 20))


def test_what_comes_behind_a_layer_holds_nothing_while_it_computes() -> None:
    """Of the micro-batch at hand; so the worst moment may be an early one, at which less is saved."""
    plain = make_instance(memory_bytes=(20_000, 20_000))
    layers = tuple(
        LayerCosts(name, 0, 0, saved, transient_bytes=transient)
        for name, saved, transient in (("a", 10, 300), ("b", 20, 30), ("c", 30, 25))
    )
    instance = replace(
        plain,
        model=ModelCosts(0, (*layers, *plain.model.layers[3:])),
        training=replace(plain.training, on_top=0.8),
    )
    # 10 + 300, 30 + 30, 60 + 25 in all: 310, of which 60 are counted among the activations.
    assert passing_bytes(instance, first_layer=0, end_layer=3, samples=1) == 250
    assert passing_bytes(instance, first_layer=1, end_layer=3, samples=2) == 2 * 25
    assert passing_bytes(instance, first_layer=0, end_layer=1, samples=2) == 2 * 300


def test_large_gradients_of_an_early_layer_find_no_place_in_what_many_later_ones_let_go_of() -> None:
    plain = make_instance(memory_bytes=(20_000, 20_000))
    layers = tuple(
        LayerCosts(name, 0, 0, saved, transient_bytes=transient)
        for name, saved, transient in (("a", 10, 70), ("b", 80, 30), ("c", 20, 0))
    )
    instance = replace(
        plain,
        model=ModelCosts(0, (*layers, *plain.model.layers[3:])),
        training=replace(plain.training, saved_growth=1.1),
    )
    # Of the micro-batch at hand a tenth more is held. The second layer's moment is 99 + 30, which is 8 beyond the 121 that are.
    # In pieces it is more, less the gaps, which are filled.
    on_top = 70 - 11
    assert 30 < on_top < 70
    assert passing_bytes(instance, first_layer=0, end_layer=3, samples=1) == int(11 + on_top)
    # A run that saves half of the model is three quarters of the way to one of which no piece fits.
    behind = LayerCosts("d", 0, 0, 110)
    longer = replace(instance, model=ModelCosts(0, (*layers, behind, *plain.model.layers[4:])))
    assert passing_bytes(longer, first_layer=0, end_layer=3, samples=1) == int(11 + 8 + 0.75 * (on_top - 8))
    # Without much behind it, its own moment is the worst.
    assert passing_bytes(instance, first_layer=0, end_layer=1, samples=1) == 1 + 70
    # Where the whole model in one go showed that the pieces are of use, its own moment is the worst here, too.
    known = replace(instance, training=replace(instance.training, on_top=0.25))
    assert passing_bytes(known, first_layer=0, end_layer=3, samples=1) == pytest.approx(11 + 99 + 30 - 121, abs=1)


def test_several_micro_batches_in_flight_leave_gaps_for_each_other() -> None:
    plain = make_instance(memory_bytes=(20_000, 20_000))
    layers = tuple(
        LayerCosts(name, 0, 0, saved, transient_bytes=transient)
        for name, saved, transient in (("a", 100, 60), ("b", 20, 90))
    )
    instance = replace(plain, model=ModelCosts(0, (*layers, *plain.model.layers[2:])))

    def gaps(first: int, end: int, in_flight: int, micro_batches: int) -> float:
        many, one = (
            passing_bytes(instance, first_layer=first, end_layer=end, samples=100, in_flight=count, micro_batches=every)
            for count, every in ((in_flight, micro_batches), (1, micro_batches))
        )
        return (many - one) / 100

    # Of what a micro-batch saves and works with; less where few are in flight, or few come behind those.
    many = 10**6
    assert gaps(0, 1, 2, many) == pytest.approx(TURNS_GAPS * 160 / 2, abs=0.05)
    assert gaps(0, 1, 8, many) == pytest.approx(TURNS_GAPS * 160 * 7 / 8, abs=0.05)
    assert gaps(1, 2, 2, many) == pytest.approx(TURNS_GAPS * 110 / 2, abs=0.05)
    assert gaps(0, 1, 2, 2 + 3) == pytest.approx(TURNS_GAPS * 160 / 2 * 3 / (3 + HALF_OF_GAPS), abs=0.05)
    # None where all of a round's are in flight, and never more than that would take.
    assert gaps(0, 1, 8, 8) == 0
    assert gaps(1, 2, 7, 8) == 20 < TURNS_GAPS * 110 * 6 / 7 / (1 + HALF_OF_GAPS)
    table = passing_table(instance)
    saved = np.full(table.frames_per_sample.shape, 100.0)
    held = table.waiting_per_sample(saved, in_flight=2, micro_batches=20)[0, 1]
    assert held == pytest.approx(200 + TURNS_GAPS * 80 * 18 / (18 + HALF_OF_GAPS))
    assert table.waiting_per_sample(saved, in_flight=1, micro_batches=20)[0, 1] == 100


def test_where_no_working_memory_is_known_there_are_no_gaps() -> None:
    instance = make_instance(memory_bytes=(20_000, 20_000))
    assert passing_bytes(instance, first_layer=0, end_layer=3, samples=1, in_flight=3, micro_batches=9) == 0


@given(instance=instances(), bytes_=st.integers(0, 900), micro_batches=st.integers(1, 12))
def test_fewer_in_flight_never_take_more(instance: PlanningInstance, bytes_: int, micro_batches: int) -> None:
    layers = tuple(replace(layer, transient_bytes=bytes_) for layer in instance.model.layers)
    fuller = replace(instance, model=replace(instance.model, layers=layers))
    held = [
        held_bytes(
            fuller,
            first_layer=0,
            end_layer=len(layers),
            samples=7,
            in_flight=count,
            micro_batches=micro_batches,
        )
        for count in range(1, micro_batches + 1)
    ]
    assert held == sorted(held)


def held_of_first_layer(*, bandwidth: float, in_flight: int) -> int:
    """Of a layer that takes a second for a sample on the faster device, and sends 40 bytes of it."""
    plain = make_instance(slower=(2.0, 1.0), bandwidth=bandwidth, output_bytes=40)
    instance = replace(plain, training=replace(plain.training, frames_held=1))
    return passing_bytes(instance, first_layer=0, end_layer=1, samples=3, in_flight=in_flight, micro_batches=in_flight)


def test_what_a_slow_link_has_not_taken_yet_waits() -> None:
    def waiting(bandwidth: float, in_flight: int) -> float:
        more = held_of_first_layer(bandwidth=bandwidth, in_flight=in_flight)
        return (more - held_of_first_layer(bandwidth=bandwidth, in_flight=1)) / (3 * 40)

    # The one at hand, and one more, are counted whatever K is. A link that takes ever so long has sent nothing.
    assert [waiting(1e-9, count) for count in (2, 3, 4, 7)] == pytest.approx([0, 0, 1, 4], abs=0.01)
    # It takes 4 times as long as the forward, were it as slow as it may be: three of four wait.
    assert [waiting(SLOWER_LINK * 10, count) for count in (3, 5, 9)] == pytest.approx([0, 1, 4], abs=0.01)
    # Nothing does where it is as quick.
    assert [waiting(SLOWER_LINK * 40, count) for count in (3, 9)] == [0, 0]


def test_frames_come_beside_inputs_that_wait_for_the_backward() -> None:
    plain = make_instance(memory_bytes=(20_000, 20_000))
    layers = (LayerCosts("a", 0, 40, 50), LayerCosts("b", 0, 10, 20, held_input_bytes=40), *plain.model.layers[2:])
    instance = replace(plain, model=ModelCosts(30, layers), training=replace(plain.training, frames_held=1))
    assert instance.model.saved_bytes(0, 2) == 70
    assert instance.model.saved_bytes(1, 2) == 60
    assert passing_bytes(instance, first_layer=0, end_layer=2, samples=3) == 3 * 10
    assert passing_bytes(instance, first_layer=1, end_layer=2, samples=3) == 3 * (40 + 10)
    both = [
        held_bytes(instance, first_layer=1, end_layer=2, samples=3, in_flight=count, micro_batches=2)
        for count in (1, 2)
    ]
    assert both[1] - both[0] == 3 * 60


def test_what_one_layer_takes_for_its_weights_and_another_for_samples_is_not_added_up() -> None:
    """They compute one after the other."""
    plain = make_instance((1.0,) * 4, memory_bytes=(20_000, 20_000))
    taken = ((40, 100), (3, 900), (50, 20), (0, 0))  # for a sample, and whatever the batch
    layers = tuple(
        replace(layer, saved_bytes=0, transient_bytes=per_sample, workspace_bytes=fixed)
        for layer, (per_sample, fixed) in zip(plain.model.layers, taken, strict=True)
    )
    instance = replace(plain, model=replace(plain.model, layers=layers), training=replace(plain.training, on_top=0.0))

    def held(samples: int, first: int, end: int) -> int:
        return passing_bytes(instance, first_layer=first, end_layer=end, samples=samples)

    assert held(1, 1, 4) == 900 + 3
    assert held(100, 1, 4) == 20 + 100 * 50
    assert held(100, 1, 2) == 900 + 100 * 3
    table = passing_table(instance)
    for samples in (1, 10, 100):
        assert table.bytes_of(samples)[1, 4] == held(samples, 1, 4)
        free = float(held(samples, 1, 4))
        assert table.most_samples(np.full((5, 5), free), np.zeros((5, 5)), limit=300)[1, 4] == pytest.approx(samples)


def test_what_layers_take_together_is_of_those_that_a_stage_has() -> None:
    """Beyond the largest of them, and whichever takes most for a sample."""
    plain = make_instance((1.0,) * 4, memory_bytes=(20_000, 20_000))
    taken = ((40, 100, 7), (3, 900, 50), (50, 20, 3), (0, 0, 1))
    layers = tuple(
        replace(layer, saved_bytes=0, transient_bytes=per_sample, workspace_bytes=fixed, joint_workspace_bytes=joint)
        for layer, (per_sample, fixed, joint) in zip(plain.model.layers, taken, strict=True)
    )
    instance = replace(plain, model=replace(plain.model, layers=layers), training=replace(plain.training, on_top=0.0))

    def held(samples: int, first: int, end: int) -> int:
        return passing_bytes(instance, first_layer=first, end_layer=end, samples=samples)

    assert held(1, 1, 2) == 900 + 50 + 3
    assert held(1, 1, 4) == 900 + 50 + 3 + 1 + 3
    assert held(100, 0, 4) == 100 + 7 + 50 + 3 + 1 + 100 * 50
    table = passing_table(instance)
    for samples in (1, 100):
        assert table.bytes_of(samples)[0, 4] == held(samples, 0, 4)


def test_an_instance_that_says_nothing_of_it_has_none() -> None:
    passing = passing_of_runs(make_instance(memory_bytes=(20_000, 20_000)), np.array([0, 1]), np.array([1, 2]))
    assert passing.bytes_of(7).tolist() == [0.0, 0.0]


MEBIBYTE = 2**20


def test_what_waits_ends_where_the_feeds_bytes_do() -> None:
    """Images of 224 x 224 in float32: 256 of them are 147 MiB, of which a feed holds one micro-batch, not eight."""
    plain = make_instance(memory_bytes=(20_000, 20_000))
    image = 3 * 224 * 224 * 4
    instance = replace(
        plain, model=ModelCosts(image, plain.model.layers), training=replace(plain.training, inputs_ahead=8)
    )
    assert passing_bytes(instance, first_layer=0, end_layer=2, samples=256) == 256 * image
    assert passing_bytes(instance, first_layer=0, end_layer=2, samples=64) == 64 * MEBIBYTE
    assert passing_bytes(instance, first_layer=0, end_layer=2, samples=4) == 8 * 4 * image
    assert passing_bytes(instance, first_layer=1, end_layer=2, samples=256) == 0


def test_targets_wait_in_the_last_stage_and_with_the_inputs_where_that_is_the_first_too() -> None:
    """Pictures that are to become others: a stage of all layers has both in one feed, with one limit."""
    plain = make_instance(memory_bytes=(20_000, 20_000))
    image, mask = 3 * 224 * 224 * 4, 224 * 224 * 4
    costs = replace(plain.model, input_bytes=image, target_bytes=mask)
    instance = replace(plain, model=costs, training=replace(plain.training, inputs_ahead=8))
    end = costs.layer_count
    assert passing_bytes(instance, first_layer=1, end_layer=end, samples=4) == 8 * 4 * mask
    assert passing_bytes(instance, first_layer=1, end_layer=end, samples=128) == 64 * MEBIBYTE
    assert passing_bytes(instance, first_layer=1, end_layer=end - 1, samples=4) == 0
    assert passing_bytes(instance, first_layer=0, end_layer=end - 1, samples=4) == 8 * 4 * image
    assert passing_bytes(instance, first_layer=0, end_layer=end, samples=2) == 8 * 2 * (image + mask)
    assert passing_bytes(instance, first_layer=0, end_layer=end, samples=256) == 256 * (image + mask)


@settings(max_examples=100, deadline=None)
@given(
    free=st.integers(-(10**6), 10**9),
    each=st.tuples(*(st.one_of(st.just(0), st.integers(1, most)) for most in (10**6, 10**7, 10**7, 10**8, 10**6))),
    other=st.tuples(st.integers(0, 10**7), st.integers(0, 10**6)),
    ahead=st.sampled_from([0, 1, 8]),
)
def test_the_most_samples_are_held_and_one_more_is_not(
    free: int, each: tuple[int, int, int, int, int], other: tuple[int, int], ahead: int
) -> None:
    fixed, per_sample, saved, inputs, frames = (np.array([float(value)]) for value in each)
    none = np.zeros(1)
    passing = PassingMemory(
        (Line(fixed, per_sample), Line(np.array([float(other[0])]), np.array([float(other[1])]))),
        frames,
        none,
        inputs,
        ahead,
        gaps_per_sample=none,
        sent_per_sample=none,
        waiting_part=none,
        frames_held=0,
    )
    most = int(passing.most_samples(np.array([float(free)]), saved, limit=300)[0])
    assert most == passing.most_samples_of((0,), float(free), each[2], limit=300)

    def held(samples: int) -> float:
        return each[2] * samples + float(passing.bytes_of(samples)[0])

    assert most == 0 or held(most) <= free
    assert most == 300 or held(most + 1) > free


def test_many_devices_at_once() -> None:
    none = np.zeros(2)
    passing = PassingMemory(
        (Line(np.array([0.0, 100.0]), np.array([8.0, 15.0])),),
        np.array([2.0, 5.0]),
        none,
        np.array([10.0, 0.0]),
        8,
        gaps_per_sample=none,
        sent_per_sample=none,
        waiting_part=none,
        frames_held=0,
    )
    free = np.array([[900.0, 900.0], [90.0, 90.0], [-1.0, 1e6]])
    assert passing.most_samples(free, np.zeros(2), limit=50).tolist() == [[10, 40], [1, 0], [0, 50]]


def test_json_keeps_it() -> None:
    instance = with_passing(make_instance(memory_bytes=(20_000, 20_000)))
    assert instance_from_json(instance_to_json(instance)) == instance


@pytest.mark.usefixtures("full_search")
@pytest.mark.parametrize("micro_batch", [2, 4])
def test_plans_and_simulations_count_it_and_plans_fit_with_it(micro_batch: int) -> None:
    instance = with_passing(make_instance(memory_bytes=(20_000, 20_000)))
    plan = make_plan(instance, micro_batch=micro_batch)
    memory = plan_memory_bytes(instance, plan)
    assert all(memory[device.name] <= device.memory_bytes for device in instance.devices if device.name in memory)
    simulated = simulate(instance, plan).memory
    for stage in plan.stages:
        for device, share in stage.shares.items():
            in_flight = min(stage.in_flight, plan.micro_batches)
            most = held_bytes(
                instance,
                first_layer=stage.first_layer,
                end_layer=stage.end_layer,
                samples=share,
                in_flight=in_flight,
                micro_batches=plan.micro_batches,
            )
            assert most == memory[device]
            passing = passing_bytes(
                instance,
                first_layer=stage.first_layer,
                end_layer=stage.end_layer,
                samples=share,
                in_flight=in_flight,
                micro_batches=plan.micro_batches,
            )
            assert passing < simulated[device].peak_bytes <= most


@pytest.mark.thorough
@settings(max_examples=8, deadline=None)
@given(instance=instances(uniform_links=False), bytes_=st.integers(0, 400), frames=st.integers(0, 2))
def test_what_passes_is_counted_by_every_planner(instance: PlanningInstance, bytes_: int, frames: int) -> None:
    """Plans fit a memory in which layers hold more while they compute."""
    layers = tuple(
        replace(layer, transient_bytes=bytes_, workspace_bytes=bytes_, held_input_bytes=bytes_ // 4)
        for layer in instance.model.layers
    )
    fuller = replace(
        instance,
        model=replace(instance.model, layers=layers),
        training=replace(instance.training, frames_held=frames, inputs_ahead=frames),
    )
    memory = {device.name: device.memory_bytes for device in fuller.devices}
    for planner in PLANNERS:
        plan = plan_or_error(fuller, planner)[0]
        if plan is not None:
            assert all(needed <= memory[name] for name, needed in plan_memory_bytes(fuller, plan).items()), planner


def test_a_pass_computes_with_its_own_samples_while_frames_and_feed_hold_all() -> None:
    """And the others of the micro-batch at hand lie beside it."""
    instance = with_passing(make_instance(memory_bytes=(20_000, 20_000)))
    instance = replace(instance, model=replace(instance.model, input_bytes=70))
    whole = passing_bytes(instance, first_layer=0, end_layer=4, samples=6)
    in_passes = passing_bytes(instance, first_layer=0, end_layer=4, samples=6, at_once=2)
    # 300 a sample of the layer with the most, while those behind it hold nothing yet.
    layers = instance.model.layers
    behind = [50 * (len(layers) - 1 - index) for index in range(len(layers))]
    computing = max(layer.transient_bytes - saved for layer, saved in zip(layers, behind, strict=True))
    assert whole - in_passes == 4 * (computing - 70)
    # What a simulated round knows of frames takes nothing of that away.
    stage = Stage(0, 4, {"a": 6}, 1, passes={"a": 3})
    predicted = predict(
        replace(instance, training=replace(instance.training, mini_batch=6)),
        Plan("by hand", 6, 1, (stage,)),
    )
    formula = held_bytes(
        instance, first_layer=0, end_layer=4, samples=6, in_flight=1, micro_batches=1, at_once=2,
        base_bytes=instance.devices[0].base_bytes,
    )  # fmt: skip
    assert predicted.memory_bytes["a"] == formula
    assert passing_bytes(instance, first_layer=0, end_layer=4, samples=6, at_once=6) == whole
