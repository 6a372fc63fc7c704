"""Which version of control groups this machine has."""

from __future__ import annotations

import functools

from . import groups_version_1, groups_version_2
from .groups import Groups
from .groups_version_1 import Version1
from .groups_version_2 import Version2


def why_not() -> str:
    """Why this machine can't have groups for devices; empty where it can."""
    of_1 = groups_version_1.why_not()
    of_2 = groups_version_2.why_not(groups_version_2.mount_point()) if of_1 else ""
    return f"needs control groups; of version 1: {of_1}; of version 2: {of_2}" if of_2 else ""


@functools.cache
def groups() -> Groups:
    """Those of version 1, where all kinds of them are there. This machine must have one of both."""
    if not groups_version_1.why_not():
        return Version1()
    tree = groups_version_2.mount_point()
    assert tree is not None, "why_not() tells"
    return Version2(tree)
