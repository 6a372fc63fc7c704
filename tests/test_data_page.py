"""docs/data.md: every block is a job file that holds together, tried as `edgeswarm train` tries it, on small files."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from edgeswarm.job_file import load_job
from edgeswarm_coordinator.job_checks import CheckedJob, check_job, sample_batch

from .torchvision_here import torchvision_or_skip

PAGE = Path(__file__).parents[1] / "docs" / "data.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
# What the collated inputs of each block are; the targets have as many rows.
INPUTS: list[tuple[str, Any]] = [
    ("ImageFolder", (4, 3, 64, 64)),
    ("class Photos", (4, 3, 64, 64)),
    ("class Characters", (4, 32)),
    ("load_from_disk", {"input_ids": (4, 6), "attention_mask": (4, 6)}),
    ("class Shapes", (4, 3, 32, 32)),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the blocks read: photos of unequal sizes in two classes, a text, and a data set of two splits."""
    import datasets  # here: it takes a second

    folder = tmp_path_factory.mktemp("files")
    for number in range(8):
        path = folder / "photos" / ("cat", "dog")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.RandomState(number).randint(0, 256, (70 + number, 90, 3), dtype=np.uint8)
        Image.fromarray(noise).save(path)
    (folder / "text.txt").write_text("Call me Ishmael. Some years ago, never mind how long precisely. " * 5)
    table = {
        "input_ids": [[index + place for place in range(6)] for index in range(9)],
        "attention_mask": [[1, 1, 1, 1, index % 2, 0] for index in range(9)],
        "label": [index % 2 for index in range(9)],
        "text": ["not needed"] * 9,
    }
    splits = {split: datasets.Dataset.from_dict(table) for split in ("train", "test")}
    datasets.DatasetDict(splits).save_to_disk(str(folder / "reviews"))
    return folder


@pytest.fixture
def folder(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of them, which is the current folder."""
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def checked(folder: Path, block: str) -> tuple[Any, CheckedJob]:
    (folder / "page.py").write_text(block)
    job = load_job(folder, "page.py")
    torch.manual_seed(0)
    return job, check_job(job, job.model(), job.open_dataset(), folder=folder, batch_size=job.batch_size)


def shapes(value: Any) -> Any:
    return {name: tuple(part.shape) for name, part in value.items()} if isinstance(value, dict) else tuple(value.shape)


def test_every_block_has_its_test() -> None:
    assert len(BLOCKS) == len(INPUTS)
    assert all(mark in block for (mark, _), block in zip(INPUTS, BLOCKS, strict=True))


@pytest.mark.parametrize("number", range(len(INPUTS)), ids=[mark for mark, _ in INPUTS])
def test_a_block_is_a_job_that_holds_together(folder: Path, number: int) -> None:
    if "torchvision" in BLOCKS[number]:
        torchvision_or_skip()
    job, found = checked(folder, BLOCKS[number])
    assert shapes(found.inputs) == INPUTS[number][1]
    assert len(found.targets) == 4
    if job.evaluation_dataset is not None:
        inputs, _ = sample_batch(job, job.open_evaluation_dataset(), range(4), folder=folder)
        assert shapes(inputs) == INPUTS[number][1]


def test_files_as_they_are_can_be_decoded_in_the_transform(folder: Path) -> None:
    """What the page says of large photos."""
    block = BLOCKS[1].replace("return numpy.array(image), ", "return self.paths[index].read_bytes(), ")
    block = block.replace(
        "image, label = sample\n",
        "import io, numpy\n    from PIL import Image\n    content, label = sample\n"
        '    image = numpy.array(Image.open(io.BytesIO(content)).convert("RGB").resize((72, 72)))\n',
    )
    assert shapes(checked(folder, block)[1].inputs) == INPUTS[1][1]
