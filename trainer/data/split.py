"""The split of files into training, held-out and test text. Called by `memory`.

A file is entirely on one side, and on the same side on every machine and under every seed.
"""

from __future__ import annotations

from collections.abc import Sequence

from sweeps.text.counted import counted
from trainer.data.errors import DataError
from trainer.data.near_copies import contained, gathered
from trainer.data.sides import HELD_OUT, SIDES, TEST, TRAIN, side
from trainer.data.stdlib import Document


def split(
    documents: Sequence[Document], held_out_fraction: float, test_fraction: float
) -> dict[str, list[Document]]:
    """Return the documents of each side; a small library may leave the test side empty.

    The hash of its path decides the side of a file. Of the measured sides, those are dropped that the sides
    before them contain (`near_copies.contained`): they would measure memorisation, or what was selected by.

    Raises:
        DataError: the training or the held-out side is empty.
    """
    fractions = {"held_out_fraction": held_out_fraction, "test_fraction": test_fraction}
    sides: dict[str, list[Document]] = {name: [] for name in SIDES}
    for document in documents:
        sides[side(document.path, **fractions)].append(document)
    others = list(sides[TRAIN])
    for name in (HELD_OUT, TEST):
        known = gathered(_text(document) for document in others)
        sides[name] = [document for document in sides[name] if not contained(_text(document), known)]
        others += sides[name]
    if not sides[TRAIN] or not sides[HELD_OUT]:
        missing = "training" if not sides[TRAIN] else "held-out"
        raise DataError(
            f"data.held_out_fraction={held_out_fraction} (data.test_fraction={test_fraction}) leaves no "
            f"{missing} text among {counted(len(documents), 'file')}; change it, or take more text "
            "(data.max_bytes)"
        )
    return sides


def _text(document: Document) -> str:
    return document.data.decode()
