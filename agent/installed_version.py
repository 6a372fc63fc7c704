"""Whether edgeswarm on the disk is still the one that runs: the daemon starts workers from the disk.

By its version and by what pip has written down of its files, which another commit of the same version changes. An editable
install is of files that change at any time: nothing tells that.
"""

from __future__ import annotations

import hashlib
import importlib.metadata

from edgeswarm.errors import EdgeswarmError, ErrorCode

_PACKAGE = "edgeswarm"


class InstalledVersion:
    """As it was when the agent started. device: its node id, for messages."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._at_start = _installed()

    def refuse_another(self) -> None:
        """Raises: VERSION_DIFFERS where another version has been installed since. While one is being installed, there is none."""
        now = _installed()
        if now != self._at_start and now and self._at_start:
            raise EdgeswarmError(
                ErrorCode.VERSION_DIFFERS,
                f"On {self._device} another edgeswarm ({now}) was installed while its agent ({self._at_start}) was running.",
                f"Start the agent on {self._device} again.",
            )


def _installed() -> str:
    """`0.1.0, files 5f3a90c1`; nothing while pip replaces it."""
    try:
        distribution = importlib.metadata.distribution(_PACKAGE)
        version, files = distribution.version, distribution.read_text("RECORD")
    except (importlib.metadata.PackageNotFoundError, KeyError, OSError):
        return ""
    if not version or not files:
        return version or ""
    return f"{version}, files {hashlib.sha256(_hashed(files).encode()).hexdigest()[:8]}"


def _hashed(record: str) -> str:
    """The lines of our own files with their hashes: not those that say how and from where they were installed."""
    lines = (line for line in record.splitlines() if ",sha256=" in line and ".dist-info/" not in line)
    return "\n".join(sorted(lines))
