"""Where edgeswarm keeps its files, and its settings: flag over environment (EDGESWARM_*) over file over default.

The settings file is `edgeswarm.toml` in the configuration folder, with one table for each program:

    [agent]
    port = 7600
    interfaces = ["eth0"]
    memory_limit = "4 GiB"

    [operator]
    peers = ["192.168.1.20:7600"]
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from .errors import EdgeswarmError, ErrorCode
from .listening import EVERY_ADDRESS

# The same library under two names; not an import statement, since a type checker has only one of them at hand.
tomllib: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

DEFAULT_AGENT_PORT = 7600
LOST_SECONDS, LEAST_LOST_SECONDS = 5.0, 3.0
MOST_LOST_SECONDS = 7.0  # a device that isn't heard frees itself by then
FILE_NAME = "edgeswarm.toml"
HOME_VARIABLE = "EDGESWARM_HOME"

_PREFIX = "EDGESWARM_"
_UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}

_Settings = TypeVar("_Settings")


# --- folders ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Folders:
    """The three kinds of folders. None of them is made here: whoever writes makes its own.

    config_dir: what a person edits. state_dir: identity, node id: must survive. cache_dir: may be deleted at any
    time (profiles, bundles, samples).
    """

    config_dir: Path
    state_dir: Path
    cache_dir: Path

    @property
    def settings_file(self) -> Path:
        return self.config_dir / FILE_NAME

    @property
    def agent_dir(self) -> Path:
        """The agent's node id and identity."""
        return self.state_dir / "agent"

    @property
    def operator_dir(self) -> Path:
        """The operator's node id and identity."""
        return self.state_dir / "operator"

    @property
    def authority_dir(self) -> Path:
        """The cluster's authority, its tokens and the node ids that it has issued: the operator's machine alone."""
        return self.state_dir / "authority"

    @classmethod
    def within(cls, home: Path) -> Folders:
        """All three under one folder: what EDGESWARM_HOME does, for demos, tests and the testbed."""
        return cls(home / "config", home / "state", home / "cache")

    @classmethod
    def find(cls, *, environment: Mapping[str, str] | None = None) -> Folders:
        """This process's folders: EDGESWARM_HOME, else the XDG folders of the user that it runs as.

        Raises EdgeswarmError (CONFIG) where that user has no home directory.
        """
        environment = os.environ if environment is None else environment
        home = environment.get(HOME_VARIABLE)
        if home:
            return cls.within(whole_path(home))

        def xdg(variable: str, default: str) -> Path:
            chosen = environment.get(variable, "")
            # XDG: a relative one is ignored.
            base = Path(chosen) if os.path.isabs(chosen) else whole_path("~") / default
            return base / "edgeswarm"

        return cls(
            xdg("XDG_CONFIG_HOME", ".config"),
            xdg("XDG_STATE_HOME", ".local/state"),
            xdg("XDG_CACHE_HOME", ".cache"),
        )


def whole_path(path: str | Path) -> Path:
    """From the root on, with the home directory that a `~` means. Raises EdgeswarmError (CONFIG) where nobody knows that."""
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError as error:
        raise EdgeswarmError(
            ErrorCode.CONFIG,
            f"The home directory that {path} means isn't known on this machine.",
            f"Set {HOME_VARIABLE} to a folder, by its whole path.",
        ) from error


# --- addresses --------------------------------------------------------------------------------------------------------


def host_and_port(address: str, *, default_port: int | None = None) -> tuple[str, int]:
    """("host", port) of "host:port" or "[v6]:port", or of "host" alone where there is a default; raises ValueError."""
    match = re.fullmatch(r"\[([^\[\]]+)\](?::(\d+))?|([^:\[\]\s/]+)(?::(\d+))?", address.strip())
    if match is None:
        if address.count(":") > 1:
            raise ValueError(f"{address!r}: an IPv6 address goes in brackets, as in [fd00::1]:7600")
        raise ValueError(f"{address!r} is not HOST:PORT")
    host = match.group(1) or match.group(3)
    port = match.group(2) or match.group(4)
    if port is None and default_port is None:
        raise ValueError(f"{address!r} has no port: give HOST:PORT")
    number = default_port if port is None else int(port)
    assert number is not None
    if number > 65535:
        raise ValueError(f"{address!r}: a port is at most 65535")
    try:
        host.encode("idna")  # as what looks it up does
    except UnicodeError:
        raise ValueError(
            f"{address!r}: no host is called so, with a part between dots that is empty or too long"
        ) from None
    return host, number


