"""A command in a real terminal (a pty), as a person sees it: colours, width, Ctrl-C, and a window that is closed."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

CTRL_C = b"\x03"
_LINES = 40
# The session that Popen makes has no terminal until its leader takes one.
_TAKE_THE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


class Terminal:
    """One process, the leader of its session, in a terminal of its own that is `columns` wide.

    arguments: the first one is the program's path. environment: all of it, but for TERM.
    What it shows is read while the test waits for something, or at the end.
    """

    def __init__(self, arguments: Sequence[str | Path], *, environment: Mapping[str, str], columns: int = 120) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, columns, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_THE_TERMINAL, *map(str, arguments)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**environment, "TERM": "xterm-256color"},
        )
        os.close(slave)
        self._open = True
        self.shown = ""

    def wait_for(self, text: str, *, times: int = 1) -> None:
        """Until it has shown this so often; fails where it ends without."""
        while self.shown.count(text) < times:
            assert self._read(), f"it ended without {text!r}:\n{self.shown}"

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def hang_up(self) -> None:
        """Close the window."""
        if self._open:
            self._open = False
            os.close(self._master)

    def end(self) -> str:
        """Waits for its end; all that it has shown."""
        while self._read():
            pass
        self.process.wait()
        return self.shown

    def close(self) -> None:
        """For the end of a test, however it went."""
        self.process.kill()
        self.process.wait()
        self.hang_up()

    def _read(self) -> str:
        try:
            part = os.read(self._master, 65536).decode(errors="replace")
        except OSError:  # the process has closed its end
            return ""
        self.shown += part
        return part
