"""Transforms as people have them: of PIL images, drawing from whatever generator their library draws from."""

from __future__ import annotations

import builtins
import importlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.job import Job
from edgeswarm.wire.sample_stream import SamplePart
from edgeswarm_agent.worker.feed import FeedRequest, SampleFeed
from edgeswarm_agent.worker.samples import LocalSamples, SampleSource

from ...torchvision_here import torchvision_or_skip
from .sample_service import Cluster

LENGTH = 12


class Photos:
    """Images of unequal sizes, each with a mask: its first channel."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        noise = np.random.RandomState(index).randint(0, 256, (20 + index, 30 - index, 3), dtype=np.uint8)
        return Image.fromarray(noise), Image.fromarray(noise[:, :, 0])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"), Photos())
    yield made
    made.close()


@pytest.fixture(params=["served", "local"])
def source(request: pytest.FixtureRequest, cluster: Cluster) -> SampleSource:
    if request.param == "served":
        return cluster.source()
    return LocalSamples(Photos())


def batches(source: SampleSource, transform: Any, part: SamplePart, *, epoch: int = 0) -> list[Any]:
    """What a consumer of this part gets, in micro-batches of its own number of samples."""
    function: Any = print
    job = Job(model=function, dataset=Photos, loss=function, optimizer=function, batch_size=4, transform=transform)
    size = 4 if part is SamplePart.INPUTS else 3
    requests = [
        FeedRequest(0, number, tuple(range(first, first + size)), epoch)
        for number, first in enumerate(range(0, LENGTH, size))
    ]
    feed = SampleFeed(source=source, job=job, seed=5, part=part, requests=iter(requests), where="nano-1")
    try:
        found = [feed.get(0, number) for number in range(len(requests))]
    finally:
        feed.close()
    return [batch.targets if part is SamplePart.TARGETS else batch.inputs for batch in found]


def as_tensor(image: Image.Image) -> torch.Tensor:
    array = np.array(image)
    return torch.from_numpy(array if array.ndim == 3 else array[:, :, None])


def crop_by(draw: Any) -> Any:
    """A transform that crops image and mask at one place and flips them; draw(n, generator): a whole number below n."""

    def transform(sample: Any, generator: torch.Generator) -> Any:
        image, mask = sample
        left, top = draw(image.width - 16, generator), draw(image.height - 16, generator)
        flipped = draw(2, generator)
        box = (left, top, left + 16, top + 16)
        cropped = [picture.crop(box) for picture in (image, mask)]
        if flipped:
            cropped = [picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT) for picture in cropped]
        return as_tensor(cropped[0]), as_tensor(cropped[1])

    return transform


DRAWS: dict[str, Any] = {
    "generator": lambda n, generator: int(torch.randint(n, (), generator=generator)),
    "torch": lambda n, _: int(torch.randint(n, ())),
    "random": lambda n, _: random.randrange(n),
    "numpy": lambda n, _: int(np.random.randint(n)),
}


@pytest.mark.parametrize("draws", list(DRAWS))
def test_image_and_mask_are_cropped_alike_at_consumers_of_their_own(source: SampleSource, draws: str) -> None:
    transform = crop_by(DRAWS[draws])
    images = torch.cat(batches(source, transform, SamplePart.INPUTS))
    random.seed(3)  # whatever else draws in the process
    torch.manual_seed(3)
    masks = torch.cat(batches(source, transform, SamplePart.TARGETS))
    assert images.shape == (LENGTH, 16, 16, 3)
    assert torch.equal(images[..., :1], masks)
    assert not torch.equal(images, torch.cat(batches(source, transform, SamplePart.INPUTS, epoch=1)))


def test_nobody_elses_draws_are_disturbed(source: SampleSource) -> None:
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    expected = [float(torch.rand(())), random.random(), float(np.random.rand())]
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    for draws in ("torch", "random", "numpy"):
        batches(source, crop_by(DRAWS[draws]), SamplePart.INPUTS)
    assert [float(torch.rand(())), random.random(), float(np.random.rand())] == expected


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_the_transforms_of_torchvision_draw_alike_everywhere(source: SampleSource, version: str) -> None:
    torchvision_or_skip()
    library: Any = importlib.import_module("torchvision.transforms" if version == "v1" else "torchvision.transforms.v2")
    steps = library.Compose(
        [library.RandomResizedCrop(16), library.RandomHorizontalFlip(), library.ColorJitter(0.4), library.PILToTensor()]
    )

    def transform(sample: Any, _: torch.Generator) -> Any:
        image = steps(sample[0])
        return image, image

    inputs = torch.cat(batches(source, transform, SamplePart.INPUTS))
    assert inputs.shape == (LENGTH, 3, 16, 16)
    assert torch.equal(inputs, torch.cat(batches(source, transform, SamplePart.TARGETS)))
    assert not torch.equal(inputs, torch.cat(batches(source, transform, SamplePart.INPUTS, epoch=1)))


def test_images_without_a_transform_say_what_to_write(source: SampleSource) -> None:
    with pytest.raises(EdgeswarmError, match="hold PIL images") as caught:
        batches(source, None, SamplePart.INPUTS)
    assert "transform(sample, generator)" in caught.value.remedy


def test_a_device_without_pillow_is_named(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without_pillow(name: str, *arguments: Any) -> Any:
        if name.partition(".")[0] == "PIL":
            raise ModuleNotFoundError(f"No module named {name!r}", name="PIL")
        return real_import(name, *arguments)

    source = cluster.source()
    places = source.read([0], SamplePart.BOTH)
    monkeypatch.setattr(builtins, "__import__", without_pillow)
    with pytest.raises(ImportError):
        places.item(0)

    class Kept:
        """What the device fetched, as a source: the service of this test is in this process and has Pillow."""

        def read(self, *_: Any) -> Any:
            return places

        def samples_a_call(self) -> int:
            return 100

        def cancel(self) -> None:
            """Nothing waits."""

    with pytest.raises(EdgeswarmError) as caught:
        batches(Kept(), crop_by(DRAWS["torch"]), SamplePart.INPUTS)
    assert caught.value.code is ErrorCode.MODULE_MISSING
    assert "'PIL' is missing on nano-1, and transforming item 0" in caught.value.message
    assert "pip install pillow" in caught.value.remedy
