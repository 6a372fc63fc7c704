"""What is said to be lacking where no plan fits: by the memory that plans count, the least there is, and what helps."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeswarm.errors import EdgeswarmError
from edgeswarm.model_costs import LayerCosts
from edgeswarm.profile import PlanningInstance
from edgeswarm_coordinator.planner.cost_model import held_bytes, in_flight_limit
from edgeswarm_coordinator.planner.planners import make_plan
from edgeswarm_coordinator.planner.shortage import pipeline_shortage

from .instances import instances, make_instance
from .test_passing_memory import with_passing


def least_lack(instance: PlanningInstance, order: list[int], samples: int, most_in_flight: int) -> int:
    """Over all pipelines of the first devices of the order, each with all of its cuts."""
    micro_batches = -(-instance.training.mini_batch // samples)
    layers = instance.model.layer_count
    lacks = []
    for count in range(1, min(len(order), layers) + 1):
        for inner in combinations(range(1, layers), count - 1):
            cuts = (0, *inner, layers)
            lacks.append(
                max(
                    held_bytes(
                        instance,
                        first_layer=cuts[stage],
                        end_layer=cuts[stage + 1],
                        samples=samples,
                        in_flight=in_flight_limit(
                            stages_to_end=count - stage, micro_batches=micro_batches, most=most_in_flight
                        ),
                        micro_batches=micro_batches,
                        base_bytes=instance.devices[place].base_bytes,
                    )
                    - instance.devices[place].memory_bytes
                    for stage, place in enumerate(order[:count])
                )
            )
    return min(lacks)


@settings(max_examples=60, deadline=None)
@given(instance=instances(), samples=st.integers(1, 4), most=st.integers(1, 3), passing=st.booleans())
def test_the_lack_is_the_least_of_any_pipeline_over_the_order(
    instance: PlanningInstance, samples: int, most: int, passing: bool
) -> None:
    instance = with_passing(instance) if passing else instance
    order = list(range(len(instance.devices)))
    worst, *others = pipeline_shortage(instance, order, samples=samples, most_in_flight=most)
    assert worst.lacking_bytes == least_lack(instance, order, samples, most)
    assert all(0 < other.lacking_bytes <= worst.lacking_bytes for other in others)


def wide_frames(output_bytes: int = 400, *, narrow: int | None = None) -> PlanningInstance:
    """Two layers of 6000 bytes with gradients and momentum; a frame between them has 400 bytes a sample."""
    instance = make_instance((1.0,) * 2, (1.0, 1.0), [7000, 6900], param_bytes=2000, saved_bytes=0, output_bytes=0)
    first = LayerCosts("first", 2000, output_bytes, 0, narrow_output_bytes=narrow)
    return replace(
        instance,
        model=replace(instance.model, layers=(first, instance.model.layers[1])),
        training=replace(instance.training, frames_held=2),
    )


def remedy(instance: PlanningInstance, planner: str = "edgeswarm", *, micro_batch: int = 4) -> str:
    with pytest.raises(EdgeswarmError, match="too little") as caught:
        make_plan(instance, planner, micro_batch=micro_batch)
    return caught.value.remedy


def test_a_narrow_wire_helps_where_frames_are_held() -> None:
    # Two frames of 4 samples: 3200 bytes beside the layer's 6000, half of it where float32 travels in two bytes.
    instance = wide_frames(narrow=200)
    said = remedy(instance)
    assert "more free memory: 2.2 KiB on b, 2.1 KiB on a" in said
    assert 'wire_dtype="bfloat16" or "float16" in the job (narrower frames save 1.6 KiB there)' in said
    narrowed = wide_frames(200)
    with pytest.raises(EdgeswarmError, match=r"but it has 6\.7 KiB: 700 bytes too little"):
        make_plan(narrowed, micro_batch=4)
    assert make_plan(narrowed, micro_batch=1).layer_count == 2


@pytest.mark.parametrize(
    ("instance", "planner"),
    [
        (wide_frames(), "edgeswarm"),  # unknown, or narrow already
        (wide_frames(narrow=400), "edgeswarm"),  # integers, say: nothing to narrow
        (wide_frames(narrow=398), "edgeswarm"),  # 16 bytes of 2300: no help
        (wide_frames(narrow=200), "single"),  # no cut, no frame
    ],
)
def test_a_narrow_wire_is_not_said_to_help_where_it_does_not(instance: PlanningInstance, planner: str) -> None:
    assert "wire_dtype" not in remedy(instance, planner)
