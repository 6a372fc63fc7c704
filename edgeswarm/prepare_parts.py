"""What a worker calls the parts of getting ready, where others than a person care."""

from __future__ import annotations

FETCH_LAYERS = "fetch layers"
REHEARSE = "rehearse"
