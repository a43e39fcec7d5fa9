"""Fetch of the furthest checkpoint that a trial can start from, before its program starts.

That is one within the last stage's trunk, the end of the stage before, one within that one's trunk, etc. A
checkpoint is used if a record says that it is stored. One that this trial's own earlier attempt has published
needs no such record: its worker may have died before the next heartbeat.
"""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sweeps.errors import EnvironmentFault
from sweeps.experiment import Experiment
from sweeps.space.definition import Value
from sweeps.space.stages import Stages
from sweeps.stages import stage_runs
from sweeps.stages.checkpoint import SNAPSHOTS, Checkpoint, Details, SharedKeys, Unfit, clause, details
from sweeps.storage.run_files.exchange import Deadline, OutOfTime, UploadConfig
from sweeps.storage.run_files.manifest import MANIFEST
from sweeps.text.shorten import shown_bytes
from sweeps.transfer import copying, stored_stages
from sweeps.transfer.copying import Damaged
from sweeps.trials.record import Trial
from sweeps.trials.stage_run import StageRun

log = logging.getLogger(__name__)

SHARE = 0.5
"""Largest share of the time that a checkpoint saves that fetching it may be expected to take.

Half, as the program then reads it once more, and both times may be another machine's.
"""

FASTEST_BYTES_PER_S = 1e9
"""Expected until a fetch of this process was measured: about what SHA-256, which verifies it, allows.

A fetch corrects a rate that is too high, and ends once it has taken as long as computing. Nothing would
correct one that is too low, as all fetches would be refused; so a measured rate is forgotten by and by.
"""
_DOUBLES_S = 600.0
"""Least time after which twice a measured rate is expected: others may have fetched at the same moment."""
_DOUBLES_AFTER = 10.0
"""The same in durations of the fetch that was measured, so that fetches in vain take a small share of all."""

_MEASURABLE = 2**26  # bytes; with fewer, the latency decides
_PATIENCE = 0.1  # with a silent store, as a share of the time that is saved
_LEAST_PATIENCE_S, _MOST_PATIENCE_S = 5.0, 300.0

_rates: dict[str, tuple[float, float, float]] = {}
"""Rate of the last large fetch in bytes per second, when that ended, and its seconds, by the store's URL."""


_MOST_STEPS = 10**6
"""Steps before the decay within which checkpoints of an earlier attempt are found without a record."""


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """A checkpoint that is in the run folder now.

    Args:
        record: of the trial that published it, which may be an earlier attempt of this one.
        run: the entry in that record; None: published by this trial, but not recorded.
    """

    checkpoint: Checkpoint
    record: Trial
    run: StageRun | None
    details: Details


