"""Publication of what a program renames into `snapshots/`, in a thread, while it runs.

A checkpoint within a trunk is removed from the run folder once it is stored: there may be many, and each has
the state of the optimizer.
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
from sweeps.stages.checkpoint import Checkpoint, SharedKeys, Unfit, clause
from sweeps.storage.run_files.exchange import Deadline, OutOfTime, UploadConfig
from sweeps.transfer import copying, stored_stages
from sweeps.transfer.fetching import folder_of
from sweeps.trials.record import Trial

log = logging.getLogger(__name__)

POLL_S = 0.5
RETRY_S = 60.0

MOST_POINTS = 64
"""Limit of checkpoints within trunks for one trial: each is an entry in its record."""


class Publishing:
    """Publication for one attempt of a trial.

    Args:
        folder: `snapshots/` of the run folder.
        link: whether files may share their disk space with the store's.
        ended: called with a checkpoint that the program has computed, before it is stored. Raises Unfit.
        stored: called with a checkpoint that this trial's record should list as stored.

    Attributes:
        settled: names of folders that need no more work.
        damaged: version of the manifest of each checkpoint that is known to be damaged, by key.
    """

    def __init__(
        self,
        experiment: Experiment,
        record: Trial,
        folder: Path,
        shared: SharedKeys,
        *,
        link: bool,
        ended: Callable[[Checkpoint, Path], None],
        stored: Callable[[Checkpoint], None],
    ) -> None:
        self._experiment, self._record, self._folder, self._shared = experiment, record, folder, shared
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
        """Publish what remains, and stop; see `TrialStages.close`."""
        self._deadline.join(self._thread, timeout, leave=leave, grace=grace)

    def _watch(self) -> None:
        while True:
            is_last = self._deadline.is_set  # the program has exited; no new files will appear
            present = [
                checkpoint
                for checkpoint in self._shared.present(self._folder)
                if checkpoint.name not in self.settled
            ]
            for checkpoint in present:
                if checkpoint.name not in self._noted:
                    self._try(checkpoint, self._note)
            # What most trials can use comes first: there may be no time for all.
            for checkpoint in sorted(
                present, key=lambda checkpoint: (checkpoint.step is not None, -(checkpoint.step or 0))
            ):
                due = time.monotonic() >= self._next_try.get(checkpoint.name, 0.0)
                if due and checkpoint.name not in self.settled:
                    self._try(checkpoint, self._publish)
            if is_last:
                return
            self._deadline.wait(POLL_S)

    def _try(self, checkpoint: Checkpoint, act: Callable[[Checkpoint], None]) -> None:
        """Note or publish a checkpoint; if that fails, the trial goes on; a bucket is tried again."""
        trial, again = self._record.trial, False
        try:
            act(checkpoint)
        except OutOfTime:
            message = "trial %d: its snapshot of %s is not published: there was no time left"
            log.warning(message, trial, checkpoint.name)
        except Exception as error:  # noqa: BLE001 - no checkpoint may cost its trial an attempt
            again = isinstance(error, StoreUnavailable) and self._experiment.store.is_remote
            if self._errors.get(checkpoint.name) != clause(error):
                message = "trial %d: its snapshot of %s is not published: %s"
                log.warning(message, trial, checkpoint.name, clause(error))
            self._errors[checkpoint.name] = clause(error)
        else:
            return
        if again:
            self._next_try[checkpoint.name] = time.monotonic() + RETRY_S
        else:
            self._settle(checkpoint)

    def _settle(self, checkpoint: Checkpoint) -> None:
        self.settled.add(checkpoint.name)
        if checkpoint.step is not None:
            shutil.rmtree(self._folder / checkpoint.name, ignore_errors=True)

    def _note(self, checkpoint: Checkpoint) -> None:
        self._shared.require_on_trunk(checkpoint)
        if checkpoint.step is not None and self._points >= MOST_POINTS:
            raise Unfit(f"the trial has {MOST_POINTS} points; leave fewer of them")
        self._note_end(checkpoint, self._folder / checkpoint.name)
        self._points += checkpoint.step is not None
        self._noted.add(checkpoint.name)

    def _publish(self, checkpoint: Checkpoint) -> None:
        found = copying.publish(
            self._experiment.store,
            stored_stages.prefix(checkpoint.key),
            self._folder / checkpoint.name,
            folder_of(self._record.trial, self._record.attempt),
            link=self._link,
            deadline=self._deadline,
            replaces=self.damaged.get(checkpoint.key),
        )
        lists_it = found is not None and found.by.startswith(folder_of(self._record.trial))
        if found is not None and not lists_it:  # nor does any other record, or soon will: its publisher died
            records = self._experiment.for_thread().trials()
            at_work = [folder_of(each.trial, each.attempt) for each in records if each.status == "running"]
            named = stage_runs.publisher(records, checkpoint.key, self._record.trial)
            lists_it = named is None and found.by not in at_work
        if lists_it:
            self._note_stored(checkpoint)
            log.info("trial %d has published %s", self._record.trial, checkpoint.name)
        self._settle(checkpoint)
