"""`edgeswarm` commands that find their modules imported: most of what a command does before it says a word is `import torch`.

    tests ──▶ WarmStart ── words, environment, folder, output, errors ──▶ [ warm process ]  has imported it all
                                                                              │ fork
               WarmCommand ◀── process id ....... exit code ── [ guard ]  waits for its end
                                                                  │ fork
                                                               [ command ]  a process of its own, as `edgeswarm` starts one

A command's own start, from its script on, is that of tests which start it cold.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NoReturn

_ROOT = Path(__file__).parents[2]
_HEADER_BYTES = 4


class WarmCommand:
    """A command that runs; as much of subprocess.Popen as its user needs."""

    def __init__(self, connection: socket.socket, *, stdout: int, stderr: int) -> None:
        self._connection = connection
        self._code: int | None = None
        self.stdout: IO[str] = os.fdopen(stdout)
        self.stderr: IO[str] = os.fdopen(stderr)
        self.pid = int(_received(connection))

    def send_signal(self, number: int) -> None:
        if self._code is None:
            # Its guard ends behind it, so that the number is still its own or nobody's.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout_seconds: float | None = None) -> int:
        """Its exit code, negative where a signal ended it. Raises subprocess.TimeoutExpired."""
        if self._code is None:
            self._connection.settimeout(timeout_seconds)
            try:
                self._code = int(_received(self._connection))
            except TimeoutError as error:
                raise subprocess.TimeoutExpired(str(self.pid), timeout_seconds or 0.0) from error
            self._connection.close()
        return self._code


class WarmStart:
    """The warm process. The first command starts it, and it ends with this process."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[str] | None = None
        self._path = ""

    def start(self, words: Sequence[str], *, environment: Mapping[str, str], folder: Path) -> WarmCommand:
        """Runs `edgeswarm WORDS` with this environment in this folder."""
        if self._process is None:
            self._begin()
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._path)
        (output, output_end), (errors, errors_end) = os.pipe(), os.pipe()
        request = json.dumps({"words": list(words), "environment": dict(environment), "folder": str(folder)}).encode()
        socket.send_fds(connection, [len(request).to_bytes(_HEADER_BYTES, "big")], [output_end, errors_end])
        connection.sendall(request)
        os.close(output_end)
        os.close(errors_end)
        return WarmCommand(connection, stdout=output, stderr=errors)

    def _begin(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="warm-")
        self._path = str(Path(self._folder.name) / "socket")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.warm_start", self._path],
            cwd=_ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,  # at whose end it ends
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in pytest's terminal is for the tests
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), "the warm process says that it listens"


def _received(connection: socket.socket) -> str:
    """A line of the guard's."""
    line = b""
    while not line.endswith(b"\n"):
        part = connection.recv(1)
        assert part, "a guard tells a command's number and its exit code"
        line += part
    return line.decode()


# --- the warm process -------------------------------------------------------------------------------------------------


def _serve(path: str) -> list[str]:
    """Answers requests; returns in each command's process, with its words."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for guards
    assert len(os.listdir("/proc/self/task")) == 1, "a fork takes one thread along"
    print("listens", flush=True)
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            sys.exit()
        connection, _ = listener.accept()
        header, files, _, _ = socket.recv_fds(connection, _HEADER_BYTES, 2)
        request = json.loads(_exactly(connection, int.from_bytes(header, "big")))
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            command = os.fork()
            if command:
                _guard(connection, command, files)
            connection.close()
            _become(request, *files)
            return list(request["words"])
        connection.close()
        for file in files:
            os.close(file)


def _guard(connection: socket.socket, command: int, files: Sequence[int]) -> NoReturn:
    """Tells the command's process id, and its exit code when it has ended."""
    for file in files:
        os.close(file)
    with contextlib.suppress(BrokenPipeError):  # a test that failed doesn't wait for its commands
        connection.sendall(f"{command}\n".encode())
        _, status = os.waitpid(command, 0)
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _become(request: Mapping[str, object], output: int, errors: int) -> None:
    """Makes this process what a new one would be: its folder, environment, standard files, and nobody else's random numbers."""
    folder, environment = request["folder"], request["environment"]
    assert isinstance(folder, str)
    assert isinstance(environment, dict)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    # As a script's is: its folder, then PYTHONPATH, then what this interpreter has.
    sys.path[0:1] = [
        str(Path(sys.executable).parent),
        *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)),
    ]
    tempfile.tempdir = None
    random.seed()
    for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (errors, 2)):
        os.dup2(source, target)
        os.close(source)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        assert part, "a request is whole"
        data += part
    return data


def _import_it_all() -> None:
    """What a training's command imports; nothing of it begins a thread."""
    import torch

    from edgeswarm.model.export import export_model
    from edgeswarm_coordinator import controller
    from edgeswarm_coordinator.cli import app

    # The first export imports the most.
    export_model(torch.nn.Linear(2, 2), (torch.zeros(4, 2),))
    assert controller
    assert app


if __name__ == "__main__":
    _import_it_all()
    words = _serve(sys.argv[1])
    from edgeswarm_coordinator.cli import main

    sys.argv = ["edgeswarm", *words]
    main()