class CheckpointFetch:
    """Fetch for one attempt of a trial.

    Args:
        names: of all stages in order.
        link: whether files may share their disk space with the store's.

    Attributes:
        damaged: version of the manifest of each damaged checkpoint, by key.
    """

    def __init__(
        self,
        experiment: Experiment,
        record: Trial,
        folder: Path,
        shared: SharedKeys,
        names: Sequence[str],
        *,
        link: bool,
    ) -> None:
        self._experiment, self._store, self._record = experiment, experiment.store, record
        self._folder, self._shared, self._names, self._link = folder / SNAPSHOTS, shared, names, link
        self.damaged: dict[str, str] = {}

    def run(self, stages: int, steps: int = 0) -> Fetched | None:
        """Bring the furthest stored checkpoint into the run folder, all of it or nothing.

        Args:
            stages: how many a checkpoint of an earlier attempt has completed.
            steps: of the next stage that it has completed.
        """
        for checkpoint in self._candidates(stages, steps):
            try:
                if (fetched := self._fetch(checkpoint)) is not None:
                    return fetched
            except Exception as error:  # noqa: BLE001 - no checkpoint may cost its trial an attempt
                otherwise = "the stage is computed" if checkpoint.step is None else "the trial starts earlier"
                message = "trial %d: the snapshot of %s is not used: %s; %s"
                log.warning(message, self._record.trial, checkpoint.name, clause(error), otherwise)
            finally:
                shutil.rmtree(self._incoming(checkpoint), ignore_errors=True)
        with suppress(EnvironmentFault):
            self._note_other_versions(stages)
        return None

    def _note_other_versions(self, stages: int) -> None:
        """Say it where another trial has stored the end of a stage with equal parameters under another key.

        Keys have the versions of the trainer's code and libraries. Nothing else would say why a sweep costs
        more after an update of some machines.
        """
        where = Stages(self._experiment.space)

        def until(record: Trial, position: int) -> dict[str, Value]:
            return {n: v for n, v in record.parameters.items() if where.position(n) <= position}

        for record in self._experiment.recent_trials():
            for run in record.snapshots:
                key = self._shared.ends.get(run.name)
                if run.step is not None or key in (None, run.key):
                    continue
                position = self._names.index(run.name)
                if position >= stages and until(record, position) == until(self._record, position):
                    log.warning(
                        "trial %d: trial %d has stored the end of %s with these parameters, by another "
                        "version of the trainer, torch or transformers; it is computed again: update all",
                        *(self._record.trial, record.trial, run.name),
                    )
                    return

    def _candidates(self, stages: int, steps: int) -> Iterator[Checkpoint]:
        """Yield what the trial might start from, the furthest first."""
        for position in reversed(range(stages, len(self._names))):
            name = self._names[position]
            if name in self._shared.ends:
                yield self._shared.end(name)
            if name in self._shared.trunks:
                for step in sorted(self._stored_steps(name), reverse=True):
                    if position > stages or step > steps:
                        yield self._shared.within(name, step)

    def _stored_steps(self, stage: str) -> set[int]:
        """Return the steps of a trunk's checkpoints, of the records or of this trial's earlier attempts."""
        until = self._shared.trunks[stage].until
        try:
            recorded = {
                (run.step, run.key)
                for record in self._experiment.recent_trials()
                for run in record.snapshots
                if run.name == stage and run.step is not None and 0 < run.step <= until
            }
            found = {step for step, key in recorded if self._shared.within(stage, step).key == key}
            if self._record.attempt > 1:
                # Also where there is a manifest; `_fetch` checks whether it is this trial's own.
                entries = self._store.list(stored_stages.STAGES)
                keys = {entry.key.split("/")[1] for entry in entries if entry.key.endswith(f"/{MANIFEST}")}
                steps = range(until, max(0, until - _MOST_STEPS), -1) if keys else ()
                found |= {step for step in steps if self._shared.within(stage, step).key in keys}
        except EnvironmentFault as error:
            log.warning("trial %d: points of %s are not known: %s", self._record.trial, stage, clause(error))
            return set()
        return found

    def _fetch(self, checkpoint: Checkpoint) -> Fetched | None:
        """Bring one checkpoint into the run folder; None if it is not stored, or not worth its transfer."""
        trial = self._record.trial
        origin = stage_runs.publisher(self._experiment.recent_trials(), checkpoint.key, trial)
        if origin is None and self._record.attempt == 1:
            return None
        found = copying.published(self._store, stored_stages.prefix(checkpoint.key))
        if origin is None:
            if found is None or not found.by.startswith(folder_of(trial)):
                return None
            origin = self._record  # published, but not yet recorded
        elif found is None:
            raise Damaged("it is not in the store")
        run = next((run for run in origin.snapshots if run.key == checkpoint.key), None)
        # Seconds that it took to get there; infinite if none are known.
        earlier = self._names[: self._names.index(checkpoint.stage)]
        runs = [*(each for each in origin.stages if each.name in earlier), *filter(None, (run,))]
        known = [each.seconds for each in runs if each.seconds is not None]
        saved_s = math.fsum(known) if known else math.inf
        if found.size > SHARE * saved_s * self._expected_rate():
            log.info("trial %d computes %s: fetching it would take too long", trial, checkpoint.name)
            return None
        # Fetched next to its place, and renamed into it once it is verified.
        incoming, began = self._incoming(checkpoint), time.monotonic()
        patience_s = min(max(_PATIENCE * saved_s, _LEAST_PATIENCE_S), _MOST_PATIENCE_S)
        pace = Deadline(UploadConfig(patience_s=patience_s))
        if math.isfinite(saved_s):
            pace.set(began + max(saved_s, _LEAST_PATIENCE_S))
        incoming.mkdir(parents=True)
        try:
            prefix = stored_stages.prefix(checkpoint.key)
            copying.fetch(self._store, prefix, found, incoming, link=self._link, deadline=pace)
            stated = details(incoming, checkpoint)
        except (Damaged, Unfit):
            self.damaged[checkpoint.key] = found.version
            raise
        except OutOfTime:
            self._note_rate(found.size, began)  # less than all of it came: the rate is at most this
            reason = f"{shown_bytes(found.size)} took longer to fetch than the {saved_s:.0f} s that it saves"
            raise OutOfTime(reason) from None
        incoming.rename(self._folder / checkpoint.name)
        self._note_rate(found.size, began)
        log.info("trial %d starts after %s of trial %d", trial, checkpoint.name, origin.trial)
        return Fetched(checkpoint=checkpoint, record=origin, run=run, details=stated)

    def _expected_rate(self) -> float:
        """Return the bytes per second that a fetch is expected to have."""
        rate, measured, took_s = _rates.get(self._store.url, (FASTEST_BYTES_PER_S, 0.0, 0.0))
        doubles_s = max(_DOUBLES_S, _DOUBLES_AFTER * took_s)
        doublings = min((time.monotonic() - measured) / doubles_s, 60.0)
        return max(rate, min(FASTEST_BYTES_PER_S, rate * math.exp2(doublings)))

    def _note_rate(self, size: int, began: float) -> None:
        if size >= _MEASURABLE:
            now = time.monotonic()
            took_s = max(now - began, 1e-3)
            _rates[self._store.url] = (size / took_s, now, took_s)

    def _incoming(self, checkpoint: Checkpoint) -> Path:
        return self._folder / f".{checkpoint.name}.incoming"


def folder_of(trial: int, attempt: int | str = "") -> str:
    """Return the name of a publisher's folder below `stages/KEY/`; without an attempt, its beginning."""
    return f"{trial:06d}-{attempt}"
