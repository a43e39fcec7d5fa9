"""One scrambled Sobol sequence through the allowed points of a space, by position: no Ax here.

`optimizer` draws from it, and lends it the function that makes Ax generate points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sweeps.search.determinism import seeded, stable_seed
from sweeps.space.definition import Value

BATCH = 16
DRAWS = 100 * BATCH

Point = Mapping[str, Value]
Draw = Callable[[int, int, int, int], tuple[list[Point], int]]
"""(points wanted, draws allowed, seed of the scrambling, position to start from) → the points, and the
position after them. Once the draws are used up, the points come from a random walk that the seed starts."""


class SobolSequence:
    """A function of the seed alone, however it is read.

    It is drawn in batches and remembered: points that break constraints are left out, so that a position
    cannot be jumped to. Where nearly all points break them, Ax walks through the polytope instead, but takes
    every step of a batch in the same direction; then each point is a walk of its own.
    """

    def __init__(self, draw: Draw, seed: int) -> None:
        self._draw, self._seed = draw, seed
        self._points: list[Point] = []
        self._drawn = 0
        self._walks = False

    def __getitem__(self, position: int) -> Point:
        """The point at a position, counted from 0. Passes on what `draw` raises."""
        while len(self._points) <= position:
            self._points += self._walk() if self._walks else self._batch()
        return self._points[position]

    def _batch(self) -> list[Point]:
        with seeded(self._stream("round", len(self._points))):
            points, position = self._draw(BATCH, DRAWS, self._stream("scramble"), self._drawn)
        self._walks = position - self._drawn >= DRAWS
        self._drawn = position
        return [] if self._walks else points

    def _walk(self) -> list[Point]:
        with seeded(self._stream("round", len(self._points))):
            return self._draw(1, 1, self._stream("walk", len(self._points)), 0)[0]

    def _stream(self, *parts: int | str) -> int:
        return stable_seed(self._seed, *parts) % 2**31
