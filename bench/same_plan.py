"""Which plans are the same work, whoever made them: such need one measurement. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from edgeswarm.plan import Plan


def first_alike(plans: Mapping[str, Plan]) -> dict[str, str]:
    """By name, that of the first plan by which devices do the same: its own where none before does."""
    work = {name: replace(plan, planner="", idle=(), backup={}, predicted=None) for name, plan in plans.items()}
    return {name: next(other for other in work if work[other] == work[name]) for name in work}
