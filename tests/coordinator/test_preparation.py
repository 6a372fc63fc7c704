from __future__ import annotations

import dataclasses
import io
import sys
import tarfile
import textwrap
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.layer_file import layer_file_name
from edgeswarm.snapshot import LayerState, pack_layer, unpack_layer, write_layer_file
from edgeswarm_coordinator.layer_files import LayerFiles
from edgeswarm_coordinator.model_facts import ServedSamples
from edgeswarm_coordinator.preparation import PreparedModel, load, open_data, prepare

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
    return prepare(loaded, open_data(loaded), snapshot_folder=snapshot)


def test_the_layers_of_round_0_are_the_model_built_under_its_seed(tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    loaded = load(write(tmp_path), epochs=3, wire_dtype="bfloat16")
    assert loaded.job.wire_dtype == "bfloat16"
    prepared = prepare(loaded, open_data(loaded), snapshot_folder=snapshot)
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


def test_the_layers_of_round_0_have_the_jobs_weights(tmp_path: Path) -> None:
    loaded = load(write(tmp_path, JOB.replace("seed=5", "seed=5, weights='first.safetensors'")))
    weights = {
        name: torch.full_like(value, 0.25, dtype=torch.float64)
        for name, value in loaded.job.model().state_dict().items()
    }
    save_file(weights, tmp_path / "first.safetensors")
    prepared = prepare(loaded, open_data(loaded), snapshot_folder=tmp_path)
    for layer in prepared.layer_graph.layers:
        state = unpack_layer((tmp_path / layer_file_name(layer.index)).read_bytes())
        assert all(bool((value == 0.25).all()) for value in state.parameters.values())
    assert bool((prepared.unused["spare"] == 0.25).all())
    assert any("lose digits" in message for message in prepared.warnings)
    with tarfile.open(fileobj=io.BytesIO(load(tmp_path / "job.py").bundle.archive)) as bundle:
        assert bundle.getnames() == ["job.py"]


@pytest.mark.skipif(sys.platform != "linux", reason="of a process's memory as Linux tells it")
@pytest.mark.parametrize(
    ("data", "evaluates", "data_sets"), [("served", True, 0), ("local", False, 1), ("local", True, 2)]
)
def test_what_workers_will_hold_of_the_job_is_seen_here(
    tmp_path: Path, data: str, evaluates: bool, data_sets: int
) -> None:
    large, size = "torch.ones(24 << 18, 4)", 24 << 22
    text = JOB.replace("import edgeswarm\n", f"import edgeswarm\nHELD = {large}\nKEPT = []\n").replace(
        "    return [(torch", f"    KEPT.append({large})\n    return [(torch"
    )
    if evaluates:
        text = text.replace("    seed=5,", "    seed=5, evaluation_dataset=dataset,")
    loaded = load(write(tmp_path, text.replace("    seed=5", f"    data={data!r}, seed=5")))
    prepared = prepare(loaded, open_data(loaded, evaluation=False), snapshot_folder=tmp_path)
    assert prepared.job_bytes == pytest.approx((1 + data_sets) * size, rel=0.1)


def test_what_a_sample_costs_on_its_way_to_a_device(tmp_path: Path) -> None:
    """A transform takes whole items, wherever it runs, and a stage that is first and last takes them once."""

    def served(*changes: tuple[str, str]) -> ServedSamples | None:
        text = JOB
        for old, new in changes:
            text = text.replace(old, new)
        return prepared_from(write(tmp_path, text), tmp_path).served

    once = ("epochs=2", "epochs=1")
    transform = ("    seed=5", "    transform=lambda item, generator: item, seed=5")
    plain = served(once)
    assert plain is not None
    assert (plain.input_bytes, plain.joint_bytes, plain.epochs) == (6 * 4, None, 1)
    whole = plain.input_bytes + plain.label_bytes
    assert served(once, transform) == ServedSamples(whole, whole, joint_bytes=whole)
    # Of several epochs these few bytes are nothing to measure links for; wide samples are.
    assert served() is None
    wide = served(("torch.arange(6.0) + i", "torch.ones(3000) * i"), ("Linear(6, 16)", "Linear(3000, 16)"))
    assert wide == ServedSamples(3000 * 4, plain.label_bytes, epochs=2)
    assert served(once, ("    seed=5", "    data='local', seed=5")) is None


def test_a_job_that_holds_little_says_nothing_of_memory(tmp_path: Path) -> None:
    assert prepared_from(write(tmp_path), tmp_path).job_bytes == 0


@pytest.mark.parametrize(
    ("optimizer", "factor"), [("torch.optim.SGD", 0.0), ("lambda p: torch.optim.SGD(p, momentum=0.9)", 1.0)]
)
def test_what_state_an_optimizer_keeps_is_tried_out(tmp_path: Path, optimizer: str, factor: float) -> None:
    text = JOB.replace("torch.optim.AdamW([p for _, p in named])", f"({optimizer})([p for _, p in named])")
    assert prepared_from(write(tmp_path, text), tmp_path).optimizer_state_factor == factor


def test_a_link_to_a_job_file_is_the_file_with_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository" / "sizes.py").write_text("CLASSES = 3\n")
    text = JOB.replace("torch.nn.Linear(16, 3)", "torch.nn.Linear(16, sizes.CLASSES)")
    (tmp_path / "today.py").symlink_to(write(tmp_path / "repository", f"import sizes\n{text}"))
    loaded = load(tmp_path / "today.py")
    assert (loaded.folder, loaded.bundle.job_file) == (tmp_path.resolve() / "repository", "job.py")


def test_a_learning_rate_of_numpys_fits_in_a_checkpoint(tmp_path: Path) -> None:
    text = JOB.replace("AdamW([p for _, p in named])", "AdamW([p for _, p in named], lr=numpy.float64(0.01))")
    path = write(tmp_path, f"import numpy\n{text}")
    prepared_from(path, tmp_path)
    optimizer = load(path).job.optimizer([("weight", torch.nn.Parameter(torch.ones(3)))])
    values = {name: value for name, value in optimizer.param_groups[0].items() if name != "params"}
    (kept,) = unpack_layer(pack_layer(LayerState(1, groups=[values]))).groups
    assert kept == values
    assert type(kept["lr"]) is float


def test_an_optimizer_that_keeps_what_no_checkpoint_holds_is_refused(tmp_path: Path) -> None:
    text = JOB.replace("[p for _, p in named])", "[{'params': [p for _, p in named], 'tags': {'a', 'b'}}])")
    with pytest.raises(EdgeswarmError, match=r"no checkpoint: group\.0\.tags: a set can't be written") as caught:
        prepared_from(write(tmp_path, text), tmp_path)
    assert caught.value.code is ErrorCode.JOB_INVALID


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


@pytest.mark.parametrize(
    ("instead_of", "doing"), [("self.spare = ", "building the model"), ("return [(torch", "opening the dataset")]
)
def test_a_job_that_ends_the_program_is_an_error(tmp_path: Path, instead_of: str, doing: str) -> None:
    text = JOB.replace(instead_of, f"raise SystemExit('get the data first')  # {instead_of}")
    with pytest.raises(EdgeswarmError, match=rf"job\.py, line \d+: SystemExit: get the data first \(while {doing}"):
        prepared_from(write(tmp_path, text), tmp_path)


def test_a_number_of_the_command_line_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EdgeswarmError, match="batch_size") as caught:
        load(write(tmp_path), batch_size=0)
    assert caught.value.code is ErrorCode.JOB_INVALID


