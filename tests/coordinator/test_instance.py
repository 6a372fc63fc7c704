from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.model.batch_norm import BatchNormMerger
from edgeswarm.model.export import export_model
from edgeswarm.model_costs import TiedCosts
from edgeswarm.profile import DataSource
from edgeswarm.profile_json import instance_from_json, instance_to_json
from edgeswarm_coordinator.device import Device
from edgeswarm_coordinator.device_fit import BYTE_IN_A_TRAINING, BYTE_ON_A_LINK
from edgeswarm_coordinator.instance import PEER_BYTES, planning_instance
from edgeswarm_coordinator.model_facts import ModelFacts, ServedSamples, model_costs
from edgeswarm_coordinator.planner.planners import make_plan
from edgeswarm_coordinator.process_costs import ProcessCosts
from edgeswarm_coordinator.profile_cache import DATA_SOURCE, Curve, Link, Profiles
from edgeswarm_coordinator.profiling import checked_stages
from edgeswarm_coordinator.working_memory import USUAL_GROWTH

from .small_graphs import small_graph

GRAPH = small_graph([["a"], ["b"], ["c"], ["d"]], signatures=["stem", "block", "block", "head"])
FACTS = ModelFacts(GRAPH, "float32", batch_size=8, optimizer_state_factor=1.0)
NANO_1 = Device("nano-1", "10.0.0.1:7600", board="Jetson Nano", hardware_key="nano", memory_budget_bytes=2**30)
NANO_2 = Device("nano-2", "10.0.0.2:7600", hardware_key="nano", memory_budget_bytes=2**30)
NX = Device("nx-1", "10.0.0.3:7600", hardware_key="nx", memory_budget_bytes=2**31)


def curve(seconds: float, *, sizes: tuple[int, ...] = (1, 2, 4, 8)) -> Curve:
    times = tuple(seconds * size for size in sizes)
    return Curve(sizes, times, times, asked=8)


def measured(*keys: str) -> Profiles:
    found = Profiles(processes=dict.fromkeys(keys, ProcessCosts(1000)))
    for key in keys:
        for number, signature in enumerate(("stem", "block", "head"), start=1):
            found.curves[key, "float32", signature] = curve(number * (1e-3 if key == "nano" else 5e-4))
    return found


def linked(*ids: str) -> dict[tuple[str, str], Link]:
    return {(a, b): Link(2e7, 1e-4, 0.0) for a in ids for b in ids if a != b}


