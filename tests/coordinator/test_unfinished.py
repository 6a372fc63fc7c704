from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm_coordinator.layer_files import LayerFiles
from edgeswarm_coordinator.manifest import Manifest
from edgeswarm_coordinator.options import TrainOptions
from edgeswarm_coordinator.unfinished import UnfinishedTraining, check_room

from .checkpoints import LAYERS, evaluation, manifest, rounds, write_layers


def begun(tmp_path: Path) -> UnfinishedTraining:
    unfinished = UnfinishedTraining(tmp_path / "out.unfinished")
    unfinished.begin()
    return unfinished


def write(unfinished: UnfinishedTraining, state: Manifest, *, since: int = 0) -> None:
    unfinished.write(
        state,
        new_rounds=rounds(since, state.round),
        fill=lambda folder: write_layers(folder, state.round),
        needed_bytes=10_000,
    )


def names(unfinished: UnfinishedTraining) -> set[str]:
    return {path.name for path in unfinished.folder.iterdir()}


def again(unfinished: UnfinishedTraining) -> UnfinishedTraining:
    """As another process finds it."""
    unfinished.close()
    other = UnfinishedTraining(unfinished.folder)
    other.resume()
    return other


def test_a_checkpoint_is_found_again_with_its_rounds(tmp_path: Path) -> None:
    unfinished = begun(tmp_path)
    assert [*unfinished.rounds()] == []
    write(unfinished, manifest(4, rounds_seconds=2.0))
    found = again(unfinished)
    assert found.manifest is not None
    assert (found.manifest.round, found.manifest.rounds_seconds) == (4, 2.0)
    assert [*found.rounds()] == rounds(0, 4)
    files = LayerFiles(found.round_folder(4), round=4, layers=LAYERS)
    assert [float(state.parameters[f"w{layer}"][0]) for layer, state in enumerate(files.all())] == [4.0, 4.0]


def test_the_last_one_and_the_best_one_are_kept(tmp_path: Path) -> None:
    unfinished = begun(tmp_path)
    first, second = evaluation(4, best=True), evaluation(8, best=False)
    write(unfinished, manifest(4, evaluations=(first,)))
    write(unfinished, manifest(6, evaluations=(first,)), since=4)
    assert names(unfinished) == {"manifest.json", "rounds.jsonl", "round-00000004", "round-00000006"}
    write(unfinished, manifest(8, evaluations=(first, second)), since=6)
    assert names(unfinished) == {"manifest.json", "rounds.jsonl", "round-00000004", "round-00000008"}
    write(unfinished, manifest(12, evaluations=(first, second, evaluation(12, best=True))), since=8)
    assert names(unfinished) == {"manifest.json", "rounds.jsonl", "round-00000012"}
    assert [*again(unfinished).rounds()] == rounds(0, 12)


def keep_best(unfinished: UnfinishedTraining, round_number: int) -> None:
    unfinished.keep_best(round_number, fill=lambda folder: write_layers(folder, round_number), needed_bytes=10_000)


def test_the_best_one_since_the_last_checkpoint_is_kept_beside_what_that_names(tmp_path: Path) -> None:
    unfinished = begun(tmp_path)
    keep_best(unfinished, 2)
    assert names(unfinished) == {"best-00000002"}
    first = evaluation(2, best=True)
    write(unfinished, manifest(4, evaluations=(first,)))
    always = {"manifest.json", "rounds.jsonl"}
    assert names(unfinished) == always | {"best-00000002", "round-00000004"}
    keep_best(unfinished, 6)
    keep_best(unfinished, 8)
    # Whoever goes on from round 4 has its best one, and comes to the others again.
    assert names(unfinished) == always | {"best-00000002", "round-00000004", "best-00000008"}
    found = again(unfinished)
    assert found.manifest is not None
    assert found.manifest.best == first
    assert found.layers_folder(2).name == "best-00000002"
    assert found.layers_folder(4).name == "round-00000004"
    keep_best(found, 8)
    write(found, manifest(12, evaluations=(first, evaluation(8, best=True))), since=4)
    assert names(found) == always | {"best-00000008", "round-00000012"}


def test_a_best_one_that_can_not_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    unfinished = begun(tmp_path)
    write(unfinished, manifest(4))
    keep_best(unfinished, 6)
    before = names(unfinished)
    with pytest.raises(EdgeswarmError, match="No space left on device") as caught:
        unfinished.keep_best(8, fill=full_disk, needed_bytes=10_000)
    assert caught.value.code is ErrorCode.OUTPUT_FAILED
    assert names(unfinished) == before


