"""Random search: the points of a scrambled Sobol sequence, without Ax, whose import takes seconds and 400 MB.

Parameter constraints are left to `optimizer`: Ax samples also where nearly all points break them.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Container, Hashable, Mapping, Sequence
from itertools import compress
from typing import Any

from sweeps.errors import NothingToAsk
from sweeps.search.determinism import stable_seed
from sweeps.search.encoding import Encoding, at_share
from sweeps.space.definition import Space, Value
from sweeps.space.domain import Domain
from sweeps.trials.record import Trial

SOBOL_ATTEMPTS = 256
_BITS = 30


class RandomSearch:
    """Generator of candidates for one sweep; the same records give the same candidate.

    The middle of the space (unless there is a baseline) comes first, then the point of the sequence whose
    position is the number of trials so far, or the next one that no trial has.
    """

    def __init__(self, space: Space) -> None:
        self._space, self._seed = space, space.search.seed
        self._domain = Domain(space)
        self._encoding = Encoding(self._domain)
        self._configurations = self._domain.configurations()
        self._records: list[Trial] = []
        self._tried: set[Hashable] = set()  # identities of the records
        self._engine: Any = None
        # Scrambled by a random lower triangular matrix over the binary digits of each axis, and a random
        # shift (Matoušek 1998). SciPy's own scrambling depends on NumPy's generators, which may change.
        stream = random.Random(stable_seed(self._seed, "scramble"))  # noqa: S311 - guards nothing
        self._scrambles = [
            ([1 << digit | stream.getrandbits(digit) for digit in range(_BITS)], stream.getrandbits(_BITS))
            for _ in self._encoding.axes
        ]

    def candidate(self, records: Sequence[Trial]) -> dict[str, Value]:
        """Return parameters that no record has: the active and the fixed ones.

        Args:
            records: all of the sweep, in index order.

        Raises:
            NothingToAsk: the space is used up.
        """
        self._observe(records)
        left = remaining_configurations(self._configurations, self._tried)
        index = len(records)
        if index == 0 and self._space.baseline is None:
            return self._domain.middle()
        # The first candidate is the baseline or the middle; the sequence is balanced only from its own start.
        start = max(index - 1, 0)
        for position in range(start, start + SOBOL_ATTEMPTS):
            parameters = self._at(position)
            if self._domain.identity(parameters) not in self._tried:
                return parameters
        return any_of(left, self._seed, index)

    def _observe(self, records: Sequence[Trial]) -> None:
        """Note which parameters were tried; only new records cost time."""
        known = self._records
        # By C's loops: this looks at all records for each candidate.
        replaced = compress(zip(known, records, strict=False), map(operator.is_not, known, records))
        if len(records) < len(known) or any(old.parameters != new.parameters for old, new in replaced):
            self._tried, known = set(), []
        self._tried.update(self._domain.identity(record.parameters) for record in records[len(known) :])
        self._records = list(records)

    def _at(self, position: int) -> dict[str, Value]:
        """Return the parameters at a position of the sequence, counted from 0."""
        if not self._encoding.axes:
            return self._domain.middle()
        if self._engine is None:
            from scipy.stats.qmc import Sobol  # half a second

            self._engine = Sobol(len(self._encoding.axes), scramble=False, bits=_BITS)
        self._engine.reset()
        if position:
            self._engine.fast_forward(position)
        point: dict[str, Value] = {}
        plain = (self._engine.random(1)[0] * 2**_BITS).astype(int).tolist()
        for axis, digits, (columns, scrambled) in zip(
            self._encoding.axes, plain, self._scrambles, strict=True
        ):
            for digit, column in enumerate(columns):
                if digits >> digit & 1:
                    scrambled ^= column  # from the shift on
            point[axis.name] = at_share(axis, (scrambled + 0.5) / 2**_BITS)
        return self._encoding.decode(point)


def remaining_configurations(
    configurations: Mapping[Hashable, dict[str, Value]] | None, tried: Container[Hashable]
) -> list[dict[str, Value]]:
    """Return those of a small finite space's configurations that no trial has; [] for None, a larger space.

    Raises:
        NothingToAsk: all were tried.
    """
    if configurations is None:
        return []
    if not (left := [parameters for identity, parameters in configurations.items() if identity not in tried]):
        raise NothingToAsk(
            f"every configuration of the search space ({len(configurations)}) was tried; add values to it"
        )
    return left


def any_of(left: Sequence[dict[str, Value]], seed: int, index: int) -> dict[str, Value]:
    """Return one of the configurations left, for a trial for which the sequence has nothing new.

    Raises:
        NothingToAsk: there is none, as the space is no small finite one.
    """
    if left:
        return left[stable_seed(seed, index, "left") % len(left)]
    raise NothingToAsk(
        f"trial {index}: no new candidate in {SOBOL_ATTEMPTS} attempts; "
        "widen the ranges or loosen the parameter constraints"
    )
