"""A planning instance to and from JSON, `edgeswarm-planning-instance/1`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import fields as dataclass_fields

from .errors import EdgeswarmError, ErrorCode
from .json_fields import Fields
from .model_costs import LayerCosts, ModelCosts, TiedCosts
from .profile import (
    DataSource,
    DeviceDescription,
    DeviceProfile,
    Network,
    Overheads,
    PlanningInstance,
    TrainingSettings,
)

INSTANCE_FORMAT = "edgeswarm-planning-instance/1"


def instance_to_json(instance: PlanningInstance) -> dict[str, object]:
    """The instance as one object of JSON values; a network whose links are all alike is written as one number."""
    return {
        "format": INSTANCE_FORMAT,
        "name": instance.name,
        "model": {
            "input_bytes": instance.model.input_bytes,
            **_where_any(target_bytes=instance.model.target_bytes),
            "layers": [
                {
                    "name": layer.name,
                    "param_bytes": layer.param_bytes,
                    "output_bytes": layer.output_bytes,
                    "saved_bytes": layer.saved_bytes,
                    "flops_forward": layer.flops_forward,
                    "flops_backward": layer.flops_backward,
                    "least_batch": layer.least_batch,
                    **_where_known(gradient_bytes=layer.gradient_bytes),
                    **_where_any(transient_bytes=layer.transient_bytes, workspace_bytes=layer.workspace_bytes),
                    **_where_any(joint_workspace_bytes=layer.joint_workspace_bytes),
                    **_where_any(kernel_bytes=layer.kernel_bytes, held_input_bytes=layer.held_input_bytes),
                    **_where_known(narrow_output_bytes=layer.narrow_output_bytes),
                    **_where_known(trained_bytes=layer.trained_bytes, answered_bytes=layer.answered_bytes),
                    **_where_known(waiting_bytes=layer.waiting_bytes),
                    **_where_known(output_frames=_unless_usual(layer.output_frames, 1)),
                    **_where_known(answered_frames=_unless_usual(layer.answered_frames, 1)),
                    **_where_any(statistics_bytes=layer.statistics_bytes),
                    **_where_any(met_gradient_bytes=[list(pair) for pair in layer.met_gradient_bytes]),
                }
                for layer in instance.model.layers
            ],
            **_where_any(
                tied=[
                    {
                        "layers": list(tied.layers),
                        "param_bytes": tied.param_bytes,
                        "gradient_bytes": tied.gradient_bytes,
                    }
                    for tied in instance.model.tied
                ]
            ),
        },
        "profiles": {kind: profile_to_json(profile) for kind, profile in instance.profiles.items()},
        "devices": [
            {
                "name": device.name,
                "profile": device.profile,
                "memory_bytes": device.memory_bytes,
                "base_bytes": device.base_bytes,
                **({"board": device.board} if device.board else {}),
            }
            for device in instance.devices
        ],
        "network": {
            "latency_seconds": [list(row) for row in instance.network.latencies] or instance.network.latency_seconds,
            "bandwidth_bytes_per_second": _bandwidth_to_json(instance.network),
        },
        "training": {
            "mini_batch": instance.training.mini_batch,
            "optimizer_state_bytes_per_parameter_byte": instance.training.optimizer_state_bytes_per_parameter_byte,
            **_where_any(
                rest=instance.training.rest,
                frames_held=instance.training.frames_held,
                inputs_ahead=instance.training.inputs_ahead,
                saved_growth=instance.training.saved_growth if instance.training.saved_growth > 1 else 0,
                peer_bytes=instance.training.peer_bytes,
                reduce_bytes=instance.training.reduce_bytes,
            ),
            **_where_known(on_top=_unless_usual(instance.training.on_top, TrainingSettings.on_top)),
        },
        **(
            {}
            if instance.data_source is None
            else {"data_source": _source_to_json(instance.data_source, instance.device_names)}
        ),
    }


def _unless_usual(value: float, usual: float) -> float | None:
    return None if value == usual else value


def instance_from_json(document: object) -> PlanningInstance:
    """Read an instance; unknown keys are passed over. Raises EdgeswarmError(INSTANCE_INVALID) naming the field."""
    fields = Fields.of(document, _invalid, what="a planning instance")
    fields.expect_format(INSTANCE_FORMAT, optional=True)
    profiles = fields.section("profiles")
    devices = tuple(
        DeviceDescription(
            name=entry.text("name"),
            profile=entry.text("profile"),
            memory_bytes=entry.integer("memory_bytes", minimum=0),
            base_bytes=entry.integer("base_bytes", minimum=0, default=0),
            board=entry.text("board", default=""),
        )
        for entry in fields.sections("devices")
    )
    try:
        return PlanningInstance(
            model=_model_from_json(fields.section("model")),
            profiles={kind: profile_from_json(profiles.section(kind)) for kind in profiles.names()},
            devices=devices,
            network=_network_from_json(fields.section("network"), len(devices)),
            training=_training_from_json(fields.section("training")),
            name=fields.text("name", default=""),
            data_source=_source_from_json(fields.optional_section("data_source"), [device.name for device in devices]),
        )
    except ValueError as error:
        raise _invalid(str(error)) from None


def profile_to_json(profile: DeviceProfile) -> dict[str, object]:
    """One device class's times, as they lie under `profiles` and in a cache of profiles."""
    return {
        "batch_sizes": list(profile.batch_sizes),
        "forward_seconds": [list(row) for row in profile.forward_seconds],
        "backward_seconds": [list(row) for row in profile.backward_seconds],
        **({"update_seconds": list(profile.update_seconds)} if profile.update_seconds else {}),
        **({} if profile.overheads == Overheads() else {"overheads": asdict(profile.overheads)}),
        **({"layer_errors": list(profile.layer_errors)} if profile.layer_errors else {}),
        **({"sums_error": profile.sums_error} if profile.sums_error else {}),
        **({"largest_measured": list(profile.largest_measured)} if profile.largest_measured else {}),
        **({"rest_parts": list(profile.rest_parts)} if profile.rest_parts else {}),
        **({"weights_parts": list(profile.weights_parts)} if profile.weights_parts else {}),
    }


