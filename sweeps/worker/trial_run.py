"""One claimed trial from its first heartbeat to its report.

A `heartbeat` thread keeps the lease. If the trial was taken over in the meantime (this machine stalled, its
network was cut), the thread notices, the program is stopped, and its result is dropped.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock

from sweeps.errors import (
    DamagedObject,
    DiskFailed,
    EnvironmentFault,
    IllegalTransition,
    Interrupted,
    NewerObject,
    StoreUnavailable,
    SweepError,
    UnstorableRecord,
    WriteRefused,
)
from sweeps.experiment import Experiment
from sweeps.programs.base import Program, cannot_start
from sweeps.programs.result import Completed, Failed, NotStarted, Preempted, disk_failed, exceeded_file_size
from sweeps.programs.signals import Stop
from sweeps.space.definition import Value
from sweeps.stages.checkpoint import SNAPSHOTS, SharedKeys, clause
from sweeps.storage.base import NotFound
from sweeps.storage.keys import SWEEP_KEY
from sweeps.storage.run_files.mirror import Uploader
from sweeps.storage.run_files.scan import CHECKPOINTS
from sweeps.storage.run_files.upload import UPLOAD_S
from sweeps.text.shorten import shown_bytes
from sweeps.transfer.attempt import TrialStages
from sweeps.trials import lifecycle, storable
from sweeps.trials.amendments import Amendments
from sweeps.trials.record import FINISHED, Reason, Trial, run_prefix
from sweeps.worker.heartbeat import HeartbeatThread
from sweeps.worker.leftovers import hold, keep_run, remove_run
from sweeps.worker.resuming import checkpoint_progress, fetch_checkpoints, remove_checkpoints

log = logging.getLogger(__name__)

SIGNAL_DELAY_S = 2.0
"""Longest delay between the signals to a program and to its worker: engines signal each process."""

UPLOAD_GRACE_S = 12.0
"""The same after a stop request: the trainer's checkpoint takes a part of the notice of 30 s, too."""

_WORTH_TIMING = 2**24
"""Bytes; what is smaller takes long only where the bucket does not answer."""

RETRY_FOR_S = 1800.0
"""Seconds of waits for a store that does not answer: with the tries a bucket gets about 100 minutes."""

End = Reason | Literal["dropped"]
"""How a trial left this worker; "dropped": another worker had taken it over."""


class Watcher:
    """Observer of a worker, which `tell` shows what happens."""

    _waiting_for = ""

    def tell(self, event: str, record: Trial | None, why: str) -> None:
        """Show an event: started, ended or dropped of a trial, waiting or closed of the worker."""

    def progressed(self, record: Trial, progress: Mapping[str, Value]) -> None:
        """Do nothing: `sweep status` shows progress, and metrics.jsonl keeps it."""

    def started(self, record: Trial) -> None:
        self.tell("started", record, "")

    def ended(self, record: Trial) -> None:
        self.tell("ended", record, "")

    def dropped(self, record: Trial, why: str) -> None:
        self.tell("dropped", record, why)

    def waiting(self, why: str) -> None:
        if why != self._waiting_for:
            self._waiting_for = why
            self.tell("waiting", None, why)

    def closed(self, why: str) -> None:
        self.tell("closed", None, why)


