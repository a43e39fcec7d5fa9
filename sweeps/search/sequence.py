"""Scrambled Sobol sequence through the allowed points of a space, by position, without Ax."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sweeps.search.determinism import seeded, stable_seed
from sweeps.space.definition import Value

BATCH = 16
DRAWS = 100 * BATCH

Point = Mapping[str, Value]
Draw = Callable[[int, int, int, int], tuple[list[Point], int]]
"""Function of (points wanted, draws allowed, scrambling seed, start position) that returns the points and the
position after them. Once the draws are used up, the points come from a seeded random walk."""


class SobolSequence:
    """Sobol sequence that depends on the seed alone, in whatever order its positions are read.

    Points are drawn in batches and cached. With constraints those that break them are skipped, so that a
    position cannot be computed directly. If nearly all points break them, Ax samples by a random walk through
    the polytope, which takes every step of a batch in the same direction; each point is then a walk of its
    own. Without constraints a batch is drawn alone: to position 10,000 all batches took five seconds.

    Args:
        constrained: whether `draw` may reject points.
    """

    def __init__(self, draw: Draw, seed: int, *, constrained: bool = True) -> None:
        self._draw, self._seed, self._constrained = draw, seed, constrained
        self._points: list[Point] = []
        self._batches: dict[int, list[Point]] = {}  # without constraints, by the position of the first
        self._drawn = 0
        self._walks = False

    def __getitem__(self, position: int) -> Point:
        """Return the point at a position, counted from 0. Raises what `draw` raises."""
        if not self._constrained:
            begin = position - position % BATCH
            if begin not in self._batches:
                with seeded(self._stream("round", begin)):
                    self._batches[begin] = self._draw(BATCH, DRAWS, self._stream("scramble"), begin)[0]
            return self._batches[begin][position - begin]
        while len(self._points) <= position:
            with seeded(self._stream("round", len(self._points))):
                if self._walks:
                    self._points += self._draw(1, 1, self._stream("walk", len(self._points)), 0)[0]
                    continue
                points, end = self._draw(BATCH, DRAWS, self._stream("scramble"), self._drawn)
            self._walks = end - self._drawn >= DRAWS
            self._drawn = end
            self._points += [] if self._walks else points
        return self._points[position]

    def _stream(self, *parts: int | str) -> int:
        return stable_seed(self._seed, *parts) % 2**31