def profile_from_json(fields: Fields) -> DeviceProfile:
    """Read one device class's times; raises what `fields.invalid` makes."""
    try:
        return DeviceProfile(
            batch_sizes=_batch_sizes(fields, "batch_sizes"),
            forward_seconds=fields.number_lists("forward_seconds", minimum=0),
            backward_seconds=fields.number_lists("backward_seconds", minimum=0),
            update_seconds=fields.numbers("update_seconds", minimum=0) if fields.has("update_seconds") else (),
            overheads=_overheads_from_json(fields.optional_section("overheads")),
            layer_errors=fields.numbers("layer_errors", minimum=0) if fields.has("layer_errors") else (),
            sums_error=fields.number("sums_error", minimum=0, default=0.0),
            largest_measured=_batch_sizes(fields, "largest_measured") if fields.has("largest_measured") else (),
            rest_parts=fields.numbers("rest_parts", minimum=0) if fields.has("rest_parts") else (),
            weights_parts=fields.numbers("weights_parts", minimum=0) if fields.has("weights_parts") else (),
        )
    except ValueError as error:
        raise fields.error(str(error)) from None


def _batch_sizes(fields: Fields, key: str) -> tuple[int, ...]:
    sizes = fields.numbers(key, minimum=1)
    if any(not size.is_integer() for size in sizes):
        raise fields.error(f"{key} must be whole numbers")
    return tuple(int(size) for size in sizes)


def _overheads_from_json(fields: Fields | None) -> Overheads:
    if fields is None:
        return Overheads()
    return Overheads(
        **{what.name: fields.number(what.name, minimum=0, default=0.0) for what in dataclass_fields(Overheads)}
    )


def _source_to_json(source: DataSource, devices: Sequence[str]) -> dict[str, object]:
    there = [name for name, is_there in zip(devices, source.on_its_machine, strict=True) if is_there]
    return {
        "bandwidth_bytes_per_second": list(source.bandwidth),
        "egress_bytes_per_second": source.egress,
        "label_bytes": source.label_bytes,
        **_where_known(input_bytes=source.input_bytes, joint_bytes=source.joint_bytes),
        **_where_any(epochs=source.epochs if source.epochs > 1 else 0),
        **({"on_its_machine": there} if there else {}),
    }


def _source_from_json(fields: Fields | None, devices: Sequence[str]) -> DataSource | None:
    """`bandwidth_bytes_per_second` may be one number, for every device; the card has its fastest where it isn't said.

    on_its_machine: names of devices.
    """
    if fields is None:
        return None
    key = "bandwidth_bytes_per_second"
    if isinstance(fields.values.get(key), list):
        bandwidth = fields.numbers(key, minimum=0)
    else:
        bandwidth = (fields.number(key, minimum=0),) * len(devices)
    there = fields.texts("on_its_machine", optional=True)
    for name in there:
        if name not in devices:
            raise fields.error(f"on_its_machine names {name!r}, which is no device of the instance")
    over_card = [rate for rate, name in zip(bandwidth, devices, strict=False) if name not in there]
    try:
        return DataSource(
            bandwidth=bandwidth,
            egress=fields.number(
                "egress_bytes_per_second", minimum=0, default=max(over_card or bandwidth, default=1.0)
            ),
            label_bytes=fields.integer("label_bytes", minimum=0, default=0),
            input_bytes=fields.optional_integer("input_bytes", minimum=0),
            on_its_machine=tuple(name in there for name in devices) if there else (),
            joint_bytes=fields.optional_integer("joint_bytes", minimum=0),
            epochs=fields.integer("epochs", minimum=1, default=1),
        )
    except ValueError as error:
        raise fields.error(str(error)) from None