@pytest.mark.parametrize(("wire_dtype", "factor"), [(None, 1.0), ("float32", 1.0), ("bfloat16", 0.5), ("float16", 0.5)])
def test_a_narrow_wire_halves_what_travels_and_no_memory(wire_dtype: str | None, factor: float) -> None:
    costs, wide = model_costs(GRAPH, wire_dtype=wire_dtype), model_costs(GRAPH, wire_dtype=None)
    assert [layer.output_bytes for layer in costs.layers] == [factor * layer.output_bytes for layer in wide.layers]
    assert costs.gradient_bytes(0, 4) == factor * wide.gradient_bytes(0, 4) > 0
    assert costs.param_bytes(0, 4) == wide.param_bytes(0, 4)
    assert costs.input_bytes == wide.input_bytes
    halves: list[int | None] = [layer.output_bytes // 2 for layer in wide.layers]
    assert [layer.narrow_output_bytes for layer in costs.layers] == (halves if factor == 1.0 else [None] * 4)


def test_the_models_own_inputs_are_not_narrowed() -> None:
    graph = small_graph([["a"], ["b"]])
    relayed = replace(graph.cuts[0][0], is_input=True)
    cuts = (graph.cuts[0], (relayed, *graph.cuts[1]), graph.cuts[2])
    costs = model_costs(replace(graph, cuts=cuts), wire_dtype="bfloat16")
    assert costs.layers[0].output_bytes == 16 + 8
    assert (costs.layers[0].output_frames, costs.layers[1].output_frames) == (2, 1)
    assert model_costs(replace(graph, cuts=cuts), wire_dtype=None).layers[0].narrow_output_bytes == 16 + 8


def test_what_is_frozen_is_not_trained_and_needs_no_answer() -> None:
    graph = small_graph([["frozen1"], ["frozen2", "a"], ["b"]])
    (value,) = graph.cuts[1]
    cuts = (graph.cuts[0], (replace(value, requires_grad=False),), *graph.cuts[2:])
    costs = model_costs(replace(graph, cuts=cuts), wire_dtype=None)
    assert [layer.trained_bytes for layer in costs.layers] == [0, 32, 32]
    assert costs.answered_bytes.tolist() == [0, 0, 16, 16]
    assert [(layer.output_frames, layer.answered_frames) for layer in costs.layers] == [(1, 1)] * 3
    assert costs.cut_bytes.tolist() == [16, 16, 16, 16]


def test_a_tied_weight_is_told_with_its_layers() -> None:
    costs = model_costs(small_graph([["a", "tied"], ["b"], ["tied", "frozen"], ["frozen"]]), wire_dtype="bfloat16")
    assert costs.tied == (TiedCosts((0, 2), 32, 16), TiedCosts((2, 3), 32, 0))


def test_the_loss_takes_memory_where_the_last_layer_is() -> None:
    found = measured("nano")
    without, _ = planning_instance(FACTS, devices=[NANO_1], profiles=found, name="job")
    beside, _ = planning_instance(replace(FACTS, loss_bytes=700), devices=[NANO_1], profiles=found, name="job")
    more = beside.model.transient_bytes - without.model.transient_bytes
    assert more.tolist() == [0, 0, 0, 700]


def test_targets_take_memory_where_the_loss_is() -> None:
    found = measured("nano")
    without, _ = planning_instance(FACTS, devices=[NANO_1], profiles=found, name="job")
    beside, _ = planning_instance(replace(FACTS, target_bytes=50, rest=3), devices=[NANO_1], profiles=found, name="job")
    assert (beside.model.transient_bytes - without.model.transient_bytes).tolist() == [0, 0, 0, 50]
    assert (beside.model.target_bytes, beside.training.rest) == (50, 3)
    assert instance_from_json(instance_to_json(beside)) == beside


def test_the_sums_of_batch_norms_are_counted_as_a_worker_sends_them() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    model.train()
    graph = export_model(model, (torch.zeros(4, 6),)).layer_graph
    stage = graph.stage(0, len(graph.layers))
    sums = BatchNormMerger(stage.batch_norms, dict(model.named_buffers())).to_vector()
    costs = model_costs(graph, wire_dtype="bfloat16")
    assert costs.statistics_bytes(0, len(graph.layers)) == sums.nbytes
    assert costs.statistics_bytes(0, 0) == 0


def test_an_instance_is_something_the_planner_plans() -> None:
    found = measured("nano", "nx")
    ids = ("nano-1", "nano-2", "nx-1")
    found.links = {(a, b): Link(1e7 if a == "nx-1" else 2e7, 1e-4, 0.0) for a in ids for b in ids if a != b}
    instance, warnings = planning_instance(FACTS, devices=[NANO_1, NANO_2, NX], profiles=found, name="job")
    assert warnings == []
    assert instance.network.bandwidth[2][0] == 1e7
    assert instance.network.bandwidth[0][2] == 2e7
    assert instance.devices[0].base_bytes == 1000 + 2 * PEER_BYTES
    assert [device.board for device in instance.devices] == ["Jetson Nano", "", ""]
    assert instance_from_json(instance_to_json(instance)) == instance
    assert instance.profile_of("nano-2").forward(4, 0, 4) == pytest.approx(4 * 8e-3)
    plan = make_plan(instance)
    assert plan.layer_count == 4
    assert plan.mini_batch == 8


def test_what_the_job_itself_holds_is_on_each_device() -> None:
    found = measured("nano", "nx")
    found.links = {("nano-1", "nx-1"): Link(1e7, 1e-4, 0.0), ("nx-1", "nano-1"): Link(1e7, 1e-4, 0.0)}
    facts = replace(FACTS, job_bytes=500)
    instance, _ = planning_instance(facts, devices=[NANO_1, NX], profiles=found, name="job")
    assert [device.base_bytes for device in instance.devices] == [1500 + 2 * PEER_BYTES] * 2


@pytest.mark.parametrize("seen", [1.05, 1.6])
def test_gaps_that_forwards_left_are_of_what_is_saved(seen: float) -> None:
    found = measured("nano")
    saved = [layer.saved_bytes for layer in GRAPH.layers]
    for stage, mark in checked_stages(FACTS).items():
        in_stage = sum(saved[stage.first_layer : stage.end_layer]) + GRAPH.layers[stage.first_layer].held_input_bytes
        found.curves["nano", "float32", mark] = replace(curve(1e-2), held_sample_bytes=seen * in_stage)
    instance, _ = planning_instance(FACTS, devices=[NANO_1], profiles=found, name="job")
    assert [layer.saved_bytes for layer in instance.model.layers] == [round(seen * size) for size in saved]
    assert instance.training.saved_growth == USUAL_GROWTH > 1
    assert instance_from_json(instance_to_json(instance)) == instance


def test_a_byte_costs_what_it_took_on_the_links_of_such_devices() -> None:
    found = measured("nano", "nx")
    found.processes["nano"] = ProcessCosts(1000, byte_seconds=1e-9, stretch=8.0)
    ids = ("nano-1", "nano-2", "nx-1")
    found.links = {
        (a, b): Link(1e7, 1e-4, 0.0, send_byte_cpu_seconds=1e-9, receive_byte_cpu_seconds=3e-9)
        for a in ids
        for b in ids
        if a != b
    }
    instance, _ = planning_instance(FACTS, devices=[NANO_1, NANO_2, NX], profiles=found, name="job")
    assert instance.profile_of("nano-1").overheads.byte_seconds == pytest.approx(BYTE_ON_A_LINK * 8 * 2e-9)
    assert instance.profile_of("nx-1").overheads.byte_seconds == pytest.approx(BYTE_ON_A_LINK * 2e-9)
    found.links = {}
    alone, _ = planning_instance(FACTS, devices=[NANO_1], profiles=found, name="job")
    assert alone.profile_of("nano-1").overheads.byte_seconds == BYTE_IN_A_TRAINING * 1e-9


def test_a_device_that_cannot_hold_one_layer_gets_others() -> None:
    found = measured("nano", "nx")
    found.curves["nano", "float32", "block"] = Curve((), (), (), asked=8)
    found.curves["nx", "float32", "block"] = replace(curve(1e-3), peak_bytes=(1 << 27,) * 4)
    found.links = linked("nano-1", "nx-1")
    small = replace(NANO_1, memory_budget_bytes=1 << 26)
    instance, warnings = planning_instance(FACTS, devices=[small, NX], profiles=found, name="job")
    assert instance.device_names == ("nano-1", "nx-1")
    assert instance.profile_of("nano-1").forward(4, 1, 2) == pytest.approx(4 * 2e-3)  # twice the nx's, as of the others
    assert warnings[0].startswith("nano-1: the layer part1 doesn't fit its ")
    assert warnings[0].endswith(": it may get others.")
    of_nano = [stage for stage in make_plan(instance).stages if "nano-1" in stage.devices]
    assert [(stage.first_layer, stage.end_layer) for stage in of_nano] in ([(0, 1)], [(3, 4)])


def test_a_device_is_left_out_where_plans_would_give_it_what_it_cannot_hold() -> None:
    found = measured("nano", "nx")
    found.curves["nano", "float32", "block"] = Curve((), (), (), asked=8)
    found.links = linked("nano-1", "nx-1")
    instance, warnings = planning_instance(FACTS, devices=[NANO_1, NX], profiles=found, name="job")
    assert instance.device_names == ("nx-1",)
    assert "Left out: nano-1: the layer part1" in warnings[0]
    with pytest.raises(EdgeswarmError) as caught:
        planning_instance(FACTS, devices=[NANO_1], profiles=found, name="job")
    assert caught.value.code is ErrorCode.NO_PLAN_FITS
    assert "nano-1: the layer part1 doesn't fit its" in caught.value.message
    assert "for weights, gradients, the optimizer and one sample, and more to compute" in caught.value.message


def test_served_samples_come_over_links_that_were_measured() -> None:
    found = measured("nano", "nx")
    rates = {("nano-1", "nx-1"): 1e7, ("nx-1", "nano-1"): 2e7, (DATA_SOURCE, "nano-1"): 3e6, (DATA_SOURCE, "nx-1"): 4e6}
    found.links = {pair: Link(rate, 1e-4, 0.0) for pair, rate in rates.items()}
    facts = replace(FACTS, served=ServedSamples(input_bytes=100, label_bytes=8))
    instance, _ = planning_instance(facts, devices=[NANO_1, NX], profiles=found, name="job")
    assert instance.data_source == DataSource((3e6, 4e6), 4e6, label_bytes=8, input_bytes=100)
    assert instance_from_json(instance_to_json(instance)) == instance
    local, _ = planning_instance(FACTS, devices=[NANO_1, NX], profiles=found, name="job")
    assert local.data_source is None


@pytest.mark.parametrize(("input_bytes", "epochs", "counts"), [(10**5, 3, True), (10**5, 900, False), (100, 3, False)])
def test_a_source_that_has_next_to_nothing_to_do_in_later_epochs_is_not_planned_with(
    input_bytes: int, epochs: int, counts: bool
) -> None:
    """A round of 8 samples takes 43 ms at the least. 800 kB of them 200 ms on the way; in the mean of 900 epochs less than 1."""
    found = measured("nano", "nx")
    rates = {("nano-1", "nx-1"): 1e7, ("nx-1", "nano-1"): 2e7, (DATA_SOURCE, "nano-1"): 3e6, (DATA_SOURCE, "nx-1"): 4e6}
    found.links = {pair: Link(rate, 1e-4, 0.0) for pair, rate in rates.items()}
    served = ServedSamples(input_bytes, label_bytes=8, joint_bytes=input_bytes + 4, epochs=epochs)
    instance, _ = planning_instance(replace(FACTS, served=served), devices=[NANO_1, NX], profiles=found, name="job")
    source = DataSource(
        (3e6, 4e6), 4e6, label_bytes=8, input_bytes=input_bytes, joint_bytes=input_bytes + 4, epochs=epochs
    )
    assert instance.data_source == (source if counts else None)


def test_an_agent_on_the_serving_machine_says_nothing_of_its_card() -> None:
    found = measured("nano", "nx")
    rates = {("nano-1", "nx-1"): 1e7, ("nx-1", "nano-1"): 2e7, (DATA_SOURCE, "nano-1"): 3e6, (DATA_SOURCE, "nx-1"): 4e9}
    found.links = {pair: Link(rate, 1e-4, 0.0) for pair, rate in rates.items()}
    facts = replace(FACTS, served=ServedSamples(input_bytes=100, label_bytes=8))
    instance, _ = planning_instance(facts, devices=[NANO_1, NX], profiles=found, name="job", here=["nx-1"])
    assert instance.data_source == DataSource(
        (3e6, 4e9), 3e6, label_bytes=8, input_bytes=100, on_its_machine=(False, True)
    )
    alone, _ = planning_instance(facts, devices=[NX], profiles=found, name="job", here=["nx-1"])
    assert alone.data_source is not None
    assert alone.data_source.egress == 4e9
