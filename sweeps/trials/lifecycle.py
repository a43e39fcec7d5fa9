"""The life of a trial, pure: `apply(record, event, now) -> record`. No IO, no clock, no threads.

    pending ──Claim──▶ running ──Complete──▶ completed
       ▲                 │  ├──Fail───────▶ failed
       │                 │  ├──StopEarly──▶ early_stopped
       ├─Release/Expire──┘  └──Abandon────▶ abandoned
       └─────────────────────Retry─────────────┘

A crash that another try may mend is a Fail that sends the trial back to pending until it was lost too often.
`experiment` stores what comes out with a compare-and-swap on the version that went in, which makes the
record's version the fencing token: a worker whose lease was taken over names an attempt that is no longer
the present one, and is refused. `now` is always the store's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from sweeps.errors import IllegalTransition
from sweeps.space.definition import Value
from sweeps.text.counted import counted
from sweeps.trials.record import Attempt, Failure, Reason, Trial


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A worker takes a pending trial. Without a lease (`sweep ask`) it never expires by itself."""

    worker: str
    leased: bool = True


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """The worker is alive, and what its program last said of itself: progress and intermediate losses."""

    worker: str
    attempt: int
    progress: Mapping[str, Value] = field(default_factory=dict)
    curve: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Complete:
    """The objective reported its metrics, and its intermediate losses to the end."""

    worker: str
    attempt: int
    metrics: Mapping[str, float | None]
    curve: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Fail:
    """The objective is at fault; it is tried again until the trial was lost `max_attempts` times."""

    worker: str
    attempt: int
    error: str
    failure: Failure
    max_attempts: int = 1


@dataclass(frozen=True, kw_only=True)
class StopEarly:
    """The trial was stopped with what it had, for a reason in one line."""

    worker: str
    attempt: int
    metrics: Mapping[str, float | None]
    curve: tuple[tuple[float, float], ...] = ()
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Release:
    """The worker hands the trial back: same index, same parameters.

    With `max_attempts` the attempt counts as lost, since the trial itself may be why: whoever takes it next
    would fare no better. Without, it is free: the worker was told to go, or could not have run any trial.
    """

    worker: str
    attempt: int
    detail: str = ""
    max_attempts: int | None = None


@dataclass(frozen=True, kw_only=True)
class Expire:
    """Somebody saw no heartbeat for `after_s` seconds."""

    after_s: float
    max_attempts: int


@dataclass(frozen=True, kw_only=True)
class Abandon:
    """A person gives the trial up."""

    by: str


@dataclass(frozen=True, kw_only=True)
class Retry:
    """A person wants a trial that failed, was stopped or abandoned to be run again."""

    by: str


End = Literal["completed", "failed", "early_stopped", "abandoned"]
"""A status that nothing leaves by itself."""

Event = Claim | Heartbeat | Complete | Fail | StopEarly | Release | Expire | Abandon | Retry


def apply(record: Trial, event: Event, now: float) -> Trial:
    """The record after the event.

    Returns `record` itself where the event changes nothing (the repeat of a report that was accepted).

    Raises:
        IllegalTransition: the event does not fit the record's status, or comes from a worker whose lease
            was taken over, or reports something else than what was accepted already.
    """
    match event:
        case Claim():
            return _claim(record, event, now)
        case Heartbeat():
            _must_hold(record, event)
            return replace(
                record,
                heartbeat=now if record.heartbeat is not None else None,
                progress=dict(event.progress) or record.progress,
                curve=event.curve or record.curve,
            )
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


def is_stale(record: Trial, now: float, after_s: float) -> bool:
    """Whether a running trial's worker has given no sign of life for `after_s` seconds.

    A heartbeat from as far in the future is no sign of life either: some clock was wrong, and a trial must
    not wait for it to come true.
    """
    if record.status != "running" or record.heartbeat is None:
        return False
    return abs(now - record.heartbeat) > after_s


