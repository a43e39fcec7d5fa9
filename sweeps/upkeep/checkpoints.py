"""Stored checkpoints of a sweep, compared with their manifests and with its records.

`inventory.survey` calls `survey_checkpoints`; `diagnostics` makes findings of its answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
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
) -> Iterator[Mismatch]:
    """Yield what is wrong with the stored checkpoints. Raises `StoreUnavailable`.

    Args:
        checksums: whether to read all files of a folder; a bucket has checksums of its own.
    """
    by_key: defaultdict[str, list[Trial]] = defaultdict(list)
    for record in records:
        for run in record.snapshots:
            by_key[run.key].append(record)
    open_ = [record for record in records if not record.finished]
    publishing = {f"{record.trial:06d}" for record in open_}
    in_use = {run.key for record in open_ for run in (*record.stages, *record.points)}
    at_work = {f"{r.trial:06d}-{r.attempt}" for r in open_ if r.status == "running"}

    def mismatch(state: State, key: str, reason: str = "", stored: StoredStage | None = None) -> Mismatch:
        named = by_key.get(key, [])
        running = tuple(record.trial for record in named if record.status == "running")
        trials = tuple(record.trial for record in named)
        return Mismatch(state=state, key=key, reason=reason, trials=trials, running=running, stored=stored)

    present: set[str] = set()
    for stage in stored_stages.stored_stages(store):
        damage = ""
        if stage.manifest.version is not None or stage.manifest.problem:
            damage = stage.problem() or (stored_stages.damaged_bytes(store, stage) if checksums else "")
        # Without the files of publishers that are at work.
        idle = replace(stage, parts={n: p for n, p in stage.parts.items() if publisher(n) not in at_work})
        is_used = stage.key in in_use or stage.publisher.partition("-")[0] in publishing
        if stage.manifest.files is not None or stage.manifest.is_newer or damage:
            present.add(stage.key)
        if stage.manifest.is_newer:  # for a program that can read it
            yield Mismatch(state="newer", key=stage.key)
        elif damage:
            yield mismatch("damaged", stage.key, damage, idle)
        elif (
            stage.key in present and not is_used and stage.key not in by_key and now - stage.updated > YOUNG_S
        ):
            yield Mismatch(state="unnamed", key=stage.key, stored=idle)
        else:
            old = {name: p for name, p in idle.leftovers().items() if now - p.updated > YOUNG_S}
            if old:
                yield Mismatch(state="unpublished", key=stage.key, stored=replace(stage, parts=old))
    yield from (mismatch("vanished", key) for key in by_key if key not in present)
