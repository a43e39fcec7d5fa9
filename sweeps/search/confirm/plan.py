"""Plan of a confirmation, `confirm.json`: which trials run again, and with which seeds.

`sweep confirm` writes it. All else follows from the plan and the trial records: `rounds` says which repeat
comes next, `answer` what came of them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from sweeps.errors import unreadable
from sweeps.space import typed
from sweeps.space.definition import Value
from sweeps.space.typed import ReadOnly
from sweeps.storage.base import NotFound, Store, put
from sweeps.text import json_reader
from sweeps.trials.record import Trial

KEY = "confirm.json"
SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Finalist:
    """Trial that is run again.

    Args:
        first: the metric as the search observed it.
        predicted: the surrogate's posterior mean of the metric there; None without a surrogate.
    """

    trial: int
    parameters: ReadOnly[Value]
    first: float
    predicted: float | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Confirmation as it was planned.

    Args:
        finalists: at least two, the best first.
        seeds: one a round, ascending; none was used in the sweep before.
        fixed: what else every repeat sets, such as `eval.test: true` for the trainer.
        trials: greatest number of repeats; None: all seeds of all finalists.
        within: upper bounds on metrics of the finalists.
        error_rate: greatest probability that the race drops the truly best one.
    """

    metric: str
    goal: Literal["minimize", "maximize"]
    finalists: tuple[Finalist, ...]
    seed_name: str
    seeds: tuple[int, ...]
    fixed: ReadOnly[Value] = field(default_factory=dict)
    top: int
    trials: int | None = None
    within: ReadOnly[float] = field(default_factory=dict)
    error_rate: float = 0.05
    created: float = 0.0

    @property
    def sign(self) -> float:
        """Return the factor that turns the metric into a loss."""
        return 1.0 if self.goal == "minimize" else -1.0

    @property
    def test_metric(self) -> str:
        """Return the metric on the test text: `test_loss` for `final_loss` or `loss`."""
        return f"test_{self.metric.removeprefix('final_')}"

    def parameters(self, finalist: Finalist, seed: int) -> dict[str, Value]:
        """Return the parameters of the finalist's repeat with this seed."""
        return {**finalist.parameters, self.seed_name: seed, **self.fixed}

    def repeat(self, trial: int, seed: int) -> dict[str, Value]:
        """Return the parameters of the repeat of this finalist with this seed."""
        return self.parameters(next(f for f in self.finalists if f.trial == trial), seed)

    def repeats(self, records: list[Trial]) -> dict[tuple[int, int], Trial]:
        """Return the records of this plan's repeats by finalist and seed; of equal ones, the first."""
        found: dict[tuple[int, int], Trial] = {}
        by_seed: dict[Value, list[Trial]] = {}
        for record in records:
            if record.generator == "confirm" and self.seed_name in record.parameters:
                by_seed.setdefault(record.parameters[self.seed_name], []).append(record)
        for seed in self.seeds:
            for finalist in self.finalists:
                wanted = self.parameters(finalist, seed)
                equal = (record for record in by_seed.get(seed, ()) if record.parameters == wanted)
                if (first := next(equal, None)) is not None:
                    found[finalist.trial, seed] = first
        return found


def stored_plan(store: Store) -> tuple[Plan, str] | None:
    """Return the sweep's plan with its version, or None without one. Raises `DamagedObject`."""
    try:
        data, version = store.read(KEY)
    except NotFound:
        return None
    try:
        return decoded(data), version
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}".replace("\n", " ")
        raise unreadable(KEY, error, store.location(KEY), reason) from None


def store_plan(store: Store, plan: Plan, expected: str | None) -> None:
    """Write the plan over the version `expected`; None: there is none yet. Raises `StoreConflict`."""
    put(store, KEY, encoded(plan), expected)


def encoded(plan: Plan) -> bytes:
    """Return the plan as JSON that `decoded` can read."""
    plain = replace(
        plan,
        finalists=tuple(replace(f, parameters=dict(f.parameters)) for f in plan.finalists),
        fixed=dict(plan.fixed),
        within=dict(plan.within),
    )
    return (json.dumps({"schema": SCHEMA, **asdict(plain)}, indent=1, allow_nan=False) + "\n").encode()


def decoded(data: bytes) -> Plan:
    """Return the plan in the bytes that `encoded` wrote.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it cannot be one of this version.
    """
    document = json_reader.parse(data)
    json_reader.require_schema(document, SCHEMA)
    del document["schema"]
    plan = typed.read(Plan, document)
    if problem := _problem(plan):
        raise ValueError(problem)
    return plan


def _problem(plan: Plan) -> str:
    """Return what is wrong with a plan that a user may have edited, or ""."""
    trials = {finalist.trial for finalist in plan.finalists}
    if len(trials) < len(plan.finalists) or len(trials) < 2 or min(trials) < 0:
        return "finalists are not two or more trials"
    if len(plan.seeds) < 2:
        return "seeds are not two or more integers"
    if list(plan.seeds) != sorted(set(plan.seeds)):
        return "seeds do not ascend"
    if not 0 < plan.error_rate < 1:
        return "error_rate is not between 0 and 1"
    if plan.top < 0 or (plan.trials is not None and plan.trials < 0):
        return "top or trials is not a count"
    return ""