def full_disk(folder: Path) -> None:
    write_layers(folder, 8)
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def lost_device(folder: Path) -> None:
    raise EdgeswarmError(ErrorCode.DEVICE_LOST, "The device nano-1 was lost.")


@pytest.mark.parametrize(
    ("fill", "code", "problem"),
    [
        (full_disk, ErrorCode.OUTPUT_FAILED, r"out\.unfinished: No space left on device; it takes about 9\.8 KiB"),
        (lost_device, ErrorCode.DEVICE_LOST, "nano-1 was lost"),
    ],
)
def test_what_fails_leaves_the_checkpoint_before(
    tmp_path: Path, fill: Callable[[Path], None], code: ErrorCode, problem: str
) -> None:
    unfinished = begun(tmp_path)
    write(unfinished, manifest(4))
    before = names(unfinished)
    with pytest.raises(EdgeswarmError, match=problem) as caught:
        unfinished.write(manifest(8), new_rounds=rounds(4, 8), fill=fill, needed_bytes=10_000)
    assert caught.value.code is code
    assert names(unfinished) == before
    assert [*again(unfinished).rounds()] == rounds(0, 4)


def test_a_folder_that_was_taken_away_is_told(tmp_path: Path) -> None:
    unfinished = begun(tmp_path)
    shutil.rmtree(unfinished.folder)
    with pytest.raises(EdgeswarmError, match="No such file or directory") as caught:
        write(unfinished, manifest(4))
    assert caught.value.code is ErrorCode.OUTPUT_FAILED
    unfinished.close()


