"""Near-copies of documents: a few exact sets of shingles that every other document is compared with.

Used by `held_out` and `stream` (a training document that nearly copies a measured one is skipped) and by
`memory.split` (a measured document that the training text contains is dropped).

A shingle is 32 bytes in a row of a document's letters and digits, in lower case and without what separates
them: some seven English words. The share of one document's shingles that another one has is its containment
there (Broder, "On the resemblance and containment of documents", 1997). Lee et al., "Deduplicating training
data makes language models better", 2022, find near-copies by MinHash, as they compare all documents with
each other. Here a few hundred are compared with all others, so their shingles fit into memory: the test is
exact, and neither a copy's beginning nor its length matters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt

RULE = 1  # increase it when the same documents would be near-copies of others
WIDTH = 32  # bytes of a shingle
SHARE = 0.5  # of the shingles, from which a document is a near-copy
PASSAGE = 256  # shingles, some 60 words: shorter documents occur in others by chance, as menus and footers do
BITS_PER_SHINGLE = 32  # of the filter: a shingle that no document has passes it in 1 of 32 cases, or fewer

Hashes = npt.NDArray[np.uint64]

_SEPARATORS = bytes(byte for byte in range(128) if not chr(byte).isalnum())
_BASE = 0x9E3779B97F4A7C15  # of a polynomial modulo 2**64: odd, and otherwise arbitrary
_FACTORS = [(width, np.uint64(pow(_BASE, width, 2**64))) for width in (1, 2, 4, 8, 16)]  # up to WIDTH
_BITS = np.left_shift(1, np.arange(8)).astype(np.uint8)
_NONE: Hashes = np.empty(0, dtype=np.uint64)


def shingles(text: str) -> Hashes:
    """Return the hashes [S] of a text's shingles in order: one of a shorter text, none of a blank one."""
    letters = text.lower().encode().translate(None, _SEPARATORS)
    if not letters:
        return _NONE
    hashes = np.frombuffer(letters.ljust(WIDTH, b"\0"), dtype=np.uint8).astype(np.uint64)
    for width, factor in _FACTORS:  # each doubles the width that a hash covers
        hashes = hashes[:-width] * factor + hashes[width:]
    return hashes


def is_contained(text: str, known: Hashes) -> bool:
    """Return whether half of a text's shingles, counted as often as they occur, are among the known ones.

    Args:
        text: a document; a blank one is contained in nothing.
        known: [K], sorted.
    """
    given = np.sort(shingles(text))
    return bool(len(given) and _positions(given, known).size >= SHARE * len(given))


def collect_shingles(texts: Iterable[str]) -> Hashes:
    """Return the shingles [K] of all texts, sorted, for `is_contained`."""
    return np.sort(np.concatenate([_NONE, *map(shingles, texts)]))


@dataclass(frozen=True, kw_only=True, eq=False)
class NearCopies:
    """The distinct shingles of documents, to compare others with.

    Args:
        hashes: [P], of each document's, sorted; a shingle of several documents is there several times.
        owners: [P], the numbers of the documents.
        sizes: [D], the number of each document's shingles.
        filter: packed bits [B / 8], one at the place that a hash's leading bits name; where it is 0, no
            document has such a shingle.
    """

    hashes: Hashes
    owners: npt.NDArray[np.int32]
    sizes: npt.NDArray[np.int64]
    filter: npt.NDArray[np.uint8]

    @classmethod
    def build(cls, texts: Iterable[str]) -> NearCopies:
        parts = [_distinct(np.sort(shingles(text))) for text in texts]
        sizes = np.array([len(part) for part in parts], dtype=np.int64)
        pairs = np.concatenate([_NONE, *parts])
        order = np.argsort(pairs, kind="stable")
        hashes = pairs[order]
        bits = 1 << max(3, (BITS_PER_SHINGLE * len(hashes)).bit_length())
        places, mask = _places(hashes, bits)
        packed = np.zeros(bits // 8, dtype=np.uint8)
        np.bitwise_or.at(packed, places, mask)
        return cls(
            hashes=hashes,
            owners=np.repeat(np.arange(len(parts), dtype=np.int32), sizes)[order],
            sizes=sizes,
            filter=packed,
        )

    @classmethod
    def load(cls, folder: Path) -> NearCopies:
        """Return the index that `save` wrote there, memory-mapped: processes share its pages."""
        names = (each.name for each in fields(cls))
        return cls(**{name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in names})

    def save(self, folder: Path) -> None:
        """Write the index into a folder of its own."""
        folder.mkdir()
        for each in fields(self):
            np.save(folder / f"{each.name}.npy", getattr(self, each.name))

    def has(self, text: str) -> bool:
        """Return whether a text nearly copies one of the documents: half of either is in the other.

        Half of the text's shingles, counted as often as they occur, are in the document, or half of the
        document's distinct ones are in the text, and these are at least a passage.
        """
        given = shingles(text)
        places, mask = _places(given, 8 * len(self.filter))
        likely = given[self.filter.take(places) & mask != 0]
        least = min(SHARE * len(given), SHARE * PASSAGE)
        if not len(likely) or len(likely) < least:
            return False
        found = _positions(np.sort(likely), self.hashes)
        if not len(found) or len(found) < least:
            return False
        first, times = np.unique(found, return_counts=True)
        count = np.searchsorted(self.hashes, self.hashes[first], side="right") - first
        owners = self.owners[np.repeat(first - np.cumsum(count) + count, count) + np.arange(count.sum())]
        in_document = np.bincount(owners, weights=np.repeat(times, count), minlength=len(self.sizes))
        in_text = np.bincount(owners, minlength=len(self.sizes))
        return bool(
            np.any(in_document >= SHARE * len(given))
            or np.any((in_text >= SHARE * self.sizes) & (self.sizes >= PASSAGE))
        )


def _positions(given: Hashes, known: Hashes) -> npt.NDArray[np.int64]:
    """Return where in `known` [K], sorted, each of `given` [S], sorted, first is, of those that it has."""
    if not len(known):
        return np.empty(0, dtype=np.int64)
    at: npt.NDArray[np.int64] = np.searchsorted(known[:-1], given)
    found: npt.NDArray[np.int64] = at[known[at] == given]
    return found


def _distinct(hashes: Hashes) -> Hashes:
    """Drop repeats from sorted hashes; np.unique takes eight times as long."""
    return hashes[np.append(True, hashes[1:] != hashes[:-1])] if len(hashes) else hashes


def _places(hashes: Hashes, bits: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return the byte and the bit in it of each hash in a filter of so many bits, a power of two."""
    places = (hashes >> np.uint64(65 - bits.bit_length())).view(np.int64)
    return places >> 3, _BITS.take(places & 7)