def join_host_and_port(host: str, port: int) -> str:
    """ "host:port", with the brackets that an IPv6 address needs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# --- settings ---------------------------------------------------------------------------------------------------------
# A parser takes what stands in the file (any TOML value) or in the environment (always text); it raises ValueError with
# the end of a sentence that begins with the value.


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("is not a text")
    return value.strip()


def _whole(value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"\s*-?\d+\s*", value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("is not a whole number")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError("is not a number")
    try:
        number = float(value)
    except ValueError:
        raise ValueError("is not a number") from None
    if not math.isfinite(number):
        raise ValueError("is not a finite number")
    return number


def _port(value: object) -> int:
    port = _whole(value)
    if not 0 <= port <= 65535:
        raise ValueError("is not a port: 1 to 65535, or 0 for any free one")
    return port


def _first_of_two_ports(value: object) -> int:
    port = _port(value)
    if port == 65535:
        raise ValueError("has no port behind it, and both are needed: 1 to 65534, or 0 for any free ones")
    return port


def _threads(value: object) -> int:
    threads = _whole(value)
    if threads < 1:
        raise ValueError("is below 1")
    return threads


def _slow_down(value: object) -> float:
    factor = _number(value)
    if factor < 1:
        raise ValueError("is below 1: it is the factor by which computing takes longer")
    return factor


def _seconds(value: object) -> float:
    seconds = _number(value)
    if seconds <= 0:
        raise ValueError("is not above 0 seconds")
    return seconds


def _lost_seconds(value: object) -> float:
    seconds = _number(value)
    if seconds < LEAST_LOST_SECONDS:
        raise ValueError(f"is below {LEAST_LOST_SECONDS:g} seconds, which a device that is only slow may be silent for")
    if seconds > MOST_LOST_SECONDS:
        raise ValueError(f"is above {MOST_LOST_SECONDS:g} seconds, by which a device that isn't heard has freed itself")
    return seconds


def _seconds_or_none(value: object) -> float:
    seconds = _number(value)
    if seconds < 0:
        raise ValueError("is below 0 seconds")
    return seconds


def parse_bytes(value: object) -> int:
    """A size as a person writes it, in bytes; raises ValueError with what is wrong with it."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(value))
    if isinstance(value, bool) or match is None or match.group(2).lower() not in _UNITS:
        raise ValueError("is not a size: a number of bytes, or one like 512 MiB or 4 GiB")
    size = int(float(match.group(1)) * _UNITS[match.group(2).lower()])
    if size < 1:
        raise ValueError("is below 1 byte")
    return size


def _yes_or_no(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off"):
        return False
    raise ValueError("is neither true nor false")


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):  # the environment's way
        value = [part for part in value.split(",") if part.strip()]
    if not isinstance(value, (list, tuple)):
        raise ValueError("is not a list")
    return tuple(_text(item) for item in value)


def _peers(value: object) -> tuple[str, ...]:
    try:
        return tuple(
            join_host_and_port(*host_and_port(text, default_port=DEFAULT_AGENT_PORT)) for text in _texts(value)
        )
    except ValueError as error:
        raise ValueError(f"is not a list of addresses ({error})") from None


def _setting(default: Any, parse: Callable[[object], Any], *, key: str = "", flag: str = "") -> Any:
    """One setting. key: its name in file and environment where it isn't the field's (there the value has the unit).

    flag: its option on the command line where that isn't --KEY: an option that is given several times is in the singular.
    """
    return dataclasses.field(default=default, metadata={"parse": parse, "key": key, "flag": flag})


@dataclasses.dataclass(frozen=True)
class AgentSettings:
    """What `edgeswarm-agent` reads from [agent].

    name: what the node id is built from (None: the host name). port: of the control service, 0 for any free one.
    worker_port: of the tensor server (None: the next port, or any where `port` is 0). interfaces: names or addresses to
    announce on (empty: chosen by discovery's rules). slow_down: factor by which computing is stretched, for demos.
    threads: of the worker (None: as many as torch likes). memory_limit_bytes: below what is free (None: none of ours).
    sample_cache_bytes: of a job's samples on this device's disk at most; a tenth of the disk stays free in any case.
    ready_worker_seconds: for which a new worker waits for the next job once one has ended (0: none does).
    """

    name: str | None = _setting(None, _text)
    port: int = _setting(DEFAULT_AGENT_PORT, _port)
    worker_port: int | None = _setting(None, _port)
    listen_address: str = _setting("0.0.0.0", _text)
    interfaces: tuple[str, ...] = _setting((), _texts, flag="interface")
    advertise: bool = _setting(True, _yes_or_no)
    slow_down: float = _setting(1.0, _slow_down)
    threads: int | None = _setting(None, _threads)
    memory_limit_bytes: int | None = _setting(None, parse_bytes, key="memory_limit")
    sample_cache_bytes: int = _setting(20 * 10**9, parse_bytes, key="sample_cache")
    ready_worker_seconds: float = _setting(600.0, _seconds_or_none, key="ready_worker")

    @property
    def effective_worker_port(self) -> int:
        """`worker_port`, or what stands for it: the port after `port`, or 0 (any) where `port` is 0."""
        if self.worker_port is not None:
            return self.worker_port
        return self.port + 1 if 0 < self.port < 65535 else 0

    @property
    def effective_interfaces(self) -> tuple[str, ...]:
        """Where to announce: `interfaces`, or else the address listened on, if it is one alone: at the others nobody answers."""
        if self.interfaces or self.listen_address in EVERY_ADDRESS:
            return self.interfaces
        return (self.listen_address,)


