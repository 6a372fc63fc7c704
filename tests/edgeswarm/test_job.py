from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

import edgeswarm
from edgeswarm.job import Job, model_arguments


def nothing(*_: Any) -> Any:
    return None


def make(**fields: Any) -> Job:
    required: dict[str, Any] = dict.fromkeys(("model", "dataset", "loss", "optimizer"), nothing)
    return Job(**{**required, "batch_size": 8, **fields})


def test_the_package_exports_job_and_version_without_torch() -> None:
    code = "import sys, json, edgeswarm; print(json.dumps([edgeswarm.__version__, 'torch' in sys.modules]))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(output) == [edgeswarm.__version__, False]
    assert edgeswarm.Job is Job


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("wire_dtype", "int8"),
        ("weights", 3),
        ("input_columns", "image"),
        ("evaluate_every", 0),
        ("best_metric", "loss"),
        ("best_is", "highest"),
        ("early_stop_epochs", 3),
        ("model", 3),
        ("dataset", [1, 2]),
        ("loss", "cross_entropy"),
        ("optimizer", None),
        ("batch_size", 0),
        ("batch_size", True),
        ("batch_size", 2.0),
        ("drop_last", 1),
        ("epochs", 0),
        ("seed", -1),
        ("seed", 2**63),
        ("transform", 1),
        ("learning_rate_schedule", 0.1),
        ("clip_gradient_norm", 0.0),
        ("clip_gradient_norm", float("nan")),
        ("clip_gradient_norm", "1"),
        ("data", "remote"),
        ("files", "words.txt"),
        ("files", [1]),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field.removesuffix("s").removesuffix("_is")):
        make(**{field: value})


def test_a_built_module_is_refused_but_its_class_is_a_function() -> None:
    class Module:
        def __call__(self) -> None: ...

        def forward(self) -> None: ...

    with pytest.raises(ValueError, match="model is a function that builds"):
        make(model=Module())
    module: Any = Module
    assert make(model=module).model is module


def test_files_become_a_tuple() -> None:
    assert make(files=["a", "b"]).files == ("a", "b")


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [(5, ((5,), {})), ((1, 2), ((1, 2), {})), ([1, 2], ((1, 2), {})), ({"ids": 1}, ((), {"ids": 1}))],
)
def test_how_the_model_is_called(inputs: Any, expected: Any) -> None:
    assert model_arguments(inputs) == expected


def evaluated(**fields: Any) -> Job:
    return make(evaluation_dataset=nothing, metrics={"accuracy": nothing}, **fields)


def test_the_best_is_the_lowest_loss_or_the_highest_of_another_metric() -> None:
    assert (evaluated().watched_metric, evaluated().best_is_lowest) == ("loss", True)
    assert not evaluated(best_metric="accuracy").best_is_lowest
    assert evaluated(best_metric="accuracy", best_is="lowest").best_is_lowest


@pytest.mark.parametrize(
    ("field", "value"), [("best_metric", "precision"), ("best_is", "smallest"), ("early_stop_epochs", 0)]
)
def test_a_wrong_value_for_the_evaluation_is_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        evaluated(**{field: value})


@pytest.mark.parametrize("metrics", [{"loss": nothing}, {"accuracy": 0.9}, {"": nothing}, [nothing]])
def test_metrics_are_functions_by_names_of_their_own(metrics: Any) -> None:
    with pytest.raises(ValueError, match="metric") as caught:
        make(evaluation_dataset=nothing, metrics=metrics)
    assert "needs an evaluation_dataset" not in str(caught.value)


@pytest.mark.parametrize("field", ["input_columns", "target_columns"])
def test_columns_are_named(field: str) -> None:
    columns: dict[str, Any] = {"input_columns": ["image"], "target_columns": ["label"]}
    make(**columns)
    with pytest.raises(ValueError, match=field) as caught:
        make(**{**columns, field: []})
    assert "go together" not in str(caught.value)


def test_columns_become_a_tuple_or_stay_a_name() -> None:
    job = make(input_columns=["input_ids", "attention_mask"], target_columns="label")
    assert (job.input_columns, job.target_columns) == (("input_ids", "attention_mask"), "label")
