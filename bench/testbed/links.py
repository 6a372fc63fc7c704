"""The LAN: each device a network namespace with an address, a card whose rate is limited each way, and one switch.

    es-bed-nano-1   eth0 10.77.0.1 ----- es-bed-nano-1 +
    es-bed-nano-2   eth0 10.77.0.2 ----- es-bed-nano-2 +-- bridge br0, in es-bed-switch
    this machine    es-bed-hub 10.77.0.254 --- es-bed-hub +

A device's upload is limited at its own end, its download at the switch's. The hub, for a coordinator that isn't one of the
devices, is in the machine's own namespace.

A real card cuts and gathers packets by itself. Here they travel whole, as large as the link sends in PACKET_SECONDS: larger ones
than a link's burst would be cut by the kernel into those of 1.5 kB, each with a timer of its own, on the devices' processors.
Five devices that sent frames of 170 kB at 70 Mbit/s each made everything on the machine slower by 38 %; so it is 6 to 10 %.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PREFIX = "es-bed-"
SWITCH = f"{PREFIX}switch"
HUB = "hub"
NETWORK = "10.77.0."
HUB_ADDRESS = f"{NETWORK}254"
NAMES = Path("/etc/netns")
PACKET_SECONDS = 0.0013
LEAST_PACKET_BYTES, MOST_PACKET_BYTES = 1_500, 61_440
LEAST_BURST_BYTES = 65_536
BURST_SECONDS = 0.002
_HUB_CARD = f"{PREFIX}own"


def why_not() -> str:
    """Why this machine can't have such a LAN; empty where it can."""
    missing = [tool for tool in ("ip", "tc", "bridge", "ss", "nsenter", "unshare") if shutil.which(tool) is None]
    return f"needs {', '.join(missing)} of iproute2 and util-linux" if missing else ""


def exists() -> bool:
    return SWITCH in _namespaces()


def address(number: int) -> str:
    """Of the device of this number, from 1."""
    return f"{NETWORK}{number}"


def namespace(node: str) -> str:
    return f"{PREFIX}{node}"


