"""The rule `early_terminate: {type: curve}`: stops a trial that cannot come near the best any more. Pure.

`worker.early_stopping` asks it after each heartbeat. Trials of a sweep may have different lengths, and a
longer one is at an earlier part of its warmup and decay in the same step: so losses are compared at the
same share of the planned length. When in doubt, a trial goes on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

import numpy as np

from sweeps.search.arrays import Floats
from sweeps.search.forecast import Forecast, forecast
from sweeps.space.definition import EarlyTerminate, Fixed, Range, Space, same_value
from sweeps.space.scale import to_unit
from sweeps.trials.objectives import costs, within_constraints
from sweeps.trials.record import Trial

LAST_STAGE = "stage2"
"""Stage of training losses, which do not name it; `STAGE.max_steps` is the trainer's own parameter."""

_SLACK = 0.02
"""A curve that ends this share before the point to compare still counts: losses are logged now and then."""

_SETTINGS = 3
"""Features before the parameters: level, length, its logarithm."""

_FLOOR = 1e-3
"""Least standard deviation of a prediction, as a share of the best value, if no noise is given."""


@dataclass(frozen=True, kw_only=True)
class EarlyStop:
    """Decision to stop a trial.

    Args:
        predicted: the final value of each objective by its metric, and its standard deviation by
            `<metric>_sem`; {} where nothing was predicted.
    """

    reason: str
    predicted: Mapping[str, float] = field(default_factory=dict)


def judge(
    space: Space, early: EarlyTerminate, record: Trial, compared: Sequence[Trial], records: Sequence[Trial]
) -> EarlyStop | None:
    """Return why the running trial cannot reach the best trials, or None if it may.

    Args:
        early: how far from them, and how many trials there must be.
        record: the running trial; its curve has a point.
        compared: other trials with a curve of the same kind; completed ones count.
        records: all trials; the completed ones within the outcome constraints are what it must reach.
    """
    ended = [r for r in compared if r.status == "completed" and costs(space.objectives, r) is not None]
    length, lengths = _lengths(record, ended)
    if not max(early.min_step, 1.0) <= record.curve[-1][0] <= length:
        return None
    shares = np.array([step for step, _ in record.curve]) / length
    losses = np.array([loss for _, loss in record.curve])
    own = np.array([_smooth(losses), length, math.log(length), *_settings(space, record)])
    rows = {
        r.trial: [level, lengths[r.trial], math.log(lengths[r.trial]), *_settings(space, r)]
        for r in ended
        if r.trial in lengths and (level := _level(r, lengths[r.trial], shares)) is not None
    }
    completed = _completed_costs(space, records)
    if len(rows) < early.min_trials or not completed or _is_outside(np.array(list(rows.values())), own):
        return None
    fitted = [r for r in ended if r.trial in rows]
    features = np.array([rows[r.trial] for r in fitted])
    measured = np.array([costs(space.objectives, r) for r in fitted])
    floors = _floors(space, fitted, completed)
    found = [forecast(features, measured[:, k], own, floor) for k, floor in enumerate(floors)]
    forecasts = [each for each in found if each is not None]
    if len(forecasts) < len(found) or (index := _out_of_reach(forecasts, completed, early.margin)) is None:
        return None
    better = next(r for r in records if r.trial == index)

    predicted: dict[str, float] = {}  # in the objectives' own signs
    for objective, each in zip(space.objectives, forecasts, strict=True):
        predicted[objective.metric] = objective.sign * each.mean
        predicted[f"{objective.metric}_sem"] = each.error
    said = " and ".join(
        f"{metric} {predicted[metric]:.4g} ± {each.sd:.2g}"
        for metric, each in zip(space.metrics(), forecasts, strict=True)
    )
    best = " and ".join(f"{better.metrics[m]:.4g}" for m in space.metrics())
    against = "against the best" if len(space.objectives) == 1 else f"against trial {better.trial}:"
    reason = f"predicted {said} (sd) at step {record.curve[-1][0]:g} of {length:g} {against} {best}"
    return EarlyStop(reason=reason, predicted=predicted)


