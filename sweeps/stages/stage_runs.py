"""What a program reports of its stages, and what the trial's record says of them. Pure."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from sweeps.space.definition import Space, Value
from sweeps.space.domain import Domain
from sweeps.trials import storable
from sweeps.trials.record import Trial
from sweeps.trials.stage_run import StageRun

log = logging.getLogger(__name__)

_KEY = re.compile(r"[0-9a-f]{64}")
_NAME_CHARACTERS = 100


@dataclass(frozen=True, kw_only=True)
class Reported:
    """A stage in a `result.json`. None: the program does not say.

    Args:
        key: of its end; "" if it is never shared.
        reused: whether a checkpoint took the place of computing it.
        cost: in the unit of the sweep's `stages`.
        seconds: that computing it took the trial that computed it.
        usd: dollars, likewise.
        branched_at: steps that another trial's trunk saved; None: it was computed in full.
    """

    name: str
    key: str = ""
    reused: bool = False
    cost: float | None = None
    seconds: float | None = None
    usd: float | None = None
    branched_at: int | None = None
    saved: float | None = None


@dataclass(frozen=True, kw_only=True)
class Branch:
    """The checkpoint within a trunk at which a trial began a stage.

    Args:
        step: of the stage, until there.
        seconds: that it took to compute the stage until there; None: unknown.
        source: other trial that had computed the stage until `at`; None: this one has.
        at: steps of the stage that another trial was paid for; None: none.
    """

    step: int
    seconds: float | None = None
    source: int | None = None
    at: int | None = None
    saved: float = 0.0

    def mark(self, run: StageRun) -> StageRun:
        """Return the run with what of it another trial has computed."""
        if self.source is None:
            return run
        saved = min(self.saved, run.cost)
        return replace(run, branched_from=self.source, branched_at=self.at, saved=saved)


def cost_until(
    space: Space, costs: Mapping[str, float], parameters: Mapping[str, Value], stage: str, step: int
) -> float | None:
    """Return the cost of a stage until a step within its trunk; None if the space does not say it."""
    trunk = next((each.trunk for each in space.stages if each.name == stage), None)
    if trunk is None or stage not in costs:
        return None
    steps = parameters.get(trunk.length, Domain(space).fixed.get(trunk.length))
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < max(step, 1):
        return None
    return costs[stage] * step / steps


def parse(document: Any, where: str) -> tuple[Reported, ...]:
    """Return the `stages` of a result; none, with a warning, if they cannot be read: the metrics still count.

    Args:
        document: the parsed JSON, None for no stages.
    """
    if document is None:
        return ()
    entries: list[Any] = document if isinstance(document, list) else [None]
    stages: dict[str, Reported] = {}
    for entry in entries:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not name or storable.line(name, _NAME_CHARACTERS) != name:
            break
        key = entry.get("key")
        stages[name] = Reported(
            name=name,
            key=key if isinstance(key, str) and _KEY.fullmatch(key) else "",
            reused=entry.get("reused") is True,
            cost=amount(entry.get("cost")),
            seconds=amount(entry.get("seconds")),
            usd=amount(entry.get("usd")),
            branched_at=_steps(entry.get("branched_at")),
            saved=amount(entry.get("saved")),
        )
    if len(stages) < len(entries):
        log.warning("%s: stages is not a list of objects with one name each; it is ignored", where)
        return ()
    return tuple(stages.values())


def _steps(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def amount(value: Any) -> float | None:
    """Return the value if it is a finite number from 0, else None."""
    if isinstance(value, bool | str):
        return None
    number = storable.number(value)
    return number if number is not None and number >= 0 else None


def publisher(records: Iterable[Trial], key: str, trial: int) -> Trial | None:
    """Return whose checkpoint of this key is stored, by the records: the trial itself, or the first one."""
    found = [r for r in records if any(run.key == key for run in r.snapshots)]
    return min(found, key=lambda record: (record.trial != trial, record.trial), default=None)


def origin(records: Iterable[Trial], key: str, trial: int) -> int | None:
    """Return which other trial has computed the checkpoint of this key; None if no record says.

    It may have been removed since a trial started from it, so those that are stored only come first.
    """
    found = sorted(
        (not run.snapshot, record.trial if run.reused_from is None else run.reused_from)
        for record in records
        for run in (*record.stages, *record.points)
        if run.key == key
    )
    return next((index for _, index in found if index != trial), None)


def finished(
    reported: Sequence[Reported],
    known: Mapping[str, StageRun],
    names: Sequence[str],
    costs: Mapping[str, float],
    metrics: Mapping[str, float | None],
    branches: Mapping[str, Branch] = MappingProxyType({}),
) -> tuple[StageRun, ...]:
    """Return all stages of a trial that has completed, in order.

    What its program reports decides; for stages that it does not mention, what was fetched and published.

    Args:
        reported: stages in its result; of a reused one, `known` has the origin.
        known: stages that were fetched, and stages that ended while this worker watched.
        costs: of the sweep's stages; empty if the space does not say.
        metrics: of its result, perhaps with `seconds.STAGE`.
        branches: where the trial began stages that it did not compute in full.
    """
    stated = {stage.name: stage for stage in reported}
    runs: list[StageRun] = []
    for name in dict.fromkeys((*names, *stated)):
        stage, run = stated.get(name), known.get(name)
        key = stage.key if stage is not None else ""
        if run is None or (key and key != run.key):
            run = StageRun(name=name, key=key, cost=0.0)
        if stage is None:
            stage = Reported(name=name, reused=run.reused_from is not None)
        seconds = _first(stage.seconds, run.seconds, amount(metrics.get(f"seconds.{name}")))
        run = replace(
            run,
            cost=_first(stage.cost, costs.get(name), run.cost or None, seconds) or 0.0,
            reused_from=run.reused_from if stage.reused else None,
            seconds=seconds,
            usd=_first(stage.usd, run.usd),
            branched_from=None,
            branched_at=None,
            saved=0.0,
        )
        if run.reused_from is None and name in branches:
            run = branches[name].mark(run)
        runs.append(run)
    return tuple(runs)


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
