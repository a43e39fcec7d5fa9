"""Heartbeat of one running trial, in a thread of its own, so that a long step does not look like a crash.

The thread runs from the claim to the report. It renews the lease, stores the program's progress, and finds
out whether another worker has taken the trial over or the trial should be stopped early.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from sweeps.errors import IllegalTransition, StoreUnavailable
from sweeps.experiment import Experiment
from sweeps.programs import progress_log
from sweeps.space.definition import Value
from sweeps.storage.base import NotFound
from sweeps.trials import lifecycle, storable
from sweeps.trials.record import Trial, run_prefix
from sweeps.trials.stage_run import StageRun

log = logging.getLogger(__name__)

T = TypeVar("T")

_READ_WITH_EACH = 16
"""Running trials that are read with each heartbeat where trials may stop early; of twice as many with each
second one, and so on. Each has changed since, so that a hundred workers would read 330 records a second."""
POLL_S = 1.0
"""Longest time between two looks at the program's progress."""


class HeartbeatThread:
    """Context manager that sends heartbeats until it exits, even if some of them fail.

    Args:
        experiment: the worker's; the thread opens one of its own, so that no cache is shared.
        show: called with the program's progress, to show it to people.

    Attributes:
        folder: the run folder of the attempt.
        lost: whether another worker has the trial now.
        stop_reason: why the trial should be stopped early; "" while it should go on.
        predicted: the results of a trial to be stopped, as predicted when that was decided.
        ended: returns the stages that have ended.
        points: returns the points of trunks, as a record has them.
    """

    def __init__(
        self, experiment: Experiment, record: Trial, show: Callable[[Trial, Mapping[str, Value]], None]
    ) -> None:
        self._experiment = experiment.for_thread()
        self._record, self._show = record, show
        self._done = threading.Event()
        self._last_errors: dict[str, str] = {}  # by problem: an error that repeats is logged once
        self._thread = threading.Thread(target=self._beat, name=f"heart-{record.trial}", daemon=True)
        self.folder: Path = experiment.store.folder(run_prefix(record.trial, record.attempt))
        self._losses = progress_log.LossCurve(self.folder)
        self._others: list[Trial] = []
        self._beats_until_read = 0
        self.lost = False
        self.stop_reason = ""
        self.predicted: Mapping[str, float] = {}
        self.ended: Callable[[], tuple[StageRun, ...]] = tuple
        self.points: Callable[[], tuple[StageRun, ...]] = tuple

    def __enter__(self) -> HeartbeatThread:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
        self._thread.join()

    def stop(self) -> None:
        """Send no heartbeats from now on, without waiting for one that is under way."""
        self._done.set()

    @property
    def wants_stop(self) -> bool:
        """Return whether the program should be stopped."""
        return self.lost or bool(self.stop_reason)

    def curve(self) -> progress_log.Curve:
        """Return the losses that the program has logged; none if they cannot be read."""
        return self._try("its losses could not be read", self._losses.curve, progress_log.Curve())

    def _beat(self) -> None:
        heartbeat_s = self._experiment.space.lease.heartbeat_s
        next_beat = time.monotonic() + heartbeat_s
        while not self._done.wait(min(POLL_S, heartbeat_s / 2)):
            nothing: Mapping[str, Value] = {}
            progress = self._try("its progress could not be read", self._progress, nothing)
            if progress:
                show = partial(self._show, self._record, progress)
                self._try("its progress could not be shown", show, None)
            if time.monotonic() < next_beat:
                continue
            next_beat = time.monotonic() + heartbeat_s
            if not self._try("a heartbeat failed, trying again", partial(self._send, progress), True):
                self.lost = True
                return

    def _progress(self) -> Mapping[str, Value]:
        """Return the program's progress, with the last held-out loss of its stage."""
        progress = progress_log.progress(self.folder)
        return progress | self._losses.last_held_out(progress.get("stage")) if progress else {}

    def _try(self, problem: str, act: Callable[[], T], otherwise: T) -> T:
        """Return `act()`, or log its exception and return `otherwise`.

        Even SystemExit is caught: a watcher or a library may raise anything, and without heartbeats the trial
        is lost.
        """
        try:
            return act()
        except BaseException as error:  # noqa: BLE001 - see above
            with suppress(BaseException):  # such as a log on a full disk
                message = storable.line(storable.error_text(error))
                if self._last_errors.get(problem) != message:
                    self._last_errors[problem] = message
                    log.warning("trial %d: %s: %s", self._record.trial, problem, message)
            return otherwise

    def _send(self, progress: Mapping[str, Value]) -> bool:
        """Send one heartbeat; False once another worker has the trial."""
        record = self._record
        mine = lifecycle.holder(record)
        bare = lifecycle.Heartbeat(**mine, stages=self.ended(), points=self.points())
        curve = self.curve()
        beat = replace(bare, progress=progress, curve=curve.points, curve_of=curve.of)
        try:
            try:
                stored = self._experiment.apply(record.trial, beat)
            except (IllegalTransition, NotFound, StoreUnavailable):
                raise
            except Exception as error:  # noqa: BLE001 - progress that cannot be stored must not lose the lease
                message = storable.line(storable.error_text(error))
                log.warning("trial %d: its progress could not be stored: %s", record.trial, message)
                stored = self._experiment.apply(record.trial, bare)
        except IllegalTransition as refused:
            log.info("trial %d is lost: %s", record.trial, refused.why)
            return False
        except NotFound:
            log.warning("the record of trial %d is gone", record.trial)
            return False
        self._try(
            "early stopping could not be checked", partial(self._check_early_stopping, stored, curve.of), None
        )
        return True

    def _check_early_stopping(self, record: Trial, of: str) -> None:
        """Decide whether to stop; `of` is the kind of losses, known here before the first finite one."""
        if self.stop_reason or self._experiment.space.early_terminate is None:
            return
        not_finite = self._losses.not_finite(of)
        if not record.curve and not_finite is None:
            return
        if record.generator == "confirm":  # a confirmation needs every result, a poor one too
            return
        from sweeps.worker.early_stopping import should_stop

        if self._beats_until_read:
            self._beats_until_read -= 1
        else:
            self._others = self._experiment.trials()
            running = sum(other.status == "running" for other in self._others)
            self._beats_until_read = max(0, running - 1) // _READ_WITH_EACH
        if not_finite is not None:
            record = replace(record, curve_of=of)
        stop = should_stop(self._experiment.space, record, self._others, not_finite)
        if stop is not None:
            self.predicted = stop.predicted
            self.stop_reason = stop.reason  # set last: the other thread acts on it
