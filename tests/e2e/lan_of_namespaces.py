"""A LAN of network namespaces on this machine: every host has an address of its own, and nothing but the switch joins them.

    es-test-77-hub          es-test-77-a          es-test-77-b
    eth0 10.76.0.1          eth0 10.76.0.2        eth0 10.76.0.3
         |                       |                     |
         | to-hub                | to-a                | to-b       one port of the switch for each host
    +----+-----------------------+---------------------+----+
    |                     bridge `lan`                      |       es-test-77-switch, a namespace too
    +-------------------------------------------------------+

77 is the process id of the test run. Nothing is made in the machine's own namespace. No host has a default route: this
network leads nowhere else, as the one of a workshop without internet.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

PREFIX = "es-test-"
_BRIDGE = "lan"
_SWITCH = "switch"
_PORT_DISABLED, _PORT_FORWARDS = "0", "3"  # the bridge's states of a port
_GONE_SECONDS = 5.0


def why_not() -> str:
    """Why this machine can't have such a LAN; empty where it can."""
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    missing = [tool for tool in ("ip", "bridge") if shutil.which(tool) is None]
    if missing:
        return f"needs {' and '.join(missing)} of iproute2"
    probe = f"{PREFIX}{os.getpid()}-probe"
    try:
        _ip("netns", "add", probe)
        try:
            _ip("-n", probe, "link", "add", "one", "type", "bridge")
            _ip("-n", probe, "link", "add", "two", "type", "veth", "peer", "name", "three")
        finally:
            _ip("netns", "del", probe)
    except RuntimeError as error:
        return f"can't make network namespaces here ({error})"
    return ""


class Lan:
    """hosts: their names, of at most 12 characters. It exists within the `with` block.

    Made anew, it removes first what a run that was killed has left behind.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        assert _SWITCH not in hosts
        self._addresses = {name: f"10.76.0.{number}" for number, name in enumerate(hosts, 1)}

    def __enter__(self) -> Lan:
        remove_leftovers()
        try:
            self._make()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def address(self, host: str) -> str:
        return self._addresses[host]

    def on(self, host: str, *command: str | Path) -> list[str]:
        """The command line that runs this command on that host. `ip` becomes the command: it has its process id."""
        return ["ip", "netns", "exec", _namespace(host), *map(str, command)]

    def start(
        self, host: str, *command: str | Path, environment: Mapping[str, str], log: Path
    ) -> subprocess.Popen[str]:
        """A program that runs on until the LAN is removed. What it says goes to the end of `log`."""
        with log.open("a") as out:
            return subprocess.Popen(
                self.on(host, *command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=dict(environment),
                text=True,
            )

    def cut(self, host: str) -> None:
        """Packets from and to this host vanish: no FIN, no RST, and its network card sees nothing of it."""
        self._set_port(host, _PORT_DISABLED)

    def mend(self, host: str) -> None:
        self._set_port(host, _PORT_FORWARDS)

    def remove(self) -> None:
        """Everything, with the programs that run there. May be repeated."""
        _remove([name for name in _namespaces() if name.startswith(f"{PREFIX}{os.getpid()}-")])

    def _make(self) -> None:
        switch = _namespace(_SWITCH)
        _ip("netns", "add", switch)
        # Without a querier on the network, snooping would keep multicast from those who joined long ago.
        _ip("-n", switch, "link", "add", _BRIDGE, "type", "bridge", "mcast_snooping", "0")
        _ip("-n", switch, "link", "set", _BRIDGE, "up")
        for host, address in self._addresses.items():
            home = _namespace(host)
            _ip("netns", "add", home)
            port = _port(host)
            _ip("-n", switch, "link", "add", "name", port, "type", "veth", "peer", "name", "eth0", "netns", home)
            _ip("-n", switch, "link", "set", "dev", port, "master", _BRIDGE, "up")
            _ip("-n", home, "address", "add", f"{address}/24", "broadcast", "+", "dev", "eth0")
            _ip("-n", home, "link", "set", "lo", "up")
            _ip("-n", home, "link", "set", "eth0", "up")

    def _set_port(self, host: str, state: str) -> None:
        assert host in self._addresses
        _run("bridge", "-n", _namespace(_SWITCH), "link", "set", "dev", _port(host), "state", state)


def remove_leftovers() -> None:
    """Removes the namespaces of test runs that live no more."""
    leftovers = []
    for name in _namespaces():
        made_by = re.match(rf"{PREFIX}(\d+)-", name)
        if made_by is not None and not Path("/proc", made_by.group(1)).exists():
            leftovers.append(name)
    _remove(leftovers)


def _remove(namespaces: Sequence[str]) -> None:
    """The programs first: a namespace without its name lives on as long as one of them."""
    deadline = time.monotonic() + _GONE_SECONDS
    while pids := {int(pid) for name in namespaces for pid in _ip("netns", "pids", name).split()}:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert time.monotonic() < deadline, f"processes {sorted(pids)} in {', '.join(namespaces)} do not end"
        time.sleep(0.02)
    for name in namespaces:
        _ip("netns", "del", name)


def _namespace(name: str) -> str:
    return f"{PREFIX}{os.getpid()}-{name}"


def _port(host: str) -> str:
    return f"to-{host}"


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _ip("netns", "list").splitlines() if line.startswith(PREFIX)]


def _ip(*arguments: str) -> str:
    return _run("ip", *arguments)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
