"""Images of unequal sizes, and a transform with draws of the process's own generators, over two stages of real agents.

What inputs and targets draw must agree, though two devices draw it; what was fetched once isn't fetched again.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from edgeswarm.config import Folders
from edgeswarm.job_file import load_job
from edgeswarm.model.draws import drawing_from, restored_generators
from edgeswarm.plan import Plan, Stage
from edgeswarm.samples import SampleOrder
from edgeswarm_agent.worker.transforming import sample_generator
from edgeswarm_coordinator.demo.cluster import ThrowawayCluster
from edgeswarm_coordinator.events import Event, RoundDone

from .small_job import relative_distance, train_on

pytestmark = pytest.mark.e2e

JOB = """
import random

import edgeswarm
import numpy
import torch
from torch import nn


class Photos:
    def __len__(self):
        return 30

    def __getitem__(self, index):
        from PIL import Image

        noise = numpy.random.RandomState(index).randint(0, 256, (10 + index % 5, 12, 3), dtype=numpy.uint8)
        return Image.fromarray(noise), {"label": index % 2, "name": f"photo {index}"}


def transform(sample, generator):
    image, about = sample
    flipped = bool(torch.rand(()) < 0.5)
    left = random.randrange(image.width - 8) + int(numpy.random.randint(1))
    pixels = torch.from_numpy(numpy.array(image.crop((left, 0, left + 8, 8)))).double() / 255
    return pixels.flip(1) if flipped else pixels, 2 * about["label"] + flipped


job = edgeswarm.Job(
    model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 24), nn.Tanh(), nn.Linear(24, 4)).double(),
    dataset=Photos,
    transform=transform,
    loss=nn.functional.cross_entropy,
    optimizer=lambda named: torch.optim.SGD([parameter for _, parameter in named], lr=0.05, momentum=0.9),
    batch_size=10,
    epochs=3,
    seed=4,
)
"""


def plain_weights(folder: Path) -> dict[str, torch.Tensor]:
    job = load_job(folder, "photos.py")
    assert job.transform is not None
    torch.manual_seed(job.seed)
    model, dataset = job.model(), job.open_dataset()
    optimizer = job.optimizer(list(model.named_parameters()))
    order = SampleOrder(len(dataset), job.batch_size, job.seed)
    for round_number in range(order.rounds_per_epoch * job.epochs):
        epoch = order.epoch_of(round_number)
        start = round_number % order.rounds_per_epoch * job.batch_size
        items = []
        with restored_generators():
            for index in map(int, order.permutation(epoch)[start : start + job.batch_size]):
                generator = sample_generator(job.seed, epoch, index)
                with drawing_from(generator):
                    items.append(job.transform(dataset[index], generator))
        optimizer.zero_grad()
        output = model(torch.stack([inputs for inputs, _ in items]))
        job.loss(output, torch.tensor([target for _, target in items])).backward()
        optimizer.step()
    return model.state_dict()


def test_images_are_drawn_alike_at_both_ends_and_fetched_once(cluster: ThrowawayCluster, tmp_path: Path) -> None:
    (tmp_path / "photos.py").write_text(JOB)
    plan = Plan(
        planner="hand",
        micro_batch=5,
        micro_batches=2,
        stages=(
            Stage(first_layer=0, end_layer=1, shares={cluster.node_id("a"): 3, cluster.node_id("b"): 2}, in_flight=2),
            Stage(first_layer=1, end_layer=2, shares={cluster.node_id("c"): 5}, in_flight=1),
        ),
    )
    output = tmp_path / "out"
    train_on(cluster, tmp_path / "photos.py", plan=plan, output=output)
    largest, _ = relative_distance(load_file(output / "model.safetensors"), plain_weights(tmp_path))
    assert largest < 1e-9
    rounds = json.loads((output / "metrics.json").read_text())["rounds"]
    fetched = [[parts["fetched_sample_bytes"] for parts in done["parts"].values()] for done in rounds]
    assert len(fetched) == 9
    assert all(sum(of_device) > 0 for of_device in zip(*fetched[:3], strict=True))
    # A replica of a stage meets, in a later epoch, samples that another one had before.
    assert all(done["parts"][cluster.node_id("c")]["fetched_sample_bytes"] == 0 for done in rounds[3:])
    for name in "abc":
        samples = Folders.within(cluster.folder / "agents" / name).cache_dir / "samples"
        assert list(samples.iterdir()) == []


WATCHED = (
    JOB.replace("import random\n", "import random\nimport weakref\n\nOPEN = weakref.WeakSet()\n", 1)
    .replace("class Photos:\n", "class Photos:\n    def __init__(self):\n        OPEN.add(self)\n\n", 1)
    .replace("    seed=4,\n", "    seed=4,\n    evaluation_dataset=Photos,\n    evaluate_every=2,\n", 1)
)


def test_while_it_trains_the_command_holds_no_data_set(cluster: ThrowawayCluster, tmp_path: Path) -> None:
    """They may be as large as its memory, and the data service has its own."""
    (tmp_path / "watched.py").write_text(WATCHED)
    stage = Stage(first_layer=0, end_layer=2, shares={cluster.node_id("a"): 10}, in_flight=1)
    held: list[int] = []

    def listen(event: Event) -> None:
        if isinstance(event, RoundDone):
            (module,) = (module for name, module in sys.modules.items() if name.endswith("_watched"))
            gc.collect()
            held.append(len(module.OPEN))

    plan = Plan(planner="hand", micro_batch=10, micro_batches=1, stages=(stage,))
    train_on(cluster, tmp_path / "watched.py", plan=plan, output=tmp_path / "out", listener=listen)
    assert held == [0] * 9
