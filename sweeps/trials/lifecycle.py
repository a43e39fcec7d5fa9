"""Lifecycle of a trial: `apply(record, event, now) -> record`. Pure: no IO, no clock, no threads.

    pending ──Claim──▶ running ──Complete──▶ completed
       ▲                 │  ├──Fail───────▶ failed
       │                 │  ├──StopEarly──▶ early_stopped
       ├─Release/Expire──┘  └──Abandon────▶ abandoned
       └─────────────────────Retry─────────────┘

A Forget changes no status: it notes that a published checkpoint is no longer stored.

A crash that may be transient is a Fail that sends the trial back to pending, until it was lost too often. The
result is stored with a compare-and-swap on the version of the input, which makes that version the fencing
token: a worker whose lease was taken over names an outdated attempt, and is refused. Times (`now`) are the
store's, in seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sweeps.errors import IllegalTransition
from sweeps.space.definition import Value
from sweeps.text.counted import counted
from sweeps.trials.record import LOSS, Attempt, Failure, Reason, Trial
from sweeps.trials.stage_run import StageRun


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A worker's claim of a pending trial. Without a lease (`sweep ask`) it does not expire."""

    worker: str
    leased: bool = True
    nodes: int = 1


@dataclass(frozen=True, kw_only=True)
class _ByWorker:
    """A message of the worker that has the trial; it names the attempt that it has claimed."""

    worker: str
    attempt: int


@dataclass(frozen=True, kw_only=True)
class _WithCurve(_ByWorker):
    """A message with losses (step, loss), stages and points; where it has none, the record keeps its own."""

    curve: tuple[tuple[float, float], ...] = ()
    curve_of: str = LOSS
    stages: tuple[StageRun, ...] = ()
    points: tuple[StageRun, ...] = ()

    def update(self, record: Trial) -> Trial:
        """Return the record with what the message has of these."""
        curve = self if self.curve else record
        return replace(
            record,
            curve=curve.curve,
            curve_of=curve.curve_of,
            stages=self.stages or record.stages,
            points=self.points or record.points,
        )


@dataclass(frozen=True, kw_only=True)
class Heartbeat(_WithCurve):
    """A sign of life of the worker, with its program's progress."""

    progress: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Complete(_WithCurve):
    """A report of the final metrics."""

    metrics: Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Fail(_ByWorker):
    """A failure of the program, which is retried until the trial was lost `max_attempts` times."""

    error: str
    failure: Failure
    max_attempts: int = 1


@dataclass(frozen=True, kw_only=True)
class StopEarly(_WithCurve):
    """An early stop of the trial with the metrics so far, for a reason in one line (`detail`).

    `predicted` has what the metrics would most likely have become, each with its `<metric>_sem`.
    """

    metrics: Mapping[str, float | None]
    predicted: Mapping[str, float | None] = field(default_factory=dict)
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Release(_ByWorker):
    """A return of the trial by its worker, with the same index and parameters.

    With `max_attempts` the attempt counts as lost, since the trial may be the cause and fail everywhere.
    Without, it does not: the worker was preempted, or could not have run any trial.
    """

    detail: str = ""
    max_attempts: int | None = None


@dataclass(frozen=True, kw_only=True)
class Expire:
    """An observation by any worker: no heartbeat for `after_s` seconds.

    Args:
        heartbeat: the last one that was observed; another is a sign of life, by whatever clock. None: the
            record's.
    """

    after_s: float
    max_attempts: int
    heartbeat: float | None = None


@dataclass(frozen=True, kw_only=True)
class Abandon:
    """A user's decision to give the trial up."""

    by: str


@dataclass(frozen=True, kw_only=True)
class Retry:
    """A user's request to run a failed, stopped or abandoned trial again."""

    by: str


@dataclass(frozen=True, kw_only=True)
class Forget:
    """A note that the checkpoint that the trial published under this key is about to be removed."""

    key: str


End = Literal["completed", "failed", "early_stopped", "abandoned"]
"""Statuses that only a user's `Retry` ends."""

