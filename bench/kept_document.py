"""A measurement's document and its file. What was broken off goes on where it was, on a machine with the same processor.

on another one:  DIR/NAME.json  -->  DIR/aside/NAME.PROCESSOR.json
                 DIR/NAME.json  <--  what a machine with this one's processor had to lay aside there, else a new one
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from bench.measuring import keep, processor, say

ASIDE = "aside"  # a folder beside the documents


class KeptDocument:
    """content: what there is; `keep` writes it. new: what a document begins with. A complete one stays on any machine."""

    def __init__(self, path: Path, *, new: Mapping[str, Any], is_complete: Callable[[dict[str, Any]], bool]) -> None:
        self.path = path
        self._of_another_processor: dict[str, Any] = {}
        found = _read(path)
        if found and not is_complete(found) and found.get("processor") != processor():
            self._of_another_processor = found
            found = _read(self._aside(processor()))
            goes_on = "goes on with what this one measured" if found else "begins anew"
            say(f"{path.stem}: broken off on a machine with another processor, laid aside; {goes_on}")
        self.content: dict[str, Any] = found or {**new, "processor": processor()}

    def keep(self, **more: Any) -> None:
        """Writes the document with what is new, whole or not at all."""
        if other := self._of_another_processor:
            aside = self._aside(other.get("processor", ""))
            aside.parent.mkdir(exist_ok=True)
            keep(aside, other)
            self._of_another_processor = {}
        self.content.update(more)
        keep(self.path, self.content)

    def forget_repeats(
        self, unfinished: Collection[object], *, repeat_of: Callable[[Mapping[str, Any]], object] = itemgetter("repeat")
    ) -> None:
        """Runs of repeats that were broken off: what comes now would be no neighbour of them in time.

        unfinished: repeats, as repeat_of has them.
        """
        runs = self.content["runs"]
        counting = [run for run in runs if repeat_of(run) not in unfinished]
        if len(counting) < len(runs):
            left_out = len(runs) - len(counting)
            say(f"{self.path.stem}: {left_out} runs of a repeat that was broken off before are left out")
        self.content["runs"] = counting

    def _aside(self, its_processor: str) -> Path:
        """What machines with that processor measured, while another one's is in the file."""
        return self.path.parent / ASIDE / f"{self.path.stem}.{in_file_names(its_processor)}.json"


def in_file_names(its_processor: str) -> str:
    """A processor without what a file's name can't have."""
    return re.sub(r"[^A-Za-z0-9]+", "-", its_processor).strip("-") or "unknown"


def _read(path: Path) -> dict[str, Any]:
    """Nothing where there is no such file."""
    document: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return document