def create_switch() -> None:
    run("ip", "netns", "add", SWITCH)
    # Nobody on it asks who listens: snooping would end multicast for those who joined long ago.
    run("ip", "-n", SWITCH, "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
    run("ip", "-n", SWITCH, "link", "set", "br0", "up")


def connect(node: str, at: str, *, mbps: float | None) -> None:
    """A device, or the hub, with its link to the switch; None: as fast as it goes."""
    port = namespace(node)
    home = [] if node == HUB else ["-n", namespace(node)]
    if node != HUB:
        run("ip", "netns", "add", namespace(node))
        end = ["peer", "name", "eth0", "netns", namespace(node)]
    else:
        end = ["peer", "name", _HUB_CARD]
    card = _card(node)
    if node == HUB:
        run("ip", "link", "add", port, "type", "veth", *end)
        run("ip", "link", "set", port, "netns", SWITCH)
    else:
        run("ip", "-n", SWITCH, "link", "add", port, "type", "veth", *end)
    run("ip", "-n", SWITCH, "link", "set", port, "master", "br0", "up")
    run("ip", *home, "addr", "add", f"{at}/24", "dev", card)
    run("ip", *home, "link", "set", card, "up")
    if node != HUB:
        run("ip", *home, "link", "set", "lo", "up")
        run("ip", *home, "route", "add", "default", "via", HUB_ADDRESS)
    limit(node, mbps)


def limit(node: str, mbps: float | None) -> None:
    """The rate of a link each way, in Mbit/s; None or 0 for none. Works while it is used."""
    for where, device in _ends(node):
        run("tc", *where, "qdisc", "del", "dev", device, "root", check=False)
        packet_bytes = min(MOST_PACKET_BYTES, int(mbps * 1e6 / 8 * PACKET_SECONDS)) if mbps else MOST_PACKET_BYTES
        run("ip", *where, "link", "set", device, "gso_max_size", str(max(LEAST_PACKET_BYTES, packet_bytes)))
        if mbps:
            burst = max(LEAST_BURST_BYTES, int(mbps * 1e6 / 8 * BURST_SECONDS))
            run(
                *("tc", *where, "qdisc", "add", "dev", device, "root", "tbf", "rate", f"{mbps}mbit"),
                *("burst", str(burst), "latency", "50ms"),
            )


def forward(node: str, *, on: bool) -> None:
    """Off: packets from and to it vanish; no FIN, and its card sees nothing of it."""
    run("bridge", "-n", SWITCH, "link", "set", "dev", namespace(node), "state", "3" if on else "0")


def forget_connections(node: str) -> None:
    """Its sockets are gone as after a loss of power: nothing is said to the other ends."""
    run("ss", "-N", namespace(node), "-K", "-t", "-a", check=False)


def name_everywhere(addresses: Mapping[str, str]) -> None:
    """Names of devices resolve on devices; no other name does, and at once: a server of names that this machine has is out of
    reach there, and gloo, which asks for the name of each who connects, would wait ten seconds for each.
    """
    hosts = "127.0.0.1 localhost\n" + "".join(f"{where} {node}\n" for node, where in addresses.items())
    for node in addresses:
        if node != HUB:
            hosts_file(node).parent.mkdir(parents=True, exist_ok=True)
            hosts_file(node).write_text(hosts)
            name_servers_file(node).touch()


def hosts_file(node: str) -> Path:
    """A device's /etc/hosts, where `ip netns exec` looks for it too."""
    return NAMES / namespace(node) / "hosts"


def name_servers_file(node: str) -> Path:
    """Its /etc/resolv.conf, likewise; empty."""
    return NAMES / namespace(node) / "resolv.conf"


def remove_all() -> None:
    """May be repeated. What runs there must be gone."""
    run("ip", "link", "del", _HUB_CARD, check=False)
    for name in _namespaces():
        run("ip", "netns", "del", name)
    for folder in NAMES.glob(f"{PREFIX}*"):
        shutil.rmtree(folder)
    if NAMES.is_dir() and not any(NAMES.iterdir()):
        NAMES.rmdir()


def describe(node: str) -> dict[str, Any]:
    """ip, mbps (None for no limit) and cut, as they are now; bytes since it exists."""
    (where, device), _ = _ends(node)
    addresses = json.loads(run("ip", *where, "-j", "-4", "addr", "show", "dev", device))[0]["addr_info"]
    rate = json.loads(run("tc", *where, "-j", "qdisc", "show", "dev", device))[0].get("options", {}).get("rate")
    port = json.loads(run("bridge", "-n", SWITCH, "-j", "link", "show", "dev", namespace(node)))[0]
    counted = json.loads(run("ip", "-n", SWITCH, "-j", "-s", "link", "show", "dev", namespace(node)))[0]["stats64"]
    return {
        "ip": addresses[0]["local"],
        "mbps": rate * 8 / 1e6 if rate else None,
        "cut": port["state"] != "forwarding",
        # What the switch's port receives is what the device sent.
        "sent_bytes": counted["rx"]["bytes"],
        "received_bytes": counted["tx"]["bytes"],
    }


def sent_bytes() -> dict[str, int]:
    """By node, what left its card since it exists, headers and all: one look for all of them."""
    ports = json.loads(run("ip", "-n", SWITCH, "-j", "-s", "link", "show", "type", "veth"))
    return {port["ifname"].removeprefix(PREFIX): int(port["stats64"]["rx"]["bytes"]) for port in ports}


def run(*command: str, check: bool = True) -> str:
    """Raises RuntimeError with what the command said."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _card(node: str) -> str:
    return _HUB_CARD if node == HUB else "eth0"


def _ends(node: str) -> tuple[tuple[list[str], str], tuple[list[str], str]]:
    """The two ends of a link: the device's, by which it sends, and the switch's, by which it receives."""
    own: list[str] = [] if node == HUB else ["-n", namespace(node)]
    return (own, _card(node)), (["-n", SWITCH], namespace(node))


def _namespaces() -> list[str]:
    listed = (line.split()[0] for line in run("ip", "netns", "list").splitlines() if line.strip())
    return [name for name in listed if name.startswith(PREFIX)]