def _claim(record: Trial, event: Claim, now: float) -> Trial:
    if record.status != "pending":
        raise _refused(record, event, "only a pending trial can be claimed")
    return replace(
        record,
        status="running",
        worker=event.worker,
        attempt=record.attempt + 1,
        heartbeat=now if event.leased else None,
        started=now,
        progress={},
        curve=(),
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
        raise _refused(record, event, "a different end was recorded first")
    _must_hold(record, event)
    detail = event.detail if isinstance(event, StopEarly) else ""
    told = replace(record, metrics=dict(event.metrics), curve=event.curve or record.curve, error=None)
    return _finish(told, now, status, detail)


def _fail(record: Trial, event: Fail, now: float) -> Trial:
    if record.status == "failed" and record.attempt == event.attempt and record.error == event.error:
        return record
    _must_hold(record, event)
    detail = event.error.partition("\n")[0]
    if event.failure == "crashed" or event.max_attempts > 1:
        pending = _back_to_pending(replace(record, error=event.error), now, "crashed", detail)
        if _lost_attempts(pending) < event.max_attempts:
            return pending
        return replace(pending, status="failed", ended=now, failure=event.failure)
    return _finish(replace(record, error=event.error, failure=event.failure), now, "failed", detail)


def _release(record: Trial, event: Release, now: float) -> Trial:
    _must_hold(record, event)
    if event.max_attempts is None:
        return _back_to_pending(record, now, "released", event.detail)
    pending = _back_to_pending(record, now, "given_up", event.detail)
    return _unless_lost_too_often(pending, now, event.max_attempts)


def _expire(record: Trial, event: Expire, now: float) -> Trial:
    if not is_stale(record, now, event.after_s):
        raise _refused(record, event, "its lease has not run out")
    silent_s = now - (record.heartbeat or 0.0)
    pending = _back_to_pending(record, now, "expired", silence(silent_s))
    return _unless_lost_too_often(pending, now, event.max_attempts)


def _unless_lost_too_often(pending: Trial, now: float, max_attempts: int) -> Trial:
    lost = _lost_attempts(pending)
    if lost < max_attempts:
        return pending
    told = "; ".join(str(attempt) for attempt in pending.history)
    return replace(
        pending, status="failed", ended=now, failure="lost", error=f"lost {counted(lost, 'time')}: {told}"
    )


def silence(seconds: float) -> str:
    """Say how long ago the last heartbeat was; after a clock was set back, it lies in the future."""
    if seconds >= 0:
        return f"no heartbeat for {seconds:.0f} s"
    return f"no heartbeat since the clock was set: the last is {-seconds:.0f} s in the future"


def _abandon(record: Trial, event: Abandon, now: float) -> Trial:
    if record.finished:
        raise _refused(record, event, "it has ended")
    if record.status == "running":
        return _finish(record, now, "abandoned", f"by {event.by}")
    return replace(record, status="abandoned", ended=now, error=f"abandoned by {event.by}")


def _retry(record: Trial, event: Retry) -> Trial:
    if not record.finished or record.status == "completed":
        raise _refused(record, event, "only a failed, stopped or abandoned trial can be tried again")
    return replace(
        record,
        status="pending",
        ended=None,
        error=None,
        failure=None,
        metrics={},
        forgiven=len(record.history),
    )


def _lost_attempts(record: Trial) -> int:
    """How often the trial was lost or its program crashed since a person last asked for another try."""
    return sum(
        attempt.reason in ("expired", "crashed", "given_up") for attempt in record.history[record.forgiven :]
    )


def _must_hold(record: Trial, event: Heartbeat | Complete | Fail | StopEarly | Release) -> None:
    if record.status != "running":
        raise _refused(record, event, "it is not running")
    if (record.worker, record.attempt) != (event.worker, event.attempt):
        raise _refused(
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


def _refused(record: Trial, event: Event, why: str) -> IllegalTransition:
    return IllegalTransition(record.trial, record.status, type(event).__name__, why, record.history)
