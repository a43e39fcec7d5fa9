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
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeps.candidates import Candidate, Candidates
from sweeps.domain import Domain
from sweeps.encoding import Axis, Encoding, Interval
from sweeps.errors import NothingToAsk, SpaceError
from sweeps.outcomes import Goals, Outcomes
from sweeps.reproducible import one_thread, seeded, silence, stable_seed
from sweeps.sequence import Point, SobolSequence
from sweeps.space import EarlyTerminate, Space, Value
from sweeps.trial import Trial

# Ax says at import that its SQL storage is there, and its dependencies that torch.jit is deprecated. Neither
# concerns who reads the terminal of a worker.
logging.getLogger("ax.storage.sqa_store.with_db_settings_base").addFilter(lambda record: False)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from ax.adapter.cross_validation import cross_validate
    from ax.adapter.registry import Generators
    from ax.api.client import Client
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
    from ax.utils.sensitivity.sobol_measures import ax_parameter_sens
    from botorch.exceptions.errors import BotorchError, InfeasibilityError
    from linear_operator.utils.errors import NotPSDError  # type: ignore[import-untyped]  # ships no types

log = logging.getLogger(__name__)

SURROGATE_FAILURES = (AxError, BotorchError, NotPSDError, ArithmeticError, RuntimeError, ValueError)
"""What a fit or an acquisition may die of: the candidate then comes from Sobol, no trial is stopped early."""