EVALUATED = JOB.replace("    epochs=2,", "    epochs=2,\n    evaluation_dataset=lambda: dataset()[:7],")


def test_the_evaluation_graph_is_cut_alike_and_its_constants_come_with_the_layers(tmp_path: Path) -> None:
    prepared = prepared_from(write(tmp_path, EVALUATED), tmp_path)
    graph = prepared.evaluation_graph
    assert graph is not None
    assert not graph.training
    assert prepared.evaluation_length == 7
    assert [layer.name for layer in graph.layers] == [layer.name for layer in prepared.layer_graph.layers]
    for layer in graph.layers:
        state = unpack_layer((tmp_path / layer_file_name(layer.index)).read_bytes())
        assert set(layer.constants) <= set(state.constants)
        assert set(layer.parameters) <= set(state.parameters)
    assert prepared_from(write(tmp_path, JOB), tmp_path).evaluation_graph is None


def test_what_is_only_planned_needs_no_evaluation_set(tmp_path: Path) -> None:
    loaded = load(write(tmp_path, EVALUATED.replace("dataset()[:7]", "1 / 0")))
    assert open_data(loaded, evaluation=False).evaluation is None
    with pytest.raises(EdgeswarmError, match="opening the evaluation dataset"):
        open_data(loaded)


def checkpoint_of(job: Path, folder: Path, *, optimizer_state: dict[str, torch.Tensor]) -> LayerFiles:
    """A checkpoint after round 3 of the job: every parameter is 1, with this state of its optimizer."""
    folder.mkdir()
    prepared = prepared_from(job, folder)
    for layer in prepared.layer_graph.layers:
        state = unpack_layer((folder / layer_file_name(layer.index)).read_bytes())
        parameters = {name: torch.ones_like(value) for name, value in state.parameters.items()}
        optimizer = {name: dict(optimizer_state) for name in parameters}
        write_layer_file(folder, layer.index, LayerState(3, parameters, state.buffers, optimizer=optimizer))
    return LayerFiles(folder, round=3, layers=len(prepared.layer_graph.layers))


