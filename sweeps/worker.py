"""A worker: claim, run, report, again. `sweep worker` is this; any number of them share a sweep.

While a trial runs, a thread tells the store every `heartbeat_s` that the worker lives. If the trial was taken
over in the meantime (this machine stalled, its network was cut), the thread finds out by the refused
heartbeat, the program is stopped, and whatever it would have reported is dropped.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from sweeps import lifecycle, objective
from sweeps.errors import IllegalTransition, NothingToAsk, StoreUnavailable, SweepError
from sweeps.experiment import Experiment
from sweeps.objective import Completed, Failed, Outcome, Preempted
from sweeps.space import Value
from sweeps.stopping import Interrupted, Stop
from sweeps.storage.base import NotFound
from sweeps.trial import Trial, run_prefix

log = logging.getLogger(__name__)

PATIENCE_S = 1800.0
"""How long a finished result is kept for a store that does not answer."""


class Watcher(Protocol):
    """Who is told what a worker does, for people to see."""

    def started(self, record: Trial) -> None: ...

    def progressed(self, record: Trial, progress: Mapping[str, Value]) -> None: ...

    def ended(self, record: Trial) -> None: ...

    def dropped(self, record: Trial, why: str) -> None: ...

    def waiting(self, running: int) -> None: ...


End = Literal["completed", "failed", "dropped", "released"]
"""How a trial left this worker; dropped: somebody else had taken it over."""


@dataclass(frozen=True, kw_only=True)
class Tally:
    """What a worker did: how many trials left it in which way, and by what it was told to go, if it was."""

    ended: Mapping[End, int]
    preempted_by: str = ""


def identity() -> str:
    """Who this worker is: host, process, and a token, because hosts and process ids come again."""
    return f"{platform.node() or 'host'}-{os.getpid()}-{uuid.uuid4().hex[:6]}"


def work(
    experiment: Experiment,
    *,
    stop: Stop,
    watcher: Watcher,
    max_trials: int | None = None,
    name: str | None = None,
) -> Tally:
    """Run trials until there are none left to claim, `max_trials` are done, or `stop` is requested.

    Raises:
        StoreUnavailable: the store could not be reached; a trial in hand expires and is taken over.
    """
    me = name or identity()
    ended: Counter[End] = Counter()
    try:
        while not stop.requested and (max_trials is None or ended.total() < max_trials):
            record = _next(experiment, me, stop, watcher)
            if record is None:
                break
            end, preempted_by = _run(experiment, record, stop, watcher)
            if preempted_by:
                return Tally(ended=ended, preempted_by=preempted_by)
            ended[end] += 1
    except Interrupted:
        log.debug("interrupted while no trial was in hand")
    return Tally(ended=ended, preempted_by=stop.by)


def _run(experiment: Experiment, record: Trial, stop: Stop, watcher: Watcher) -> tuple[End, str]:
    """Run one claimed trial and report it: how it ended, and by what the worker was told to go, if it was."""
    with _Heart(experiment, record, watcher) as heart:
        try:
            watcher.started(record)
            outcome = objective.run(
                experiment.space, record, heart.folder, stop=stop, lost=lambda: heart.lost
            )
        except BaseException as error:
            _hand_back(experiment, record, error)
            raise
        lost = heart.lost
        end = _report(experiment, record, outcome, stop, watcher)
    # A program that was stopped though nobody told us: the machine is going, and our own signal is under way.
    if isinstance(outcome, Preempted) and not lost:
        return end, stop.by or outcome.detail
    return end, ""


def _next(experiment: Experiment, me: str, stop: Stop, watcher: Watcher) -> Trial | None:
    """The next trial to run, or None once nothing is left that this worker should wait for.

    At the cap, trials of other workers may still come back: a worker leaves only after it has seen each of
    them give a sign of life (or end), so that the replacement of a dead worker outwaits its lease.
    """
    first_beats: dict[tuple[int, int], float] = {}
    used_up = False
    while True:
        try:
            if (record := experiment.ask(me, wait=stop.sleep, make=not used_up)) is not None:
                return record
        except NothingToAsk as error:
            used_up = True
            log.warning("%s", error)
        running = {
            (other.trial, other.attempt): other.heartbeat
            for other in experiment.trials()
            if other.status == "running" and other.heartbeat is not None
        }
        silent = [who for who, beat in running.items() if first_beats.setdefault(who, beat) == beat]
        if not silent:
            return None
        watcher.waiting(len(silent))
        stop.sleep(min(1.0, experiment.space.lease.heartbeat_s / 4))


def _hand_back(experiment: Experiment, record: Trial, error: BaseException) -> None:
    """This worker cannot run trials; the next one may. The trial is not to blame and keeps its attempts."""
    detail = " ".join(f"{type(error).__name__}: {error}".split())
    try:
        experiment.apply(
            record.trial, lifecycle.Release(worker=record.worker or "", attempt=record.attempt, detail=detail)
        )
    except SweepError as failure:
        log.warning("trial %d was not handed back, its lease will expire: %s", record.trial, failure)


def _report(experiment: Experiment, record: Trial, outcome: Outcome, stop: Stop, watcher: Watcher) -> End:
    """Tell the store how the trial ended. A report that comes too late is dropped quietly.

    While the store is away the report is tried again and again, the heart beating on: the result may be worth
    hours. It is given up when the worker is told to go, or after `PATIENCE_S`.
    """
    worker, attempt = record.worker or "", record.attempt
    event: lifecycle.Event
    end: End
    match outcome:
        case Completed(metrics=metrics):
            event, end = lifecycle.Complete(worker=worker, attempt=attempt, metrics=metrics), "completed"
        case Failed(error=error):
            event, end = lifecycle.Fail(worker=worker, attempt=attempt, error=error), "failed"
        case Preempted(detail=detail):
            event, end = lifecycle.Release(worker=worker, attempt=attempt, detail=detail), "released"
    pauses = iter(_pauses())
    while True:
        try:
            watcher.ended(experiment.apply(record.trial, event))
        except IllegalTransition as refused:
            watcher.dropped(record, refused.why)
            return "dropped"
        except StoreUnavailable as error:
            pause = next(pauses, None)
            if pause is None or stop.requested:
                raise
            log.warning("the report of trial %d failed, trying again: %s", record.trial, error)
            with contextlib.suppress(Interrupted):
                stop.sleep(pause)
        else:
            return end


def _pauses() -> Iterator[float]:
    """Seconds between tries: doubling from 1 to 60, `PATIENCE_S` in all."""
    pause, total = 1.0, 0.0
    while total < PATIENCE_S:
        yield pause
        total += pause
        pause = min(60.0, 2 * pause)


class _Heart:
    """The heartbeat of one running trial, in a thread of its own, so that a long step is not a silence."""

    def __init__(self, experiment: Experiment, record: Trial, watcher: Watcher) -> None:
        # The thread reads and writes the store through an Experiment of its own: no shared caches.
        self._experiment = Experiment(experiment.store, experiment.space)
        self._record, self._watcher = record, watcher
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"heart-{record.trial}", daemon=True)
        self.folder: Path = experiment.store.folder(run_prefix(record.trial, record.attempt))
        self.lost = False

    def __enter__(self) -> _Heart:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        self._thread.join()

    def _beat(self) -> None:
        heartbeat_s = self._experiment.space.lease.heartbeat_s
        next_beat = time.monotonic() + heartbeat_s
        while not self._done.wait(min(1.0, heartbeat_s / 2)):
            progress = objective.progress(self.folder)
            if progress:
                self._show(progress)
            if time.monotonic() < next_beat:
                continue
            next_beat = time.monotonic() + heartbeat_s
            if not self._tell(progress):
                self.lost = True
                return

    def _show(self, progress: Mapping[str, Value]) -> None:
        try:
            self._watcher.progressed(self._record, progress)
        except Exception as error:  # noqa: BLE001 - a terminal that went away must not stop the heart
            log.debug("progress of trial %d could not be shown: %s", self._record.trial, error)

    def _tell(self, progress: Mapping[str, Value]) -> bool:
        """Send one heartbeat; False once the trial is somebody else's."""
        event = lifecycle.Heartbeat(
            worker=self._record.worker or "", attempt=self._record.attempt, progress=progress
        )
        try:
            self._experiment.apply(self._record.trial, event)
        except IllegalTransition as refused:
            log.info("trial %d is lost: %s", self._record.trial, refused.why)
            return False
        except NotFound:
            log.warning("the record of trial %d is gone", self._record.trial)
            return False
        except (SweepError, ValueError) as error:
            log.warning("heartbeat of trial %d failed, trying again: %s", self._record.trial, error)
        return True
