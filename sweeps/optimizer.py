"""Ax behind one door: trial records in, candidates out. The only file that imports Ax.

`experiment.ask` calls it under the ask lock, `sweep init` calls `check`. Everything Ax is told comes from the
records, and every generation is seeded from the sweep's seed and the new trial's index: the same records give
the same candidates, whether an `Optimizer` has lived through the sweep or was made a moment ago.

The adapters are used directly, not through `ax.api.Client`. Its generation strategy has memory of its own
(the node it is in, the Sobol position, a warm-started surrogate) that no record holds, and it raises
`DataRequiredError` where parallel workers ask for more before the first results are in.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sweeps.domain import Domain
from sweeps.encoding import Encoding, Interval, Options
from sweeps.errors import NothingToAsk, SpaceError
from sweeps.outcomes import SURVIVAL, Outcomes, has_failed
from sweeps.reproducible import one_thread, seeded, silence, stable_seed
from sweeps.sequence import Point, SobolSequence
from sweeps.space import EarlyTerminate, Space, Value
from sweeps.trial import Trial

# Ax says at import that its SQL storage is there, and its dependencies that torch.jit is deprecated. Neither
# concerns who reads the terminal of a worker.
logging.getLogger("ax.storage.sqa_store.with_db_settings_base").addFilter(lambda record: False)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from ax.adapter.registry import Generators
    from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
    from ax.api.utils.generation_strategy_dispatch import choose_generation_strategy
    from ax.api.utils.instantiation.from_string import optimization_config_from_string
    from ax.api.utils.instantiation.from_struct import experiment_from_struct
    from ax.api.utils.structs import ExperimentStruct, GenerationStrategyDispatchStruct
    from ax.core.arm import Arm
    from ax.core.data import Data, DataRow
    from ax.core.data_utils import DataLoaderConfig
    from ax.core.experiment import Experiment
    from ax.core.generator_run import GeneratorRun
    from ax.core.map_metric import MapMetric
    from ax.core.observation import ObservationFeatures
    from ax.core.optimization_config import OptimizationConfig
    from ax.early_stopping.strategies.percentile import PercentileEarlyStoppingStrategy
    from ax.exceptions.core import AxError, SearchSpaceExhausted
    from ax.utils.common.constants import Keys
    from botorch.exceptions.errors import BotorchError, InfeasibilityError
    from linear_operator.utils.errors import NotPSDError  # type: ignore[import-untyped]  # ships no types

log = logging.getLogger(__name__)

SURROGATE_FAILURES = (AxError, BotorchError, NotPSDError, ArithmeticError, RuntimeError, ValueError)
"""What a fit or an acquisition may die of: the candidate then comes from Sobol, no trial is stopped early."""

SURROGATE_ATTEMPTS = 2
SOBOL_ATTEMPTS = 256


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Parameters for a new trial: the active ones, in the space's order, and who proposed them."""

    parameters: Mapping[str, Value]
    generator: Literal["sobol", "botorch"]


def check(space: Space) -> None:
    """Raise SpaceError where Ax would refuse the space; `sweep init` calls it before compute is spent."""
    try:
        Optimizer(space).generate()
    except NothingToAsk as error:
        raise SpaceError(str(error), file=space.name, key="parameters") from None


