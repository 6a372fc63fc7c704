"""Planning instances in JSON: to and fro, and the field that a mistake is in."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.model_costs import TiedCosts
from edgeswarm.profile import DataSource, Network, Overheads
from edgeswarm.profile_json import instance_from_json, instance_to_json

from .test_profile import instance


def test_json_gives_the_instance_back() -> None:
    assert instance_from_json(json.loads(json.dumps(instance_to_json(instance())))) == instance()


def test_what_an_instance_may_also_have_survives_json() -> None:
    plain = instance()
    overheads = Overheads(action_seconds=1e-3, frame_seconds=1e-4, byte_seconds=1e-9, round_seconds=2e-3)
    layers = plain.model.layer_count
    profiles = {
        kind: replace(
            profile,
            update_seconds=(0.5,) * layers,
            overheads=overheads,
            layer_errors=(0.1,) * layers,
            sums_error=0.05,
            largest_measured=(2,) * layers,
            rest_parts=(0.6,) * layers,
            weights_parts=(0.45,) * layers,
        )
        for kind, profile in plain.profiles.items()
    }
    first, *others = plain.model.layers
    first = replace(first, kernel_bytes=9, met_gradient_bytes=((1, 10), (4, 30)), trained_bytes=3, answered_bytes=0)
    first = replace(first, transient_bytes=5, workspace_bytes=6, joint_workspace_bytes=7, held_input_bytes=8)
    first = replace(first, waiting_bytes=4, output_frames=3, answered_frames=2)
    model = replace(plain.model, layers=(first, *others), tied=(TiedCosts((0, 1), 3, 2),))
    source = DataSource((5.0, 6.0), egress=7.0, label_bytes=8, on_its_machine=(True, False), joint_bytes=9, epochs=4)
    more = replace(plain, model=model, profiles=profiles, data_source=source)
    assert instance_from_json(json.loads(json.dumps(instance_to_json(more)))) == more
    network = Network.of_pairs(((0.0, 0.25), (0.5, 0.0)), plain.network.bandwidth)
    with_latencies = replace(more, network=network)
    assert instance_from_json(json.loads(json.dumps(instance_to_json(with_latencies)))) == with_latencies


@pytest.mark.parametrize("field", ["update_seconds", "layer_errors", "largest_measured", "overheads"])
def test_what_is_null_is_not_there(field: str) -> None:
    document: dict[str, Any] = dict(instance_to_json(instance()))
    for profile in document["profiles"].values():
        assert field not in profile
        profile[field] = None
    assert instance_from_json(document) == instance()


def test_a_data_source_with_one_bandwidth() -> None:
    document = {**instance_to_json(instance()), "data_source": {"bandwidth_bytes_per_second": 9}}
    assert instance_from_json(document).data_source == DataSource((9.0, 9.0), egress=9.0)


def test_the_data_sources_card_has_the_fastest_rate_of_another_machine() -> None:
    plain = instance()
    source = {"bandwidth_bytes_per_second": [9, 4], "on_its_machine": [plain.device_names[0]]}
    read = instance_from_json({**instance_to_json(plain), "data_source": source})
    assert read.data_source == DataSource((9.0, 4.0), egress=4.0, on_its_machine=(True, False))


def test_links_that_are_all_alike_are_one_number() -> None:
    document = {**instance_to_json(instance()), "network": {"latency_seconds": 0.0, "bandwidth_bytes_per_second": 9}}
    read = instance_from_json(document)
    assert read.network == Network.uniform(2, bytes_per_second=9.0, latency_seconds=0.0)
    assert instance_to_json(read)["network"] == {"latency_seconds": 0.0, "bandwidth_bytes_per_second": 9.0}


def changed(path: str, value: object) -> dict[str, Any]:
    """The small instance's document with one field set: "devices__0__name"."""
    document: Any = copy.deepcopy(instance_to_json(instance()))
    *way, last = (int(part) if part.isdigit() else part for part in path.split("__"))
    place = document
    for part in way:
        place = place[part]
    place[last] = value
    return dict(document)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("format", "edgeswarm-planning-instance/9", "format is"),
        ("model__layers", [], "at least one layer"),
        ("model__layers__1__param_bytes", -1, r"model.layers\[1\].param_bytes must be a whole number"),
        ("model__layers__0__name", 3, r"model.layers\[0\].name must be a text"),
        ("model__layers__0__flops_forward", "many", r"model.layers\[0\].flops_forward must be a number"),
        ("profiles__box__batch_sizes", [4, 1], "profiles.box: batch_sizes must rise"),
        ("profiles__box__batch_sizes", [1.5, 4], "profiles.box: batch_sizes must be whole numbers"),
        ("profiles__box__batch_sizes", [], "profiles.box: batch_sizes needs at least one"),
        ("profiles__box__forward_seconds", [[1, 2]], "profiles.box: forward_seconds has 1 rows for 2 batch sizes"),
        ("profiles__box__forward_seconds", [[1, 2], [1]], "profiles.box: the rows of forward_seconds differ"),
        ("profiles__box__backward_seconds__1", "x", r"profiles.box.backward_seconds\[1\] must be a list, not"),
        ("profiles__box__backward_seconds__1__0", None, r"profiles.box.backward_seconds\[1\]\[0\] must be a number"),
        ("profiles__box__backward_seconds__1__0", float("nan"), r"backward_seconds\[1\]\[0\] must be a number"),
        ("profiles__box__update_seconds", [1.0], "profiles.box: update_seconds has 1 entries for"),
        ("profiles__box__layer_errors", [1.0], "profiles.box: layer_errors has 1 entries for"),
        ("profiles__box__largest_measured", [1.5] * 3, "profiles.box: largest_measured must be whole numbers"),
        ("profiles__box__sums_error", -1, "profiles.box.sums_error must be a number"),
        ("profiles__box__overheads", {"frame_seconds": -1}, "profiles.box.overheads.frame_seconds must be a number"),
        ("data_source", {"bandwidth_bytes_per_second": [1]}, "data_source.bandwidth_bytes_per_second is for 1 devices"),
        ("data_source", {"bandwidth_bytes_per_second": 0}, "a bandwidth of the data source is not above 0"),
        (
            "data_source",
            {"bandwidth_bytes_per_second": 9, "on_its_machine": ["desk"]},
            "data_source: on_its_machine names 'desk', which is no device of the instance",
        ),
        ("devices", [], "devices is empty"),
        ("devices__0__profile", "phone", r"devices\[0\].profile is 'phone'"),
        ("devices__1__name", "x", r"devices\[1\].name is 'x'"),
        ("devices__1__memory_bytes", None, r"devices\[1\].memory_bytes is missing"),
        ("network__bandwidth_bytes_per_second", 0, "a bandwidth is not above 0"),
        ("network__bandwidth_bytes_per_second", [[0]], "network.bandwidth_bytes_per_second is for 1 devices"),
        ("network__bandwidth_bytes_per_second", [[0, 1], [1]], "not square"),
        ("training__mini_batch", 0, "training.mini_batch must be a whole number of at least 1"),
        ("training", None, "training is missing"),
    ],
)
def test_from_json_names_the_field(path: str, value: object, words: str) -> None:
    with pytest.raises(EdgeswarmError, match=words) as caught:
        instance_from_json(changed(path, value))
    assert caught.value.code is ErrorCode.INSTANCE_INVALID


def test_profiles_must_be_of_the_model() -> None:
    document: dict[str, Any] = dict(instance_to_json(instance()))
    other = json.loads(json.dumps(document))
    other["model"]["layers"].pop()
    with pytest.raises(EdgeswarmError, match="box has 2 layers, but the model has 1"):
        instance_from_json(other)
