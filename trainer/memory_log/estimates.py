"""Sizes of the two largest tensors of a step, from their shapes alone. Used by `memory_log.log`.

Shapes: B sequences at once, H heads, T tokens, V entries of the vocabulary, C candidates of it.
"""

from __future__ import annotations

from typing import Any

_FLOAT = 4  # bytes; both are taken to be float32
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def estimates(
    *, batch: int, heads: int, length: int, vocabulary: int, candidates: int | None = None
) -> dict[str, Any]:
    """Return the sizes in one pass.

    Args:
        batch: B sequences.
        heads: H query heads of a layer.
        length: T tokens of a sequence.
        vocabulary: V entries.
        candidates: C tokens per position, if only their logits are computed; None: all are.

    Returns:
        `attention.worst_case`: the scores [B, H, T, T] of one layer that keeps them. `logits.logits_full`:
        [B, T, V]. `logits.logits_sparse`: [B, T, C]. Each has `bytes` and `formatted`.
    """
    logits = {"logits_full": _size(batch * length * vocabulary)}
    if candidates is not None:
        logits["logits_sparse"] = _size(batch * length * candidates)
    return {"attention": {"worst_case": _size(batch * heads * length * length)}, "logits": logits}


def _size(numbers: int) -> dict[str, Any]:
    return {"bytes": _FLOAT * numbers, "formatted": formatted(_FLOAT * numbers)}


def formatted(size: int) -> str:
    """Return a size for people, in powers of 1,024."""
    power = 0
    while size >= 1024 ** (power + 1) and power < len(_UNITS) - 1:
        power += 1
    return f"{size / 1024**power:.1f} {_UNITS[power]}" if power else f"{size} B"