SURROGATE_ATTEMPTS = 2


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
        self._encoding = Encoding(Domain(space))
        self._outcomes = Outcomes(space)
        self._sobol = SobolSequence(self._sobol_draw, space.search.seed)
        self._blank = self._new_experiment()  # what the Sobol sequence is drawn from, whatever the records
        self._candidates = Candidates(
            space, self._encoding, self._outcomes, sobol=self._sobol_point, surrogate=self._surrogate_points
        )
        self._start_over()

    def observe(self, trials: Sequence[Trial]) -> None:
        """Take in all records of the sweep, in index order; only what is new since the last call costs."""
        news = self._candidates.observe(trials)
        if news.anew:
            self._start_over()
        for record in news.changed:
            self._settle(record)
        for record in news.added:
            self._attach(record)

    def generate(self, count: int = 1) -> list[Candidate]:
        """Propose candidates that no observed trial has, failed and abandoned ones included.

        Raises:
            NothingToAsk: the space is finite and used up.
        """
        found: list[Candidate] = []
        with one_thread(), silence("ax"):
            while len(found) < count:
                found.append(self._candidates.next(found))
        return found

    def view(self) -> SurrogateView:
        """A fresh fit of all results, for `insight` to ask. Raises one of SURROGATE_FAILURES."""
        with one_thread(), silence("ax"), seeded(stable_seed(self._space.search.seed, "view")):
            records = {trial.index: index for index, trial in self._told.items()}
            return SurrogateView(self._fitted(), self._encoding, self._outcomes, records)

    def _start_over(self) -> None:
        self._told: dict[int, Any] = {}  # index of the record → Ax's trial
        self._ax = self._new_experiment()

    def _new_experiment(self) -> Experiment:
        try:
            with silence("ax"):
                axes, constraints = self._encoding.axes, self._encoding.constraints
                experiment = _experiment(self._space.name, axes, constraints, self._outcomes.goals)
                experiment.optimization_config = _goal(self._outcomes)
                return experiment
        except (AxError, ValueError, TypeError) as error:
            raise SpaceError(" ".join(str(error).split()), file=self._space.name) from error

    def _attach(self, record: Trial) -> None:
        if (point := self._candidates.points.get(record.trial)) is None:
            return
        arm = Arm(parameters=dict(point))
        metadata = {arm.signature: self._metadata(point, record.trial)}
        trial = self._ax.new_trial(GeneratorRun([arm], candidate_metadata_by_arm_signature=metadata))
        trial.mark_running(no_runner_required=True)
        self._told[record.trial] = trial
        self._settle(record)

    def _settle(self, record: Trial) -> None:
        """Tell Ax how a trial ended, if it did."""
        if (trial := self._told.get(record.trial)) is None:
            return
        match self._outcomes.ending(record):
            case "completed":
                trial.mark_completed()
            case "failed":
                trial.mark_failed()
            case "early_stopped":
                trial.mark_early_stopped(unsafe=True)  # "safe" wants data on the experiment; ours is apart
            case "abandoned":
                trial.mark_abandoned()

    def _data(self, told: Sequence[Trial]) -> Data:
        """All results in index order, whatever the order they came in."""
        rows = []
        for record, name, mean, sem in self._outcomes.table(told):
            trial = self._told[record.trial]
            rows.append(DataRow(trial.index, trial.arm.name, name, name, mean, sem))
        return Data(data_rows=rows)

    def _pending(self, found: Sequence[Candidate]) -> dict[str, list[ObservationFeatures]]:
        """Points without a result, by metric."""
        pending: dict[str, list[ObservationFeatures]] = {name: [] for name in self._outcomes.names.values()}
        for index, point, missing in self._candidates.waiting(found):
            if self._ax.search_space.check_membership(point):
                for name in missing:
                    features = ObservationFeatures(dict(point), metadata=self._metadata(point, index))
                    pending[name].append(features)
        return pending

    def _metadata(self, point: Mapping[str, Value], index: int) -> dict[str, Any]:
        """Where Ax's model of all axes sees a point that lacks some."""
        filled = self._encoding.filled(point, stable_seed(self._space.search.seed, index, "inactive"))
        return {Keys.FULL_PARAMETERIZATION: filled} if len(filled) > len(point) else {}

    def _surrogate_points(self, index: int, found: Sequence[Candidate]) -> Iterator[Point]:
        """Maximisers of the acquisition function, from different starts; none if the surrogate fails."""
        seed, pending = self._space.search.seed, self._pending(found)
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
        told = self._candidates.told()
        choice = GenerationStrategyDispatchStruct(
            method="fast", initialization_budget=0, initialize_with_center=False, torch_device="cpu"
        )
        spec = choose_generation_strategy(choice).nodes_by_name["MBM"].generator_spec
        return spec.generator_enum(
            experiment=self._ax,
            data=self._data(told),
            optimization_config=_goal(self._outcomes, *self._outcomes.learnt(told)),
            # Ax's name for: data of every trial counts. Abandoned ones have none, failed ones their survival.
            data_loader_config=DataLoaderConfig(fit_abandoned=True),
            **spec.generator_kwargs,
        )

    def _sobol_point(self, position: int) -> Point | None:
        try:
            return self._sobol[position]
        except (SearchSpaceExhausted, InfeasibilityError):
            return None

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


class SurrogateView:
    """Ax's own analyses of its fitted surrogate, in the space's and the trials' words.

    Args:
        records: the record's index of each of Ax's trials.
    """

    def __init__(
        self, adapter: Any, encoding: Encoding, outcomes: Outcomes, records: Mapping[int, int]
    ) -> None:
        self._adapter, self._encoding, self._records = adapter, encoding, records
        self._metrics = {name: metric for metric, name in outcomes.names.items()}

    def sensitivities(self, order: str) -> dict[str, dict[str, float]]:
        """Sobol's indices ("first" or "total") of every metric, by parameter."""
        with one_thread(), silence("ax"), seeded(0):
            # Ax's default of 10,000 plain samples takes minutes on a busy core; these say the same to two
            # digits.
            found = ax_parameter_sens(
                self._adapter,
                list(self._metrics),
                order=order,
                signed=False,
                num_mc_samples=1024,
                input_qmc=True,
            )
        parameters = self._encoding.names.values()
        shares = {metric: dict.fromkeys(parameters, 0.0) for metric in self._metrics.values()}
        for name, told in found.items():
            for feature, value in told.items():
                axis = feature.partition("_OH_PARAM_")[0]  # one axis per option of an unordered choice
                shares[self._metrics[name]][self._encoding.names[axis]] += float(value)
        return shares

    def cross_validated(self) -> Iterator[tuple[int, str, float, float, float]]:
        """(trial, metric, observed, predicted without it, standard deviation of that)."""
        with one_thread(), silence("ax"):
            folds = cross_validate(self._adapter)
        for fold in folds:
            told = dict(zip(fold.observed.data.metric_signatures, fold.observed.data.means, strict=True))
            guess = fold.predicted
            for at, name in enumerate(guess.metric_signatures):
                if name in self._metrics and name in told:
                    index = self._records[int(fold.observed.features.trial_index)]
                    spread = math.sqrt(max(float(guess.covariance[at, at]), 0.0))
                    yield index, self._metrics[name], float(told[name]), float(guess.means[at]), spread

    def predict(self, points: Sequence[Mapping[str, Value]]) -> dict[str, list[tuple[float, float]]]:
        """(mean, standard deviation) of every metric at points of all axes."""
        with one_thread(), silence("ax"):
            means, covariances = self._adapter.predict([ObservationFeatures(dict(p)) for p in points])
        spreads = {name: [math.sqrt(max(v, 0.0)) for v in covariances[name][name]] for name in self._metrics}
        return {
            metric: list(zip(map(float, means[name]), spreads[name], strict=True))
            for name, metric in self._metrics.items()
        }