def _model_from_json(fields: Fields) -> ModelCosts:
    return ModelCosts(
        input_bytes=fields.integer("input_bytes", minimum=0),
        target_bytes=fields.integer("target_bytes", minimum=0, default=0),
        layers=tuple(
            LayerCosts(
                name=entry.text("name"),
                param_bytes=entry.integer("param_bytes", minimum=0),
                output_bytes=entry.integer("output_bytes", minimum=0),
                saved_bytes=entry.integer("saved_bytes", minimum=0),
                flops_forward=entry.optional_number("flops_forward", minimum=0),
                flops_backward=entry.optional_number("flops_backward", minimum=0),
                least_batch=entry.integer("least_batch", minimum=1, default=1),
                gradient_bytes=entry.optional_integer("gradient_bytes", minimum=0),
                transient_bytes=entry.integer("transient_bytes", minimum=0, default=0),
                kernel_bytes=entry.integer("kernel_bytes", minimum=0, default=0),
                workspace_bytes=entry.integer("workspace_bytes", minimum=0, default=0),
                joint_workspace_bytes=entry.integer("joint_workspace_bytes", minimum=0, default=0),
                narrow_output_bytes=entry.optional_integer("narrow_output_bytes", minimum=0),
                statistics_bytes=entry.integer("statistics_bytes", minimum=0, default=0),
                held_input_bytes=entry.integer("held_input_bytes", minimum=0, default=0),
                met_gradient_bytes=_pairs(entry, "met_gradient_bytes"),
                trained_bytes=entry.optional_integer("trained_bytes", minimum=0),
                answered_bytes=entry.optional_integer("answered_bytes", minimum=0),
                waiting_bytes=entry.optional_integer("waiting_bytes", minimum=0),
                output_frames=entry.integer("output_frames", minimum=1, default=1),
                answered_frames=entry.integer("answered_frames", minimum=1, default=1),
            )
            for entry in fields.sections("layers")
        ),
        tied=tuple(
            TiedCosts(
                layers=tuple(entry.integers("layers", minimum=0)),
                param_bytes=entry.integer("param_bytes", minimum=0),
                gradient_bytes=entry.integer("gradient_bytes", minimum=0),
            )
            for entry in fields.sections("tied", optional=True)
        ),
    )


def _pairs(fields: Fields, key: str) -> tuple[tuple[int, int], ...]:
    lists = fields.number_lists(key, minimum=0) if fields.has(key) else ()
    if any(len(numbers) != 2 for numbers in lists):
        raise fields.error(f"{key} has something that is no pair of numbers")
    return tuple((int(first), int(second)) for first, second in lists)


def _network_from_json(fields: Fields, device_count: int) -> Network:
    key = "bandwidth_bytes_per_second"
    has_pairs = isinstance(fields.values.get("latency_seconds"), list)
    latency = 0.0 if has_pairs else fields.number("latency_seconds", minimum=0, default=0.0)
    try:
        if isinstance(fields.values.get(key), list):
            rows = fields.number_lists(key, minimum=0)
        else:
            rows = ((fields.number(key, minimum=0),) * device_count,) * device_count
        network = Network(latency, rows)
        if has_pairs:
            key = "latency_seconds"
            network = Network.of_pairs(fields.number_lists(key, minimum=0), rows)
    except ValueError as error:
        raise fields.error(f"{key}: {error}") from None
    return network


def _training_from_json(fields: Fields) -> TrainingSettings:
    key = "optimizer_state_bytes_per_parameter_byte"
    return TrainingSettings(
        mini_batch=fields.integer("mini_batch", minimum=1),
        optimizer_state_bytes_per_parameter_byte=fields.number(key, minimum=0, default=0.0),
        rest=fields.integer("rest", minimum=0, default=0),
        frames_held=fields.integer("frames_held", minimum=0, default=0),
        inputs_ahead=fields.integer("inputs_ahead", minimum=0, default=0),
        saved_growth=fields.number("saved_growth", minimum=1, default=1.0),
        on_top=fields.number("on_top", minimum=0, default=TrainingSettings.on_top),
        peer_bytes=fields.integer("peer_bytes", minimum=0, default=0),
        reduce_bytes=fields.integer("reduce_bytes", minimum=0, default=0),
    )


def _where_any(**numbers: object) -> dict[str, object]:
    """Those that are not 0 or empty, which is what is read where there is none."""
    return {name: number for name, number in numbers.items() if number}


def _where_known(**numbers: float | None) -> dict[str, object]:
    return {name: number for name, number in numbers.items() if number is not None}


def _bandwidth_to_json(network: Network) -> object:
    links = {value for sender, row in enumerate(network.bandwidth) for to, value in enumerate(row) if to != sender}
    if len(links) == 1:
        return links.pop()
    return [list(row) for row in network.bandwidth]


def _invalid(problem: str) -> EdgeswarmError:
    return EdgeswarmError(
        ErrorCode.INSTANCE_INVALID,
        f"The planning instance is not valid: {problem}.",
        "Correct that field; the format is edgeswarm-planning-instance/1.",
    )