class LastUploads:
    """Background thread that closes the uploader of one finished trial at a time.

    The upload of the last files needs neither lease nor device.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._has_warned = False

    def timed(self, name: str, size: int, seconds: float) -> None:
        """Warn once where a checkpoint takes longer to upload than a preemption leaves.

        What was uploaded while a run went on is the only honest measure: the preflight, which measures the
        disk, would have to send gigabytes.

        Args:
            name: of the file or the folder in the run folder.
            size: bytes.
        """
        if not name.startswith(f"{CHECKPOINTS}/") or self._has_warned:
            return
        if size < _WORTH_TIMING or seconds <= UPLOAD_GRACE_S:
            return
        self._has_warned = True
        log.warning(
            "%s took %.0f s to upload (%s, %s/s), and a preemption leaves %g s: a trial that is taken over "
            "goes on from the checkpoint before; leave more of them (checkpoint.every_seconds), or take a "
            "bucket nearer to this machine",
            *(name, seconds, shown_bytes(size), shown_bytes(round(size / seconds)), UPLOAD_GRACE_S),
        )

    def begin(self, close: Callable[[], object]) -> None:
        """Make the call in the background, after the one before.

        Args:
            close: returns in limited time, the sooner after a stop request.
        """
        self.wait()
        self._thread = threading.Thread(target=close, name="last uploads", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the last call has returned."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None


@dataclass
class TrialRun:
    """Execution of one claimed trial by this worker.

    Args:
        uploads: ends the upload of a finished trial; its owner waits for it.

    Attributes:
        record: as it was claimed; as it ended, once that is reported.
        handed_back: whether other workers can claim the trial again.
    """

    experiment: Experiment
    record: Trial
    program: Program
    stop: Stop
    watcher: Watcher
    uploads: LastUploads
    handed_back: bool = field(default=False, init=False)

    def execute(self, *, has_run: bool) -> tuple[End, str]:
        """Run the trial's program and report its result.

        Args:
            has_run: whether this worker has run a trial of the sweep before.

        Returns:
            How the trial ended, and what preempted the worker ("" if nothing did).

        Raises:
            CannotStart: the program never began, and this worker has not run it before.
        """
        try:
            heartbeat = HeartbeatThread(self.experiment, self.record, self.watcher.progressed)
        except StoreUnavailable as error:  # the run folder cannot be made
            self._hand_back(error)
            raise
        with heartbeat:
            lock = hold(heartbeat.folder) if self.experiment.store.is_remote else None
            shared = SharedKeys()
            try:
                shared = self.program.shared_keys(self.record.parameters)
            except Exception as error:  # noqa: BLE001 - no checkpoint may cost its trial an attempt
                log.warning("trial %d shares no stages: %s", self.record.trial, clause(error))
            stages = TrialStages(self.experiment, self.record, heartbeat.folder, shared)
            heartbeat.ended, heartbeat.points = lambda: stages.ended, lambda: stages.points
            uploader = Uploader(
                self.experiment.store,
                heartbeat.folder,
                run_prefix(self.record.trial, self.record.attempt),
                without=SNAPSHOTS if stages.shared else "",  # they have a place of their own in the store
                timed=self.uploads.timed,
            )
            try:
                outcome = self._run_program(heartbeat, uploader, stages, has_run=has_run)
                preempted_by = ""
                if isinstance(outcome, Preempted) and not heartbeat.wants_stop:
                    # Not this worker has stopped the program. The next attempt needs its checkpoint.
                    uploader.close(UPLOAD_GRACE_S)
                    with contextlib.suppress(Interrupted):
                        self.stop.sleep(SIGNAL_DELAY_S)  # our own signal may be about to arrive
                    preempted_by = self.stop.by or outcome.detail
                # Publish what remains before the final report, as the final record cannot list it; skip this
                # if the worker is stopping or has lost the trial.
                skip = heartbeat.lost or (isinstance(outcome, Preempted) and not heartbeat.stop_reason)
                stages.close(
                    0 if skip else UPLOAD_S,
                    leave=lambda: self.stop.requested or heartbeat.lost,
                    grace=UPLOAD_GRACE_S,
                )
                listed = (self.record.stages, self.record.points)
                if isinstance(outcome, Failed) and (stages.ended, stages.points) != listed:
                    # The report of a failed trial lists no stages: a last heartbeat does.
                    mine = lifecycle.holder(self.record)
                    last = lifecycle.Heartbeat(**mine, stages=stages.ended, points=stages.points)
                    with contextlib.suppress(SweepError):  # the report will fail in the same way
                        self.experiment.apply(self.record.trial, last)
                end = self._report(self._event(outcome, heartbeat, stages))
                if end == "completed" and not self.experiment.store.is_remote:  # no retry will want them
                    remove_checkpoints(heartbeat.folder, range(1, self.record.attempt))
                self.uploads.begin(lambda: self._end_upload(uploader, heartbeat.folder, end, lock))
                if end not in FINISHED:  # this worker may be the next one to claim it
                    self.uploads.wait()
            except BaseException as error:
                uploader.close(UPLOAD_GRACE_S)
                stages.close(0)
                # A stop request or a fault of the machine ends the worker, and the trial keeps its attempts.
                is_fault = isinstance(error, OSError | SweepError) and not isinstance(error, DamagedObject)
                is_fault = is_fault or isinstance(error, NewerObject)  # this worker is too old for any trial
                if is_fault or not isinstance(error, Exception):
                    self._hand_back(error)
                    raise
                # Anything else may recur with any worker. The attempt counts as lost, and the worker goes on,
                # since otherwise one trial would end all workers.
                detail = _in_one_line(error)
                log.warning("trial %d is given up here: %s", self.record.trial, detail)
                log.debug("the traceback:", exc_info=error)
                return self._report(self._release(detail, self.experiment.space.lease.max_attempts)), ""
        return end, preempted_by

    def _end_upload(self, uploader: Uploader, folder: Path, end: End, lock: FileLock | None) -> None:
        """Upload the last files of a run; once all are in the bucket, free their disk for further trials."""
        missing = uploader.close(
            UPLOAD_S,
            leave=lambda: self.stop.requested,
            grace=UPLOAD_GRACE_S,
            while_moving=end != "dropped",  # else the next trial need not wait long for files of no use
        )
        if lock is not None:
            if not missing:
                if (error := self._sweep_error()) is None:
                    remove_run(folder)
                else:
                    kept = keep_run(folder)
                    log.warning("the last files of trial %d stay in %s: %s", self.record.trial, kept, error)
            lock.release()

    def _sweep_error(self) -> SweepError | None:
        """Return what tells that the sweep may have left the place that files of the run were uploaded to."""
        try:
            stored = self.experiment.store.read_many([SWEEP_KEY])[0]
            opened = self.experiment.amendments.stored  # its owner is in another thread
            Amendments(self.experiment.store, self.experiment.written, opened).require_same_sweep(stored)
        except SweepError as error:
            return error
        return None

    def _run_program(
        self, heartbeat: HeartbeatThread, uploader: Uploader, stages: TrialStages, *, has_run: bool
    ) -> Completed | Failed | Preempted:
        with self.stop.interruptible():
            resumed = fetch_checkpoints(self.experiment.store, self.record, heartbeat.folder)
            stages.fetch(*checkpoint_progress(heartbeat.folder, stages.names))
        uploader.start()
        stages.start(resumed=resumed is not None)
        self.watcher.started(self.record)
        outcome = self.program.run(
            self.record,
            heartbeat.folder,
            stop=self.stop,
            wants_stop=lambda: heartbeat.wants_stop,
            snapshots=bool(stages.shared.ends),
            points=bool(stages.shared.trunks),
        )
        if isinstance(outcome, NotStarted):
            if not has_run:  # then its folder or its machine is at fault, else perhaps these parameters
                raise cannot_start(outcome.detail)
            error = f"the program could not be started: {outcome.detail}"
            outcome = Failed(error=error, failure="crashed", retryable=True)
        if isinstance(outcome, Failed):
            require_writable(heartbeat.folder)  # in a folder without write access any program fails
            words = outcome.error.rstrip().rpartition("\n")[2]
            if outcome.failure == "crashed" and not outcome.retryable and exceeded_file_size(outcome.error):
                raise EnvironmentFault(
                    f"the program of trial {self.record.trial} may not write such large files here ({words})"
                    "; lift the limit (ulimit -f) and start this worker again"
                )
            if outcome.retryable and disk_failed(outcome.error):
                # The next trial would end here in the same way, and this one perhaps anywhere: so it counts.
                raise DiskFailed(
                    f"a disk failed under the program of trial {self.record.trial} ({words}); free that disk "
                    "or mend it, and start this worker again: the trial goes on from its last checkpoint"
                )
        return outcome

    def _event(
        self, outcome: Completed | Failed | Preempted, heartbeat: HeartbeatThread, stages: TrialStages
    ) -> lifecycle.Event:
        """Return the lifecycle event of an outcome."""
        max_attempts = self.experiment.space.lease.max_attempts
        mine, curve = lifecycle.holder(self.record), heartbeat.curve()
        losses: dict[str, Any] = {"curve": curve.points, "curve_of": curve.of}
        match outcome:
            case Completed(metrics=metrics, stages=reported):
                ended = stages.report(reported, metrics)
                return lifecycle.Complete(
                    **mine, **losses, metrics=metrics, stages=ended, points=stages.points
                )
            case Failed(error=error, failure=failure, retryable=retryable):
                most = max_attempts if retryable else 1
                return lifecycle.Fail(**mine, error=error, failure=failure, max_attempts=most)
            case Preempted() if heartbeat.stop_reason:
                return lifecycle.StopEarly(
                    **mine,
                    **losses,
                    metrics={},
                    predicted=heartbeat.predicted,
                    stages=stages.ended,
                    points=stages.points,
                    detail=heartbeat.stop_reason,
                )
            case Preempted() if self.stop.requested:
                return self._release(self.stop.by)
            case Preempted(detail=detail):  # by itself: counted, because it may do so every time
                return self._release(detail, max_attempts)

    def _report(self, event: lifecycle.Event) -> End:
        """Report how the trial ended, and return that. A report that comes too late is dropped."""
        try:
            ended = report(self.experiment, self.record, event, self.stop)
        except IllegalTransition as refused:
            self.watcher.dropped(self.record, refused.why)
            return "dropped"
        self.record = ended
        self.watcher.ended(ended)
        self.handed_back = ended.status == "pending"
        if ended.status == "pending" or ended.status == "running":
            return ended.history[-1].reason
        return ended.status

    def _hand_back(self, error: BaseException) -> None:
        """Release the trial: another worker may be able to run it. Only a failed disk counts."""
        most = self.experiment.space.lease.max_attempts if isinstance(error, DiskFailed) else None
        try:
            self.experiment.apply(self.record.trial, self._release(_in_one_line(error), most))
            self.handed_back = True
        except SweepError as failure:
            log.warning("trial %d was not handed back, its lease will expire: %s", self.record.trial, failure)

    def _release(self, detail: str, max_attempts: int | None = None) -> lifecycle.Release:
        """Return a release of the trial; with `max_attempts` the attempt counts as lost."""
        mine = lifecycle.holder(self.record)
        return lifecycle.Release(**mine, detail=detail, max_attempts=max_attempts)


def report(experiment: Experiment, record: Trial, event: lifecycle.Event, stop: Stop) -> Trial:
    """Store how a trial ended, and return its record.

    While the store is unavailable the report is retried and heartbeats go on: the result may be worth hours.
    It is given up on a stop request, or after `RETRY_FOR_S`; without write permission, as soon as the
    lease has expired, since from then on another worker has the trial. A report that cannot be stored fails
    its trial: another worker's attempt would end in the same way.

    Raises:
        IllegalTransition: the report comes too late: another worker has the trial, a person ended it, or the
            sweep is gone.
    """
    delays = retry_delays()
    expires = time.monotonic() + experiment.space.lease.expire_s
    while True:
        try:
            return experiment.apply(record.trial, event)
        except NotFound:
            why = "its record is gone: somebody has renamed or deleted the sweep"
            raise IllegalTransition(record.trial, "gone", type(event).__name__, why) from None
        except UnstorableRecord as error:
            if isinstance(event, lifecycle.Fail) and event.failure == "bad_config":
                raise
            log.warning("%s", error)
            problem = f"its result cannot be stored: {error.reason}"
            event = lifecycle.Fail(**lifecycle.holder(record), error=problem, failure="bad_config")
        except StoreUnavailable as error:
            delay = next(delays, None)
            refused_for_good = isinstance(error, WriteRefused) and time.monotonic() >= expires
            if delay is None or stop.requested or refused_for_good:
                raise
            log.warning("the report of trial %d failed, trying again: %s", record.trial, error)
            with contextlib.suppress(Interrupted):
                stop.sleep(delay)


def retry_delays() -> Iterator[float]:
    """Yield the seconds between tries of a store without answer: doubling from 1 to 60, all `RETRY_FOR_S`."""
    delay, total = 1.0, 0.0
    while total < RETRY_FOR_S:
        yield delay
        total += delay
        delay = min(60.0, 2 * delay)


def require_writable(folder: Path) -> None:
    """Write a block to the run folder of a failed program and remove it again.

    A full or read-only disk is no fault of the trial.

    Raises:
        EnvironmentFault: nothing can be written there.
    """
    probe = folder / ".writable"
    try:
        with probe.open("wb") as file:
            file.write(bytes(4096))  # a block: less may still fit on a full disk
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        problem = (error.strerror or type(error).__name__).lower()
        raise EnvironmentFault(
            f"{folder}: cannot write: {problem}; no trial fails for that: free the disk, lift the limit "
            "(ulimit -f) or mount it for writing, and start this worker again"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def _in_one_line(error: BaseException) -> str:
    """Return the error's text uncut: it is redacted later, and half of a secret would not be recognised."""
    return " ".join(storable.error_text(error).split())
