"""Whether edgeswarm on the disk is still the one that runs: the daemon starts workers from the disk."""

from __future__ import annotations

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
                f"On {self._device} edgeswarm {now} was installed while its agent, of {self._at_start}, was running.",
                f"Start the agent on {self._device} again.",
            )


def _installed() -> str:
    try:
        return importlib.metadata.version(_PACKAGE) or ""  # None while pip replaces it
    except importlib.metadata.PackageNotFoundError:
        return ""
