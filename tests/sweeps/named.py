"""Sweeps whose parameters and metrics are called like the platform's own columns. Tests of several subpackages import it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from sweeps.space.definition import Objective, Program, Range, Search, Space
from sweeps.text.columns import FOR_PEOPLE
from sweeps.trials import storable
from sweeps.trials.record import STATUSES, Attempt, Trial
from sweeps.trials.stage_run import StageRun

COLUMNS = (
    *FOR_PEOPLE, *STATUSES, "name", "url", "run_cap", "best", "parameters", "metrics", "first", "predicted", "seeds",
    "trials", "front", "knee", "efficiency", "to", "warnings", "usd", "effective_steps", "held_out", "schema", "x", "y",
    "outside.x", "reused.x", "branched.x", "branched_at.x", "loss", "loss_sem", "loss_range", "seconds_sem", "trial_sem",
)  # fmt: skip
_WORDS = st.sampled_from(COLUMNS)
_PREFIXED = st.tuples(st.sampled_from(("param.", "metric.", "metric.param.", "param.metric.")), _WORDS).map(
    "".join
)
PARAMETERS = (
    _WORDS | _PREFIXED | st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}(\.[a-z_]{1,3}){0,2}", fullmatch=True)
)
METRICS = (
    _WORDS | _PREFIXED | st.sampled_from(("", "param.", "metric.", " ", "a b", "a/b", "=1+1", "'=x", "Unnamed: 7", "1", "nan"))
    | st.text(max_size=12).filter(storable.is_name)
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Named:
    """A sweep with two trials; each value stands in it once."""

    space: Space
    records: list[Trial]


def _of(parameters: Sequence[str], metrics: Sequence[str], objectives: int, staged: bool) -> Named:
    space = Space(
        name="named",
        objectives=tuple(Objective(metric=metric) for metric in metrics[:objectives]),
        parameters=tuple(Range(name=name, min=0.0, max=1e6, kind="float") for name in parameters),
        program=Program(kind="command", command=("true", "${overrides}")),
        search=Search(method="random", sobol=4),
        run_cap=8,
    )
    return Named(space=space, records=[_record(trial, parameters, metrics, staged) for trial in (0, 1)])


def _record(trial: int, parameters: Sequence[str], metrics: Sequence[str], staged: bool) -> Trial:
    return Trial(
        trial=trial,
        status="completed",
        parameters={name: 1000.25 + 100 * trial + at for at, name in enumerate(parameters)},
        metrics={name: 5000.5 + 100 * trial + at for at, name in enumerate(metrics)},
        generator="sobol",
        attempt=1,
        created=1.0,
        started=10.0,
        ended=11.5 + trial,
        history=(Attempt(attempt=1, worker="host-1", start=10.0, end=11.5 + trial, reason="completed"),),
        stages=(StageRun(name="x", key="ab" * 32, cost=3.0, seconds=1.0),) if staged else (),
    )


def sweeps() -> st.SearchStrategy[Named]:
    """Sweeps of one to four parameters, one to five metrics and one to three objectives."""
    return st.builds(
        _of,
        st.lists(PARAMETERS, min_size=1, max_size=4, unique=True),
        st.lists(METRICS, min_size=1, max_size=5, unique=True),
        st.integers(1, 3),
        st.booleans(),
    )