@dataclasses.dataclass(frozen=True)
class OperatorSettings:
    """What `edgeswarm` reads from [operator].

    peers: agents' addresses given by hand, "host:port". interfaces: names or addresses to look for agents on (empty: by
    discovery's rules). discovery_seconds: how long to look. join_port, listen_address: of the join server. data_port: on
    which layers are served during a training, on listen_address too, and samples on the port behind it; 0 for any free ones.
    lost_seconds: within which it is known that a silent device is lost.
    """

    peers: tuple[str, ...] = _setting((), _peers, flag="peer")
    interfaces: tuple[str, ...] = _setting((), _texts, flag="interface")
    discovery_seconds: float = _setting(3.0, _seconds)
    join_port: int = _setting(7599, _port)
    data_port: int = _setting(0, _first_of_two_ports)
    lost_seconds: float = _setting(LOST_SECONDS, _lost_seconds)
    listen_address: str = _setting("0.0.0.0", _text)


def load_agent_settings(
    *, flags: Mapping[str, object] | None = None, environment: Mapping[str, str] | None = None, file: Path | None = None
) -> AgentSettings:
    """The agent's settings. flags: from the command line, by field name; None is a flag that wasn't given.

    environment: this process's by default. file: the settings file; one that doesn't exist is an empty one.
    Raises EdgeswarmError (CONFIG) that names the key, where it stands and what would be right.
    """
    return _load(AgentSettings, "agent", flags or {}, os.environ if environment is None else environment, file)


def load_operator_settings(
    *, flags: Mapping[str, object] | None = None, environment: Mapping[str, str] | None = None, file: Path | None = None
) -> OperatorSettings:
    """The operator's settings; everything as in `load_agent_settings`."""
    return _load(OperatorSettings, "operator", flags or {}, os.environ if environment is None else environment, file)


_TABLES: dict[str, type] = {"agent": AgentSettings, "operator": OperatorSettings}


def _keys(kind: Any) -> dict[str, dataclasses.Field[Any]]:
    return {field.metadata["key"] or field.name: field for field in dataclasses.fields(kind)}


def _load(
    kind: type[_Settings], table: str, flags: Mapping[str, object], environment: Mapping[str, str], file: Path | None
) -> _Settings:
    keys = _keys(kind)
    in_file = _read_table(file, table) if file is not None else {}
    for key in in_file:
        if key not in keys:
            raise _unknown(key, f"[{table}] of {file}", list(keys))
    _check_variables(environment)
    values: dict[str, Any] = {}
    for key, field in keys.items():
        variable = _PREFIX + key.upper()
        if flags.get(field.name) is not None:
            source, value = "--" + (field.metadata["flag"] or key.replace("_", "-")), flags[field.name]
        elif variable in environment:
            source, value = f"the environment variable {variable}", environment[variable]
        elif key in in_file:
            source, value = f"`{key}` in [{table}] of {file}", in_file[key]
        else:
            continue
        try:
            values[field.name] = field.metadata["parse"](value)
        except ValueError as error:
            raise EdgeswarmError(
                ErrorCode.CONFIG, f"{source}: {value!r} {error}.", f"Correct {source}, or remove it."
            ) from error
    unknown_flags = set(flags) - {field.name for field in keys.values()}
    if unknown_flags:
        raise ValueError(f"no such settings: {sorted(unknown_flags)}")
    return kind(**values)


def _read_table(file: Path, table: str) -> dict[str, Any]:
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:  # what both wrong TOML and wrong UTF-8 raise
        raise EdgeswarmError(ErrorCode.CONFIG, f"{file} is not a TOML file: {error}.", "Correct that line.") from error
    except OSError as error:
        raise EdgeswarmError(
            ErrorCode.CONFIG, f"{file} can't be read: {error.strerror}.", "Make it readable for this user."
        ) from error
    for name, value in document.items():
        if name not in _TABLES:
            raise _unknown(name, str(file), [f"[{known}]" for known in _TABLES])
        if not isinstance(value, dict):
            raise EdgeswarmError(ErrorCode.CONFIG, f"`{name}` in {file} is not a table.", f"Write it as [{name}].")
    found: dict[str, Any] = document.get(table, {})
    return found


def _check_variables(environment: Mapping[str, str]) -> None:
    """A misspelt variable is an error like a misspelt key. Both programs share one environment: both know all names."""
    known = {HOME_VARIABLE, *(_PREFIX + key.upper() for kind in _TABLES.values() for key in _keys(kind))}
    for variable in environment:
        if variable.startswith(_PREFIX) and variable not in known:
            raise _unknown(variable, "the environment", sorted(known))


def _unknown(key: str, place: str, known: Sequence[str]) -> EdgeswarmError:
    close = difflib.get_close_matches(key, known, n=1)
    remedy = f"Did you mean {close[0]}?" if close else f"Known are: {', '.join(known)}."
    return EdgeswarmError(ErrorCode.CONFIG, f"Unknown setting {key} in {place}.", remedy)
