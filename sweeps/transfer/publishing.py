"""Publication of what a program renames into `snapshots/`, in a thread, while it runs.

A point is removed from the run folder once it is stored: a trunk may leave many, and each has the state of
the optimizer.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from sweeps.errors import StoreUnavailable
from sweeps.experiment import Experiment
from sweeps.stages import stage_runs
from sweeps.stages.checkpoint import Part, Parts, Unfit, clause
from sweeps.storage.run_files.exchange import Deadline, OutOfTime, UploadConfig
from sweeps.transfer import copying, stored_stages
from sweeps.transfer.copying import Published
from sweeps.transfer.fetching import folder_of
from sweeps.trials.record import Trial

log = logging.getLogger(__name__)

POLL_S = 0.5
RETRY_S = 60.0

MOST_POINTS = 64
"""Limit for one trial: each point is an entry in its record."""


class Publishing:
    """Publication for one attempt of a trial.

    Args:
        experiment: the worker's.
        record: the claimed trial.
        folder: `snapshots/` of the run folder.
        parts: what trials share with this one.
        link: whether files may share their disk space with the store's.
        ended: called with a part that the program has computed, before it is stored. Raises Unfit.
        stored: called with a part that this trial's record should list as stored.

    Attributes:
        settled: names of folders that need no more work.
        damaged: version of the manifest of each snapshot that is known to be damaged, by key.
    """

    def __init__(
        self,
        experiment: Experiment,
        record: Trial,
        folder: Path,
        parts: Parts,
        *,
        link: bool,
        ended: Callable[[Part, Path], None],
        stored: Callable[[Part], None],
    ) -> None:
        self._experiment, self._record, self._folder, self._parts = experiment, record, folder, parts
        self._link, self._note_end, self._note_stored = link, ended, stored
        self.settled: set[str] = set()
        self.damaged: Mapping[str, str] = {}
        self._points = sum(point.snapshot for point in record.points)
        self._noted: set[str] = set()
        self._deadline = Deadline(UploadConfig())
        self._thread = threading.Thread(target=self._watch, name=f"publish {record.trial}", daemon=True)
        self._next_try: dict[str, float] = {}
        self._errors: dict[str, str] = {}

    def start(self) -> None:
        """Begin to publish what the program renames into place."""
        self._thread.start()

    def close(self, timeout: float, *, leave: Callable[[], bool] | None, grace: float) -> None:
        """Publish what remains, and stop; see `Snapshots.close`."""
        self._deadline.join(self._thread, timeout, leave=leave, grace=grace)

    def _watch(self) -> None:
        while True:
            is_last = self._deadline.is_set  # the program has exited; no new files will appear
            present = [part for part in self._parts.present(self._folder) if part.name not in self.settled]
            for part in present:
                if part.name not in self._noted:
                    self._try(part, self._note)
            # What most trials can use comes first: there may be no time for all.
            for part in sorted(present, key=lambda part: (part.step is not None, -(part.step or 0))):
                due = time.monotonic() >= self._next_try.get(part.name, 0.0)
                if due and part.name not in self.settled:
                    self._try(part, self._publish)
            if is_last:
                return
            self._deadline.wait(POLL_S)

    def _try(self, part: Part, act: Callable[[Part], None]) -> None:
        """Note or publish one part; if that fails, the trial goes on, and in a bucket it is tried again."""
        trial, again = self._record.trial, False
        try:
            act(part)
        except OutOfTime:
            message = "trial %d: its snapshot of %s is not published: there was no time left"
            log.warning(message, trial, part.name)
        except Exception as error:  # noqa: BLE001 - no snapshot may cost its trial an attempt
            again = isinstance(error, StoreUnavailable) and self._experiment.store.is_remote
            if self._errors.get(part.name) != clause(error):
                message = "trial %d: its snapshot of %s is not published: %s"
                log.warning(message, trial, part.name, clause(error))
            self._errors[part.name] = clause(error)
        else:
            return
        if again:
            self._next_try[part.name] = time.monotonic() + RETRY_S
        else:
            self._settle(part)

    def _settle(self, part: Part) -> None:
        self.settled.add(part.name)
        if part.step is not None:
            shutil.rmtree(self._folder / part.name, ignore_errors=True)

    def _note(self, part: Part) -> None:
        self._parts.require_on_trunk(part)
        if part.step is not None and self._points >= MOST_POINTS:
            raise Unfit(f"the trial has {MOST_POINTS} points; leave fewer of them")
        self._note_end(part, self._folder / part.name)
        self._points += part.step is not None
        self._noted.add(part.name)

    def _publish(self, part: Part) -> None:
        if self._is_stored(part):
            self._note_stored(part)
            log.info("trial %d has published %s", self._record.trial, part.name)
        self._settle(part)

    def _is_stored(self, part: Part) -> bool:
        """Return whether the snapshot is stored and this trial's record should list it."""
        found = copying.publish(
            self._experiment.store,
            stored_stages.prefix(part.key),
            self._folder / part.name,
            folder_of(self._record.trial, self._record.attempt),
            link=self._link,
            deadline=self._deadline,
            replaces=self.damaged.get(part.key),
        )
        if found is None:
            return False
        return found.by.startswith(folder_of(self._record.trial)) or self._is_orphan(part, found)

    def _is_orphan(self, part: Part, found: Published) -> bool:
        """Return whether no record says, or is about to say, that this snapshot is stored."""
        records = Experiment(self._experiment.store, self._experiment.space).trials()
        if stage_runs.publisher(records, part.key, self._record.trial) is not None:
            return False
        running = (record for record in records if record.status == "running")
        return all(found.by != folder_of(record.trial, record.attempt) for record in running)
