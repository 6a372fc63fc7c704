"""How a module, or a few lines, of ours run in a process of their own."""

from __future__ import annotations

import sys


def own_module(name: str) -> tuple[str, ...]:
    """The beginning of its command line, as `python -m` has it, but for where it imports from.

    That isn't the current folder, which is the user's: a queue.py there would stand in for the standard library's.
    """
    if sys.version_info >= (3, 11):
        return (sys.executable, "-P", "-m", name)
    return own_lines(f"import runpy; runpy.run_module({name!r}, run_name='__main__', alter_sys=True)")


def own_lines(program: str) -> tuple[str, ...]:
    """The command line for a few lines of Python that don't import from the current folder, either."""
    return (sys.executable, "-c", f"import sys; sys.path[:] = [folder for folder in sys.path if folder]; {program}")