class Optimizer:
    """Proposes candidates for one sweep.

    The middle of the space (unless there is a baseline) and scrambled Sobol points come first, until there
    are `search.sobol` live trials (neither failed nor abandoned, the baseline not counted) and half as many
    have results. A Gaussian process over all results proposes the rest. Pending, running, abandoned and
    failed trials are pending points for it: their neighbourhood loses its attraction, so that workers do not
    follow each other into one place.

    Raises:
        SpaceError: Ax cannot search this space.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._domain = Domain(space)
        self._encoding = Encoding(self._domain)
        self._outcomes = Outcomes(space)
        self._configurations = self._domain.configurations()
        self._sobol = SobolSequence(self._sobol_draw, space.search.seed)
        self._blank = self._new_experiment()  # what the Sobol sequence is drawn from, whatever the records
        self._start_over()

    def observe(self, trials: Sequence[Trial]) -> None:
        """Take in all records of the sweep, in index order; only what is new since the last call costs."""
        follows = all(_may_follow(old, new) for old, new in zip(self._records, trials, strict=False))
        if not follows or len(trials) < len(self._records):
            self._start_over()
        for position, record in enumerate(trials):
            if position == len(self._records):
                self._records.append(record)
                self._attach(record)
            elif self._records[position].status != record.status:
                self._records[position] = record
                self._settle(record)

    def generate(self, count: int = 1) -> list[Candidate]:
        """Propose candidates that no observed trial has, failed and abandoned ones included.

        Raises:
            NothingToAsk: the space is finite and used up.
        """
        found: list[Candidate] = []
        with one_thread(), silence("ax"):
            while len(found) < count:
                found.append(self._next(found))
        return found

    # --- what Ax is told --------------------------------------------------------------------------------

    def _start_over(self) -> None:
        self._records: list[Trial] = []
        self._taken: set[Hashable] = set()
        self._told: dict[int, Any] = {}  # index of the record → Ax's trial
        self._ax = self._new_experiment()

    def _new_experiment(self) -> Experiment:
        try:
            with silence("ax"):
                return _experiment(self._space.name, self._encoding, self._outcomes)
        except (AxError, ValueError, TypeError) as error:
            raise SpaceError(" ".join(str(error).split()), file=self._space.name) from error

    def _attach(self, record: Trial) -> None:
        self._taken.add(self._domain.identity(record.parameters))
        if (point := self._encoding.encode(record.parameters)) is None:
            return  # of another space, as imported results may be: kept from being repeated, not learnt from
        arm = Arm(parameters=point)
        metadata = {arm.signature: self._metadata(point, record.trial)}
        trial = self._ax.new_trial(GeneratorRun([arm], candidate_metadata_by_arm_signature=metadata))
        trial.mark_running(no_runner_required=True)
        self._told[record.trial] = trial
        self._settle(record)

    def _settle(self, record: Trial) -> None:
        """Tell Ax how a trial ended, if it did."""
        trial = self._told.get(record.trial)
        if trial is None or not record.finished:
            return
        if record.status == "completed":
            trial.mark_completed()
        elif has_failed(record):
            trial.mark_failed()
        elif record.status == "early_stopped" and self._outcomes.means(record):
            trial.mark_early_stopped(
                unsafe=True
            )  # "safe" looks for data on the experiment; ours travels apart
        else:
            trial.mark_abandoned()

    def _data(self, told: Sequence[Trial], survival: Sequence[tuple[Trial, float]]) -> Data:
        """All results in index order, whatever the order they came in."""
        table = [
            *self._outcomes.table(told),
            *((r, SURVIVAL, survived, math.nan) for r, survived in survival),
        ]
        rows = []
        for record, name, mean, sem in table:
            trial = self._told[record.trial]
            rows.append(DataRow(trial.index, trial.arm.name, name, name, mean, sem))
        return Data(data_rows=rows)

    def _pending(self, found: Sequence[Candidate]) -> dict[str, list[ObservationFeatures]]:
        """Points without a result, by metric."""
        waiting = [(record.parameters, self._outcomes.missing(record)) for record in self._records]
        waiting += [(candidate.parameters, list(self._outcomes.names.values())) for candidate in found]
        pending: dict[str, list[ObservationFeatures]] = {name: [] for name in self._outcomes.names.values()}
        for index, (parameters, missing) in enumerate(waiting):
            point = self._encoding.encode(parameters) if missing else None
            if point is not None and self._ax.search_space.check_membership(point):
                for name in missing:
                    features = ObservationFeatures(dict(point), metadata=self._metadata(point, index))
                    pending[name].append(features)
        return pending

    def _metadata(self, point: Mapping[str, Value], index: int) -> dict[str, Any]:
        """Where Ax's model of all axes sees a point that lacks some."""
        filled = self._encoding.filled(point, stable_seed(self._space.search.seed, index, "inactive"))
        return {Keys.FULL_PARAMETERIZATION: filled} if len(filled) > len(point) else {}

    # --- what Ax is asked -------------------------------------------------------------------------------

    def _next(self, found: Sequence[Candidate]) -> Candidate:
        index = len(self._records) + len(found)
        taken = self._taken | {self._domain.identity(candidate.parameters) for candidate in found}
        left = self._left(taken)
        if self._has_enough_results(found):
            for point in self._surrogate_points(index, self._pending(found)):
                parameters = self._encoding.decode(point)
                if self._is_new(parameters, taken):
                    return Candidate(parameters=parameters, generator="botorch")
        for parameters in self._first_candidates(found):
            if self._is_new(parameters, taken):
                return Candidate(parameters=parameters, generator="sobol")
        if left:
            chosen = left[stable_seed(self._space.search.seed, index, "left") % len(left)]
            return Candidate(parameters=chosen, generator="sobol")
        raise NothingToAsk(
            f"trial {index}: no new candidate in {SOBOL_ATTEMPTS} attempts; "
            "widen the ranges or loosen the parameter constraints"
        )

    def _left(self, taken: set[Hashable]) -> list[dict[str, Value]]:
        """The unused configurations of a small finite space; empty where they cannot be listed."""
        if self._configurations is None:
            return []
        left = [parameters for identity, parameters in self._configurations.items() if identity not in taken]
        if not left:
            total = len(self._configurations)
            raise NothingToAsk(
                f"every configuration of the search space ({total}) was tried; add values to it"
            )
        return left

    def _has_enough_results(self, found: Sequence[Candidate]) -> bool:
        search = self._space.search
        if search.method == "random" or not self._encoding.axes:
            return False
        live = sum(
            r.status not in ("failed", "abandoned") and r.generator != "baseline" for r in self._records
        )
        complete = sum(r.trial in self._told and not self._outcomes.missing(r) for r in self._records)
        return live + len(found) >= search.sobol and complete >= max(1, search.sobol // 2)

    def _surrogate_points(
        self, index: int, pending: Mapping[str, list[ObservationFeatures]]
    ) -> Iterator[Point]:
        """Maximisers of the acquisition function, from different starts; none if the surrogate fails."""
        seed = self._space.search.seed
        try:
            with seeded(stable_seed(seed, index, "fit")):
                adapter = self._fitted()
            for attempt in range(SURROGATE_ATTEMPTS):
                with seeded(stable_seed(seed, index, "acquire", attempt)):
                    run = adapter.gen(n=1, pending_observations=pending)
                yield run.arms[0].parameters
        except SURROGATE_FAILURES as error:
            log.warning("trial %d comes from Sobol, because the surrogate failed: %s", index, error)

    def _fitted(self) -> Any:
        """Ax's own choice of surrogate and acquisition function ("fast"), fresh: nothing is warm-started."""
        told = [record for record in self._records if record.trial in self._told]
        survival = self._outcomes.survival(told)
        strategy = choose_generation_strategy(
            GenerationStrategyDispatchStruct(
                method="fast", initialization_budget=0, initialize_with_center=False, torch_device="cpu"
            )
        )
        spec = strategy.nodes_by_name["MBM"].generator_spec
        return spec.generator_enum(
            experiment=self._ax,
            data=self._data(told, survival),
            optimization_config=_goal(
                self._outcomes,
                *self._outcomes.thresholds(told),
                *([f"{SURVIVAL} >= 0.5"] if survival else []),
            ),
            # Ax's name for: data of every trial counts. Abandoned ones have none, failed ones their survival.
            data_loader_config=DataLoaderConfig(fit_abandoned=True),
            **spec.generator_kwargs,
        )

    def _first_candidates(self, found: Sequence[Candidate]) -> Iterator[dict[str, Value]]:
        """The middle of the space unless there is a baseline, then the Sobol sequence from where it is."""
        count = len(self._records) + len(found)
        if count == 0 and self._space.baseline is None:
            yield self._domain.middle()
        # The first candidate is the baseline or the middle; the sequence is balanced only from its own start.
        start = max(count - 1, 0)
        if not self._encoding.axes:
            return
        try:
            for position in range(start, start + SOBOL_ATTEMPTS):
                yield self._encoding.decode(self._sobol[position])
        except (SearchSpaceExhausted, InfeasibilityError):
            return

    def _sobol_draw(self, n: int, draws: int, seed: int, start: int) -> tuple[list[Point], int]:
        """Points from Ax's Sobol generator, and the position in the sequence after them."""
        adapter = Generators.SOBOL(
            experiment=self._blank,
            data=Data(),
            deduplicate=False,
            seed=seed,
            init_position=start,
            polytope_sampler_kwargs={"n_burnin": 1000, "n_thinning": 1},
        )
        run = adapter.gen(n=n, model_gen_options={"max_rs_draws": draws})
        # Equal arms have become one with more weight.
        weighted = zip(run.arms, run.weights, strict=True)
        points = [arm.parameters for arm, weight in weighted for _ in range(round(weight))]
        return points, adapter.generator.init_position

    def _is_new(self, parameters: Mapping[str, Value], taken: set[Hashable]) -> bool:
        return self._domain.identity(parameters) not in taken and self._domain.allows(parameters)


def _may_follow(old: Trial, new: Trial) -> bool:
    """Whether Ax's trial for the old record can become that of the new one (a retried trial's cannot)."""
    if old is new:
        return True
    if (old.trial, old.generator, old.parameters) != (new.trial, new.generator, new.parameters):
        return False
    same_end = (old.status, old.failure, old.metrics) == (new.status, new.failure, new.metrics)
    return not old.finished or same_end


def _experiment(name: str, encoding: Encoding, outcomes: Outcomes) -> Experiment:
    """An Ax experiment without trials."""
    experiment = experiment_from_struct(
        ExperimentStruct(
            parameters=[_config(axis) for axis in encoding.axes],
            parameter_constraints=list(encoding.constraints),
            name=name,
            description=None,
            experiment_type=None,
            owner=None,
        )
    )
    for metric in [*outcomes.names.values(), SURVIVAL]:
        lower_is_better = outcomes.lower_is_better.get(metric)
        experiment.add_tracking_metric(MapMetric(name=metric, lower_is_better=lower_is_better))
    experiment.optimization_config = _goal(outcomes)
    return experiment


def _goal(outcomes: Outcomes, *learnt: str) -> OptimizationConfig:
    """The objectives and the constraints: the user's, and those `learnt` from the results."""
    return optimization_config_from_string(outcomes.objective, [*outcomes.constraints, *learnt])


def _config(axis: Interval | Options) -> RangeParameterConfig | ChoiceParameterConfig:
    if isinstance(axis, Interval):
        return RangeParameterConfig(
            name=axis.name,
            bounds=axis.bounds,
            parameter_type=axis.kind,
            scaling="log" if axis.log else "linear",
        )
    return ChoiceParameterConfig(
        name=axis.name,
        values=list(axis.values),
        parameter_type=axis.kind,
        is_ordered=axis.ordered,
        dependent_parameters=axis.dependents or None,
    )


def falls_behind(
    early: EarlyTerminate,
    trial: int,
    curves: Mapping[int, Sequence[tuple[float, float]]],
    done: Container[int],
) -> bool:
    """Whether Ax would stop the trial: its last loss is among the worst of those at the same step.

    Args:
        early: the percentile, the first step that counts, and how many completed trials there must be.
        trial: whose last point is judged.
        curves: losses of all trials by index; Ax interpolates between the steps of each.
        done: the completed ones.

    Returns False where Ax cannot tell: a heartbeat must not die of it.
    """
    axis = _config(Interval(name="trial", bounds=(0.0, 2.0**53)))
    struct = ExperimentStruct([axis], [], "curves", None, None, None)
    with silence("ax"):
        experiment = experiment_from_struct(struct)
        experiment.add_tracking_metric(MapMetric(name="loss", lower_is_better=True))
        experiment.optimization_config = optimization_config_from_string("-loss")
        rows, told = [], {}
        for index, curve in curves.items():
            told[index] = experiment.new_trial().add_arm(Arm(parameters={"trial": float(index)}))
            told[index].mark_running(no_runner_required=True)
            if index in done:
                told[index].mark_completed()
            at, arm = told[index].index, told[index].arm.name
            rows += [DataRow(at, arm, "loss", "loss", loss, math.nan, step=step) for step, loss in curve]
        experiment.attach_data(Data(data_rows=rows))
        strategy = PercentileEarlyStoppingStrategy(
            percentile_threshold=early.percentile,
            min_progression=early.min_step,
            min_curves=early.min_trials,
        )
        at = told[trial].index
        try:
            return at in strategy.should_stop_trials_early({at}, experiment)
        except SURROGATE_FAILURES as error:
            log.warning("trial %d goes on, because it could not be judged: %s", trial, error)
            return False
