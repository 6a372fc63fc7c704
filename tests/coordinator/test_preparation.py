from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import torch

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.snapshot import layer_file_name, unpack_layer
from edgeswarm_coordinator.preparation import PreparedModel, load, open_dataset, prepare

JOB = textwrap.dedent(
    """
    import torch
    import edgeswarm

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(6, 16)
            self.norm = torch.nn.BatchNorm1d(16)
            self.second = torch.nn.Linear(16, 3)
            self.spare = torch.nn.Parameter(torch.ones(5))

        def forward(self, x):
            return self.second(torch.relu(self.norm(self.first(x))))

    def dataset():
        return [(torch.arange(6.0) + i, i % 3) for i in range(20)]

    job = edgeswarm.Job(
        model=Model,
        dataset=dataset,
        loss=torch.nn.functional.cross_entropy,
        optimizer=lambda named: torch.optim.AdamW([p for _, p in named]),
        batch_size=8,
        epochs=2,
        seed=5,
    )
    """
)


def write(folder: Path, text: str = JOB) -> Path:
    path = folder / "job.py"
    path.write_text(text)
    return path


def prepared_from(path: Path, snapshot: Path) -> PreparedModel:
    loaded = load(path)
    return prepare(loaded, open_dataset(loaded), snapshot_folder=snapshot)


def test_the_layers_of_round_0_are_the_model_built_under_its_seed(tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    loaded = load(write(tmp_path), epochs=3, wire_dtype="bfloat16")
    assert loaded.job.wire_dtype == "bfloat16"
    prepared = prepare(loaded, open_dataset(loaded), snapshot_folder=snapshot)
    assert (loaded.job.epochs, loaded.job.batch_size) == (3, 8)
    torch.manual_seed(5)
    expected = loaded.job.model().state_dict()
    found = dict(prepared.unused)
    for layer in prepared.layer_graph.layers:
        state = unpack_layer((snapshot / layer_file_name(layer.index)).read_bytes())
        assert state.round == 0
        found |= {**state.parameters, **state.buffers}
    assert set(found) == set(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert (prepared.dtype, prepared.dataset_length, prepared.loss_counts) == ("float32", 20, False)
    assert prepared.optimizer_state_factor == 2.0
    assert prepared.parameter_bytes == 4 * (6 * 16 + 16 + 2 * 16 + 16 * 3 + 3 + 5)
    assert [layer.least_batch for layer in prepared.layer_graph.layers if "norm.weight" in layer.parameters] == [2]


@pytest.mark.parametrize(
    ("optimizer", "factor"), [("torch.optim.SGD", 0.0), ("lambda p: torch.optim.SGD(p, momentum=0.9)", 1.0)]
)
def test_what_state_an_optimizer_keeps_is_tried_out(tmp_path: Path, optimizer: str, factor: float) -> None:
    text = JOB.replace("torch.optim.AdamW([p for _, p in named])", f"({optimizer})([p for _, p in named])")
    assert prepared_from(write(tmp_path, text), tmp_path).optimizer_state_factor == factor


def test_half_precision_is_refused_by_name(tmp_path: Path) -> None:
    text = JOB.replace("model=Model", "model=lambda: Model().to(torch.bfloat16)").replace(
        "torch.arange(6.0)", "torch.arange(6.0, dtype=torch.bfloat16)"
    )
    with pytest.raises(EdgeswarmError, match="bfloat16") as caught:
        prepared_from(write(tmp_path, text), tmp_path)
    assert caught.value.code is ErrorCode.JOB_INVALID


def test_a_model_that_raises_names_the_users_line(tmp_path: Path) -> None:
    text = JOB.replace("self.spare = ", "raise RuntimeError('no luck')  # ")
    with pytest.raises(EdgeswarmError, match=r"job\.py, line \d+: RuntimeError: no luck"):
        prepared_from(write(tmp_path, text), tmp_path)


def test_a_number_of_the_command_line_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EdgeswarmError, match="batch_size") as caught:
        load(write(tmp_path), batch_size=0)
    assert caught.value.code is ErrorCode.JOB_INVALID
