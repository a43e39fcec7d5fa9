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
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sweeps.constraints import Linear, parse
from sweeps.domain import Domain
from sweeps.errors import NothingToAsk, SpaceError
from sweeps.reproducible import one_thread, seeded, silence, stable_seed
from sweeps.space import Choice, Range, Space, Value
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
    from ax.core.experiment import Experiment
    from ax.core.map_metric import MapMetric
    from ax.core.observation import ObservationFeatures
    from ax.exceptions.core import AxError, SearchSpaceExhausted
    from ax.generation_strategy.generator_spec import GeneratorSpec
    from botorch.exceptions.errors import BotorchError
    from linear_operator.utils.errors import NotPSDError  # type: ignore[import-untyped]  # ships no types

log = logging.getLogger(__name__)

SURROGATE_FAILURES = (AxError, BotorchError, NotPSDError, ArithmeticError, RuntimeError, ValueError)
"""What a fit or an acquisition may die of; the candidate then comes from Sobol."""

SOBOL_ATTEMPTS = 16
SOBOL_DRAWS = 1_000

WIDE = 100
"""Integer ranges wider than this are searched as floats and rounded: Ax lists every integer of a range (or
its logarithm), which takes gigabytes for 1 to 10^8."""


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

    Quasi-random (scrambled Sobol) candidates come first, until there are `search.sobol` live trials (neither
    failed nor abandoned; the baseline is not counted) and half as many have results. A Gaussian process over
    all results proposes the rest. Pending, running, abandoned and failed trials are pending points for it:
    their neighbourhood loses its attraction, so that workers do not follow each other into one place.

    Raises:
        SpaceError: Ax cannot search this space.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._domain = Domain(space)
        self._names = {name: f"p{i}" for i, name in enumerate(self._domain.searched)}
        self._metrics = _metric_names(space)
        self._configurations = self._domain.configurations()
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
        with silence("ax"):
            self._ax = _ax_experiment(self._space, self._domain, self._names, self._metrics)

    def _attach(self, record: Trial) -> None:
        self._taken.add(self._domain.identity(record.parameters))
        if (parameters := self._to_ax(record.parameters)) is None:
            return
        trial = self._ax.new_trial()
        trial.add_arm(Arm(parameters=parameters))
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
        elif record.status == "failed":
            trial.mark_failed()
        elif record.status == "early_stopped" and self._outcomes(record):
            trial.mark_early_stopped(
                unsafe=True
            )  # "safe" looks for data on the experiment; ours travels apart
        else:
            trial.mark_abandoned()

    def _to_ax(self, parameters: Mapping[str, Value]) -> dict[str, Value] | None:
        """The searched parameters under Ax's names; None if they are not of this space."""
        try:
            return {
                self._names[name]: _as_searched(self._domain.searched[name], parameters[name])
                for name in self._domain.active(parameters)
            }
        except (KeyError, TypeError, ValueError):
            return None

    def _outcomes(self, record: Trial) -> dict[str, tuple[float, float]]:
        """Mean and standard error (NaN: unknown) of each metric that counts, under Ax's names."""
        if record.status not in ("completed", "early_stopped"):
            return {}
        outcomes = {}
        for metric, name in self._metrics.items():
            mean, sem = record.metrics.get(metric), record.metrics.get(f"{metric}_sem")
            if mean is not None and math.isfinite(mean):
                known = sem is not None and math.isfinite(sem) and sem >= 0
                outcomes[name] = (float(mean), float(sem) if known and sem is not None else math.nan)
        return outcomes

    def _data(self) -> Data:
        """All results in index order, whatever the order they came in."""
        told = ((record, self._told.get(record.trial)) for record in self._records)
        return Data(
            data_rows=[
                DataRow(trial.index, trial.arm.name, name, name, mean, sem)
                for record, trial in told
                if trial is not None
                for name, (mean, sem) in self._outcomes(record).items()
            ]
        )

    def _pending(self, found: Sequence[Candidate]) -> dict[str, list[ObservationFeatures]]:
        """Points without a result, by metric."""
        waiting = [
            (record.parameters, set(self._metrics.values()) - set(self._outcomes(record)))
            for record in self._records
        ]
        waiting += [(candidate.parameters, set(self._metrics.values())) for candidate in found]
        pending: dict[str, list[ObservationFeatures]] = {name: [] for name in self._metrics.values()}
        for parameters, missing in waiting:
            searched = self._to_ax(parameters) if missing else None
            if searched is not None and self._ax.search_space.check_membership(searched):
                for name in sorted(missing):
                    pending[name].append(ObservationFeatures(parameters=dict(searched)))
        return pending

    # --- what Ax is asked -------------------------------------------------------------------------------

    def _next(self, found: Sequence[Candidate]) -> Candidate:
        taken = self._taken | {self._domain.identity(candidate.parameters) for candidate in found}
        left = self._left(taken)
        index, pending = len(self._records) + len(found), self._pending(found)
        if self._has_enough_results(found) and (drawn := self._from_surrogate(index, pending, taken)):
            return drawn
        if self._names and (drawn := self._from_sobol(index, found, pending, taken)):
            return drawn
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
        left = [c for c in self._configurations if self._domain.identity(c) not in taken]
        if not left:
            total = len(self._configurations)
            raise NothingToAsk(f"all {total} configurations of the search space were tried; add values to it")
        return left

    def _has_enough_results(self, found: Sequence[Candidate]) -> bool:
        search = self._space.search
        if search.method == "random" or not self._names:
            return False
        live = sum(
            r.status not in ("failed", "abandoned") and r.generator != "baseline" for r in self._records
        )
        complete = sum(
            r.trial in self._told and len(self._outcomes(r)) == len(self._metrics) for r in self._records
        )
        return live + len(found) >= search.sobol and complete >= max(1, search.sobol // 2)

    def _from_surrogate(
        self, index: int, pending: Mapping[str, list[ObservationFeatures]], taken: set[Hashable]
    ) -> Candidate | None:
        seed = self._space.search.seed
        try:
            with seeded(stable_seed(seed, index, "fit")):
                spec = _surrogate()
                adapter = spec.generator_enum(experiment=self._ax, data=self._data(), **spec.generator_kwargs)
            for attempt in range(2):
                with seeded(stable_seed(seed, index, "botorch", attempt)):
                    run = adapter.gen(n=1, pending_observations=pending)
                if candidate := self._accept(run, "botorch", taken):
                    return candidate
        except SURROGATE_FAILURES as error:
            log.warning("trial %d comes from Sobol, because the surrogate failed: %s", index, error)
        return None

    def _from_sobol(
        self,
        index: int,
        found: Sequence[Candidate],
        pending: Mapping[str, list[ObservationFeatures]],
        taken: set[Hashable],
    ) -> Candidate | None:
        """The next point of one scrambled sequence for the whole sweep that is allowed and not taken."""
        seed = self._space.search.seed
        position = sum(record.generator != "baseline" for record in self._records) + len(found)
        for attempt in range(SOBOL_ATTEMPTS):
            with seeded(stable_seed(seed, index, "sobol", attempt)):
                adapter = Generators.SOBOL(
                    experiment=self._ax,
                    data=Data(),
                    seed=stable_seed(seed, "sobol") % 2**31 + attempt // 8,
                    init_position=position + attempt,
                )
                try:
                    run = adapter.gen(
                        n=1, pending_observations=pending, model_gen_options={"max_rs_draws": SOBOL_DRAWS}
                    )
                except SearchSpaceExhausted:
                    return None
            if candidate := self._accept(run, "sobol", taken):
                return candidate
        return None

    def _accept(
        self, run: Any, generator: Literal["sobol", "botorch"], taken: set[Hashable]
    ) -> Candidate | None:
        """The generator run's arm as a candidate, unless it is taken or breaks a constraint."""
        (arm,) = run.arms
        parameters = self._domain.complete(
            {
                name: self._domain.member(name, arm.parameters[safe])
                for name, safe in self._names.items()
                if safe in arm.parameters
            }
        )
        if self._domain.identity(parameters) in taken or not self._domain.allows(parameters):
            return None
        return Candidate(parameters=parameters, generator=generator)


def _may_follow(old: Trial, new: Trial) -> bool:
    """Whether Ax's trial for the old record can become that of the new one (a retried trial's cannot)."""
    if (old.trial, old.generator, old.parameters) != (new.trial, new.generator, new.parameters):
        return False
    return not old.finished or (old.status == new.status and old.metrics == new.metrics)


def _surrogate() -> GeneratorSpec:
    """Ax's own choice of surrogate and acquisition function ("fast"), fresh: nothing is warm-started."""
    strategy = choose_generation_strategy(
        GenerationStrategyDispatchStruct(
            method="fast", initialization_budget=0, initialize_with_center=False, torch_device="cpu"
        )
    )
    return strategy.nodes_by_name["MBM"].generator_spec


# --- the space in Ax's words ----------------------------------------------------------------------------


def _ax_experiment(
    space: Space, domain: Domain, names: Mapping[str, str], metrics: Mapping[str, str]
) -> Experiment:
    """An Ax experiment without trials. Names are replaced, because SymPy, which reads for Ax, knows many."""
    objectives = {metrics[o.metric]: o.goal == "minimize" for o in space.objectives}
    try:
        experiment = experiment_from_struct(
            ExperimentStruct(
                parameters=[_config(parameter, names) for parameter in domain.searched.values()],
                parameter_constraints=[_renamed(constraint, names) for constraint in domain.constraints],
                name=space.name,
                description=None,
                experiment_type=None,
                owner=None,
            )
        )
        config = optimization_config_from_string(
            objective_str=", ".join(f"-{name}" if lower else name for name, lower in objectives.items()),
            outcome_constraint_strs=[_renamed(c, metrics) for c in _outcome_constraints(space)],
        )
    except (AxError, ValueError, TypeError) as error:
        raise SpaceError(" ".join(str(error).split()), file=space.name) from error
    for name in metrics.values():
        experiment.add_tracking_metric(MapMetric(name=name, lower_is_better=objectives.get(name)))
    experiment.optimization_config = config
    return experiment


def _config(
    parameter: Range | Choice, names: Mapping[str, str]
) -> RangeParameterConfig | ChoiceParameterConfig:
    name = names[parameter.name]
    if isinstance(parameter, Range):
        # Half a step on either side gives the first and the last integer the same share as the others.
        margin = 0.4999 if _is_relaxed(parameter) else 0.0
        return RangeParameterConfig(
            name=name,
            bounds=(parameter.min - margin, parameter.max + margin),
            parameter_type="float" if margin else parameter.kind,
            scaling="log" if parameter.log else "linear",
        )
    dependents = {
        _as_searched(parameter, value): [names[child] for child in children if child in names]
        for value, children in parameter.when
    }
    return ChoiceParameterConfig(
        name=name,
        values=[_as_searched(parameter, value) for value in parameter.values],
        parameter_type=_choice_type(parameter),
        is_ordered=parameter.ordered or len(parameter.values) == 2,
        dependent_parameters={value: children for value, children in dependents.items() if children} or None,
    )


def _is_relaxed(parameter: Range) -> bool:
    return parameter.kind == "int" and parameter.max - parameter.min >= WIDE


def _choice_type(parameter: Choice) -> str:
    for kind in (bool, int, str):
        if all(type(value) is kind for value in parameter.values):
            return kind.__name__
    return "float"


def _as_searched(parameter: Range | Choice, value: Value) -> Value:
    """The value in the type that Ax was told. Raises ValueError or TypeError for what does not fit."""
    if isinstance(parameter, Choice):
        if value not in parameter.values:
            raise ValueError(f"{value!r} is not among the values of {parameter.name}")
        return float(value) if _choice_type(parameter) == "float" else value
    if isinstance(value, bool | str):
        raise TypeError(f"{parameter.name} is a number, not {value!r}")
    return int(value) if parameter.kind == "int" and not _is_relaxed(parameter) else float(value)


def _renamed(constraint: Linear, names: Mapping[str, str]) -> str:
    left = " + ".join(f"{factor!r}*{names[name]}" for name, factor in constraint.coefficients.items())
    return f"{left} <= {constraint.bound!r}"


def _outcome_constraints(space: Space) -> list[Linear]:
    """The outcome constraints. Raises SpaceError for a relative bound, which would become a metric's name."""
    constraints = [parse(text) for text in space.outcome_constraints]
    for text, constraint in zip(space.outcome_constraints, constraints, strict=True):
        if "baseline" in constraint.coefficients:
            problem = f"{text!r}: bounds relative to the baseline are not supported; write the number"
            raise SpaceError(problem, file=space.name, key="outcome_constraints")
    return constraints


def _metric_names(space: Space) -> dict[str, str]:
    """Ax's names for the metrics that count: objectives first, then those of outcome constraints."""
    constrained = [name for constraint in _outcome_constraints(space) for name in constraint.coefficients]
    return {metric: f"m{i}" for i, metric in enumerate(dict.fromkeys([*space.metrics(), *constrained]))}
