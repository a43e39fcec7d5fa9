"""The ask: trial records in, the next candidates out.

Reads from top to bottom: `observe` takes in the records; `generate` finds each candidate, from the surrogate
once there are enough results (`_surrogate_points`: observations, fit, fresh maximiser, shared candidates,
choice), else from the first design (`_first_points`). The same records give the same candidates, from a
long-lived `Optimizer` as from a new one.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Literal

import numpy as np
import torch
from ax.core.experiment import Experiment

from sweeps.search.determinism import one_thread, seeded, silence, stable_seed
from sweeps.search.encoding import Encoding
from sweeps.search.known_cost import known_cost
from sweeps.search.nested_design import (
    FIRST_TRIALS,
    SHARED_FIRST_TRIALS,
    by_new_options,
    first_stages,
    next_shared,
)
from sweeps.search.optimizer import ax_experiment
from sweeps.search.optimizer.acquisition import OpenAcquisition
from sweeps.search.optimizer.drift import drifted_config, evidence
from sweeps.search.optimizer.optimum import Optimum, SpacePoints
from sweeps.search.optimizer.prior import LogPrior
from sweeps.search.optimizer.rows import ModelRows, metric_scale
from sweeps.search.optimizer.stage_choice import PLAIN_EVERY, StageChoice
from sweeps.search.optimizer.surrogate import SURROGATE_FAILURES, fitted, inferred_noise
from sweeps.search.optimizer.transfer import SourceModel
from sweeps.search.optimizer.transforms import FOR_ANALYSES, UNCUT
from sweeps.search.optimizer.view import SurrogateView
from sweeps.search.outcomes import Outcomes
from sweeps.search.random_search import SOBOL_ATTEMPTS, any_of, remaining_configurations
from sweeps.search.sequence import Point, SobolSequence
from sweeps.search.shared_stages import FEWEST, SharedStages, Starts
from sweeps.search.stage_costs import StageCosts
from sweeps.space.definition import Choice, Space, Value
from sweeps.space.domain import Domain
from sweeps.space.fidelity import at_target
from sweeps.space.priors import PRIOR_STRENGTH
from sweeps.trials.record import Trial, has_failed

log = logging.getLogger(__name__)

SURROGATE_ATTEMPTS = 2
SPREAD_POINTS = 512
"""Sobol points of a large space of which the best is asked where all attempts found what was tried."""
SOURCE_RESULTS = 12
"""Results from which a sweep's own surrogate is better without its sources, which it would stay close to."""

MOST = 0.5
"""Share of the first stage in a trial's cost, from which the first trials vary it alone: so they compare."""

NEXT_POINTS = 16
"""Points of the Sobol sequence among which a first stage with new options is found."""

NEGLIGIBLE = 0.05
"""Share of the first stage in a trial's cost, below which the search does not care whether it is shared."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Parameters for a new trial: the active ones, in the space's order, and who proposed them."""

    parameters: Mapping[str, Value]
    generator: Literal["sobol", "botorch", "fidelity"]


