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
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from sweeps.errors import IllegalTransition, StoreUnavailable
from sweeps.experiment import Experiment
from sweeps.space.definition import Value
from sweeps.storage.base import NotFound
from sweeps.trials import lifecycle, storable
from sweeps.trials.record import Trial, run_prefix
from sweeps.worker import progress_log

log = logging.getLogger(__name__)

T = TypeVar("T")


class HeartbeatThread:
    """Beats while the block runs, whatever goes wrong in a beat.

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
        self._complaints: dict[str, str] = {}
        self._thread = threading.Thread(target=self._beat, name=f"heart-{record.trial}", daemon=True)
        self.folder: Path = experiment.store.folder(run_prefix(record.trial, record.attempt))
        self._losses = progress_log.LossCurve(self.folder)
        self.lost = False
        """Whether somebody else has the trial now."""
        self.verdict = ""
        """Why the trial should be stopped early; "" while it should go on."""

    def __enter__(self) -> HeartbeatThread:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        self._thread.join()

    @property
    def wants_stop(self) -> bool:
        """Whether the program should be stopped, for one reason or the other."""
        return self.lost or bool(self.verdict)

    def curve(self) -> tuple[progress_log.Point, ...]:
        """Return the losses that the program has logged so far; () where they cannot be read."""
        return self._try("its losses could not be read", self._losses.points, ())

    def _beat(self) -> None:
        heartbeat_s = self._experiment.space.lease.heartbeat_s
        next_beat = time.monotonic() + heartbeat_s
        while not self._done.wait(min(1.0, heartbeat_s / 2)):
            read = partial(progress_log.progress, self.folder)
            progress: Mapping[str, Value] = self._try("its progress could not be read", read, {})
            if progress:
                show = partial(self._show, self._record, progress)
                self._try("its progress could not be shown", show, None)
            if time.monotonic() < next_beat:
                continue
            next_beat = time.monotonic() + heartbeat_s
            if not self._try("a heartbeat failed, trying again", partial(self._send, progress), True):
                self.lost = True
                return

    def _try(self, problem: str, act: Callable[[], T], otherwise: T) -> T:
        """Return what the call gives, or `otherwise` and a line in the log where it raises.

        Even SystemExit: a watcher or a library may raise anything, and a heart that ends loses the trial.
        """
        try:
            return act()
        except BaseException as error:  # noqa: BLE001 - see above
            with suppress(BaseException):  # not even a log on a full disk
                said = storable.line(storable.raised(error))
                if self._complaints.get(problem) != said:
                    self._complaints[problem] = said
                    log.warning("trial %d: %s: %s", self._record.trial, problem, said)
            return otherwise

    def _send(self, progress: Mapping[str, Value]) -> bool:
        """Send one heartbeat; False once the trial is somebody else's."""
        record = self._record
        beat = lifecycle.Heartbeat(worker=record.worker or "", attempt=record.attempt)
        said = replace(beat, progress=progress, curve=self.curve())
        try:
            try:
                beaten = self._experiment.apply(record.trial, said)
            except (IllegalTransition, NotFound, StoreUnavailable):
                raise
            except Exception as error:  # noqa: BLE001 - what its program says must not hide that we live
                said_wrong = storable.line(storable.raised(error))
                log.warning("trial %d: its progress could not be stored: %s", record.trial, said_wrong)
                beaten = self._experiment.apply(record.trial, beat)
        except IllegalTransition as refused:
            log.info("trial %d is lost: %s", record.trial, refused.why)
            return False
        except NotFound:
            log.warning("the record of trial %d is gone", record.trial)
            return False
        self._try("it could not be judged, it goes on", partial(self._judge, beaten), None)
        return True

    def _judge(self, record: Trial) -> None:
        """Ask whether the trial is worth finishing, where the sweep wants that asked."""
        if self.verdict or self._experiment.space.early_terminate is None or not record.curve:
            return
        from sweeps.worker.early_stopping import should_stop

        self.verdict = should_stop(self._experiment.space, record, self._experiment.trials()) or ""
