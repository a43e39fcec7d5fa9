"""Records of one sweep, read in a thread and cached: a record that has not changed is not read again.

A listing gives the versions of all records. Between two listings of a folder only the records of trials that
have not ended are read, and the next index: that finds new trials and progress, and costs no listing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

from sweeps.errors import DamagedObject, StoreUnavailable, SweepClosed, SweepNotFound, unreadable
from sweeps.experiment import SWEEP_KEY, Experiment
from sweeps.operations.limits import amendment_lines, most_trials
from sweeps.search.confirm import rounds
from sweeps.search.confirm.plan import Plan
from sweeps.search.confirm.rounds import Standing
from sweeps.space.definition import Space
from sweeps.storage.base import NotFound, Store
from sweeps.trials import budget, control, packs
from sweeps.trials import record as trial
from sweeps.trials.actions import Action, History
from sweeps.trials.control import Switch
from sweeps.trials.record import Trial
from sweeps.trials.redaction import redact_trials

_RECORD = re.compile(rf"{trial.PREFIX}(\d{{6}})\.json")
_QUARANTINED = re.compile(rf"{trial.QUARANTINE}(\d{{6}})\.json-")
_CURVE = b'\n "curve": ['
_BATCH = 500
_OPEN_AT_ONCE = 200
"""Records of open trials that are read between two listings; the others wait for the listing."""
_ACTIONS = 5
"""The control card grows with them; `sweep history` shows all."""
_AHEAD = 4
"""Indices behind the last one that are tried between two listings."""
_NO_COPIES: Mapping[int, packs.Content] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class View:
    """A sweep as it was read last.

    Args:
        number: counts the changes that this server has read; pages name it.
        space: with the amendments.
        records: by index, without secrets and without curves.
        damaged: what could not be read, a line each.
        changes: who changed which limit and when, a line each.
        actions: what people did last, the newest first.
        confirmation: the plan of `sweep confirm` and where it stands; None without one.
        stop: where the search stands by its `search.stop`, in a line; "" without one.
    """

    number: int
    url: str
    space: Space
    records: tuple[Trial, ...]
    damaged: tuple[str, ...]
    switch: Switch
    archived: bool
    changes: tuple[str, ...]
    actions: tuple[Action, ...]
    confirmation: tuple[Plan, Standing] | None
    stop: str = ""
    done: bool = False
    now: float

    @cached_property
    def most_trials(self) -> int | None:
        """Return how many trials the run cap and the grid allow; None: no limit (see `most_trials`)."""
        return most_trials(self.space, self.records, ended=False)

    @property
    def cap(self) -> int | None:
        """Return how many trials the search will have had: no more than now if it has ended by itself."""
        return budget.run_cap_count(self.space, self.records) if self.done else self.most_trials

    def trial(self, index: int) -> Trial | None:
        """Return the record of one trial; None if there is none that can be read."""
        at = index if index < len(self.records) else len(self.records) - 1
        while at >= 0 and self.records[at].trial > index:  # a damaged record leaves a gap
            at -= 1
        return self.records[at] if at >= 0 and self.records[at].trial == index else None


class SweepReader:
    """Reader of one sweep, for one thread at a time.

    Attributes:
        done, total: records read and to be read, of the reading that runs now.
        ahead_s: seconds that the store's clock was ahead of this machine's.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._history = History(store)
        self._experiment: Experiment | None = None
        self._known: dict[int, tuple[str, Trial | None, str]] = {}
        self._view: View | None = None
        self.done = self.total = 0
        self.ahead_s = 0.0

    def refresh(self, *, listing: bool) -> View:
        """Read what has changed and return the sweep; the same object if nothing has.

        Args:
            listing: whether to list the records; without, only open trials and new ones are read.

        Raises:
            SweepNotFound: there is no sweep any more.
            StoreUnavailable: the store does not answer, or has lost records that it had.
            DamagedObject: `sweep.json` cannot be read.
        """
        if self._experiment is not None:
            try:  # a folder that is not mounted looks like one without records
                stored = self.store.read(SWEEP_KEY)
            except NotFound:
                raise SweepNotFound(f"{self.store.url}: the sweep is not there now") from None
            try:
                self._experiment.amendments.require_same_sweep(stored)
            except SweepClosed:  # it was deleted, and one of the same name made
                self._experiment = None
        opens = self._experiment is None
        if self._experiment is None:
            self._experiment, self._history, self._known = (
                Experiment.open(self.store),
                History(self.store),
                {},
            )
        changed = self._read_listed() if listing or opens else self._read_open()
        return self._assemble(self._experiment, changed or opens)

    def reread(self, indices: Sequence[int]) -> View:
        """Read these records again and return the sweep, after an action has changed them."""
        if self._experiment is None:
            return self.refresh(listing=True)
        return self._assemble(self._experiment, self._fetch(dict.fromkeys(indices, "")))

    def _read_listed(self) -> bool:
        found = (
            (match, entry.version)
            for entry in self.store.list(trial.PREFIX)
            if (match := _RECORD.fullmatch(entry.key))
        )
        versions = {int(match[1]): version for match, version in found}
        if missing := self._known.keys() - versions.keys():
            known = {index for index in missing if self._known[index][1] is not None}
            aside = (_QUARANTINED.match(entry.key) for entry in self.store.list(trial.QUARANTINE))
            if not known <= {int(match[1]) for match in aside if match}:  # else records are never removed
                raise StoreUnavailable(f"{self.store.url}: records that were here are not here now")
            for index in missing:
                del self._known[index]
        wanted = {i: v for i, v in versions.items() if i not in self._known or self._known[i][0] != v}
        new = {index: version for index, version in wanted.items() if index not in self._known}
        return self._fetch(wanted, packs.read(self.store, new)) or bool(missing)

    def _read_open(self) -> bool:
        known = ((index, found) for index, (_, found, _) in self._known.items() if found is not None)
        still_open = [index for index, found in known if not found.finished]
        still_open.sort(key=lambda index: self._known[index][1].status != "running")  # type: ignore[union-attr]
        after = max(self._known, default=-1) + 1
        return self._fetch(dict.fromkeys((*still_open[:_OPEN_AT_ONCE], *range(after, after + _AHEAD)), ""))

    def _fetch(self, wanted: Mapping[int, str], packed: Mapping[int, packs.Content] = _NO_COPIES) -> bool:
        """Read these records, those in `packed` from there; return whether any of them has changed."""
        self.done, self.total = 0, len(wanted)
        changed = False
        indices, unfit = list(wanted), dict[int, str]()
        for some in (indices[at : at + _BATCH] for at in range(0, len(indices), _BATCH)):
            single = [index for index in some if index not in packed]
            read = dict(zip(single, self._contents(single), strict=True))
            found = {index: packed[index] if index in packed else read[index] for index in some}
            new = {
                index: content
                for index, content in found.items()
                if content is not None and (index not in self._known or self._known[index][0] != content[1])
            }
            fresh: dict[int, Trial] = {}
            for index, record in trial.decode_each({i: _slim(data) for i, (data, _) in new.items()}).items():
                if isinstance(record, Trial):
                    fresh[index] = replace(record, curve=()) if record.curve else record
                elif index in packed:
                    unfit[index] = ""
                else:
                    key = trial.key(index)
                    reason = unreadable(key, record, self.store.location(key))
                    self._known[index] = (new[index][1], None, str(reason))
            for index, record in zip(fresh, redact_trials(fresh.values()), strict=True):
                self._known[index] = (new[index][1], record, "")
            changed |= bool(new)
            self.done += len(some)
        return (self._fetch(unfit) if unfit else False) or changed

    def _contents(self, indices: Sequence[int]) -> list[tuple[bytes, str] | None]:
        keys = [trial.key(index) for index in indices]
        try:
            return self.store.read_many(keys)
        except DamagedObject:  # one of them is no file; find out which
            found: list[tuple[bytes, str] | None] = []
            for index, key in zip(indices, keys, strict=True):
                content = None
                try:
                    content = self.store.read(key)
                except NotFound:
                    pass
                except DamagedObject as error:
                    self._known[index] = ("", None, str(error))
                found.append(content)
            return found

    def _assemble(self, experiment: Experiment, changed: bool) -> View:
        problems: list[str] = []
        amendments = experiment.amendments
        try:
            amendments.refresh()
        except DamagedObject:
            problems += map(str, amendments.damaged)
        switch = self._view.switch if self._view is not None else Switch()
        try:
            switch = control.switch(self.store)
        except DamagedObject as error:
            problems.append(str(error))
        records = tuple(found for _, (_, found, _) in sorted(self._known.items()) if found is not None)
        confirmation = None
        try:
            confirmation = rounds.of_store(self.store, experiment.space, list(records))
        except DamagedObject as error:
            problems.append(str(error))
        problems += [reason for _, (_, _, reason) in sorted(self._known.items()) if reason]
        standing = experiment.standing()
        view = View(
            number=1 if self._view is None else self._view.number,
            url=self.store.url,
            space=experiment.space,
            records=records,
            damaged=tuple(problems),
            switch=switch,
            archived=amendments.archived,
            changes=tuple(amendment_lines(amendments)),
            actions=self._history.refresh()[: -_ACTIONS - 1 : -1],
            confirmation=confirmation,
            stop="" if standing is None else str(standing),
            done=standing is not None and standing.ended,
            now=self.store.now(),
        )
        self.ahead_s = view.now - time.time()
        before = self._view
        if before is not None and not changed and _same(before, view):
            return before
        self._view = view if before is None else replace(view, number=before.number + 1)
        return self._view


def _same(one: View, other: View) -> bool:
    """Return whether two readings without a changed record show the same."""

    def parts(view: View) -> tuple[object, ...]:
        plan = None if view.confirmation is None else view.confirmation[0]
        switch = view.switch, view.stop, view.archived
        return view.space, view.damaged, switch, view.changes, view.actions, plan

    return parts(one) == parts(other)


def _slim(data: bytes) -> bytes:
    """Return a record without its curve, which no page of a sweep shows.

    Of 10,000 records, curves take most of the memory and half of the time. Nothing is left out of a record
    that is not laid out as `encode` does it.
    """
    start = data.find(_CURVE)
    end = data.find(b"\n", start + 1)
    curve = data[start + len(_CURVE) : end]
    if start < 0 or end < 0 or not curve.endswith(b"],") or b'"' in curve:
        return data
    return data[:start] + data[end:]
