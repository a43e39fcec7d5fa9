"""Fetch of the latest finished stage that a trial can start from, before its program starts.

A snapshot is used if a record says that it is stored. One that this trial's own earlier attempt has published
needs no such record: its worker may have died before the next heartbeat.
"""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeps.experiment import Experiment
from sweeps.storage.run_files import snapshot, stored_stages
from sweeps.storage.run_files.exchange import Deadline, UploadConfig
from sweeps.storage.run_files.snapshot import Damaged, Published, Unfit
from sweeps.trials.record import Trial
from sweeps.trials.stage_run import StageRun
from sweeps.worker import stage_runs
from sweeps.worker.stage_folder import SNAPSHOTS, Details, clause, details

log = logging.getLogger(__name__)

SHARE = 0.1
"""Largest share of a stage's time that fetching its end may be expected to take."""

ASSUMED_BYTES_PER_S = {True: 100e6, False: 200e6}
"""From a bucket, and within a folder (copied and verified), until a fetch of this process was measured."""

_MEASURABLE = 2**26  # bytes; with fewer, the latency decides
_LEAST_PATIENCE_S, _MOST_PATIENCE_S = 5.0, 300.0

_rates: dict[str, float] = {}  # bytes per second of the last large fetch, by the store's URL


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """A stage that is in the run folder now.

    Args:
        stage: its name.
        trial: whose record says that it is stored; the trial itself, if an earlier attempt has published it.
        runs: stages in that record, by name.
        details: of its `stage.json`.
    """

    stage: str
    trial: int
    runs: Mapping[str, StageRun]
    details: Details


class SnapshotFetch:
    """Fetch for one attempt of a trial.

    Args:
        experiment: the worker's.
        record: the claimed trial.
        folder: the run folder of the attempt.
        keys: of the ends of stages, by name in order.
        names: of all stages in order.
        link: whether files may share their disk space with the store's.

    Attributes:
        damaged: version of the manifest of each snapshot that is damaged, by stage.
    """

    def __init__(
        self,
        experiment: Experiment,
        record: Trial,
        folder: Path,
        keys: Mapping[str, str],
        names: Sequence[str],
        *,
        link: bool,
    ) -> None:
        self._experiment, self._store, self._record = experiment, experiment.store, record
        self._folder, self._keys, self._names, self._link = folder / SNAPSHOTS, keys, names, link
        self.damaged: dict[str, str] = {}

    def run(self, done: int) -> Fetched | None:
        """Bring the end of the latest stage that is stored into the run folder, all of it or nothing.

        Args:
            done: how many stages a checkpoint of an earlier attempt has behind it.
        """
        for name in reversed(self._names[done:]):
            if name not in self._keys:
                continue
            try:
                if (fetched := self._fetch(name)) is not None:
                    return fetched
            except Exception as error:  # noqa: BLE001 - no snapshot may cost its trial an attempt
                message = "trial %d: the snapshot of %s is not used: %s; the stage is computed"
                log.warning(message, self._record.trial, name, clause(error))
            finally:
                shutil.rmtree(self._incoming(name), ignore_errors=True)
        return None

    def _fetch(self, name: str) -> Fetched | None:
        trial = self._record.trial
        origin = stage_runs.publisher(self._experiment.recent_trials(), self._keys[name], trial)
        if origin is None and self._record.attempt == 1:
            return None
        found = snapshot.published(self._store, stored_stages.prefix(self._keys[name]))
        if origin is None:
            if found is None or not found.by.startswith(folder_of(trial)):
                return None
            origin = self._record  # published, but not yet recorded
        elif found is None:
            raise Damaged("it is not in the store")
        runs = {run.name: run for run in origin.stages}
        saved_s = self._seconds_saved(name, runs)
        if found.size > SHARE * saved_s * self._bytes_per_s():
            log.info("trial %d computes %s: fetching it would take too long", trial, name)
            return None
        stated = self._bring(name, found, saved_s)
        log.info("trial %d starts after %s of trial %d", trial, name, origin.trial)
        return Fetched(stage=name, trial=origin.trial, runs=runs, details=stated)

    def _seconds_saved(self, name: str, runs: Mapping[str, StageRun]) -> float:
        """Return the seconds that it took to get to the end of a stage; infinite if none are known."""
        names = self._names[: self._names.index(name) + 1]
        known = [seconds for n in names if n in runs and (seconds := runs[n].seconds) is not None]
        return math.fsum(known) if known else math.inf

    def _bytes_per_s(self) -> float:
        return _rates.get(self._store.url, ASSUMED_BYTES_PER_S[self._store.is_remote])

    def _bring(self, name: str, found: Published, saved_s: float) -> Details:
        """Fetch the snapshot, and rename it into place once it is verified."""
        incoming, began = self._incoming(name), time.monotonic()
        patience_s = min(max(SHARE * saved_s, _LEAST_PATIENCE_S), _MOST_PATIENCE_S)
        pace = Deadline(UploadConfig(patience_s=patience_s))
        incoming.mkdir(parents=True)
        try:
            prefix = stored_stages.prefix(self._keys[name])
            snapshot.fetch(self._store, prefix, found, incoming, link=self._link, deadline=pace)
            stated = details(incoming, self._keys[name])
        except (Damaged, Unfit):
            self.damaged[name] = found.version
            raise
        incoming.rename(self._folder / name)
        if found.size >= _MEASURABLE:
            _rates[self._store.url] = found.size / max(time.monotonic() - began, 1e-3)
        return stated

    def _incoming(self, name: str) -> Path:
        return self._folder / f".{name}.incoming"


def folder_of(trial: int, attempt: int | str = "") -> str:
    """Return the name of a publisher's folder below `stages/KEY/`; without an attempt, its beginning."""
    return f"{trial:06d}-{attempt}"
