"""Keys of checkpoints within a trunk: those that `trainer` writes, and `sweeps` publishes and fetches."""

from __future__ import annotations

import hashlib


def step_key(trunk: str, step: int) -> str:
    """Return the key of a checkpoint within a trunk: 64 hexadecimal digits."""
    return hashlib.sha256(f"{trunk}/{step}".encode()).hexdigest()
