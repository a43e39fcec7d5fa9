"""A worker: claim, run, report, again. `sweep worker` is this; any number of them share a sweep.

While a trial runs, a thread tells the store every `heartbeat_s` that the worker lives. If the trial was taken
over in the meantime (this machine stalled, its network was cut), the thread finds out by the refused
heartbeat, the program is stopped, and whatever it would have reported is dropped.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from sweeps import lifecycle, objective
from sweeps.errors import IllegalTransition, NothingToAsk, StoreUnavailable
from sweeps.experiment import Experiment
from sweeps.objective import Completed, Failed, Outcome, Preempted
from sweeps.space import Value
from sweeps.stopping import Interrupted, Stop
from sweeps.trial import Trial, run_prefix

log = logging.getLogger(__name__)


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
    watcher.started(record)
    with _Heart(experiment, record, watcher) as heart:
        outcome = objective.run(experiment.space, record, heart.folder, stop=stop, lost=lambda: heart.lost)
    end = _report(experiment, record, outcome, watcher)
    # A program that was stopped though nobody told us: the machine is going, and our own signal is under way.
    if isinstance(outcome, Preempted) and not heart.lost:
        return end, stop.by or outcome.detail
    return end, ""


def _next(experiment: Experiment, me: str, stop: Stop, watcher: Watcher) -> Trial | None:
    """The next trial to run, or None once nothing is left that this worker should wait for.

    At the cap, trials of other workers may still come back: a worker leaves only after it has seen each of
    them give a sign of life (or end), so that the replacement of a dead worker outwaits its lease.
    """
    first_beats: dict[tuple[int, int], float] = {}
    while True:
        try:
            if (record := experiment.ask(me, wait=stop.sleep)) is not None:
                return record
        except NothingToAsk as error:
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


def _report(experiment: Experiment, record: Trial, outcome: Outcome, watcher: Watcher) -> End:
    """Tell the store how the trial ended. A report that comes too late is dropped quietly."""
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
    try:
        watcher.ended(experiment.apply(record.trial, event))
    except IllegalTransition as refused:
        watcher.dropped(record, refused.why)
        return "dropped"
    return end


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
                self._watcher.progressed(self._record, progress)
            if time.monotonic() < next_beat:
                continue
            next_beat = time.monotonic() + heartbeat_s
            if not self._tell(progress):
                self.lost = True
                return

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
        except StoreUnavailable as error:
            log.warning("heartbeat of trial %d failed, trying again: %s", self._record.trial, error)
        return True
