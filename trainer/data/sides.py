"""The three texts of a run, and which of them a document belongs to. Used by `split`, `held_out`, `stream`.

Training text is trained on; held-out text is what a search selects by; test text is measured by nothing but
the runs that confirm what was selected (`eval.test`).
"""

from __future__ import annotations

import hashlib

TRAIN, HELD_OUT, TEST = SIDES = ("train", "held_out", "test")


def side(content: str, *, held_out_fraction: float, test_fraction: float) -> str:
    """Return the side of a document, which the SHA-256 of its content alone decides.

    Held-out documents have the smallest hashes and test documents the largest, so that other fractions (below
    a half) move documents from or to the training text, but none from one measured text to the other.
    """
    position = int.from_bytes(hashlib.sha256(content.encode()).digest()[:8], "big")
    if position < held_out_fraction * 2**64:
        return HELD_OUT
    return TEST if position >= (1 - test_fraction) * 2**64 else TRAIN
