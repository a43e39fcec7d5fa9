"""A worker: claim, run, report, again. `sweep worker` is this; any number of them share a sweep.

While a trial runs, its `heartbeat` tells the store that the worker lives. If the trial was taken over in the
meantime (this machine stalled, its network was cut), the heart finds out, the program is stopped, and
whatever it would have reported is dropped.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import random
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeGuard

from sweeps.errors import (
    Busy,
    DamagedObject,
    IllegalTransition,
    Interrupted,
    NothingToAsk,
    StoreUnavailable,
    SweepClosed,
    SweepError,
    UnstorableRecord,
    WriteRefused,
)
from sweeps.experiment import Experiment
from sweeps.space.definition import Value
from sweeps.storage.run_files.mirror import Uploader
from sweeps.text.counted import counted
from sweeps.trials import lifecycle, storable
from sweeps.trials.record import Reason, Trial, run_prefix
from sweeps.worker import program
from sweeps.worker.heartbeat import HeartbeatThread
from sweeps.worker.result import Completed, Failed, NotStarted, Preempted
from sweeps.worker.resuming import bring_checkpoints
from sweeps.worker.run_folder import require_writable
from sweeps.worker.signals import Stop

log = logging.getLogger(__name__)

_PAUSED_POLL_S = 5.0
_IDLE_POLL_S, _IDLE_POLL_REMOTE_S = 1.0, 10.0

PATIENCE_S = 1800.0
"""How long a finished result is kept for a store that does not answer."""


SIGNAL_S = 2.0
"""How long our own signal may be under way when a program was told to go: engines tell each process."""

UPLOAD_S = 900.0
"""How long a finished run folder may take into the bucket, its trial's heart beating on."""

UPLOAD_GRACE_S = 12.0
"""The same once the worker was told to go: of a notice of 30 s, the trainer's checkpoint takes some, too."""


class Watcher(Protocol):
    """Who is told what a worker does, for people to see."""

    def started(self, record: Trial) -> None: ...

    def progressed(self, record: Trial, progress: Mapping[str, Value]) -> None: ...

    def ended(self, record: Trial) -> None: ...

    def dropped(self, record: Trial, why: str) -> None: ...

    def waiting(self, why: str) -> None: ...

    def closed(self, why: str) -> None: ...


End = Reason | Literal["dropped"]
"""How a trial left this worker; dropped: somebody else had taken it over."""