def _experiment(name: str, axes: Iterable[Axis], constraints: Iterable[str], goals: Goals) -> Experiment:
    """An Ax experiment without trials, over the metrics of which less is better, more is, or neither."""
    struct = ExperimentStruct([_config(axis) for axis in axes], list(constraints), name, None, None, None)
    experiment = experiment_from_struct(struct)
    for metric, lower_is_better in goals.items():
        experiment.add_tracking_metric(MapMetric(name=metric, lower_is_better=lower_is_better))
    return experiment


def _goal(outcomes: Outcomes, *learnt: str) -> OptimizationConfig:
    """The objectives and the constraints: the user's, and those `learnt` from the results."""
    return optimization_config_from_string(outcomes.objective, [*outcomes.constraints, *learnt])


def _config(axis: Axis) -> RangeParameterConfig | ChoiceParameterConfig:
    if isinstance(axis, Interval):
        scaling = "log" if axis.log else "linear"
        return RangeParameterConfig(axis.name, axis.bounds, axis.kind, scaling=scaling)
    return ChoiceParameterConfig(
        axis.name,
        list(axis.values),
        axis.kind,
        is_ordered=axis.ordered,
        dependent_parameters=axis.dependents or None,
    )


def write_client(
    path: Path,
    *,
    name: str,
    axes: Iterable[Axis],
    constraints: Sequence[str],
    objective: str,
    outcome_constraints: Sequence[str],
    trials: Iterable[tuple[Trial, Mapping[str, Value], Mapping[str, tuple[float, float | None]]]],
) -> list[int]:
    """Write an experiment for `Client.load_from_json_file`; see `ax_export`, which calls this.

    Returns the indices of the trials that Ax did not take. Raises `SpaceError` where it refuses the space.
    """
    left_out = []
    with silence("ax"):
        client = Client()
        try:
            client.configure_experiment([_config(axis) for axis in axes], constraints, name=name)
            client.configure_optimization(objective, outcome_constraints)
        except (AxError, ValueError, TypeError) as error:
            raise SpaceError(" ".join(str(error).split()), file=name) from error
        for record, point, outcome in trials:
            try:
                index = client.attach_trial(dict(point), arm_name=f"trial-{record.trial}")
            except (AxError, ValueError, TypeError, RuntimeError):  # the last, of a conditional space
                left_out.append(record.trial)
                continue
            if record.status == "completed" and outcome:
                client.complete_trial(index, raw_data=dict(outcome))
            elif record.status in ("completed", "failed"):
                client.mark_trial_failed(index)
            elif record.finished:
                client.mark_trial_abandoned(index)
        client.save_to_json_file(str(path))
    return left_out


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
    axis = Interval(name="trial", bounds=(0.0, 2.0**53))
    with silence("ax"):
        experiment = _experiment("curves", [axis], [], {"loss": True})
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
