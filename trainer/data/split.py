"""The split of files into training and held-out text. Called by `memory`.

A file is entirely on one side, and on the same side on every machine and under every seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from trainer.data.errors import DataError
from trainer.data.stdlib import Document
from trainer.text import counted

LONG_LINE = 12  # characters; shorter lines ("else:", "return") are common to all programs
NEAR_DUPLICATE = 0.5


def split(documents: Sequence[Document], held_out_fraction: float) -> tuple[list[Document], list[Document]]:
    """Return the training documents and the held-out documents.

    A file is held out if the hash of its path falls into the fraction. A held-out file is dropped if more
    than half of its distinct lines occur in the training text: it would measure memorisation.

    Raises:
        DataError: one of the sides is empty.
    """
    train: list[Document] = []
    held_out: list[Document] = []
    for document in documents:
        (held_out if _position(document.path) < held_out_fraction else train).append(document)
    known = {line for document in train for line in _lines(document)}
    held_out = [document for document in held_out if _share_of(known, document) <= NEAR_DUPLICATE]
    if not train or not held_out:
        side = "training" if not train else "held-out"
        raise DataError(
            f"data.held_out_fraction={held_out_fraction} leaves no {side} text among "
            f"{counted(len(documents), 'file')}; change it, or take more text (data.max_bytes)"
        )
    return train, held_out


def _position(path: str) -> float:
    """Return a number in [0, 1) that the path determines."""
    return int.from_bytes(hashlib.sha256(path.encode()).digest()[:8], "big") / 2**64


def _lines(document: Document) -> set[bytes]:
    return {line for raw in document.data.splitlines() if len(line := raw.strip()) >= LONG_LINE}


def _share_of(known: set[bytes], document: Document) -> float:
    lines = _lines(document)
    return len(lines & known) / len(lines) if lines else 0.0
