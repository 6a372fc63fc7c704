"""`edgeswarm-agent`: run, join, doctor. Nothing heavy is imported before a command needs it: help and completion are quick."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

import edgeswarm
from edgeswarm.cli_completion import completion_command
from edgeswarm.cli_errors import ErrorReportingGroup, debug_option, json_option
from edgeswarm.config import HOME_VARIABLE, AgentSettings, Folders, host_and_port, load_agent_settings, whole_path
from edgeswarm.errors import EdgeswarmError, ErrorCode, ExitCode

if TYPE_CHECKING:
    from .doctor import Finding

Command = TypeVar("Command", bound=Callable[..., Any])
_LEAVE_SECONDS = 1.9


def _log_folder() -> Path:
    return Folders.find().state_dir / "logs"


def _home_option(command: Command) -> Command:
    return click.option(
        "--home",
        type=click.Path(file_okay=False, path_type=Path),
        expose_value=False,
        is_eager=True,
        callback=_set_home,
        help=f"one folder for everything that edgeswarm keeps (as {HOME_VARIABLE})",
    )(command)


def _set_home(_context: click.Context, _parameter: click.Parameter, home: Path | None) -> None:
    if home is not None:
        # The worker, and the place for logs, follow it too.
        os.environ[HOME_VARIABLE] = str(whole_path(home))


def _settings_options(command: Command) -> Command:
    """What `run` and `doctor` share. Each is also a key of [agent] in edgeswarm.toml, and a variable EDGESWARM_*."""
    options = (
        click.option("--port", type=int, help="of the control service; 0 for any free one (default 7600)"),
        click.option("--worker-port", type=int, help="of the worker (default: the next port)"),
        click.option(
            "--listen",
            "--listen-address",
            "listen_address",
            metavar="ADDRESS",
            help="address to listen on (default 0.0.0.0)",
        ),
        click.option(
            "--interface", "interfaces", multiple=True, metavar="NAME", help="where to announce; may be repeated"
        ),
        click.option("--slow-down", type=float, metavar="FACTOR", help="stretch computing, for demos and tests"),
        click.option("--threads", type=int, help="of the worker's computing"),
        click.option(
            "--memory", "--memory-limit", "memory_limit_bytes", metavar="SIZE", help="use no more than this, as in 4GiB"
        ),
        click.option(
            "--sample-cache", "sample_cache_bytes", metavar="SIZE", help="keep so much of a job's data on disk"
        ),
        click.option(
            "--ready-worker",
            "ready_worker_seconds",
            type=float,
            metavar="SECONDS",
            help="keep a worker ready for the next job so long; 0 for none",
        ),
        click.option("--no-mdns", "no_mdns", is_flag=True, help="don't announce this agent"),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _settings(folders: Folders, flags: dict[str, Any]) -> AgentSettings:
    no_mdns = flags.pop("no_mdns")
    flags = {name: value for name, value in flags.items() if value is not None and value != ()}
    if no_mdns:
        flags["advertise"] = False
    return load_agent_settings(flags=flags, file=folders.settings_file)


@click.group(cls=ErrorReportingGroup, log_folder=_log_folder, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(edgeswarm.__version__, prog_name="edgeswarm-agent")
def cli() -> None:
    """Lets this device take part in training.

    Exit codes: 0 done, 1 error, 2 wrong usage or setting, 130 interrupted.
    """


@cli.command(short_help="Wait for a coordinator.")
@_settings_options
@_home_option
@json_option("--json-ready", help_text="print one JSON line when ready: node_id, address, port")
@debug_option
def run(as_json: bool, **flags: Any) -> None:
    """Waits for a coordinator, until it is stopped by SIGTERM or Ctrl-C.

    \b
    Examples:
      edgeswarm-agent run
      edgeswarm-agent run --memory 2GiB --threads 2
      edgeswarm-agent run --port 7700 --interface eth0
    """
    stop = _StopSignal()
    from .daemon import Daemon

    folders = Folders.find()
    settings = _settings(folders, flags)
    daemon = Daemon(settings, folders, log=_say)
    try:
        daemon.start()
        if as_json:
            ready = {"node_id": daemon.node_id, "address": daemon.address, "port": daemon.port}
            click.echo(json.dumps(ready))
        else:
            click.echo(f"agent {daemon.node_id} listens on {daemon.address} (cluster {daemon.cluster})")
        sys.stdout.flush()
        received = stop.wait()
    except BaseException:
        daemon.stop()
        raise
    code = int(ExitCode.INTERRUPTED if received == signal.SIGINT else ExitCode.DONE)
    # An orderly stop that hangs, in a driver or a network, doesn't keep the process.
    threading.Thread(target=_leave_later, args=(code,), name="leave", daemon=True).start()
    daemon.stop()
    # The threads of gRPC and mDNS are done, or of no account any more: waiting for them could take longer.
    _leave(code)


@cli.command(short_help="Join a cluster, once.")
@click.argument("host")
@click.argument("token")
@click.option("--name", help="what this device's name is made from (default: the host name)")
@_home_option
@json_option()
@debug_option
def join(host: str, token: str, name: str | None, as_json: bool) -> None:
    """Joins the cluster of TOKEN, which `edgeswarm token create` on HOST[:PORT] has printed.

    \b
    Example:
      edgeswarm-agent join 192.168.1.5 ES1...
    """
    from edgeswarm.security.identity import FILE_NAME as IDENTITY_FILE
    from edgeswarm.security.join import DEFAULT_JOIN_PORT
    from edgeswarm.security.join import join as join_cluster
    from edgeswarm.security.node_id import forget_node_id, load_or_create_node_id
    from edgeswarm.security.token import Token

    from .only_one import process_of_agent

    folders = Folders.find()
    settings = load_agent_settings(flags={"name": name} if name else {}, file=folders.settings_file)
    parsed = Token.parse(token)
    try:
        address, port = host_and_port(host, default_port=DEFAULT_JOIN_PORT)
    except ValueError as error:
        raise EdgeswarmError(ErrorCode.CONFIG, f"{error}.", "Give HOST or HOST:PORT.") from error
    joined_before = (folders.agent_dir / IDENTITY_FILE).exists()
    if name and not joined_before:
        # An attempt that failed has chosen a name that no cluster knows: the one asked for now counts.
        forget_node_id(folders.agent_dir, unless_of=name)
    node_id = load_or_create_node_id(folders.agent_dir, name=settings.name)
    identity = join_cluster(address, port, token=parsed, identity_folder=folders.agent_dir, node_id=node_id)
    if as_json:
        click.echo(json.dumps({"node_id": identity.node_id, "cluster": identity.cluster_fingerprint}))
    else:
        click.echo(f"joined as {identity.node_id} (cluster {identity.cluster_fingerprint[:16]})")
        if name and joined_before:
            click.echo(f"it joined earlier and keeps the name {identity.node_id}; --name counts once", err=True)
        home = os.environ.get(HOME_VARIABLE)
        process = process_of_agent(folders.agent_dir)
        if process is not None:
            click.echo(
                f"the agent that runs here (process {process}) has its old identity until you restart it", err=True
            )
        else:
            click.echo(f"start the agent with `edgeswarm-agent run{f' --home {home}' if home else ''}`", err=True)


@cli.command(short_help="Look for what keeps this device from working.")
@_settings_options
@_home_option
@json_option()
@debug_option
@click.pass_context
def doctor(context: click.Context, /, as_json: bool, **flags: Any) -> None:
    """Looks for what could keep this device from working. Exit code 1 where something does.

    Takes the options of `run`, to look for what would keep just that from working.

    \b
    Examples:
      edgeswarm-agent doctor
      edgeswarm-agent doctor --port 7700
    """
    folders = Folders.find()
    settings = _settings(folders, flags)
    from .doctor import examine

    findings: list[Finding] = []
    for finding in examine(settings, folders):
        findings.append(finding)
        if not as_json:
            click.echo(f"{finding.level:8} {finding.check:9} {finding.message}")
            if finding.remedy:
                click.echo(f"{'':18} {finding.remedy}")
    problems = any(finding.level == "problem" for finding in findings)
    if as_json:
        click.echo(json.dumps({"ok": not problems, "checks": [finding.to_json() for finding in findings]}))
    context.exit(int(ExitCode.ERROR if problems else ExitCode.DONE))


cli.add_command(completion_command("edgeswarm-agent"))


class _StopSignal:
    """Takes SIGINT and SIGTERM from now on."""

    def __init__(self) -> None:
        self._received = 0
        # The interpreter writes to it whichever thread the system gave the signal to. An Event could be missed, where it
        # isn't the main thread, and its `set` in a handler would wait forever for a main thread inside its `wait`.
        self._woken, wakes = os.pipe()
        os.set_blocking(wakes, False)
        signal.set_wakeup_fd(wakes)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._take)

    def _take(self, number: int, _frame: object) -> None:
        # The first one counts; Ctrl-C again while it stops doesn't end it half way.
        self._received = self._received or number

    def wait(self) -> int:
        """The signal that came."""
        while not self._received:
            os.read(self._woken, 1)
        return self._received


def _leave_later(code: int) -> None:
    time.sleep(_LEAVE_SECONDS)
    _leave(code)


def _leave(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _say(message: str) -> None:
    """The daemon's own log: a service manager keeps stderr. Where nobody does (a full disk, a terminal that is gone) it is lost,
    and what was at work goes on.
    """
    with contextlib.suppress(OSError, ValueError):
        click.echo(f"{time.strftime('%H:%M:%S')} {message}", err=True)


def main() -> None:
    """The entry point of `edgeswarm-agent`."""
    cli.main(prog_name="edgeswarm-agent")


if __name__ == "__main__":
    main()
