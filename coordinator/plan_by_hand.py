"""A plan from a file: read, its device names resolved, checked against the job."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.model.layer_graph import LayerGraph
from edgeswarm.plan import Plan

from .device import resolve_names, short_name


def read_plan(path: Path) -> Plan:
    """A plan written by hand or by `edgeswarm plan --json`. Raises EdgeswarmError (PLAN_INVALID)."""
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise EdgeswarmError(
            ErrorCode.PLAN_INVALID, f"The plan {path} can't be read: {error.strerror}.", "Check the path."
        ) from error
    except ValueError as error:
        raise EdgeswarmError(
            ErrorCode.PLAN_INVALID, f"The plan {path} is not JSON: {error}.", "Let `edgeswarm plan --json` write it."
        ) from error
    return Plan.from_json(document, may_be_edited=True)


def with_node_ids(plan: Plan, node_ids: Mapping[str, str]) -> Plan:
    """The plan with its devices' names replaced by node ids. What is in a stage by another name isn't idle."""
    predicted = plan.predicted
    if predicted is not None:
        memory_bytes = {node_ids.get(name, name): size for name, size in predicted.memory_bytes.items()}
        predicted = replace(predicted, memory_bytes=memory_bytes)
    return replace(
        plan,
        stages=tuple(
            replace(
                stage,
                shares={node_ids[name]: share for name, share in stage.shares.items()},
                owners=tuple(node_ids[name] for name in stage.owners),
                passes={node_ids[name]: passes for name, passes in stage.passes.items()},
            )
            for stage in plan.stages
        ),
        idle=tuple(idle for idle in plan.idle if idle.name not in {node_ids[name] for name in plan.devices}),
        backup={stage: node_ids[name] for stage, name in plan.backup.items()},
        predicted=predicted,
    )


def fitted(by_hand: Plan, *, node_ids: Sequence[str], layer_graph: LayerGraph, batch_size: int) -> Plan:
    """The plan with node ids for names, checked against the job and the devices at hand.

    Raises EdgeswarmError: PLAN_INVALID, NO_DEVICES for a name that none of them has.
    """
    plan = _named(by_hand, resolve_names(by_hand.devices, node_ids))
    plan.validate_for(
        layer_count=len(layer_graph.layers),
        mini_batch=batch_size,
        devices=node_ids,
        least_batch=[layer.least_batch for layer in layer_graph.layers],
    )
    return plan


def named_as_in_instance(by_hand: Plan, device_names: Sequence[str]) -> Plan:
    """The plan with the names of an instance's devices for short ones.

    Names that it lacks are left, and refused where plan and instance are compared. Raises EdgeswarmError: PLAN_INVALID for two
    names of one device, NO_DEVICES for a name that several have.
    """
    known = {*device_names, *map(short_name, device_names)}
    resolved = resolve_names([name for name in by_hand.devices if name in known], device_names)
    return _named(by_hand, {name: resolved.get(name, name) for name in by_hand.devices})


def _named(by_hand: Plan, node_ids: Mapping[str, str]) -> Plan:
    for name, other in itertools.combinations(by_hand.devices, 2):
        if node_ids[name] == node_ids[other]:
            raise EdgeswarmError(
                ErrorCode.PLAN_INVALID,
                f"The plan has {name} and {other}, which are one device.",
                "Give each device one part of one stage.",
            )
    return with_node_ids(by_hand, node_ids)
