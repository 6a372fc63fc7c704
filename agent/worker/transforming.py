"""Batches of samples that go through a job's transform, or that went through it before.

kept?  ──yes──> row of a block ─────────────────────────────────────────────> batch
  └─no──> read ──> transform, with generators of its own ──> keep (transformed_samples.py) ──> batch
"""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from edgeswarm.errors import EdgeswarmError, ErrorCode, said_by
from edgeswarm.model.draws import WatchedGenerator, drawing_from, restored_generators
from edgeswarm.wire.sample_stream import SamplePart
from edgeswarm.wire.tensor_misfits import collate_named
from edgeswarm.wire.tensor_samples import part_of

from .errors import line_of
from .sample_cache import Place
from .samples import FetchedSamples, PlainSamples, Samples, SampleSource
from .timing import TRANSFORM, Progress
from .transformed_samples import TransformedSamples, UnknownTypeError, copied

Transform = Callable[[Any, torch.Generator], Any]


@dataclass(frozen=True)
class ReadSamples:
    """What is there to make batches of. samples: as they were read; None where they are to be read in pieces, as they are
    transformed. kept: what the transform made of others before. looked_at: of these, those that were read all the same.
    """

    samples: Samples | None
    kept: Mapping[int, Place]
    looked_at: frozenset[int]


class Transforming:
    """Transforms the samples of a source. part: what a batch has; whole samples are read all the same, for transforms take those.

    where: the device's name, for messages. kept: None where nothing is. doing: is told what the transform is at.
    """

    def __init__(
        self,
        *,
        source: SampleSource,
        transform: Transform,
        seed: int,
        part: SamplePart,
        where: str,
        doing: Progress,
        kept: TransformedSamples | None = None,
    ) -> None:
        self._source = source
        self._transform = transform
        self._seed = seed
        self._part = part
        self._where = where
        self._doing = doing
        self._kept = kept

    def read(self, indices: Sequence[int], *, in_pieces: bool) -> ReadSamples:
        """What is missing of these. in_pieces: where they are many for one call, they are read as they are transformed: a
        micro-batch of large images may take far more than what the transform makes of it.
        """
        kept = self._kept.find(indices) if self._kept is not None else {}
        looked_at = self._kept.to_look_at(kept) if self._kept is not None else frozenset()
        missing = [index for index in indices if index not in kept or index in looked_at]
        samples: Samples | None = PlainSamples({})
        if missing:
            too_many = in_pieces and len(missing) > self._source.samples_a_call()
            samples = None if too_many else self._source.read(missing, SamplePart.BOTH)
        return ReadSamples(samples, kept, looked_at)

    def batch(self, indices: Sequence[int], epoch: int, read: ReadSamples) -> Any:
        """The wanted part of some samples after the transform, as one batch. Raises EdgeswarmError."""
        before = FetchedSamples(read.kept)
        missing = [index for index in indices if index not in read.kept]
        looked_at = [index for index in indices if index in read.looked_at]
        with restored_generators() if missing or looked_at else nullcontext():
            made = dict(zip(missing, self._transformed_all(missing, epoch, read.samples), strict=True))
            anew = list(self._transformed_all(looked_at, epoch, read.samples))
        if not missing:
            batch = before.collate(indices)
        else:
            values = [made[index] if index in made else before.item(index) for index in indices]
            batch = collate_named(values, indices)
        if self._kept is not None:
            for index, value in zip(looked_at, anew, strict=True):
                self._kept.compare(value, before.item(index))
            self._kept.add(made)
        return batch

    def _transformed_all(self, indices: Sequence[int], epoch: int, samples: Samples | None) -> Iterator[Any]:
        first = 0
        while first < len(indices):
            end = len(indices) if samples is not None else first + self._source.samples_a_call()
            piece = indices[first:end]
            here = samples if samples is not None else self._source.read(piece, SamplePart.BOTH)
            for index in piece:
                yield self._transformed(index, epoch, here)
            first = end

    def _transformed(self, index: int, epoch: int, samples: Samples) -> Any:
        """The wanted part of a sample after the transform, which is looked at as long as it is trusted."""
        value = self._called(index, sample_generator(self._seed, epoch, index), samples)
        kept = self._kept
        if kept is None or not kept.wants_second_look():
            return value
        try:
            # Read and copied: a transform may write into its sample, and give back what lies in it.
            first = copied(value)
            again = self._source.read([index], SamplePart.BOTH)
            kept.compare(self._called(index, sample_generator(self._seed + 1, epoch, index), again), first)
        except UnknownTypeError:
            kept.give_up()
            return value
        except EdgeswarmError:
            kept.give_up()
        return first

    def _called(self, index: int, generator: torch.Generator, samples: Samples) -> Any:
        """The wanted part of what the transform makes of a sample; gives up keeping where it draws."""
        try:
            sample = samples.item(index)
            with drawing_from(generator) as drew, self._doing.during(f"transform of item {index}", kind=TRANSFORM):
                sample = self._transform(sample, generator)
                if self._kept is not None and self._kept.keeps and drew():
                    self._kept.give_up()
        except EdgeswarmError:
            raise
        except ImportError as error:
            raise EdgeswarmError(
                ErrorCode.MODULE_MISSING,
                f"The Python module {error.name or str(error)!r} is missing on {self._where}, "
                f"and transforming item {index} of the dataset needs it{line_of(error)}.",
                f"Install it there, in the Python that runs edgeswarm{_package_of(error.name)}.",
                detail="".join(traceback.format_exception(error)),
            ) from error
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            raise EdgeswarmError(
                ErrorCode.DATA_FAILED,
                f"The job's transform failed on item {index} on {self._where}: {said_by(error)}{line_of(error)}.",
                "Correct the transform.",
                detail="".join(traceback.format_exception(error)),
            ) from error
        return part_of(sample, self._part)


def _package_of(module: str | None) -> str:
    """What to install where the package's name is another than the module's."""
    return " (pip install pillow)" if module and module.partition(".")[0] == "PIL" else ""


def sample_generator(seed: int, epoch: int, index: int) -> torch.Generator:
    """The generator for a sample's transform: a function of these three, so that every consumer draws the same."""
    digest = hashlib.blake2b(f"{seed}/{epoch}/{index}".encode(), digest_size=8).digest()
    return WatchedGenerator().manual_seed(int.from_bytes(digest, "little") >> 1)
