"""Bytes for people: in GiB, and in MiB or KiB where two decimals of a GiB would say nothing.

Called wherever memory or files are told of; documents for programs have numbers, the unit in their names.
"""

from __future__ import annotations

_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def shown(size: float) -> str:
    """Three digits and the unit of which there is at least a tenth: `128 GiB`, `0.55 GiB`, `93.8 MiB`."""
    if not size:
        return "0 MiB"
    unit, name = next((each for each in _UNITS if size >= each[0] / 10), _UNITS[-1])
    value = size / unit
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f} {name}"