def test_a_training_that_goes_on_begins_with_the_checkpoints_layers(tmp_path: Path) -> None:
    path = write(tmp_path, EVALUATED)
    momentum = {"step": torch.tensor(3.0), "exp_avg": torch.ones(1), "exp_avg_sq": torch.ones(1)}
    checkpoint = checkpoint_of(path, tmp_path / "checkpoint", optimizer_state=momentum)
    loaded, snapshot = load(path), tmp_path / "snapshot"
    snapshot.mkdir()
    prepared = prepare(loaded, open_data(loaded), snapshot_folder=snapshot, checkpoint=checkpoint)
    assert prepared.evaluation_graph is not None
    for layer in prepared.layer_graph.layers:
        state = unpack_layer((snapshot / layer_file_name(layer.index)).read_bytes())
        assert state.round == 3
        assert all(bool((value == 1).all()) for value in state.parameters.values())
        assert state.optimizer.keys() == state.parameters.keys()
        assert all(values.keys() == momentum.keys() for values in state.optimizer.values())
        assert set(prepared.evaluation_graph.layers[layer.index].constants) <= set(state.constants)


def test_a_changed_job_with_another_optimizer_cannot_go_on(tmp_path: Path) -> None:
    path = write(tmp_path)
    checkpoint = checkpoint_of(path, tmp_path / "checkpoint", optimizer_state={"momentum_buffer": torch.ones(1)})
    loaded = load(path)
    with pytest.raises(EdgeswarmError, match=r"keeps exp_avg, exp_avg_sq, step .* kept momentum_buffer") as caught:
        prepare(
            loaded,
            open_data(loaded),
            snapshot_folder=tmp_path,
            checkpoint=dataclasses.replace(checkpoint, of_this_job=False),
        )
    assert caught.value.code is ErrorCode.CHECKPOINT


def test_the_bytes_of_a_checkpoint_are_told_beforehand(tmp_path: Path) -> None:
    prepared = prepared_from(write(tmp_path), tmp_path)
    buffers = 4 * (16 + 16) + 8
    trained = prepared.parameter_bytes  # AdamW keeps two numbers for each
    assert prepared.checkpoint_bytes == 3 * trained + buffers
