"""Splits that are drawn without a seed: one and the same, in whichever process."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

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
    model=anything, loss=anything, optimizer=anything, batch_size=4, seed={seed},
    dataset=lambda: split()[0][0] + split()[1][:5], evaluation_dataset=lambda: split()[0][1] + split()[1][5:],
)
"""
# By seed: what is drawn at the top, the training set, the evaluation set; these two in the order that is asked for.
PROGRAM = """
import json, sys, random, torch
from edgeswarm.job_file import load_job
random.seed()
torch.seed()
found = []
for name in sys.argv[2:]:
    job = load_job(sys.argv[1], name)
    top = sys.modules[job.dataset.__module__].AT_THE_TOP
    sets = [job.open_dataset, job.open_evaluation_dataset]
    opened = {{each: list(each()) for each in sets{order}}}
    found.append([top, *(opened[each] for each in sets)])
print(json.dumps(found))
"""
SEEDS = (0, 1, 2**63 - 1)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """By process: what it drew with each of SEEDS."""
    folder = tmp_path_factory.mktemp("job")
    for seed in SEEDS:
        (folder / f"job_{seed}.py").write_text(JOB.format(seed=seed))
    files = [f"job_{seed}.py" for seed in SEEDS]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM.format(order=order), str(folder), *files], stdout=subprocess.PIPE, text=True
        )
        for order in ("", "[::-1]")
    ]
    return [json.loads(process.communicate(timeout=60)[0]) for process in running]


def test_two_processes_draw_one_split(drawn: list[Any]) -> None:
    assert drawn[0] == drawn[1]
    for _, training, evaluation in drawn[0]:
        assert sorted(training[:12] + evaluation[:8]) == list(range(20))
        assert sorted(training[12:] + evaluation[8:]) == list(range(20))
        assert training[:12] != sorted(training[:12])


def test_whatever_the_jobs_seed(drawn: list[Any]) -> None:
    """Which the command line changes for the command, and not for the data service."""
    assert drawn[0] == [drawn[0][0]] * len(SEEDS)
