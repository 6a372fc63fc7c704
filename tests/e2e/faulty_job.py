"""A job of three layers in which single pieces can be replaced by faulty ones, and plans for it by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LAYERS = 3
BATCH_SIZE = 8
ITEMS = 40
ROUNDS_PER_EPOCH = ITEMS // BATCH_SIZE
ENDLESS = 100_000  # epochs: hours

_TEMPLATE = """
import collections
import sys
import time

import torch
from torch import nn
from torch.nn import functional

import edgeswarm

# The agents unpack the job's files into a folder of this name.
ON_A_DEVICE = "bundles" in __file__
IN_THE_DATA_SERVICE = "edgeswarm_coordinator.data_server" in sys.orig_argv

{top}


def item(index):
    {item}
    return torch.full((4,), index / 100), torch.tensor(index % 2)


class Data:
    def __init__(self):
        {dataset}

    def __len__(self):
        return {items}

    def __getitem__(self, index):
        return item(index)


def model():
    {model}
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))


def loss(output, targets):
    {loss}
    return functional.cross_entropy(output, targets)


def optimizer(named):
    made = torch.optim.SGD([parameter for _, parameter in named], lr=0.1, momentum=0.9)
    {optimizer}
    return made


def transform(sample, generator):
    {transform}
    return sample


{name} = edgeswarm.Job(
    model=model,
    dataset=Data,
    loss=loss,
    optimizer=optimizer,
    transform=transform,
    batch_size={batch_size},
    epochs={epochs},
    {more}
)
"""


@dataclass(frozen=True)
class FaultyJob:
    """Lines of Python, each put at the beginning of the function that it is named after (`top`: of the file).

    more: further arguments of the Job. items: of the data set.
    """

    top: str = ""
    item: str = ""
    dataset: str = ""
    model: str = ""
    loss: str = ""
    optimizer: str = ""
    transform: str = ""
    name: str = "job"
    more: str = ""
    epochs: int = 2
    items: int = ITEMS

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "tiny.py"
        pieces = {name: (text if name in ("top", "more") else text or "pass") for name, text in vars(self).items()}
        path.write_text(_TEMPLATE.format(**{**pieces, "items": self.items}, batch_size=BATCH_SIZE))
        return path


Groups = Sequence[Mapping[str, int]]


def write_plan(folder: Path, groups: Groups, *, layers: int = LAYERS) -> Path:
    """A plan by hand: stages over groups of devices by name, with their shares; the last stage has the rest of the layers."""
    stages: list[dict[str, Any]] = [
        {
            "first_layer": index,
            "end_layer": layers if index + 1 == len(groups) else index + 1,
            "shares": dict(group),
            "in_flight": len(groups) - index,
        }
        for index, group in enumerate(groups)
    ]
    micro_batch = sum(groups[0].values())
    document = {
        "format": "edgeswarm-plan/1",
        "planner": "hand",
        "micro_batch": micro_batch,
        "micro_batches": BATCH_SIZE // micro_batch,
        "stages": stages,
    }
    path = folder / "plan.json"
    path.write_text(json.dumps(document))
    return path