Event = Claim | Heartbeat | Complete | Fail | StopEarly | Release | Expire | Abandon | Retry | Forget


def holder(record: Trial) -> dict[str, Any]:
    """Return worker and attempt of a claimed trial, as each message of that worker names them."""
    return {"worker": record.worker or "", "attempt": record.attempt}


def apply(record: Trial, event: Event, now: float) -> Trial:
    """Return the record after the event, or `record` itself if that repeats a report that was accepted.

    Raises:
        IllegalTransition: the event does not fit the record's status, comes from a worker whose lease was
            taken over, or differs from the report that was accepted.
    """
    match event:
        case Claim():
            return _claim(record, event, now)
        case Heartbeat():
            _check_holder(record, event)
            heartbeat = now if record.heartbeat is not None else None
            progress = dict(event.progress) or record.progress
            return replace(event.update(record), heartbeat=heartbeat, progress=progress)
        case Complete():
            return _report(record, event, now, "completed")
        case StopEarly():
            return _report(record, event, now, "early_stopped")
        case Fail():
            return _fail(record, event, now)
        case Release():
            return _release(record, event, now)
        case Expire():
            return _expire(record, event, now)
        case Abandon():
            return _abandon(record, event, now)
        case Retry():
            return _retry(record, event)
        case Forget():
            return _forget(record, event)


def is_stale(record: Trial, now: float, after_s: float) -> bool:
    """Return whether a running trial's last heartbeat is more than `after_s` seconds old.

    One from as far in the future is stale, too: some clock was wrong, and the trial must not wait for it.
    """
    if record.status != "running" or record.heartbeat is None:
        return False
    return abs(now - record.heartbeat) > after_s


def _claim(record: Trial, event: Claim, now: float) -> Trial:
    if record.status != "pending":
        raise _illegal(record, event, "only a pending trial can be claimed")
    return replace(
        record,
        status="running",
        worker=event.worker,
        attempt=record.attempt + 1,
        heartbeat=now if event.leased else None,
        nodes=event.nodes,
        started=now,
        progress={},
        curve=(),
        curve_of=LOSS,
        stages=tuple(stage for stage in record.stages if stage.snapshot),
        points=tuple(point for point in record.points if point.snapshot),
    )


def _report(record: Trial, event: Complete | StopEarly, now: float, status: End) -> Trial:
    if record.finished:
        same_report = (
            record.status == status
            and record.attempt == event.attempt
            and dict(record.metrics) == dict(event.metrics)
        )
        if same_report:
            return record
        raise _illegal(record, event, "a different end was recorded first")
    _check_holder(record, event)
    detail = event.detail if isinstance(event, StopEarly) else ""
    predicted = dict(event.predicted) if isinstance(event, StopEarly) else {}
    reported = replace(event.update(record), metrics=dict(event.metrics), predicted=predicted, error=None)
    return _finish(reported, now, status, detail)


def _fail(record: Trial, event: Fail, now: float) -> Trial:
    if record.status == "failed" and record.attempt == event.attempt and record.error == event.error:
        return record
    _check_holder(record, event)
    detail = event.error.partition("\n")[0]
    if event.failure == "crashed" or event.max_attempts > 1:
        pending = _back_to_pending(replace(record, error=event.error), now, "crashed", detail)
        if _lost_attempts(pending) < event.max_attempts:
            return pending
        return replace(pending, status="failed", ended=now, failure=event.failure)
    return _finish(replace(record, error=event.error, failure=event.failure), now, "failed", detail)


def _release(record: Trial, event: Release, now: float) -> Trial:
    _check_holder(record, event)
    if event.max_attempts is None:
        return _back_to_pending(record, now, "released", event.detail)
    pending = _back_to_pending(record, now, "given_up", event.detail)
    return _unless_lost_too_often(pending, now, event.max_attempts)


def _expire(record: Trial, event: Expire, now: float) -> Trial:
    if not is_stale(record, now, event.after_s):
        raise _illegal(record, event, "its lease has not run out")
    if event.heartbeat not in (None, record.heartbeat):
        raise _illegal(record, event, "its worker has sent another heartbeat")
    heard = record.heartbeat or 0.0
    # Nobody may have looked for days, in which nothing ran.
    end = max(min(now, heard), record.started if record.started is not None else now)
    pending = _back_to_pending(record, end, "expired", silence(now - heard))
    return _unless_lost_too_often(pending, now, event.max_attempts)


