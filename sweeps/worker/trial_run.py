"""One claimed trial from its first heartbeat to its report.

A `heartbeat` thread keeps the lease. If the trial was taken over in the meantime (this machine stalled, its
network was cut), the thread notices, the program is stopped, and its result is dropped.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, Protocol, TypeGuard

from sweeps.errors import (
    DamagedObject,
    IllegalTransition,
    Interrupted,
    StoreUnavailable,
    SweepError,
    UnstorableRecord,
    WriteRefused,
)
from sweeps.experiment import Experiment
from sweeps.programs import program
from sweeps.programs.result import Completed, Failed, NotStarted, Preempted
from sweeps.programs.signals import Stop
from sweeps.programs.warm_start import WarmStarts
from sweeps.space.definition import Space, Value
from sweeps.stages.checkpoint import SNAPSHOTS, SharedKeys, clause
from sweeps.storage.run_files.mirror import Uploader
from sweeps.transfer.attempt import TrialStages
from sweeps.trials import lifecycle, storable
from sweeps.trials.record import FINISHED, Reason, Trial, run_prefix
from sweeps.worker import backoff
from sweeps.worker.heartbeat import HeartbeatThread
from sweeps.worker.last_uploads import LastUploads
from sweeps.worker.resuming import behind, bring_checkpoints
from sweeps.worker.run_folder import require_writable

log = logging.getLogger(__name__)

SIGNAL_DELAY_S = 2.0
"""Longest delay between the signals to a program and to its worker: engines signal each process."""

UPLOAD_S = 900.0
"""Limit for the upload of a finished run folder, while heartbeats go on."""

UPLOAD_GRACE_S = 12.0
"""The same after a stop request: the trainer's checkpoint takes a part of the notice of 30 s, too."""

End = Reason | Literal["dropped"]
"""How a trial left this worker; "dropped": another worker had taken it over."""


class Watcher(Protocol):
    """Observer that shows people what a worker does."""

    def started(self, record: Trial) -> None: ...

    def progressed(self, record: Trial, progress: Mapping[str, Value]) -> None: ...

    def ended(self, record: Trial) -> None: ...

    def dropped(self, record: Trial, why: str) -> None: ...

    def waiting(self, why: str) -> None: ...

    def closed(self, why: str) -> None: ...


