"""Stored checkpoints of a sweep, compared with their manifests and with its records.

`inventory.survey` calls `survey_checkpoints`; `diagnostics` makes findings of its answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from sweeps.storage.base import Store
from sweeps.transfer import stored_stages
from sweeps.transfer.stored_stages import StoredStage, publisher
from sweeps.trials.record import Trial

YOUNG_S = 3600.0
"""Files that are younger may belong to a checkpoint that is being published, by whichever program."""

State = Literal["newer", "damaged", "vanished", "unnamed", "unpublished"]
"""newer: its manifest is of a later version. damaged: it does not fit its manifest. vanished: records say
that it is stored, and it has no manifest. unnamed: complete, but no record says that it is stored.
unpublished: files that no manifest names."""


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """Checkpoint whose stored state does not fit the records or itself.

    Args:
        reason: how it is damaged, in one clause; "" otherwise.
        trials: whose records say that it is stored.
        running: those of them that run now: their workers would write again what is changed there.
        stored: what to remove of it; None if nothing is.
    """

    state: State
    key: str
    reason: str = ""
    trials: tuple[int, ...] = ()
    running: tuple[int, ...] = ()
    stored: StoredStage | None = field(default=None, repr=False)


def survey_checkpoints(
    store: Store, records: Sequence[Trial], now: float, *, checksums: bool = False
) -> tuple[Mismatch, ...]:
    """Return what is wrong with the stored checkpoints. Raises `StoreUnavailable`.

    Args:
        checksums: whether to read all files of a folder; a bucket has checksums of its own.
    """
    stages, damaged = stored_stages.stored_stages(store), {}
    for stage in stages:
        is_there = stage.manifest.version is not None or stage.manifest.problem
        problem = stage.problem() or (stored_stages.damaged_bytes(store, stage) if checksums else "")
        if is_there and problem:
            damaged[stage.key] = problem
    return tuple(mismatches(stages, damaged, records, now))


def mismatches(
    stages: Iterable[StoredStage], damaged: Mapping[str, str], records: Sequence[Trial], now: float
) -> Iterator[Mismatch]:
    """Yield what is wrong with the checkpoints of a sweep.

    Args:
        damaged: why no trial can start from a checkpoint that has a manifest, by key.
    """
    claims = _Claims(records)
    present: set[str] = set()
    for stage in stages:
        if stage.manifest.files is not None or stage.manifest.is_newer or stage.key in damaged:
            present.add(stage.key)
        if stage.manifest.is_newer:  # for a program that can read it
            yield Mismatch(state="newer", key=stage.key)
        elif stage.key in damaged:
            yield claims.mismatch("damaged", stage.key, damaged[stage.key], claims.idle(stage))
        elif stage.key in present and claims.is_unclaimed(stage) and now - stage.updated > YOUNG_S:
            yield Mismatch(state="unnamed", key=stage.key, stored=claims.idle(stage))
        else:
            left = claims.idle(stage).leftovers()
            old = {name: part for name, part in left.items() if now - part.updated > YOUNG_S}
            if old:
                yield Mismatch(state="unpublished", key=stage.key, stored=replace(stage, parts=old))
    yield from (claims.mismatch("vanished", key) for key in claims.by_key if key not in present)


class _Claims:
    """Claims of the records about checkpoints."""

    def __init__(self, records: Sequence[Trial]) -> None:
        self.by_key: defaultdict[str, list[Trial]] = defaultdict(list)
        for record in records:
            for run in record.snapshots:
                self.by_key[run.key].append(record)
        self._publishers = {f"{r.trial:06d}-{r.attempt}" for r in records if r.status == "running"}
        self._open = {f"{record.trial:06d}" for record in records if not record.finished}
        self._in_use = {
            run.key for record in records if not record.finished for run in (*record.stages, *record.points)
        }

    def is_unclaimed(self, stage: StoredStage) -> bool:
        """Return whether no record has it as stored, and no unfinished trial publishes or uses it."""
        is_used = stage.key in self._in_use or stage.publisher.partition("-")[0] in self._open
        return not is_used and stage.key not in self.by_key

    def idle(self, stage: StoredStage) -> StoredStage:
        """Return the stage without the files of publishers that are at work."""
        parts = {name: p for name, p in stage.parts.items() if publisher(name) not in self._publishers}
        return replace(stage, parts=parts)

    def mismatch(
        self, state: State, key: str, reason: str = "", stored: StoredStage | None = None
    ) -> Mismatch:
        """Return a mismatch with the trials that have the checkpoint as stored."""
        named = self.by_key.get(key, [])
        return Mismatch(
            state=state,
            key=key,
            reason=reason,
            trials=tuple(record.trial for record in named),
            running=tuple(record.trial for record in named if record.status == "running"),
            stored=stored,
        )
