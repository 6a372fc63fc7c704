"""The group `edgeswarm`: its commands, in the order in which a newcomer needs them."""

from __future__ import annotations

import click

from edgeswarm import __version__
from edgeswarm.cli_completion import completion_command
from edgeswarm.cli_errors import ErrorReportingGroup, debug_option
from edgeswarm.errors import ExitCode

from .demo_command import demo
from .devices_command import devices
from .init_command import init
from .logs_command import logs
from .options import log_folder
from .plan_command import plan
from .simulate_command import simulate
from .status_command import status
from .stop_command import stop
from .token_command import token
from .train_command import train

completion = completion_command("edgeswarm", more=", the ids of your trainings")
COMMANDS: tuple[click.Command, ...] = (
    init,
    token,
    devices,
    plan,
    simulate,
    train,
    status,
    logs,
    stop,
    demo,
    completion,
)

EXIT_CODE_MEANINGS = {
    ExitCode.DONE: "done",
    ExitCode.ERROR: "error: something went wrong, the message says what and what to do",
    ExitCode.USAGE: "usage: a wrong option, argument or setting",
    ExitCode.NOTHING_FOUND: "nothing found: no device answers, or there is no such training",
    ExitCode.CANNOT_BE_PLACED: "can't be placed: no plan fits the devices' memory",
    ExitCode.INTERRUPTED: "interrupted (Ctrl-C)",
}


class _InOrder(ErrorReportingGroup):
    """Lists the commands in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


_EPILOG = "\b\nExit codes:\n" + "\n".join(f"  {code.value:>3}  {text}" for code, text in EXIT_CODE_MEANINGS.items())


@click.group(
    cls=_InOrder,
    log_folder=log_folder,
    commands={command.name or "": command for command in COMMANDS},
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="edgeswarm")
@debug_option
def edgeswarm() -> None:
    """Train one PyTorch model over the small computers of your network.

    \b
    The first time, on the machine that you work at:
      edgeswarm demo                       see it work on this machine alone
      edgeswarm init                       make a cluster
      edgeswarm token create               let a device join: it prints the command to type there

    \b
    On each device, once and then always:
      edgeswarm-agent join HOST TOKEN
      edgeswarm-agent run

    \b
    Then:
      edgeswarm devices                    who is there
      edgeswarm plan job.py                who would compute what
      edgeswarm simulate job.py            what a round of that would look like
      edgeswarm train job.py               train
      edgeswarm status                     how trainings are doing, from any terminal

    Data goes to standard output, progress to standard error; --json prints one document. `edgeswarm COMMAND --help`
    has examples.
    """