@pytest.mark.thorough
@pytest.mark.parametrize("end", ["before the layers are whole", "before the manifest"])
def test_a_process_that_is_killed_in_the_middle_leaves_the_checkpoint_before(tmp_path: Path, end: str) -> None:
    """Killed for real, at the one place or the other."""
    unfinished = begun(tmp_path)
    write(unfinished, manifest(4))
    unfinished.close()
    code = f"""
import os
from pathlib import Path
from edgeswarm_coordinator import unfinished
from tests.coordinator.checkpoints import manifest, rounds, write_layers

def fill(folder):
    write_layers(folder, 8)
    if {end!r} == "before the layers are whole":
        os.kill(os.getpid(), 9)

unfinished.write_synced = lambda path, parts: os.kill(os.getpid(), 9)
training = unfinished.UnfinishedTraining(Path({str(unfinished.folder)!r}))
training.resume()
training.write(manifest(8), new_rounds=rounds(4, 8), fill=fill, needed_bytes=1)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=Path(__file__).parents[2]).returncode == -9
    found = again(unfinished)
    assert len(names(found)) == 4  # what it began lies there
    assert found.manifest is not None
    assert found.manifest.round == 4
    assert [*found.rounds()] == rounds(0, 4)
    write(found, manifest(8), since=4)
    assert names(found) == {"manifest.json", "rounds.jsonl", "round-00000008"}
    assert [*again(found).rounds()] == rounds(0, 8)


def test_layers_without_a_manifest_are_left_alone(tmp_path: Path) -> None:
    """A copy on another disk that was broken off, say."""
    unfinished = begun(tmp_path)
    write(unfinished, manifest(4))
    unfinished.close()
    text = (unfinished.folder / "manifest.json").read_text()
    (unfinished.folder / "manifest.json").unlink()
    other = UnfinishedTraining(unfinished.folder)
    with pytest.raises(
        EdgeswarmError, match=r"out\.unfinished has the layers of a checkpoint and no manifest"
    ) as caught:
        other.resume()
    assert caught.value.code is ErrorCode.CHECKPOINT
    assert "copy all of it again" in caught.value.remedy
    other.close()
    (unfinished.folder / "manifest.json").write_text(text)
    assert [*again(unfinished).rounds()] == rounds(0, 4)


def test_a_new_training_says_what_lies_there(tmp_path: Path) -> None:
    new = UnfinishedTraining(tmp_path / "out.unfinished")
    new.folder.mkdir()
    with pytest.raises(EdgeswarmError, match="an unfinished training without a checkpoint") as caught:
        new.begin()
    assert caught.value.code is ErrorCode.OUTPUT_EXISTS
    before = UnfinishedTraining(new.folder)
    before.resume()
    write(before, manifest(4))
    before.close()
    with pytest.raises(EdgeswarmError, match="an unfinished training after round 4 of 20") as caught:
        new.check_absent()
    assert "--resume" in caught.value.remedy
    assert "move that folder away" in caught.value.remedy
    (new.folder / "manifest.json").write_bytes(b"\xff")
    with pytest.raises(EdgeswarmError, match="that can't be read"):
        new.check_absent()
    shutil.rmtree(new.folder)
    new.folder.touch()
    with pytest.raises(EdgeswarmError, match="that can't be read"):
        new.check_absent()


def test_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(EdgeswarmError, match="no unfinished training") as caught:
        UnfinishedTraining(tmp_path / "out.unfinished").resume()
    assert caught.value.code is ErrorCode.CHECKPOINT


def test_a_name_that_no_disk_takes_is_said(tmp_path: Path) -> None:
    training = UnfinishedTraining(tmp_path / ("n" * 300))
    for use in (training.check_absent, training.begin, training.resume):
        with pytest.raises(EdgeswarmError, match="File name too long") as caught:
            use()
        assert caught.value.code is ErrorCode.OUTPUT_FAILED


def test_it_belongs_to_one_process_at_a_time(tmp_path: Path) -> None:
    unfinished = begun(tmp_path)
    write(unfinished, manifest(4))
    with pytest.raises(EdgeswarmError, match="Another `edgeswarm train` is at work") as caught:
        UnfinishedTraining(unfinished.folder).resume()
    assert caught.value.code is ErrorCode.CHECKPOINT
    new = UnfinishedTraining(unfinished.folder)
    for use in (new.check_absent, new.begin):
        with pytest.raises(EdgeswarmError, match="Another `edgeswarm train` is at work") as caught:
            use()
        assert caught.value.code is ErrorCode.OUTPUT_EXISTS
        for way in ("`edgeswarm status`", "`edgeswarm stop`", "--output"):
            assert way in caught.value.remedy
        assert "move" not in caught.value.remedy, "that would end the one that trains"
    again(unfinished).close()


def test_an_unreadable_manifest_is_left_where_it_is(tmp_path: Path) -> None:
    unfinished = begun(tmp_path)
    write(unfinished, manifest(4))
    (unfinished.folder / "manifest.json").write_text("{")
    with pytest.raises(EdgeswarmError, match=r"manifest\.json: it is no JSON"):
        again(unfinished)
    assert unfinished.round_folder(4).is_dir()


def test_closing_removes_a_folder_without_a_checkpoint_and_keeps_one_with(tmp_path: Path) -> None:
    unfinished = begun(tmp_path)
    unfinished.close()
    assert not unfinished.folder.exists()
    unfinished.begin()
    write(unfinished, manifest(4))
    unfinished.close()
    unfinished.close()
    assert unfinished.folder.exists()
    again(unfinished).remove()
    assert not unfinished.folder.exists()


def test_too_small_a_disk_is_told_with_what_is_missing(tmp_path: Path) -> None:
    check_room(tmp_path / "deep" / "out.unfinished", 1000)
    free_bytes = shutil.disk_usage(tmp_path).free
    with pytest.raises(EdgeswarmError, match=r"take up to .* TiB, .* TiB more than is free") as caught:
        check_room(tmp_path / "out.unfinished", free_bytes + 2**41)
    assert caught.value.code is ErrorCode.OUTPUT_FAILED
    assert not list(tmp_path.iterdir())
    assert "choose another disk with --output" in caught.value.remedy


def test_a_checkpoint_goes_on_where_the_remedy_of_too_small_a_disk_has_it_moved(tmp_path: Path) -> None:
    unfinished = begun(tmp_path)
    write(unfinished, manifest(4))
    unfinished.close()
    with pytest.raises(EdgeswarmError, match="more than is free") as caught:
        check_room(unfinished.folder, shutil.disk_usage(tmp_path).free + 2**41)
    assert f"move {unfinished.folder} to a disk with room" in caught.value.remedy
    assert "--resume --output DISK/out." in caught.value.remedy
    assert "choose another" not in caught.value.remedy
    disk = tmp_path / "disk"
    disk.mkdir()
    shutil.move(unfinished.folder, disk)
    options = TrainOptions(job_path=tmp_path / "job.py", output=disk / "out", resume=True)
    found = UnfinishedTraining(options.unfinished_folder)
    found.resume()
    assert found.manifest is not None
    assert found.manifest.round == 4
    assert [*found.rounds()] == rounds(0, 4)
    assert found.layers_folder(4).is_dir()
    found.close()


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EdgeswarmError, match="folder for checkpoints can't be made") as caught:
        UnfinishedTraining(tmp_path / "file" / "out.unfinished").begin()
    assert caught.value.code is ErrorCode.OUTPUT_FAILED
