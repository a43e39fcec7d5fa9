"""The rule `search: {stop: …}`: ends a search whose further trials are not expected to gain much.

`allocation` asks it under the ask lock, before a new candidate. What the surrogate expects is stored in
`stop.json`, so that all workers together fit it once for the same results, and `sweep status` can say it
without. Results that come in after the end do not open the search again; `sweep extend` does.

No torch: `allocation` hands over what the surrogate has found.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sweeps.errors import StoreConflict
from sweeps.space import typed
from sweeps.space.definition import Space, Stop
from sweeps.space.domain import no_answer
from sweeps.space.fidelity import is_at_target
from sweeps.storage.base import NotFound, Store, put
from sweeps.text import json_reader
from sweeps.text.counted import counted
from sweeps.text.shorten import shorten
from sweeps.trials.record import Trial

log = logging.getLogger(__name__)

KEY = "stop.json"
SCHEMA = 1

FEWEST = 30
"""Results from which on the surrogate's answer is worth something: see `benchmarks.landscapes calibrate`."""

MOST = 400
"""Trials beyond which a fit takes minutes."""


def results(space: Space, records: Sequence[Trial]) -> dict[int, float]:
    """Return the results among which one is chosen, by trial: no repeats of a confirmation."""
    metric = space.objectives[0].metric
    found = {
        record.trial: record.metrics.get(metric)
        for record in records
        if record.status == "completed"
        and record.generator != "confirm"
        and is_at_target(space, record.parameters)
    }
    return {
        trial: float(value) for trial, value in found.items() if value is not None and math.isfinite(value)
    }


def applies(space: Space, records: Sequence[Trial]) -> bool:
    """Return whether the surrogate can say how good the best trial is; it is not needed to say so."""
    return not no_answer(space) and len(results(space, records)) >= FEWEST and len(records) <= MOST


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """What further trials were expected to gain.

    Args:
        gain: in the unit of the objective, positive whatever its goal.
        digest: of the records that this follows from, and of `trials`.
    """

    gain: float
    trials: int
    results: int
    digest: str
    at: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where a search with `search: {stop: …}` stands.

    Args:
        stop: with the amendments.
        found: the last expectation; None before 30 results.
    """

    stop: Stop
    found: Expectation | None

    @property
    def ended(self) -> bool:
        """Return whether the search has ended by itself."""
        found = self.found
        return (
            found is not None and found.trials == self.stop.trials and found.gain <= self.stop.expected_gain
        )

    def __str__(self) -> str:
        """Return the standing as a line for people."""
        more, bound = counted(self.stop.trials, "more trial"), shorten(self.stop.expected_gain)
        expected = f"{more} {'is' if self.stop.trials == 1 else 'are'} expected to gain"
        if self.found is None or self.found.trials != self.stop.trials:
            return f"once {expected} at most {bound}; judged from {FEWEST} results to {MOST} trials"
        least = 0.01 * self.stop.expected_gain
        gain = f"{self.found.gain:.2g}" if self.found.gain >= least else f"less than {least:.1g}"
        by = counted(self.found.results, "result")
        if self.ended:
            return f"the search is done: {expected} {gain}, no more than search.stop's {bound} ({by})"
        return f"{expected} {gain} ({by}); up to {MOST} trials, the search is done at {bound}"

    def document(self) -> dict[str, Any]:
        """Return the standing for programs."""
        found = self.found
        return {
            "expected_gain": self.stop.expected_gain,
            "trials": self.stop.trials,
            "gain": None if found is None else found.gain,
            "results": None if found is None else found.results,
            "ended": self.ended,
            "sentence": str(self),
        }


REMEDY = "`sweep extend --expected-gain none` goes on"


def standing(store: Store, space: Space) -> Standing | None:
    """Return where the search stands by what is stored; None without `search.stop`."""
    if space.search.stop is None:
        return None
    return Standing(stop=space.search.stop, found=_stored(store)[0])


def digest_of(stop: Stop, records: Sequence[Trial]) -> str:
    """Return a digest of all that an expectation follows from: what has ended, and how."""
    ended = [
        [r.trial, r.generator, r.status, r.failure, dict(r.parameters), dict(r.metrics), dict(r.predicted)]
        for r in records
        if r.finished
    ]
    return hashlib.sha256(json.dumps([stop.trials, ended], default=list).encode()).hexdigest()


def keep(store: Store, found: Expectation) -> None:
    """Store an expectation in place of an earlier one; of two at once, either stays."""
    data = (json.dumps({"schema": SCHEMA, **asdict(found)}, indent=1, allow_nan=False) + "\n").encode()
    try:
        put(store, KEY, data, _stored(store)[1])
    except StoreConflict:
        log.info("another worker has stored what it expects")


def _stored(store: Store) -> tuple[Expectation | None, str | None]:
    """Return what is stored, with its version; None for what this version has not written.

    That is then found anew, from the records.
    """
    try:
        data, version = store.read(KEY)
    except NotFound:
        return None, None
    try:
        document = json_reader.parse(data)
        json_reader.require_schema(document, SCHEMA)
        del document["schema"]
        found = typed.read(Expectation, document)
    except (ValueError, KeyError, TypeError) as error:
        log.warning("%s: not read (%s); it is found anew", store.location(KEY), error)
        return None, version
    return found, version