@dataclass(frozen=True)
class TrialRun:
    """Execution of one claimed trial by this worker.

    Args:
        experiment: the worker's.
        record: the claimed trial.
        stop: the worker's stop request.
        watcher: observer of what happens.
        function: to call in place of the sweep's program.
        warm: starts of the program without its imports, if it has any.
        uploads: ends the upload of a finished trial; its owner waits for it.
    """

    experiment: Experiment
    record: Trial
    stop: Stop
    watcher: Watcher
    function: program.Function | None = None
    warm: WarmStarts | None = None
    uploads: LastUploads = field(default_factory=LastUploads)

    def execute(self, *, has_run: bool) -> tuple[End, str]:
        """Run the trial's program and report its result.

        Args:
            has_run: whether this worker has run a trial of the sweep before.

        Returns:
            How the trial ended, and what preempted the worker ("" if nothing did).

        Raises:
            CannotStart: the program never began, and this worker has not run it before.
        """
        with self._heartbeat() as heartbeat:
            shared = shared_keys(self.experiment.space, self.record)
            snapshots = TrialStages(self.experiment, self.record, heartbeat.folder, shared)
            heartbeat.ended, heartbeat.points = lambda: snapshots.ended, lambda: snapshots.points
            uploader = self._uploader(heartbeat.folder, snapshots)
            try:
                outcome = self._run_program(heartbeat, uploader, snapshots, has_run=has_run)
                preempted_by = self._preempted_by(outcome, heartbeat, uploader)
                self._publish(outcome, heartbeat, snapshots)
                end = self.report(self._event(outcome, heartbeat, snapshots))
                close = partial(
                    uploader.close, UPLOAD_S, leave=lambda: self.stop.requested, grace=UPLOAD_GRACE_S
                )
                self.uploads.begin(close)
                if end not in FINISHED:  # this worker may be the next one to claim it
                    self.uploads.wait()
            except BaseException as error:
                uploader.close(UPLOAD_GRACE_S)
                snapshots.close(0)
                if not _worker_survives(error):
                    self._hand_back(error)
                    raise
                return self._give_up(error), ""
        return end, preempted_by

    def report(self, event: lifecycle.Event) -> End:
        """Store how the trial ended. A report that comes too late is dropped quietly.

        While the store is unavailable the report is retried and heartbeats go on: the result may be worth
        hours. It is given up on a stop request, or after `backoff.RETRY_FOR_S`; without write permission, as
        soon as the lease has expired, since from then on another worker has the trial. A report that cannot
        be stored fails its trial: another worker's attempt would end in the same way.
        """
        delays = backoff.delays()
        expires = time.monotonic() + self.experiment.space.lease.expire_s
        while True:
            try:
                ended = self.experiment.apply(self.record.trial, event)
            except IllegalTransition as refused:
                self.watcher.dropped(self.record, refused.why)
                return "dropped"
            except UnstorableRecord as error:
                if isinstance(event, lifecycle.Fail) and event.failure == "bad_config":
                    raise
                log.warning("%s", error)
                event = lifecycle.Fail(
                    worker=self.record.worker or "",
                    attempt=self.record.attempt,
                    error=f"its result cannot be stored: {error.reason}",
                    failure="bad_config",
                )
            except StoreUnavailable as error:
                delay = next(delays, None)
                refused_for_good = isinstance(error, WriteRefused) and time.monotonic() >= expires
                if delay is None or self.stop.requested or refused_for_good:
                    raise
                log.warning("the report of trial %d failed, trying again: %s", self.record.trial, error)
                with contextlib.suppress(Interrupted):
                    self.stop.sleep(delay)
            else:
                self.watcher.ended(ended)
                if ended.status == "pending" or ended.status == "running":
                    return ended.history[-1].reason
                return ended.status

    def _heartbeat(self) -> HeartbeatThread:
        """Return the trial's heartbeat thread; a trial whose run folder cannot be made is handed back."""
        try:
            return HeartbeatThread(self.experiment, self.record, self.watcher.progressed)
        except StoreUnavailable as error:
            self._hand_back(error)
            raise

    def _uploader(self, folder: Path, snapshots: TrialStages) -> Uploader:
        """Return the run folder's uploader; snapshots have a place of their own in the store."""
        prefix = run_prefix(self.record.trial, self.record.attempt)
        without = SNAPSHOTS if snapshots.shared else ""
        return Uploader(self.experiment.store, folder, prefix, without=without)

    def _run_program(
        self, heartbeat: HeartbeatThread, uploader: Uploader, snapshots: TrialStages, *, has_run: bool
    ) -> Completed | Failed | Preempted:
        with self.stop.interruptible():
            resumed = bring_checkpoints(self.experiment.store, self.record, heartbeat.folder)
            snapshots.fetch(*behind(heartbeat.folder, snapshots.names))
        uploader.start()
        snapshots.start(resumed=resumed is not None)
        self.watcher.started(self.record)
        outcome = program.run(
            self.experiment.space,
            self.record,
            heartbeat.folder,
            stop=self.stop,
            wants_stop=lambda: heartbeat.wants_stop,
            snapshots=bool(snapshots.shared.ends),
            points=bool(snapshots.shared.trunks),
            function=self.function,
            warm=self.warm,
        )
        if isinstance(outcome, NotStarted):
            if not has_run:  # then its folder or its machine is at fault, else perhaps these parameters
                raise program.cannot_start(outcome.detail)
            error = f"the program could not be started: {outcome.detail}"
            outcome = Failed(error=error, failure="crashed", retryable=True)
        if isinstance(outcome, Failed):
            require_writable(heartbeat.folder)  # in a folder without write access any program fails
        return outcome

    def _preempted_by(
        self, outcome: Completed | Failed | Preempted, heartbeat: HeartbeatThread, uploader: Uploader
    ) -> str:
        """Return what preempts this machine, if the program was stopped but not by this worker; else ""."""
        if not isinstance(outcome, Preempted) or heartbeat.wants_stop:
            return ""
        uploader.close(UPLOAD_GRACE_S)  # the next attempt needs the checkpoint
        with contextlib.suppress(Interrupted):
            self.stop.sleep(SIGNAL_DELAY_S)  # our own signal may be about to arrive
        return self.stop.by or outcome.detail

    def _publish(
        self, outcome: Completed | Failed | Preempted, heartbeat: HeartbeatThread, snapshots: TrialStages
    ) -> None:
        """Publish remaining snapshots before the final report; the final record cannot list them.

        Skip this if the worker is stopping or has lost the trial. The report of a failed trial has no stages:
        a last heartbeat lists what it has published.
        """
        skip = heartbeat.lost or (isinstance(outcome, Preempted) and not heartbeat.stop_reason)

        def leave() -> bool:
            return self.stop.requested or heartbeat.lost

        snapshots.close(0 if skip else UPLOAD_S, leave=leave, grace=UPLOAD_GRACE_S)
        stages, points = snapshots.ended, snapshots.points
        if isinstance(outcome, Failed) and (stages, points) != (self.record.stages, self.record.points):
            worker, attempt = self.record.worker or "", self.record.attempt
            last = lifecycle.Heartbeat(worker=worker, attempt=attempt, stages=stages, points=points)
            with contextlib.suppress(SweepError):  # the report will fail in the same way
                self.experiment.apply(self.record.trial, last)

    def _event(
        self, outcome: Completed | Failed | Preempted, heartbeat: HeartbeatThread, snapshots: TrialStages
    ) -> lifecycle.Event:
        """Return the lifecycle event of an outcome."""
        worker, attempt = self.record.worker or "", self.record.attempt
        max_attempts = self.experiment.space.lease.max_attempts
        curve = heartbeat.curve()
        match outcome:
            case Completed(metrics=metrics, stages=stages):
                return lifecycle.Complete(
                    worker=worker,
                    attempt=attempt,
                    metrics=metrics,
                    curve=curve.points,
                    curve_of=curve.of,
                    stages=snapshots.report(stages, metrics),
                    points=snapshots.points,
                )
            case Failed(error=error, failure=failure, retryable=retryable):
                return lifecycle.Fail(
                    worker=worker,
                    attempt=attempt,
                    error=error,
                    failure=failure,
                    max_attempts=max_attempts if retryable else 1,
                )
            case Preempted() if heartbeat.stop_reason:
                return lifecycle.StopEarly(
                    worker=worker,
                    attempt=attempt,
                    metrics={},
                    predicted=heartbeat.predicted,
                    curve=curve.points,
                    curve_of=curve.of,
                    stages=snapshots.ended,
                    points=snapshots.points,
                    detail=heartbeat.stop_reason,
                )
            case Preempted() if self.stop.requested:
                return self._release(self.stop.by)
            case Preempted(detail=detail):  # by itself: counted, because it may do so every time
                return self._release(detail, max_attempts)

    def _hand_back(self, error: BaseException) -> None:
        """Release the trial without counting the attempt: another worker may be able to run it."""
        try:
            self.experiment.apply(self.record.trial, self._release(_in_one_line(error)))
        except SweepError as failure:
            log.warning("trial %d was not handed back, its lease will expire: %s", self.record.trial, failure)

    def _give_up(self, error: Exception) -> End:
        """Release the trial and count the attempt as lost."""
        detail = _in_one_line(error)
        log.warning("trial %d is given up here: %s", self.record.trial, detail)
        log.debug("the traceback:", exc_info=error)
        return self.report(self._release(detail, self.experiment.space.lease.max_attempts))

    def _release(self, detail: str, max_attempts: int | None = None) -> lifecycle.Release:
        """Return a release of the trial; with `max_attempts` the attempt counts as lost."""
        worker, attempt = self.record.worker or "", self.record.attempt
        return lifecycle.Release(worker=worker, attempt=attempt, detail=detail, max_attempts=max_attempts)


def _worker_survives(error: BaseException) -> TypeGuard[Exception]:
    """Return whether the worker goes on with other trials after this error.

    A stop request or a fault of the machine ends the worker, and the trial keeps its attempts. An unexpected
    error, or a damaged object of the trial, may recur with any worker: then the attempt counts as lost, and
    the worker goes on, since otherwise one trial would end all workers.
    """
    machine_at_fault = isinstance(error, OSError | SweepError) and not isinstance(error, DamagedObject)
    return isinstance(error, Exception) and not machine_at_fault


def _in_one_line(error: BaseException) -> str:
    return " ".join(storable.raised(error).split())


def shared_keys(space: Space, record: Trial) -> SharedKeys:
    """Return the ends of stages and the trunks that a trial can share; none, with a warning, on an error."""
    shared = SharedKeys(ends={}, trunks={})
    try:
        shared = SharedKeys(ends=program.stage_keys(space, record.parameters), trunks={})
        return SharedKeys(ends=shared.ends, trunks=program.stage_trunks(space, record.parameters))
    except Exception as error:  # noqa: BLE001 - no snapshot may cost its trial an attempt
        what = "trunks" if shared else "stages"
        log.warning("trial %d shares no %s: %s", record.trial, what, clause(error))
        return shared
