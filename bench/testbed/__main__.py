"""An emulated LAN of unequal devices on this machine, by hand.

python -m bench.testbed try C -- edgeswarm train job.py     with agents on the devices that have joined; all gone afterwards
python -m bench.testbed up C --mbps 100        the devices alone; A to D, or a TOML file of one's own
python -m bench.testbed list [--json]          what exists, as it is now
python -m bench.testbed exec nano-1 -- COMMAND run something on a device; its exit code
python -m bench.testbed link nano-1 --mbps 20  another rate, at once; 0 for none
python -m bench.testbed cut nano-1             packets vanish, until `mend`
python -m bench.testbed freeze nano-1          its processes stand still, until `thaw`
python -m bench.testbed kill nano-1            its processes die, and the others are told by TCP
python -m bench.testbed power-off nano-1       a loss of power: nobody is told; `mend` connects it again
python -m bench.testbed disturb nano-1 --percent 50    burn half of its processor's share; 0 ends it
python -m bench.testbed stats nano-1           what it used, as JSON
python -m bench.testbed down                   remove all of it
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from bench.interrupts import terminate_as_ctrl_c_does
from edgeswarm.errors import EdgeswarmError, ExitCode

from . import bed, links
from .bed import EmulatedLan
from .cluster import BedCluster
from .environment import Environment, load_environment
from .groups_here import groups


def _list(*, as_json: bool) -> None:
    rows = sorted(map(bed.describe, groups().nodes()), key=lambda row: int(row["ip"].rsplit(".", 1)[1]))
    if as_json:
        print(json.dumps(rows))
        return
    for row in [{key: key for key in rows[0]}, *rows] if rows else []:
        print("  ".join(f"{'-' if value is None else value!s:<10}" for value in row.values()).rstrip())


def _execute(node: str, command: list[str]) -> NoReturn:
    words = command[1:] if command[:1] == ["--"] else command
    line = bed.on(node, *words)
    os.execvpe(line[0], line, {**os.environ, **bed.runtime_environment(node)})


def _try(environment: Environment, command: list[str]) -> int:
    """The command's exit code."""
    words = command[1:] if command[:1] == ["--"] else command
    with tempfile.TemporaryDirectory(prefix="edgeswarm-bed-") as folder:
        print(f"starting agents on {', '.join(device.name for device in environment.devices)}", file=sys.stderr)
        with EmulatedLan(environment) as lan, BedCluster(lan, folder=Path(folder)) as cluster:
            return subprocess.run(words, env=cluster.operator_environment(), check=False).returncode


def _act(given: argparse.Namespace) -> int:
    node: str = getattr(given, "node", "")
    if node and node not in groups().nodes():
        raise SystemExit(f"error: there is no device {node}; there are: {', '.join(groups().nodes()) or 'none'}")
    actions: dict[str, Any] = {
        "try": lambda: _try(load_environment(given.environment, mbps=given.mbps), given.command),
        "up": lambda: EmulatedLan(
            load_environment(given.environment, mbps=given.mbps), hub_mbps=given.hub_mbps
        ).create(),
        "down": bed.remove,
        "list": lambda: _list(as_json=given.json),
        "exec": lambda: _execute(node, given.command),
        "link": lambda: links.limit(node, given.mbps),
        "cut": lambda: links.forward(node, on=False),
        "mend": lambda: links.forward(node, on=True),
        "freeze": lambda: groups().freeze(node, frozen=True),
        "thaw": lambda: groups().freeze(node, frozen=False),
        "kill": lambda: groups().kill_all(node),
        "power-off": lambda: bed.power_off(node),
        "disturb": lambda: bed.disturb(node, given.percent),
        "stats": lambda: print(json.dumps(bed.statistics(node))),
    }
    return actions[given.action]() or 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.testbed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(required=True, dest="action", metavar="ACTION")
    up = actions.add_parser("up")
    up.add_argument("environment", help="A to D, or a TOML file")
    up.add_argument("--mbps", type=float, help="rate of every device's link, in place of the environment's")
    up.add_argument("--hub-mbps", type=float, help="rate of the hub's link (as fast as it goes)")
    trial = actions.add_parser("try")
    trial.add_argument("environment", help="A to D, or a TOML file")
    trial.add_argument("--mbps", type=float, help="rate of every device's link, in place of the environment's")
    trial.add_argument("command", nargs=argparse.REMAINDER)
    actions.add_parser("down")
    actions.add_parser("list").add_argument("--json", action="store_true")
    on_a_node = {
        name: actions.add_parser(name)
        for name in ("exec", "link", "cut", "mend", "freeze", "thaw", "kill", "power-off", "disturb", "stats")
    }
    for each in on_a_node.values():
        each.add_argument("node")
    on_a_node["exec"].add_argument("command", nargs=argparse.REMAINDER)
    on_a_node["link"].add_argument("--mbps", type=float, required=True)
    on_a_node["disturb"].add_argument("--percent", type=float, required=True)
    return parser


def main() -> int:
    problem = bed.why_not()
    given = _parser().parse_args()
    if problem:
        print(f"error: no testbed here: it {problem}", file=sys.stderr)
        return 1
    terminate_as_ctrl_c_does()
    try:
        return _act(given)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except EdgeswarmError as error:
        print(f"error: {error.message}\nremedy: {error.remedy}", file=sys.stderr)
        return 1
    except (RuntimeError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
