"""How one of our modules is run in a process of its own."""

from __future__ import annotations

import sys


def own_module(name: str) -> tuple[str, ...]:
    """The beginning of its command line, as `python -m` has it, but for where it imports from.

    That isn't the current folder, which is the user's: a queue.py there would stand in for the standard library's. Python 3.10
    can't be told so.
    """
    without_current_folder = ("-P",) if sys.version_info >= (3, 11) else ()
    return (sys.executable, *without_current_folder, "-m", name)