@dataclass(frozen=True, kw_only=True)
class Tally:
    """What a worker did: how many trials left it in which way, and by what it was told to go, if it was."""

    ended: Mapping[End, int]
    preempted_by: str = ""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When a worker leaves by itself.

    Args:
        max_trials: after so many trials have left it, in whatever way.
        max_hours: it claims nothing more so long after its start; the trial in hand is finished.
        leave_when_idle: as soon as there is nothing to claim, without looking after trials of others.
        leave_when_braked: as soon as the sweep has paused itself, without waiting for a person.
        started: the monotonic time of its start.
    """

    max_trials: int | None = None
    max_hours: float | None = None
    leave_when_idle: bool = False
    leave_when_braked: bool = False
    started: float = field(default_factory=time.monotonic)

    def reached(self, trials: int) -> bool:
        """Whether it claims nothing more."""
        if self.max_trials is not None and trials >= self.max_trials:
            return True
        return self.max_hours is not None and time.monotonic() - self.started >= self.max_hours * 3600


def identity() -> str:
    """Who this worker is: host, process, and a token, because hosts and process ids come again."""
    return f"{storable.line(platform.node(), 100) or 'host'}-{os.getpid()}-{uuid.uuid4().hex[:6]}"


def work(
    experiment: Experiment,
    *,
    stop: Stop,
    watcher: Watcher,
    limits: Limits | None = None,
    name: str | None = None,
) -> Tally:
    """Run trials until there are none left to claim, a limit is reached, or `stop` is requested.

    Raises:
        CannotStart: the sweep's program is not in this folder, or not on this machine.
        StoreUnavailable: the store could not be reached; a trial in hand expires and is taken over.
    """
    me = storable.line(name or "") or identity()
    limits = limits or Limits()
    ended: Counter[End] = Counter()
    try:
        while not stop.requested and not limits.reached(ended.total()):
            with stop.interruptible():  # to load a function may take long; before anything is claimed
                program.require_startable(experiment.space)
            record = _next(experiment, me, stop, watcher, limits)
            if record is None:
                break
            end, preempted_by = _run(experiment, record, stop, watcher, has_run=bool(ended))
            if preempted_by:
                return Tally(ended=ended, preempted_by=preempted_by)
            ended[end] += 1
    except Interrupted:
        log.debug("interrupted while no trial was in hand")
    return Tally(ended=ended, preempted_by=stop.by)


def _run(
    experiment: Experiment, record: Trial, stop: Stop, watcher: Watcher, *, has_run: bool
) -> tuple[End, str]:
    """Run one claimed trial and report it: how it ended, and by what the worker was told to go, if it was.

    Args:
        has_run: whether this worker has run a trial of the sweep before.
    """
    with _heartbeat(experiment, record, watcher) as heartbeat:
        uploads = Uploader(experiment.store, heartbeat.folder, run_prefix(record.trial, record.attempt))
        try:
            with stop.interruptible():
                bring_checkpoints(experiment.store, record, heartbeat.folder)
            uploads.start()
            watcher.started(record)
            outcome = program.run(
                experiment.space, record, heartbeat.folder, stop=stop, wants_stop=lambda: heartbeat.wants_stop
            )
            if isinstance(outcome, NotStarted):
                outcome = _not_started(outcome, has_run=has_run)
            if isinstance(outcome, Failed):
                require_writable(heartbeat.folder)  # where nothing can be written, any program fails
            # A program that was stopped though nobody told us: the machine is going, our signal is under way.
            preempted_by = ""
            if isinstance(outcome, Preempted) and not heartbeat.wants_stop:
                uploads.close(UPLOAD_GRACE_S)  # whoever takes the trial over needs the checkpoint
                with contextlib.suppress(Interrupted):
                    stop.sleep(SIGNAL_S)
                preempted_by = stop.by or outcome.detail
            end = _report(
                experiment, record, _event(experiment, record, outcome, heartbeat, stop), stop, watcher
            )
            uploads.close(UPLOAD_S, leave=lambda: stop.requested, grace=UPLOAD_GRACE_S)
        except BaseException as error:
            uploads.close(UPLOAD_GRACE_S)
            if not _goes_on_after(error):
                _hand_back(experiment, record, error)
                raise
            return _give_up(experiment, record, error, stop, watcher), ""
    return end, preempted_by


def _not_started(outcome: NotStarted, *, has_run: bool) -> Failed:
    """A program that never began, though this worker has run it before: then this trial's parameters may be
    why, and a few attempts will show it.

    Raises:
        CannotStart: the worker has not run it before: its folder or its machine is at fault.
    """
    if not has_run:
        raise program.cannot_start(outcome.detail)
    return Failed(error=f"the program could not be started: {outcome.detail}", failure="crashed", again=True)


def _heartbeat(experiment: Experiment, record: Trial, watcher: Watcher) -> HeartbeatThread:
    """The claimed trial's heart. A trial whose run folder cannot be made is handed back."""
    try:
        return HeartbeatThread(experiment, record, watcher.progressed)
    except StoreUnavailable as error:
        _hand_back(experiment, record, error)
        raise


def _next(experiment: Experiment, me: str, stop: Stop, watcher: Watcher, limits: Limits) -> Trial | None:
    """The next trial to run, or None once nothing is left that this worker should wait for.

    At the cap, trials of other workers may still come back: a worker leaves only after it has seen each of
    them give a sign of life (or end), so that the replacement of a dead worker outwaits its lease.
    """
    first_beats: dict[tuple[int, int], float] = {}
    used_up = False
    pauses = _pauses()
    while True:
        try:
            if (record := experiment.ask(me, wait=stop.sleep, make=not used_up)) is not None:
                return record
        except NothingToAsk as error:
            used_up = True
            log.warning("%s", error)
        except StoreUnavailable as error:
            pause = next(pauses, None)
            heals = isinstance(error, Busy) or experiment.store.is_remote  # a folder does not
            if pause is None or not heals:
                raise
            log.warning("asking failed, trying again: %s", error)
            stop.sleep(pause)
            continue
        except SweepClosed as closed:
            waits = closed.state == "paused" or (closed.state == "braked" and not limits.leave_when_braked)
            if limits.leave_when_idle or not waits:
                watcher.closed(closed.message)
                return None
            watcher.waiting(closed.message)
            stop.sleep(random.uniform(0.5, 1.5) * _PAUSED_POLL_S)  # noqa: S311 - spreads workers out
            continue
        if limits.leave_when_idle:
            return None
        others = experiment.recent_trials()  # as `ask` has just listed them: a listing is billed
        running = {
            (other.trial, other.attempt): other.heartbeat
            for other in others
            if other.status == "running" and other.heartbeat is not None
        }
        silent = [who for who, beat in running.items() if first_beats.setdefault(who, beat) == beat]
        stuck = sum(other.status == "pending" for other in others)  # else it would be ours
        if stuck:
            watcher.waiting(f"{counted(stuck, 'trial')} cannot be claimed now: waiting")
        elif silent:
            watcher.waiting(f"waiting for a sign of life of {counted(len(silent), 'trial')} elsewhere")
        else:
            return None
        # Nothing can happen before a heartbeat or a lease has run out; in a bucket every look is billed.
        longest = _IDLE_POLL_REMOTE_S if experiment.store.is_remote else _IDLE_POLL_S
        stop.sleep(min(longest, experiment.space.lease.heartbeat_s / 4))


