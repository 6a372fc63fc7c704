"""Options that several commands share, and what they become."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.job import WIRE_DTYPES

if TYPE_CHECKING:
    from edgeswarm.config import OperatorSettings

    from ..options import DiscoveryOptions
    from ..run_store import RunStore

# The names in the planner's registry; written down here since importing that takes numpy. A test compares them.
PLANNERS = (
    "edgeswarm",
    "asteroid",
    "data-parallel",
    "pipeline",
    "single",
    "gpipe",
    "pipedream",
    "dapple",
    "exhaustive",
)
DEFAULT_PLANNER = PLANNERS[0]

# Of `job_options` and `find_options`, what an instance file has in it already.
SAID_BY_AN_INSTANCE = (
    *("batch_size", "seed", "wire_dtype", "fresh_profiles"),
    *("peers", "devices", "mdns", "interfaces", "wait_seconds"),
)
AN_INSTANCE_SAYS_IT = "the file has its own devices and samples, and nothing is measured"

Command = TypeVar("Command", bound=Callable[..., Any])
EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@dataclass(frozen=True)
class FindArguments:
    """What the options of `find_options` pass to a command: `FindArguments(**found)`."""

    peers: tuple[str, ...]
    devices: tuple[str, ...]
    mdns: bool
    interfaces: tuple[str, ...]
    wait_seconds: float | None

    def with_settings(self, settings: OperatorSettings) -> DiscoveryOptions:
        """The settings stand for what wasn't given."""
        from ..options import DiscoveryOptions

        return DiscoveryOptions(
            peers=self.peers or settings.peers,
            devices=self.devices,
            mdns=self.mdns,
            wait_seconds=self.wait_seconds or settings.discovery_seconds,
            interfaces=self.interfaces or settings.interfaces,
        )


def _addresses(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    from edgeswarm.config import DEFAULT_AGENT_PORT, host_and_port, join_host_and_port

    try:
        return tuple(join_host_and_port(*host_and_port(value, default_port=DEFAULT_AGENT_PORT)) for value in values)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def find_options(command: Command) -> Command:
    """--peer, --device, --no-mdns, --interface, --wait: how devices are found, and which of them count."""
    for option in (
        click.option(
            "--wait",
            "wait_seconds",
            type=click.FloatRange(min=0, min_open=True),
            metavar="SECONDS",
            help="How long to listen for devices on the network.",
        ),
        click.option(
            "--interface",
            "interfaces",
            multiple=True,
            metavar="NAME",
            help="Look on this network interface only (name or address); may be repeated.",
        ),
        click.option("--no-mdns", "mdns", flag_value=False, default=True, help="Use addresses only, don't search."),
        click.option(
            "--device",
            "devices",
            multiple=True,
            metavar="NAME",
            help="Use only this device; may be repeated. `edgeswarm devices` lists the names.",
        ),
        click.option(
            "--peer",
            "peers",
            multiple=True,
            callback=_addresses,
            metavar="HOST[:PORT]",
            help="An agent's address, for networks where searching doesn't work; may be repeated.",
        ),
    ):
        command = option(command)
    return command


def job_options(command: Command) -> Command:
    """--planner, --micro-batch, --batch-size, --seed, --wire-dtype, --fresh-profiles: what a plan depends on."""
    for option in (
        click.option("--fresh-profiles", is_flag=True, help="Measure devices and links again."),
        click.option(
            "--wire-dtype",
            type=click.Choice(WIRE_DTYPES),
            help="How activations and gradients travel, in place of the job's; a 16-bit one halves them.",
        ),
        click.option(
            "--seed",
            type=click.IntRange(min=0),
            metavar="NUMBER",
            help="Seed of weights, sample order and draws, in place of the job's.",
        ),
        click.option(
            "--batch-size",
            type=click.IntRange(min=1),
            metavar="SAMPLES",
            help="Samples of one optimizer step, in place of the job's.",
        ),
        click.option(
            "--micro-batch",
            type=click.IntRange(min=1),
            metavar="SAMPLES",
            help="Samples of one micro-batch; the planner chooses by default.",
        ),
        click.option(
            "--planner",
            type=click.Choice(PLANNERS),
            default=DEFAULT_PLANNER,
            show_default=True,
            help="edgeswarm: the fastest that simulated rounds find. The others are there to compare with.",
        ),
    ):
        command = option(command)
    return command


def is_given(parameter: str) -> bool:
    """Whether the running command's option was named on the command line. parameter: its name in Python."""
    return click.get_current_context().get_parameter_source(parameter) is ParameterSource.COMMANDLINE


def refuse_beside(given: str, *parameters: str, why: str) -> None:
    """Raises UsageError where any of the running command's options is there that say nothing beside the option `given`.

    parameters: by their names in Python. why: they do, as the end of a sentence.
    """
    options = click.get_current_context().command.params
    idle = [option.opts[0] for option in options if option.name in parameters and is_given(option.name)]
    if idle:
        raise click.UsageError(f"{', '.join(sorted(idle))} can't be given beside {given}: {why}.")


def writable_file(_context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """For an option's callback: a file that could never be written is refused before anything is done.

    It stays where it is meant, whatever a job's code makes of the current folder.
    """
    if path is None:
        return None
    if not path.absolute().parent.is_dir():
        raise EdgeswarmError(
            ErrorCode.OUTPUT_FAILED,
            f"{option.opts[0]} {path} can't be written: there is no such folder.",
            "Name a file in a folder that exists.",
        )
    return path.absolute()


def run_store() -> RunStore:
    """This user's trainings."""
    from edgeswarm.config import Folders

    from ..run_store import RunStore

    return RunStore.of(Folders.find())


def complete_job_ids(*, running_only: bool) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """For a shell that completes JOB: ids, those of trainings that run where only they count."""

    def complete(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
        store = run_store()
        runs = store.running() if running_only else store.all()
        return [run.record.job_id for run in runs if run.record.job_id.startswith(incomplete)]

    return complete


def log_folder() -> Path:
    """Where the details of errors go."""
    from edgeswarm.config import Folders

    return Folders.find().state_dir / "logs"


def operator_settings(flags: dict[str, object] | None = None) -> OperatorSettings:
    """The operator's settings: flags over environment over file."""
    from edgeswarm.config import Folders, load_operator_settings

    return load_operator_settings(flags=flags, file=Folders.find().settings_file)
