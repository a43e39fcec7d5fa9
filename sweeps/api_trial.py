"""A trial that the caller's own code asked for: its lease is renewed in the background until it ends.

The same heartbeat, early stopping, upload and report as in a worker (`sweeps.worker`); only the program is
missing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from sweeps.errors import IllegalTransition, InputError, SweepError, TrialLost
from sweeps.experiment import Experiment
from sweeps.programs.function import failure_of
from sweeps.programs.live_trial import Trial
from sweeps.programs.result import Completed, Failed, NotStarted, Outcome, Preempted
from sweeps.programs.signals import Stop
from sweeps.storage.run_files.mirror import Uploader
from sweeps.storage.run_files.upload import UPLOAD_S
from sweeps.trials import lifecycle, record
from sweeps.worker.heartbeat import HeartbeatThread
from sweeps.worker.trial_run import UPLOAD_GRACE_S, report

log = logging.getLogger(__name__)


class AskedTrial(Trial):
    """Trial of `Sweep.ask`. As a context manager it ends the trial if the block did not.

    An exception in the block fails the trial and is raised; KeyboardInterrupt and SystemExit put it back for
    another attempt. Without a block, the lease is renewed until `Sweep.tell`, or until nothing refers to the
    trial.
    """

    _stacklevel = 3

    def __init__(self, experiment: Experiment, claimed: record.Trial) -> None:
        self._experiment, self._claimed = experiment, claimed
        try:
            self._heartbeat = HeartbeatThread(experiment, claimed, lambda record, progress: None)
            heartbeat = self._heartbeat  # the closure must not keep this object alive
            objective = experiment.space.objectives[0]
            super().__init__(claimed, heartbeat.folder, lambda: heartbeat.wants_stop, objective)
            prefix = record.run_prefix(claimed.trial, claimed.attempt)
            self._uploader = Uploader(experiment.store, heartbeat.folder, prefix)
        except BaseException as error:
            self._put_back(type(error).__name__)
            raise
        self._process, self._lock, self._is_open = os.getpid(), threading.RLock(), True
        self._uploader.start()
        heartbeat.__enter__()
        self._abandoned = weakref.finalize(self, _abandon, heartbeat, self._uploader, self._process)
        self._abandoned.atexit = False

    @property
    def url(self) -> str:
        """Return the URL of its sweep."""
        return self._experiment.store.url

    def __enter__(self) -> AskedTrial:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self._is_open or self._process != os.getpid():  # a forked child leaves it to its parent
            return
        if error is None:
            self._leave_without_result()
        elif isinstance(error, TrialLost):
            self._close(upload=False)
        elif isinstance(error, Exception):
            with _log_store_errors(f"trial {self.index} could not be marked failed"):
                self.end(failure_of(error))
        else:  # no time for a long upload
            self._close(upload=False)
            self._put_back(type(error).__name__)

    def report(
        self,
        value: float | None = None,
        /,
        step: float | None = None,
        *,
        loss: float | None = None,
        **more: float | str,
    ) -> None:
        """Report intermediate values; see `Trial.report`. Raises `TrialLost`, too."""
        if self._heartbeat.lost:
            raise TrialLost(self.index, "another worker or a user has taken it over")
        super().report(value, step, loss=loss, **more)

    def end(self, outcome: Outcome) -> str:
        """Report how the trial ended, and return its status.

        Raises:
            InputError: it has ended before, or this is another process than that which asked for it.
            TrialLost: another worker has it now, or a user has given it up.
            StoreUnavailable: the store did not answer for half an hour or longer; its lease will expire.
        """
        if not isinstance(outcome, Completed | Failed | Preempted | NotStarted):
            raise InputError(
                f"trial {self.index}: end({outcome!r:.80}): report a result by sweep.tell(trial, …)"
            )
        if self._process != os.getpid():
            raise InputError(
                f"trial {self.index} was asked for by process {self._process}, and this is its child "
                f"{os.getpid()}; report it there, or ask here"
            )
        with self._lock:
            if not self._is_open:
                raise InputError(f"trial {self.index} has ended here already; ask for another one")
            try:
                ended = report(self._experiment.for_thread(), self._claimed, self._event(outcome), Stop())
            except IllegalTransition as refused:
                self._close(upload=False)
                raise TrialLost(self.index, refused.why) from None
            self._close(upload=True)
        return ended.status

    def _leave_without_result(self) -> None:
        """End a trial that was asked to stop; put back any other, whose result was forgotten."""
        if self.stopped:
            self.end(Completed(metrics={}))
            return
        self._close(upload=True)
        self._put_back("its block ended without a result")
        raise InputError(
            f"trial {self.index}: its block ended without a result, and the trial was put back; end the "
            "block with sweep.tell(trial, …)"
        )

    def _event(self, outcome: Outcome) -> lifecycle.Event:
        mine, curve = lifecycle.holder(self._claimed), self._heartbeat.curve()
        losses: dict[str, Any] = {"curve": curve.points, "curve_of": curve.of}
        if isinstance(outcome, Failed):
            attempts = self._experiment.space.lease.max_attempts if outcome.retryable else 1
            return lifecycle.Fail(**mine, error=outcome.error, failure=outcome.failure, max_attempts=attempts)
        if self.stopped and not self._heartbeat.lost:
            heartbeat = self._heartbeat
            return lifecycle.StopEarly(
                **mine, **losses, metrics={}, predicted=heartbeat.predicted, detail=heartbeat.stop_reason
            )
        metrics = outcome.metrics if isinstance(outcome, Completed) else {}
        return lifecycle.Complete(**mine, **losses, metrics=metrics)

    def _put_back(self, why: str) -> None:
        """Release the trial; the attempt does not count."""
        with _log_store_errors(f"trial {self._claimed.trial} was not put back, its lease will expire"):
            release = lifecycle.Release(**lifecycle.holder(self._claimed), detail=why)
            self._experiment.for_thread().apply(self._claimed.trial, release)

    def _close(self, *, upload: bool) -> None:
        """Upload what remains in the run folder, and end the heartbeats."""
        self._is_open = False
        self._uploader.close(UPLOAD_S if upload else UPLOAD_GRACE_S, while_moving=upload)
        self._heartbeat.__exit__()
        self._abandoned.detach()


def _abandon(heartbeat: HeartbeatThread, uploader: Uploader, process: int) -> None:
    """End the heartbeats of a trial that nothing refers to any more: its lease expires.

    The garbage collector calls this in any thread, so that it must not wait for one.
    """
    if process == os.getpid():
        heartbeat.stop()
        threading.Thread(target=uploader.close, args=(0,), daemon=True).start()


@contextlib.contextmanager
def _log_store_errors(problem: str) -> Iterator[None]:
    """Log an error of the store, so that the error that led here is the one that is raised."""
    try:
        yield
    except SweepError as error:
        log.warning("%s: %s", problem, error)
