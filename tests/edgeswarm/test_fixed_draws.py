"""Splits that are drawn without a seed: one and the same, in whichever process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

JOB = """
import random
import numpy
import edgeswarm
import torch
from torch.utils.data import random_split

AT_THE_TOP = [random.random(), float(numpy.random.rand()), float(torch.rand(1))]

def split():
    first = random_split(range(20), [12, 8])
    shuffled = list(range(20))
    random.shuffle(shuffled)
    return [[*part] for part in first], shuffled, numpy.random.permutation(20).tolist()

def anything(*_):
    return None

job = edgeswarm.Job(
    model=anything, loss=anything, optimizer=anything, batch_size=4, seed=SEED,
    dataset=lambda: split()[0][0] + split()[1][:5], evaluation_dataset=lambda: split()[0][1] + split()[1][5:],
)
"""
PROGRAM = """
import json, sys, random, torch
from edgeswarm.job_file import load_job
random.seed()
torch.seed()
job = load_job(sys.argv[1], "job.py")
module = sys.modules[job.dataset.__module__]
evaluation = list(job.open_evaluation_dataset()) if sys.argv[2] == "evaluation first" else None
training = list(job.open_dataset())
print(json.dumps([module.AT_THE_TOP, training, evaluation or list(job.open_evaluation_dataset())]))
"""


def drawn(folder: Path, order: str, *, seed: int) -> tuple[list[float], list[int], list[int]]:
    (folder / "job.py").write_text(JOB.replace("SEED", str(seed)))
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), order], capture_output=True, text=True, check=True
    ).stdout
    top, training, evaluation = json.loads(said)
    return top, training, evaluation


@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_two_processes_draw_one_split(tmp_path: Path, seed: int) -> None:
    first = drawn(tmp_path, "training first", seed=seed)
    assert first == drawn(tmp_path, "evaluation first", seed=seed)
    _, training, evaluation = first
    assert sorted(training[:12] + evaluation[:8]) == list(range(20))
    assert sorted(training[12:] + evaluation[8:]) == list(range(20))
    assert training[:12] != sorted(training[:12])


def test_another_seed_draws_another_one(tmp_path: Path) -> None:
    first, other = (drawn(tmp_path, "training first", seed=seed) for seed in (0, 1))
    assert first[0] == other[0]  # the file itself runs before its job says a seed
    assert first[1:] != other[1:]