def _goes_on_after(error: BaseException) -> TypeGuard[Exception]:
    """Whether the worker goes on with other trials after this error over one.

    Where it was told to go, or its machine is at fault, it ends, and the trial keeps its attempts. An error
    that nobody foresaw, or a damaged object of the trial, may meet whoever takes the trial next: then the
    attempt counts as lost, and the worker lives on, or one trial would end a whole fleet.
    """
    is_machines = isinstance(error, OSError | SweepError) and not isinstance(error, DamagedObject)
    return isinstance(error, Exception) and not is_machines


def _hand_back(experiment: Experiment, record: Trial, error: BaseException) -> None:
    """This worker cannot run trials; the next one may. The trial is not to blame and keeps its attempts."""
    release = lifecycle.Release(
        worker=record.worker or "", attempt=record.attempt, detail=_in_one_line(error)
    )
    try:
        experiment.apply(record.trial, release)
    except SweepError as failure:
        log.warning("trial %d was not handed back, its lease will expire: %s", record.trial, failure)


def _give_up(experiment: Experiment, record: Trial, error: Exception, stop: Stop, watcher: Watcher) -> End:
    detail = _in_one_line(error)
    log.warning("trial %d is given up here: %s", record.trial, detail)
    log.debug("the traceback:", exc_info=error)
    event = lifecycle.Release(
        worker=record.worker or "",
        attempt=record.attempt,
        detail=detail,
        max_attempts=experiment.space.lease.max_attempts,
    )
    return _report(experiment, record, event, stop, watcher)


def _in_one_line(error: BaseException) -> str:
    return " ".join(storable.raised(error).split())


def _event(
    experiment: Experiment,
    record: Trial,
    outcome: Completed | Failed | Preempted,
    heartbeat: HeartbeatThread,
    stop: Stop,
) -> lifecycle.Event:
    """What the store is told."""
    worker, attempt = record.worker or "", record.attempt
    max_attempts = experiment.space.lease.max_attempts
    curve = heartbeat.curve()
    match outcome:
        case Completed(metrics=metrics):
            return lifecycle.Complete(worker=worker, attempt=attempt, metrics=metrics, curve=curve)
        case Failed(error=error, failure=failure, again=again):
            return lifecycle.Fail(
                worker=worker,
                attempt=attempt,
                error=error,
                failure=failure,
                max_attempts=max_attempts if again else 1,
            )
        case Preempted() if heartbeat.verdict:
            return lifecycle.StopEarly(
                worker=worker, attempt=attempt, metrics={}, curve=curve, detail=heartbeat.verdict
            )
        case Preempted(detail=detail) if stop.requested:
            return lifecycle.Release(worker=worker, attempt=attempt, detail=stop.by)
        case Preempted(detail=detail):  # by itself, again and again perhaps
            return lifecycle.Release(worker=worker, attempt=attempt, detail=detail, max_attempts=max_attempts)


def _report(
    experiment: Experiment, record: Trial, event: lifecycle.Event, stop: Stop, watcher: Watcher
) -> End:
    """Tell the store how the trial ended. A report that comes too late is dropped quietly.

    While the store is away the report is tried again and again, the heart beating on: the result may be worth
    hours. It is given up when the worker is told to go, or after `PATIENCE_S`; where this worker may not
    write, as soon as its lease has expired, since from then on another has the trial. A report that nobody
    could read back fails its trial: another worker's attempt would end in the same way.
    """
    pauses = _pauses()
    expires = time.monotonic() + experiment.space.lease.expire_s
    while True:
        try:
            ended = experiment.apply(record.trial, event)
        except IllegalTransition as refused:
            watcher.dropped(record, refused.why)
            return "dropped"
        except UnstorableRecord as error:
            if isinstance(event, lifecycle.Fail) and event.failure == "bad_config":
                raise
            log.warning("%s", error)
            event = lifecycle.Fail(
                worker=record.worker or "",
                attempt=record.attempt,
                error=f"its result cannot be stored: {error.reason}",
                failure="bad_config",
            )
        except StoreUnavailable as error:
            pause = next(pauses, None)
            refused_for_good = isinstance(error, WriteRefused) and time.monotonic() >= expires
            if pause is None or stop.requested or refused_for_good:
                raise
            log.warning("the report of trial %d failed, trying again: %s", record.trial, error)
            with contextlib.suppress(Interrupted):
                stop.sleep(pause)
        else:
            watcher.ended(ended)
            if ended.status == "pending" or ended.status == "running":
                return ended.history[-1].reason
            return ended.status


def _pauses() -> Iterator[float]:
    """Seconds between tries: doubling from 1 to 60, `PATIENCE_S` in all."""
    pause, total = 1.0, 0.0
    while total < PATIENCE_S:
        yield pause
        total += pause
        pause = min(60.0, 2 * pause)
