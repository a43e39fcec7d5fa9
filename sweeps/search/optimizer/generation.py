"""Candidates for a sweep: points of the Sobol sequence first, then of a surrogate."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ax.core.experiment import Experiment

from sweeps.errors import NothingToAsk, SpaceError
from sweeps.search.candidates import Candidate, Candidates
from sweeps.search.determinism import one_thread, seeded, silence, stable_seed
from sweeps.search.encoding import Encoding
from sweeps.search.known_cost import known_cost
from sweeps.search.optimizer import observations, sobol
from sweeps.search.optimizer.acquisition import OpenAcquisition
from sweeps.search.optimizer.stage_choice import PLAIN_EVERY, StageChoice
from sweeps.search.optimizer.surrogate import SURROGATE_FAILURES, fitted, inferred_noise
from sweeps.search.optimizer.translation import blank_experiment, goal
from sweeps.search.optimizer.view import SurrogateView
from sweeps.search.outcomes import Outcomes
from sweeps.search.sequence import Point, SobolSequence
from sweeps.space.definition import Space, Value
from sweeps.space.domain import Domain
from sweeps.trials.record import Trial

log = logging.getLogger(__name__)

SURROGATE_ATTEMPTS = 2


def require_searchable(space: Space) -> int:
    """Return how many trials come before the surrogate's; `sweep init` calls it before compute is spent.

    Raises:
        SpaceError: Ax would refuse the space.
    """
    optimizer = Optimizer(space)
    try:
        optimizer.generate()
    except NothingToAsk as error:
        raise SpaceError(str(error), file=space.name, key="parameters") from None
    return optimizer.first_trials


class Optimizer:
    """Generator of candidates for one sweep.

    The middle of the space (unless there is a baseline) and scrambled Sobol points come first, until there
    are `first_trials` live ones (neither failed nor abandoned, the baseline not counted) and half as many
    have results. A Gaussian process over all results proposes the rest. Pending, running, abandoned and
    failed trials are pending points for it, which makes their neighbourhood less attractive, so that workers
    do not all search the same region.

    Attributes:
        experiment: Ax's, with a trial for every observed record that lies in this space.

    Raises:
        SpaceError: Ax cannot search this space.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._encoding = Encoding(Domain(space))
        self._outcomes = Outcomes(space)
        blank = self._new_experiment()  # the Sobol sequence is drawn from it, independent of the records
        self._sobol = SobolSequence(partial(sobol.draw, blank), space.search.seed)
        self._candidates = Candidates(
            space, self._encoding, self._outcomes, sobol=self.sobol_point, surrogate=self.surrogate_points
        )
        self._start_over()

    def observe(self, trials: Sequence[Trial]) -> None:
        """Take in all records of the sweep, in index order; only new and changed ones cost time."""
        delta = self._candidates.observe(trials)
        if delta.reset:
            self._start_over()
        for record in delta.changed:
            self._settle(record)
        for record in delta.added:
            self._attach(record)

    @property
    def first_trials(self) -> int:
        """Return how many trials come before those of the surrogate."""
        return self._candidates.first_trials()

    def generate(self, count: int = 1) -> list[Candidate]:
        """Return `count` candidates that no observed trial has, failed and abandoned ones included.

        Raises:
            NothingToAsk: the space is used up, or its constraints leave nothing new to find.
        """
        found: list[Candidate] = []
        with one_thread(), silence("ax"):
            while len(found) < count:
                found.append(self._candidates.next(found))
        return found

    def points(self) -> dict[int, dict[str, Value]]:
        """Return the point of every completed record on all axes, by its index."""
        return {
            record.trial: self._on_all_axes(self._candidates.points[record.trial], record.trial)
            for record in self._candidates.known()
            if record.status == "completed"
        }

    def view(self) -> SurrogateView:
        """Return a view of a fresh fit to all results. Raises one of SURROGATE_FAILURES."""
        with one_thread(), silence("ax"), seeded(stable_seed(self._space.search.seed, "view")):
            records = {trial.index: index for index, trial in self._ax_trials.items()}
            return SurrogateView(
                self._fitted(batched=False),
                self._encoding,
                self._outcomes,
                records,
                repeated=len({trial.arm.name for trial in self._ax_trials.values()}) < len(records),
            )

    def _start_over(self) -> None:
        self._ax_trials: dict[int, Any] = {}  # index of the record → Ax's trial
        self.experiment = self._new_experiment()

    def _new_experiment(self) -> Experiment:
        return blank_experiment(self._space.name, self._encoding, self._outcomes)

    def _attach(self, record: Trial) -> None:
        if (point := self._candidates.points.get(record.trial)) is None:
            return
        metadata = self._metadata(point, record.trial)
        self._ax_trials[record.trial] = observations.attach(self.experiment, point, metadata)
        self._settle(record)

    def _settle(self, record: Trial) -> None:
        if (trial := self._ax_trials.get(record.trial)) is not None:
            observations.settle(trial, self._outcomes.final_status(record))

    def _pending(self, found: Sequence[Candidate]) -> dict[str, list[Any]]:
        waiting = (
            (point, self._metadata(point, index), missing)
            for index, point, missing in self._candidates.waiting(found)
        )
        return observations.pending(self.experiment, self._outcomes, waiting)

    def _metadata(self, point: Mapping[str, Value], index: int) -> dict[str, Any]:
        return observations.metadata(point, self._on_all_axes(point, index))

    def _on_all_axes(self, point: Mapping[str, Value], index: int) -> dict[str, Value]:
        """Return the point on all axes; repeats have inactive values in common, as one arm."""
        origin = self._candidates.origins.get(index, index)
        return self._encoding.on_all_axes(point, stable_seed(self._space.search.seed, origin, "inactive"))

    def surrogate_points(self, index: int, found: Sequence[Candidate]) -> Iterator[Point]:
        """Yield maximisers of the acquisition function, from different seeds; none if the surrogate fails."""
        seed, pending = self._space.search.seed, self._pending(found)
        shares = self._candidates.shares()
        options: dict[str, Any] = {"capped": True, "acquisition_class": OpenAcquisition} if shares else {}
        exact = known_cost(self._space, self._encoding, self._outcomes, self._candidates.known())
        try:
            with seeded(stable_seed(seed, index, "fit")):
                adapter = self._fitted(noise=self._noise(), exact=exact, **options)
            for attempt in range(SURROGATE_ATTEMPTS):
                with seeded(stable_seed(seed, index, "acquire", attempt)):
                    run = adapter.gen(n=1, pending_observations=pending)
                    fresh = run.arms[0].parameters
                    scored = self._points_by_score(adapter, fresh, index, found) if shares else []
                yield from scored or [fresh]
        except SURROGATE_FAILURES as error:
            log.warning("trial %d comes from Sobol, because the surrogate failed: %s", index, error)

    def _points_by_score(
        self, adapter: Any, fresh: Point, index: int, found: Sequence[Candidate]
    ) -> list[Point]:
        """Return the fresh point and the best ones on what is stored, the best first; else []."""
        candidates = self._candidates
        if candidates.costs is None:
            return []
        costs = candidates.costs.known(candidates.known())
        choice = StageChoice(candidates, self._encoding, self._on_all_axes, costs, found)
        asked = sum(r.generator == "botorch" for r in candidates.records)
        asked += sum(candidate.generator == "botorch" for candidate in found)
        encoded = (self._encoding.encode(candidate.parameters) for candidate in found)
        taken = [*candidates.points.values(), *(point for point in encoded if point is not None)]
        seed = stable_seed(self._space.search.seed, index, "later") % 2**31
        plain = asked % PLAIN_EVERY == PLAIN_EVERY - 1
        return list(choice.points(adapter, fresh, index, taken, plain=plain, seed=seed))

    def _noise(self) -> Mapping[str, float] | None:
        """Return the inferred noise by metric, where early-stopped trials have predictions; else None.

        A model that infers the noise takes no errors, and one with errors infers no noise: so a first fit, to
        the results alone, infers it for the second.
        """
        if not any(map(self._outcomes.predictions, self._candidates.known())):
            return None
        return inferred_noise(self._fitted()) if self._space.search.noise == "inferred" else {}

    def _fitted(
        self, *, batched: bool = True, noise: Mapping[str, float] | None = None, **options: Any
    ) -> Any:
        records = self._candidates.known()
        data = observations.results(self._outcomes, records, self._ax_trials, noise)
        derived = self._outcomes.derived_constraints(records)
        return fitted(self.experiment, data, goal(self._outcomes, *derived), batched=batched, **options)

    def sobol_point(self, position: int) -> Point | None:
        """Return the point at a position of the Sobol sequence; None past its end."""
        try:
            return self._sobol[position]
        except sobol.EXHAUSTED:
            return None