class Optimizer:
    """Generator of candidates for one sweep.

    The middle of the space (unless there is a baseline) and scrambled Sobol points come first, until there
    are `first_trials` live ones (neither failed nor abandoned, the baseline not counted) and half as many
    have results. A Gaussian process over all results proposes the rest. Pending, running, abandoned and
    failed trials are pending points for it, which makes their neighbourhood less attractive, so that workers
    do not all search the same region. Before that, sources come in: the best of each is the first trial, and
    while their surrogates foresee the results better than one without, they propose trials, up to
    `SOURCE_RESULTS` results.

    Args:
        space: of one with fidelities, the trials at the target.
        prior_strength: of the parameters' priors, in completed trials.
        more_first: number of trials before those of the surrogate that others propose.

    Attributes:
        plain_every: one in so many candidates of the surrogate ignores costs.

    Raises:
        SpaceError: Ax cannot search this space.
    """

    plain_every = PLAIN_EVERY

    def __init__(self, space: Space, *, prior_strength: float = PRIOR_STRENGTH, more_first: int = 0) -> None:
        space = at_target(space)
        self._space, self._search, self._prior_strength = space, space.search, prior_strength
        self._more_first = more_first + len(space.transfer)
        self._domain = Domain(space)
        self._encoding = Encoding(self._domain)
        self._outcomes = Outcomes(space)
        self._configurations = self._domain.configurations()
        self._shared = SharedStages(space, self._encoding)
        can_share = self._shared.has_choice or self._shared.trunks
        self._costs = StageCosts(self._shared.stages, self._encoding) if can_share else None
        # Drawn from an experiment without trials, so that the sequence depends on no record.
        draws = ax_experiment.SobolDraws(self._new_experiment())
        constrained = bool(self._encoding.constraints)
        self._sobol = SobolSequence(draws, self._search.seed, constrained=constrained)
        self._start_over()

    # ---- records

    def observe(self, trials: Sequence[Trial]) -> None:
        """Take in all records of the sweep, in index order; only new and changed ones cost time."""
        pairs = enumerate(zip(self._records, trials, strict=False))
        changed = [(position, old, new) for position, (old, new) in pairs if old is not new]
        if len(trials) < len(self._records) or not all(_may_follow(old, new) for _, old, new in changed):
            self._start_over()
            changed = []
        for position, old, new in changed:
            self._records[position] = new
            if old.status != new.status:
                self._settle(new)
        for record in trials[len(self._records) :]:
            self._records.append(record)
            self._known_identities.add(self._domain.identity(record.parameters))
            configuration = self._domain.configuration(
                record.parameters, repeat=record.generator == "confirm"
            )
            if (point := self._encoding.encode(configuration)) is None:
                continue  # an imported one outside this space is never proposed again, but not learned from
            self._points[record.trial] = point
            self._origins[record.trial] = self._first_at.setdefault(frozenset(point.items()), record.trial)

    def _start_over(self) -> None:
        self._records: list[Trial] = []
        # By index, the encoded parameters of the records that lie in this space.
        self._points: dict[int, dict[str, Value]] = {}
        # By index, that of the first record at the same point: repeats with other seeds are one arm with
        # several observations.
        self._origins: dict[int, int] = {}
        self._first_at: dict[Hashable, int] = {}
        self._known_identities: set[Hashable] = set()
        self._ax_trials: dict[int, Any] = {}
        self._experiment: Experiment | None = None

    @property
    def experiment(self) -> Experiment:
        """Return Ax's experiment, with a trial for every observed record that lies in this space.

        Points of the first design need none of them, and 10,000 take eight seconds.
        """
        if self._experiment is None:
            self._experiment = self._new_experiment()
        if len(self._ax_trials) < len(self._points):
            for record in self._known():
                if record.trial not in self._ax_trials:
                    point, metadata = self._for_ax(self._points[record.trial], record.trial)
                    self._ax_trials[record.trial] = ax_experiment.attach(self._experiment, point, metadata)
                    self._settle(record)
        return self._experiment

    def _new_experiment(self) -> Experiment:
        return ax_experiment.blank_experiment(self._space.name, self._encoding, self._outcomes)

    def _settle(self, record: Trial) -> None:
        if (trial := self._ax_trials.get(record.trial)) is not None:
            ax_experiment.settle(trial, self._outcomes.final_status(record))

    def _known(self) -> list[Trial]:
        """Return the records that the search learns from."""
        return [record for record in self._records if record.trial in self._points]

    def _on_all_axes(self, point: Mapping[str, Value], index: int) -> dict[str, Value]:
        """Return the point on all axes; repeats have inactive values in common, as one arm."""
        origin = self._origins.get(index, index)
        return self._encoding.on_all_axes(point, stable_seed(self._search.seed, origin, "inactive"))

    def _for_ax(self, point: Mapping[str, Value], index: int) -> tuple[Point, dict[str, Any]]:
        """Return the point of a trial as Ax has it, and its metadata."""
        everywhere = self._on_all_axes(point, index)
        active = self._encoding.active_for_ax(everywhere)
        return active, ax_experiment.metadata(active, everywhere)

    # ---- candidates

    def generate(self, count: int = 1) -> list[Candidate]:
        """Return `count` candidates that no observed trial has, failed and abandoned ones included.

        Raises:
            NothingToAsk: the space is used up, or its constraints leave nothing new to find.
        """
        found: list[Candidate] = []
        with one_thread(), silence("ax"):
            while len(found) < count:
                found.append(self._next(found))
        return found

    def _next(self, found: Sequence[Candidate]) -> Candidate:
        """Return the candidate that follows the records and the candidates `found` so far in this call."""
        index = len(self._records) + len(found)
        identities = self._known_identities | {
            self._domain.identity(candidate.parameters) for candidate in found
        }
        left = remaining_configurations(self._configurations, identities)
        enough = self._has_enough_results(found)
        for parameters in () if enough else self._untried_bests(identities):
            return Candidate(parameters=parameters, generator="botorch")
        if enough or self._consults_sources():
            known = self._known()
            ends = self._shared.stored_ends(known).values() if self._shares_first_stage() else ()
            trunks = self._shared.stored_trunks(known) if self._shares() else ()
            starts = Starts(self._shared, ends, trunks)  # what a new trial can start from, by the records
            for point in self._surrogate_points(index, found, starts, left, by_source=not enough):
                parameters = starts.snap(self._encoding.decode(point))
                if self._is_new(parameters, identities):
                    return Candidate(parameters=parameters, generator="botorch")
        for parameters in self._first_points(index, found, designed=not enough):
            if self._is_new(parameters, identities):
                return Candidate(parameters=parameters, generator="sobol")
        return Candidate(parameters=any_of(left, self._search.seed, index), generator="sobol")

    def _is_new(self, parameters: Mapping[str, Value], identities: set[Hashable]) -> bool:
        return self._domain.identity(parameters) not in identities and self._domain.allows(parameters)

    def _has_enough_results(self, found: Sequence[Candidate]) -> bool:
        """Return whether the surrogate proposes now: the first trials are made, and half have results."""
        if self._search.method == "random" or not self._encoding.axes:
            return False
        live = sum(map(_counts_as_first, self._records))
        complete = sum(r.generator != "confirm" and not self._outcomes.missing(r) for r in self._known())
        first = self.first_trials
        return live + len(found) >= first and complete >= max(1, first // 2)

    @property
    def first_trials(self) -> int:
        """Return how many trials come before those of the surrogate, the baseline not counted."""
        if self._search.sobol is not None:
            return self._search.sobol + self._more_first
        first = SHARED_FIRST_TRIALS if self._shares_first_stage() else FIRST_TRIALS
        return first + self._more_first

    # ---- from earlier sweeps

    @cached_property
    def _source_models(self) -> list[SourceModel]:
        """Return a surrogate of each source of `transfer`."""
        found = []
        for position, source in enumerate(self._space.transfer):
            if not source.results:  # not read yet: `sweep init --skip-if-exists` reads none
                continue
            seed = stable_seed(self._search.seed, position, "source") % 2**31
            try:
                found.append(SourceModel(source, self._encoding, self._outcomes, seed))
            except SURROGATE_FAILURES as error:
                log.warning("%s is left out, because its surrogate failed: %s", source.url, error)
        return found

    def _untried_bests(self, identities: set[Hashable]) -> Iterator[dict[str, Value]]:
        """Yield where each source's surrogate is best; what it does not have is as in the first trial."""
        others = self._space.baseline or {}
        for source in self._source_models:
            best = source.best(others)
            if best is not None and self._is_new(best, identities):
                yield best

    def _consults_sources(self) -> bool:
        """Return whether what the sources say can be compared with results, and is still wanted."""
        is_alone = len(self._outcomes.lower_is_better) == 1
        if not is_alone or not self._source_models or self._search.method == "random":
            return False
        complete = sum(not self._outcomes.missing(record) for record in self._known())
        return len(self._source_models) < complete < SOURCE_RESULTS

    # ---- what trials can share

    def _shares(self) -> bool:
        """Return whether the search considers what trials share: a trunk, or a first stage that costs."""
        has_trunks = bool(self._shared.trunks) and self._search.method == "bayes"
        return has_trunks or self._shares_first_stage()

    def _shares_first_stage(self) -> bool:
        """Return whether trials can share a first stage that costs something."""
        bayes = self._shared.has_choice and self._search.method == "bayes"
        return bayes and self._first_share() >= NEGLIGIBLE

    def _first_share(self) -> float:
        """Return the first stage's share of a trial's cost."""
        return self._costs.first_share(self._known()) if self._costs is not None else 0.0

    # ---- from the first design

    def _first_points(
        self, index: int, found: Sequence[Candidate], *, designed: bool
    ) -> Iterator[dict[str, Value]]:
        """Yield the middle of the space unless there is a baseline, then points of the Sobol sequence.

        Args:
            found: candidates that have no record yet.
            designed: whether trials of the first design share first stages; False after the surrogate failed.
        """
        shares = designed and self._shares_first_stage()
        shared_with: Trial | None = None
        if shares:  # the record whose first stage this trial is to share
            keys = [self._shared.identity(candidate.parameters) for candidate in found]
            options = max(self._shared.choices.values(), default=1)
            wanted = first_stages(self.first_trials, self._first_share(), options)
            shared_with = next_shared(wanted, self._shared, self._outcomes, self._known(), keys)
        drawn = self._sobol_points(index, shared_with)
        if designed and index and self._search.method == "bayes":
            fresh = shares and shared_with is None
            drawn = (self._with_new_first_stages if fresh else self._with_new_options)(drawn, found)
        yield from drawn

    def _sobol_points(self, index: int, shared_with: Trial | None) -> Iterator[dict[str, Value]]:
        """Yield the middle, then Sobol points; each with the exact first stage of a record, if given."""
        index = max(index - self._more_first, 0)  # whatever others propose first, the design is the same
        if index == 0 and self._space.baseline is None:
            yield self._domain.middle()
        if not self._encoding.axes:
            return
        # The first candidate is the baseline or the middle; the sequence is balanced only from its own start.
        start = max(index - 1, 0)
        for position in range(start, start + SOBOL_ATTEMPTS):
            try:
                point = self._sobol[position]
            except ax_experiment.EXHAUSTED:
                return
            if shared_with is None:
                yield self._encoding.decode(point)
                continue
            everywhere = self._encoding.on_all_axes(
                point, stable_seed(self._search.seed, position, "inactive")
            )
            if (parameters := self._shared.join(shared_with.parameters, everywhere)) is not None:
                yield parameters

    def _with_new_options(
        self, drawn: Iterator[dict[str, Value]], found: Sequence[Candidate]
    ) -> Iterator[dict[str, Value]]:
        """Yield the same parameters, of the next ones those first whose options the design has least."""
        searched = self._domain.searched.values()
        choices = {p.name for p in searched if isinstance(p, Choice) and not p.ordered}
        if choices:
            # Not those that sources propose: whatever they say, the design is the same.
            asked = [
                record.parameters
                for record in self._known()
                if record.status != "abandoned" and record.generator != "botorch"
            ]
            asked += [candidate.parameters for candidate in found if candidate.generator == "sobol"]
            yield from by_new_options(islice(drawn, NEXT_POINTS), choices, asked)
        yield from drawn

    def _with_new_first_stages(
        self, drawn: Iterator[dict[str, Value]], found: Sequence[Candidate]
    ) -> Iterator[dict[str, Value]]:
        """Yield the same parameters, of the next ones those first whose first stage has options asked least.

        Where the first stage is most of the cost, the first few get the later stages of the first trial that
        has not failed, so that first stages can be compared.
        """
        live = (r for r in self._known() if r.status != "abandoned" and not has_failed(r))
        asked = [*(r.parameters for r in live), *(candidate.parameters for candidate in found)]
        first_stages_asked = {self._shared.identity(parameters): parameters for parameters in asked}
        choices = self._shared.choices
        following = by_new_options(islice(drawn, NEXT_POINTS), choices.keys(), first_stages_asked.values())
        # An earlier trial may have taken the first stage of a point that comes only now.
        following.sort(key=lambda parameters: self._shared.identity(parameters) in first_stages_asked)
        points = [point for parameters in asked if (point := self._encoding.encode(parameters)) is not None]
        compared = max(FEWEST, *choices.values(), 0) if self._first_share() >= MOST else 0
        if points and len(first_stages_asked) < compared:
            later = self._encoding.on_all_axes(points[0], stable_seed(self._search.seed, "inactive"))
            for parameters in filter(None, (self._shared.join(each, later) for each in following)):
                point = self._encoding.encode(parameters)
                if point is not None and self._shared.is_separate(point, points):
                    yield parameters
        yield from following
        yield from drawn

    # ---- from the surrogate

    def _surrogate_points(
        self,
        index: int,
        found: Sequence[Candidate],
        starts: Starts,
        left: Sequence[dict[str, Value]],
        *,
        by_source: bool,
    ) -> Iterator[Point]:
        """Yield points to try in turn, the best first; none if the surrogate fails.

        The maximiser of the acquisition function, and where trials share stages, the best points on what is
        stored, by acquisition value per remaining cost. Each attempt has another seed. With `by_source` there
        are none where no source foresees the results.
        """
        seed, known, shares = self._search.seed, self._known(), self._shares()
        options: dict[str, Any] = {"capped": shares, "acquisition_class": OpenAcquisition}
        exact = known_cost(self._space, self._encoding, self._outcomes, known)
        pending = ax_experiment.pending(self.experiment, self._outcomes, self._waiting(found))
        try:
            with seeded(stable_seed(seed, index, "fit")):
                noise = None
                if any(map(self._outcomes.predictions, known)):
                    # A model that infers the noise takes no errors, and one with errors infers no noise: so a
                    # first fit, to the results alone, infers it for the second, with predictions.
                    noise = inferred_noise(self._fitted()) if self._search.noise == "inferred" else {}
                options |= {"noise": noise, "exact": exact}
                adapter = self._fit_with_source(**options) if self._consults_sources() else None
                if adapter is None:
                    if by_source:
                        return
                    adapter = self._fitted(**options)
            if any(parameter.prior is not None for parameter in self._domain.searched.values()):
                complete = sum(record.status == "completed" for record in known)
                adapter.generator.acquisition_options = {
                    "log_prior": LogPrior(adapter, self._encoding, self._space),
                    "prior_weight": self._prior_strength / max(complete, 1),
                }
            for attempt in range(SURROGATE_ATTEMPTS):
                with seeded(stable_seed(seed, index, "acquire", attempt)):
                    run = adapter.gen(n=1, pending_observations=pending)
                    fresh = run.arms[0].parameters
                    ranked = self._ranked(adapter, fresh, index, found, starts) if shares else []
                yield from ranked or [fresh]
            # Each attempt has found what was tried, such as the ends of ranges: the best of what a small
            # space has left, or of points all over a large one.
            points = [self._encoding.encode(parameters) or {} for parameters in left]
            if not points:
                spread_seed = stable_seed(seed, index, "spread")
                space = SpacePoints(self._encoding, np.random.default_rng(spread_seed), spread_seed)
                points = space.allowed(space.sobol(SPREAD_POINTS))
            if not points:  # constraints leave so little that the first design must look for it
                return
            rows = ModelRows(adapter).rows([self._on_all_axes(point, index) for point in points])
            values = adapter.generator._acquisition.values(rows)
            yield from (points[at] for at in torch.argsort(values, descending=True, stable=True).tolist())
        except SURROGATE_FAILURES as error:
            log.warning("trial %d comes from Sobol, because the surrogate failed: %s", index, error)

    def _ranked(
        self, adapter: Any, fresh: Point, index: int, found: Sequence[Candidate], starts: Starts
    ) -> list[Point]:
        """Return the points to try where trials share stages: the best by value per remaining cost first."""
        if self._costs is None:
            return []
        known = self._known()
        by = self._generators()
        asked = [(by[r.trial], r.parameters) for r in known]
        asked += [(candidate.generator, candidate.parameters) for candidate in found]
        encoded = (self._encoding.encode(candidate.parameters) for candidate in found)
        others = [*self._points.values(), *(point for point in encoded if point is not None)]
        generators = [*by.values(), *(each.generator for each in found)]
        choice = StageChoice(
            adapter,
            self._encoding,
            self._on_all_axes,
            self._shared,
            starts,
            self._costs.known(known),
            points=self._points,
            asked=asked,
            index=index,
            plain=generators.count("botorch") % self.plain_every == self.plain_every - 1,
            seed=stable_seed(self._search.seed, index, "later") % 2**31,
        )
        return list(choice.ranked(fresh, others))

    def _generators(self) -> dict[int, str]:
        """Return who proposed each record, by its index.

        Below the target of a sweep with fidelities all records name the search alone: there the surrogate's
        are those after the first design.
        """
        first, live = self.first_trials, 0
        found: dict[int, str] = {}
        for record in self._records:
            by_surrogate = record.generator == "fidelity" and live >= first
            found[record.trial] = "botorch" if by_surrogate else record.generator
            live += _counts_as_first(record)
        return found

    def _waiting(self, found: Sequence[Candidate]) -> Iterator[tuple[Point, dict[str, Any], list[str]]]:
        """Yield (point, metadata, missing metrics) of records, then candidates, without complete results."""
        for record in self._records:
            if (missing := self._outcomes.missing(record)) and record.trial in self._points:
                yield *self._for_ax(self._points[record.trial], record.trial), missing
        for index, candidate in enumerate(found, start=len(self._records)):
            if (encoded := self._encoding.encode(candidate.parameters)) is not None:
                yield *self._for_ax(encoded, index), list(self._outcomes.names.values())

    def _fitted(
        self, *, batched: bool = True, noise: Mapping[str, float] | None = None, **options: Any
    ) -> Any:
        records = self._known()
        experiment = self.experiment  # first: it has Ax's trials made
        data = ax_experiment.results(self._outcomes, records, self._ax_trials, noise)
        derived = self._outcomes.derived_constraints(records)
        return fitted(
            experiment, data, ax_experiment.goal(self._outcomes, *derived), batched=batched, **options
        )

    def _fit_with_source(self, **options: Any) -> Any | None:
        """Return the fit with the source that foresees the results best; None: it is better without."""
        name, *_ = self._outcomes.lower_is_better
        adapter = None
        options |= {"batched": False, "transforms": UNCUT}
        try:
            alone = self._fitted(**options)
            best, (_, unit) = evidence(alone, name), metric_scale(alone, name)
            for source in self._source_models:
                found = self._fitted(**options, models={name: drifted_config(source.belief, unit)})
                if (likely := evidence(found, name)) > best:
                    adapter, best = found, likely
        except SURROGATE_FAILURES as error:
            log.warning("sources are left out of a fit, because it failed: %s", error)
            return None
        return adapter

    # ---- for analyses

    def points(self) -> dict[int, dict[str, Value]]:
        """Return the point of every completed record on all axes, by its index."""
        return {
            record.trial: self._on_all_axes(self._points[record.trial], record.trial)
            for record in self._known()
            if record.status == "completed"
        }

    def view(self) -> SurrogateView:
        """Return a view of a fresh fit to all results. Raises one of SURROGATE_FAILURES."""
        with one_thread(), silence("ax"), seeded(stable_seed(self._search.seed, "view")):
            adapter = self._fitted(batched=False, transforms=FOR_ANALYSES)
            records = {trial.index: index for index, trial in self._ax_trials.items()}
            return SurrogateView(
                adapter,
                self._encoding,
                self._outcomes,
                records,
                repeated=len({trial.arm.name for trial in self._ax_trials.values()}) < len(records),
            )

    def optimum(
        self,
        candidates: Iterable[int],
        *,
        more: int,
        view: SurrogateView | None = None,
        curves: bool = False,
    ) -> Optimum | None:
        """Return what the surrogate says of the best of some trials; None if all lie outside of this space.

        Args:
            candidates: indices of the trials that may be chosen.
            more: number of further trials whose gain is wanted.
            view: of the records; None: a new fit.

        Raises:
            one of SURROGATE_FAILURES: the fit failed, or there is no posterior to draw from.
        """
        points = self.points()
        tried = {trial: points[trial] for trial in candidates if trial in points}
        if not tried:
            return None
        seed = stable_seed(self._search.seed, "optimum") % 2**31
        return (view or self.view()).optimum(tried, more=more, seed=seed, curves=curves)


def _counts_as_first(record: Trial) -> bool:
    """Return whether a trial counts towards those that come before the surrogate's."""
    return record.status not in ("failed", "abandoned") and record.generator not in ("baseline", "confirm")


def _may_follow(old: Trial, new: Trial) -> bool:
    """Return whether state built from the old record can be updated to the new one (not after a retry)."""
    if (old.trial, old.generator, old.parameters) != (new.trial, new.generator, new.parameters):
        return False
    same_end = (old.status, old.failure, old.metrics) == (new.status, new.failure, new.metrics)
    return not old.finished or same_end