def _unless_lost_too_often(pending: Trial, now: float, max_attempts: int) -> Trial:
    lost = _lost_attempts(pending)
    if lost < max_attempts:
        return pending
    error = f"lost {counted(lost, 'time')}: " + "; ".join(str(attempt) for attempt in pending.history)
    return replace(pending, status="failed", ended=now, failure="lost", error=error)


def silence(seconds: float) -> str:
    """Return a message for a heartbeat so long ago; it lies in the future if a clock was set back."""
    if seconds >= 0:
        return f"no heartbeat for {seconds:.0f} s"
    return f"no heartbeat since the clock was set: the last is {-seconds:.0f} s in the future"


def _abandon(record: Trial, event: Abandon, now: float) -> Trial:
    if record.finished:
        raise _illegal(record, event, "it has ended")
    if record.status == "running":
        return _finish(record, now, "abandoned", f"by {event.by}")
    return replace(record, status="abandoned", ended=now, error=f"abandoned by {event.by}")


def _retry(record: Trial, event: Retry) -> Trial:
    if not record.finished or record.status == "completed":
        raise _illegal(record, event, "only a failed, stopped or abandoned trial can be tried again")
    history = record.history
    if history:
        *earlier, last = history
        note = f"tried again by {event.by}"
        history = (*earlier, replace(last, detail=f"{last.detail}; {note}" if last.detail else note))
    return replace(
        record,
        status="pending",
        ended=None,
        error=None,
        failure=None,
        metrics={},
        predicted={},
        history=history,
        forgiven=len(history),
    )


def _forget(record: Trial, event: Forget) -> Trial:
    """Return the record without the claim that this checkpoint is stored; nothing else changes.

    It is refused if the record makes no such claim: of several that remove a checkpoint, one goes on.
    """
    if record.status == "running":  # the next report of its worker would make the claim again
        raise _illegal(record, event, "its worker still reports what it has published")
    stages, points = (
        tuple(replace(run, snapshot=False) if run.key == event.key else run for run in runs)
        for runs in (record.stages, record.points)
    )
    if (stages, points) == (record.stages, record.points):
        raise _illegal(record, event, f"it has no stored snapshot {event.key[:12]}")
    return replace(record, stages=stages, points=points)


def _lost_attempts(record: Trial) -> int:
    """Return how often the trial was lost or crashed since a user last asked for a retry."""
    return sum(
        attempt.reason in ("expired", "crashed", "given_up") for attempt in record.history[record.forgiven :]
    )


def _check_holder(record: Trial, event: Heartbeat | Complete | StopEarly | Fail | Release) -> None:
    if record.status != "running":
        raise _illegal(record, event, "it is not running")
    if (record.worker, record.attempt) != (event.worker, event.attempt):
        raise _illegal(
            record,
            event,
            f"attempt {event.attempt} of {event.worker} was taken over by attempt {record.attempt} "
            f"of {record.worker}",
        )


def _finish(record: Trial, now: float, status: End, detail: str = "") -> Trial:
    return replace(_close_attempt(record, now, status, detail), status=status, ended=now)


def _back_to_pending(record: Trial, now: float, reason: Reason, detail: str) -> Trial:
    return replace(_close_attempt(record, now, reason, detail), status="pending")


def _close_attempt(record: Trial, now: float, reason: Reason, detail: str) -> Trial:
    attempt = Attempt(
        attempt=record.attempt,
        worker=record.worker or "",
        start=record.started if record.started is not None else now,
        end=now,
        reason=reason,
        detail=detail,
    )
    return replace(record, worker=None, heartbeat=None, history=(*record.history, attempt))


def _illegal(record: Trial, event: Event, why: str) -> IllegalTransition:
    return IllegalTransition(record.trial, record.status, type(event).__name__, why, record.history)
