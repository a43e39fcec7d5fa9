"""The heartbeat of one running trial, in a thread of its own, so that a long step is not a silence.

`worker` keeps one beating from the claim to the report. It tells the store that the worker lives and what its
program says of itself, and finds out what the worker's main thread must know: that somebody else has the
trial now, or that the trial is not worth finishing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from sweeps import lifecycle, runlog
from sweeps.errors import IllegalTransition, SweepError
from sweeps.experiment import Experiment
from sweeps.space import Value
from sweeps.storage.base import NotFound
from sweeps.trial import Trial, run_prefix

log = logging.getLogger(__name__)


class Heart:
    """Beats while the block runs.

    Args:
        experiment: the worker's; the thread reads and writes through one of its own, so no cache is shared.
        record: the claimed trial.
        show: called with the program's progress, for people to see.
    """

    def __init__(
        self, experiment: Experiment, record: Trial, show: Callable[[Trial, Mapping[str, Value]], None]
    ) -> None:
        self._experiment = Experiment(experiment.store, experiment.space)
        self._record, self._show = record, show
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"heart-{record.trial}", daemon=True)
        self.folder: Path = experiment.store.folder(run_prefix(record.trial, record.attempt))
        self.lost = False
        """Whether somebody else has the trial now."""
        self.verdict = ""
        """Why the trial should be stopped early; "" while it should go on."""

    def __enter__(self) -> Heart:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        self._thread.join()

    @property
    def wants_stop(self) -> bool:
        """Whether the program should be stopped, for one reason or the other."""
        return self.lost or bool(self.verdict)

    def _beat(self) -> None:
        heartbeat_s = self._experiment.space.lease.heartbeat_s
        next_beat = time.monotonic() + heartbeat_s
        while not self._done.wait(min(1.0, heartbeat_s / 2)):
            progress = runlog.progress(self.folder)
            if progress:
                self._show_safely(progress)
            if time.monotonic() < next_beat:
                continue
            next_beat = time.monotonic() + heartbeat_s
            if not self._tell(progress):
                self.lost = True
                return

    def _show_safely(self, progress: Mapping[str, Value]) -> None:
        try:
            self._show(self._record, progress)
        except Exception as error:  # noqa: BLE001 - a terminal that went away must not stop the heart
            log.debug("progress of trial %d could not be shown: %s", self._record.trial, error)

    def _tell(self, progress: Mapping[str, Value]) -> bool:
        """Send one heartbeat; False once the trial is somebody else's."""
        record = self._record
        beat = lifecycle.Heartbeat(
            worker=record.worker or "",
            attempt=record.attempt,
            progress=progress,
            curve=runlog.curve(self.folder),
        )
        try:
            beaten = self._experiment.apply(record.trial, beat)
        except IllegalTransition as refused:
            log.info("trial %d is lost: %s", record.trial, refused.why)
            return False
        except NotFound:
            log.warning("the record of trial %d is gone", record.trial)
            return False
        except (SweepError, ValueError) as error:
            log.warning("heartbeat of trial %d failed, trying again: %s", record.trial, error)
        else:
            self._judge(beaten)
        return True

    def _judge(self, record: Trial) -> None:
        """Ask whether the trial is worth finishing, where the sweep wants that asked."""
        if self.verdict or self._experiment.space.early_terminate is None or not record.curve:
            return
        from sweeps.early_stopping import should_stop

        try:
            verdict = should_stop(self._experiment.space, record, self._experiment.trials())
        except Exception as error:  # noqa: BLE001 - a judge that fails must not stop the heart
            log.warning("trial %d could not be judged, it goes on: %s", record.trial, error)
        else:
            self.verdict = verdict or ""
