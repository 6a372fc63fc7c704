"""Numbers as a person reads them."""

from __future__ import annotations

SIZE_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def readable_bytes(count: float) -> str:
    """1536 -> "1.5 KiB"."""
    value = float(count)
    unit = 0
    while abs(value) >= 1024 and unit < len(SIZE_UNITS) - 1:
        value /= 1024
        unit += 1
    return f"{value:.0f} {SIZE_UNITS[unit]}" if unit == 0 else f"{value:.1f} {SIZE_UNITS[unit]}"


def readable_seconds(seconds: float) -> str:
    """0.0123 -> "12.3 ms", 83.4 -> "83.4 s", 7200 -> "2.0 h"."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 600:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def readable_error(part: float) -> str:
    """0.042 -> "+-4 %", 0.004 -> "+-0.4 %"."""
    percent = 100 * part
    return f"+-{percent:.1f} %" if percent < 0.95 else f"+-{percent:.0f} %"