def _is_outside(rows: Floats, own: Floats) -> bool:
    """Return whether a setting lies outside those of the completed trials by a tenth of its range.

    Late warmups look bad until they end, and nothing says so before one has completed.
    """
    settings, own = rows[:, _SETTINGS:], own[_SETTINGS:]
    return bool(((own < settings.min(axis=0) - 0.1) | (own > settings.max(axis=0) + 0.1)).any())


def _out_of_reach(
    forecasts: Sequence[Forecast], completed: Mapping[int, Sequence[float]], margin: float
) -> int | None:
    """Return the completed trial that stays better, or None.

    It stays better if at best the running trial is worse in one objective by the margin, and better in none
    by more than that.
    """
    for trial, reached in completed.items():
        margins = [margin * abs(cost) for cost in reached]
        gaps = [(each.best - cost, m) for each, cost, m in zip(forecasts, reached, margins, strict=True)]
        if all(gap >= -m for gap, m in gaps) and any(gap > m for gap, m in gaps):
            return trial
    return None


def _completed_costs(space: Space, records: Sequence[Trial]) -> dict[int, tuple[float, ...]]:
    """Return the costs of completed trials within the outcome constraints, the best first, by index."""
    is_within = within_constraints(space)
    found = {
        r.trial: own
        for r in records
        if r.status == "completed"
        and (own := costs(space.objectives, r)) is not None
        and is_within(r.metrics)
    }
    return dict(sorted(found.items(), key=lambda item: (item[1], item[0])))


def _floors(space: Space, ended: Sequence[Trial], completed: Mapping[int, Sequence[float]]) -> list[float]:
    """Return the least standard deviation of each objective: the given noise, or a share of the best."""
    noise = space.search.noise
    floors = []
    for k, objective in enumerate(space.objectives):
        sems = [abs(r.metrics.get(f"{objective.metric}_sem") or 0.0) for r in ended]
        given = noise if isinstance(noise, float) else float(np.median(sems)) if noise == "reported" else 0.0
        floors.append(max(given, _FLOOR * abs(min(reached[k] for reached in completed.values()))))
    return floors


def _length(record: Trial) -> float | None:
    """Return the planned number of steps of the stage of the trial's curve; None if it is not known."""
    stage = record.curve_of.partition(" in ")[2] or LAST_STAGE
    written = record.progress.get("of")
    if not _is_number(written) or record.progress.get("stage", stage) != stage:
        written = record.parameters.get(f"{stage}.max_steps")
    last = record.curve[-1][0]
    return float(written) if _is_number(written) and float(written) >= max(last, 1.0) else None


def _lengths(record: Trial, ended: Sequence[Trial]) -> tuple[float, dict[int, float]]:
    """Return the lengths of the running trial, 0 if it is unknown, and of completed ones, where it is known.

    If no trial says how long it is, but all completed curves end at the same step, that is the length.
    """
    known = {r.trial: length for r in ended if (length := _length(r)) is not None}
    if (length := _length(record)) is not None or known:
        return length or 0.0, known
    lasts = {r.curve[-1][0] for r in ended}
    last = lasts.pop() if len(lasts) == 1 else 0.0
    return last, dict.fromkeys((r.trial for r in ended), last)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _level(record: Trial, length: float, shares: Floats) -> float | None:
    """Return the loss of a completed trial at these shares of its length; None where none was logged."""
    steps, losses = np.array(record.curve, dtype=float).T
    own = steps / length
    if not own[0] - _SLACK <= shares[-1] <= own[-1] + _SLACK:
        return None
    return _smooth(np.interp(shares, own, losses))


def _smooth(losses: Floats) -> float:
    """Return the mean of the last eighth: of dense training losses some, of a few held-out ones the last."""
    return float(losses[-1 - len(losses) // 8 :].mean())


def _settings(space: Space, record: Trial) -> list[float]:
    """Return the trial's numbers and choices, each from 0 to 1."""
    settings = []
    for parameter in space.parameters:
        if isinstance(parameter, Fixed):
            continue
        at, value = 0.5, record.parameters.get(parameter.name)  # the middle where it is inactive
        if isinstance(parameter, Range):
            if isinstance(value, int | float):
                at = to_unit(parameter, float(value))
        elif parameter.name in record.parameters:
            members = [at for at, member in enumerate(parameter.values) if same_value(member, value)]
            at = members[0] / max(1, len(parameter.values) - 1) if members else 0.5
        settings.append(at)
    return settings
