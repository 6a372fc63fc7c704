"""Environments: which devices an emulated LAN has, how fast each is, how much memory and what link it has.

    mbps = 100                                          links, where a class says nothing else

    [classes]
    nano = { cores = 0.12, memory_mib = 1024 }          its share of one core of this machine, 1 at most
    laptop = { cores = 0.8, memory_mib = 4096, mbps = 300 }

    [devices]
    nano = 3                                            nano-1, nano-2, nano-3
    laptop = 1

A to D lie beside this file. Their classes are in the ratio of published training times of Jetson Nano, TX2 and Xavier NX.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeswarm.config import tomllib
from edgeswarm.errors import EdgeswarmError, ErrorCode

BUILT_IN = Path(__file__).parent / "environments"
MOST_DEVICES = 200
MOST_NAME_CHARACTERS = 10  # with what is put before it, a network card's name has 15 at most


@dataclass(frozen=True)
class EmulatedDevice:
    """cores: its share of one core. memory_bytes: its limit. mbps: rate of its link in Mbit/s, either way."""

    name: str
    cores: float
    memory_bytes: int
    mbps: float


@dataclass(frozen=True)
class Environment:
    """name: for a person. devices: at least one, each with a name of its own."""

    name: str
    devices: tuple[EmulatedDevice, ...]

    @property
    def cores(self) -> float:
        """All devices together."""
        return sum(device.cores for device in self.devices)


def load_environment(name_or_path: str, *, mbps: float | None = None) -> Environment:
    """A to D by their letter, another one from a TOML file. mbps: for all links, in place of the file's.

    Raises EdgeswarmError (CONFIG) that names the file and what is wrong in it.
    """
    built_in = BUILT_IN / f"{name_or_path.lower()}.toml"
    path = built_in if built_in.is_file() else Path(name_or_path)
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        known = ", ".join(sorted(file.stem.upper() for file in BUILT_IN.glob("*.toml")))
        raise _wrong(path, error.strerror or str(error), f"Give one of {known}, or a TOML file.") from error
    except ValueError as error:
        raise _wrong(path, f"no TOML: {error}") from error
    try:
        devices = tuple(_devices(document, mbps))
    except (KeyError, TypeError, AttributeError) as error:
        raise _wrong(path, f"{type(error).__name__}: {error}") from error
    except ValueError as error:
        raise _wrong(path, str(error)) from error
    if not 1 <= len(devices) <= MOST_DEVICES:
        raise _wrong(path, f"{len(devices)} devices; there are 1 to {MOST_DEVICES}")
    return Environment(path.stem.upper() if path == built_in else path.stem, devices)


def _devices(document: dict[str, Any], mbps: float | None) -> list[EmulatedDevice]:
    found = []
    for kind, count in document["devices"].items():
        spec = document["classes"][kind]
        rate = mbps or spec.get("mbps") or document["mbps"]
        if not (spec["cores"] > 0 and spec["memory_mib"] > 0 and rate > 0):
            raise ValueError(f"the class {kind} has a number that is not above 0")
        if spec["cores"] > 1:
            raise ValueError(
                f"the class {kind} has more than one core, and an emulated device computes with one thread: "
                "divide the cores of all classes by the same number"
            )
        for number in range(1, count + 1):
            name = f"{kind}-{number}"
            if len(name) > MOST_NAME_CHARACTERS:
                raise ValueError(
                    f"{name} is longer than {MOST_NAME_CHARACTERS} characters; give its class a shorter name"
                )
            found.append(EmulatedDevice(name, float(spec["cores"]), spec["memory_mib"] * 2**20, float(rate)))
    return found


def _wrong(path: Path, problem: str, remedy: str = "") -> EdgeswarmError:
    return EdgeswarmError(
        ErrorCode.CONFIG,
        f"The environment {path} can't be used: {problem}.",
        remedy or "The head of bench/testbed/environment.py shows what such a file has.",
    )
