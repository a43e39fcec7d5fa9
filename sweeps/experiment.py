"""One sweep in one store: ask for a trial, tell how it went, list what there is.

The store's records are the only truth; this module and `upkeep` are the only ones that write them, each time
with a compare-and-swap. `worker` and the command line call it, `lifecycle` decides what a record becomes, and
`optimizer` is opened only where candidates are generated, because it imports Ax.
"""

from __future__ import annotations

import json
import logging
import random
import re
import shlex
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from sweeps import budget, control, lifecycle, space, trial
from sweeps.errors import (
    AlreadyExists,
    Conflict,
    DamagedObject,
    IllegalTransition,
    InputError,
    StoreConflict,
    SweepClosed,
    SweepNotFound,
)
from sweeps.lease import ObjectLease
from sweeps.space import Space, Value
from sweeps.storage.base import NotFound, Store
from sweeps.trial import Generator, Trial

if TYPE_CHECKING:
    from sweeps.optimizer import Optimizer

log = logging.getLogger(__name__)

SWEEP_KEY = "sweep.json"
ASK_KEY = "ask.lock"
_RECORD = re.compile(rf"{trial.PREFIX}(\d{{6}})\.json")
_POLL_S = (0.05, 0.25)
# A worker of instant trials claims from one listing for so long; where trials take longer it always lists.
_CLAIM_WITHIN_S = 1.0


class Experiment:
    """A sweep that exists in `store`. Open one with `create` or `open`."""

    def __init__(self, store: Store, space: Space) -> None:
        self.store, self.space = store, space
        self._known: dict[int, tuple[Trial, str]] = {}
        self._listed = float("-inf")
        self._optimizer: Optimizer | None = None

    @classmethod
    def create(cls, store: Store, space_: Space, *, skip_if_exists: bool = False) -> Experiment:
        """Write `sweep.json` and return the new sweep.

        Raises:
            InputError: there is a sweep already; with `skip_if_exists`, only if its space is another one.
        """
        document = {"schema": space.SCHEMA, "space": space.to_json(space_)}
        data = (json.dumps(document, indent=1, allow_nan=False) + "\n").encode()
        try:
            store.create(SWEEP_KEY, data)
        except AlreadyExists:
            if not skip_if_exists:
                raise InputError(
                    f"{store.url}: a sweep exists here; go on with "
                    f"`sweep worker --storage {shlex.quote(store.url)}`, "
                    "or choose another name in the search space file or another --storage"
                ) from None
            existing = cls.open(store)
            if existing.space != space.from_json(json.loads(data)["space"]):
                raise InputError(
                    f"{store.url}: the sweep here was made from another search space; "
                    "choose another name in the search space file or another --storage"
                ) from None
            return existing
        return cls(store, space_)

    @classmethod
    def open(cls, store: Store) -> Experiment:
        """The sweep in `store`. Raises `SweepNotFound` or `DamagedObject`."""
        try:
            data, _ = store.read(SWEEP_KEY)
        except NotFound:
            raise SweepNotFound(
                f"{store.url}: no sweep here; make one with `sweep init SPACE.yaml`, "
                "or point --storage and --name at one"
            ) from None
        try:
            document = json.loads(data)
            if document["schema"] != space.SCHEMA:
                raise ValueError(f"schema is {document['schema']!r}, this version reads {space.SCHEMA}")
            return cls(store, space.from_json(document["space"]))
        except (ValueError, KeyError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}".replace("\n", " ")
            raise DamagedObject(SWEEP_KEY, reason, store.location(SWEEP_KEY)) from None

    # ---- reading

    def trials(self) -> list[Trial]:
        """Every trial in index order; only records that changed since the last call are read.

        Raises:
            DamagedObject: a record is torn or was edited into something that it cannot be.
        """
        versions = {
            int(match[1]): entry.version
            for entry in self.store.list(trial.PREFIX)
            if (match := _RECORD.fullmatch(entry.key))  # a foreign object is not ours to judge here
        }
        known = self._known
        changed = [i for i, version in versions.items() if i not in known or known[i][1] != version]
        known.update(zip(changed, self._fetch_all(changed), strict=True))
        self._known, self._listed = {index: known[index] for index in sorted(versions)}, time.monotonic()
        return [record for record, _ in self._known.values()]

    def trial(self, index: int) -> Trial:
        """One trial as it is now. Raises `InputError` where there is none of this index."""
        try:
            return self._read(index)[0]
        except NotFound:
            raise InputError(f"{self.store.url}: there is no trial {index}; see `sweep trials`") from None

    def _read(self, index: int) -> tuple[Trial, str]:
        self._known[index] = self._fetch(index)
        return self._known[index]

    def _fetch_all(self, indices: list[int]) -> Iterator[tuple[Trial, str]]:
        """Records in the order of `indices`, as many at once as the store can answer."""
        at_once = min(self.store.concurrent_reads, len(indices))
        if at_once <= 1:
            yield from map(self._fetch, indices)
            return
        pool = ThreadPoolExecutor(at_once, thread_name_prefix="read")
        try:
            yield from pool.map(self._fetch, indices)
        finally:
            pool.shutdown(cancel_futures=True)  # the first failure stops the rest

    def _fetch(self, index: int) -> tuple[Trial, str]:
        key = trial.key(index)
        data, version = self.store.read(key)
        try:
            record = trial.decode(data)
            if record.trial != index:
                raise ValueError(f"it says trial {record.trial}")
        except ValueError as error:
            raise DamagedObject(key, str(error), self.store.location(key)) from None
        return record, version

    # ---- changing

    def apply(self, index: int, event: lifecycle.Event) -> Trial:
        """Store what the event makes of the trial, and return it; races are retried on fresh records.

        Raises:
            IllegalTransition: see `lifecycle.apply`.
        """
        while True:
            record, version = self._read(index)
            changed = lifecycle.apply(record, event, self.store.now())
            if changed is record:
                return record
            try:
                return self._replace(index, changed, version)
            except Conflict:
                continue

    def _replace(self, index: int, changed: Trial, version: str) -> Trial:
        data = trial.encode(changed, uuid.uuid4().hex)
        written = self.store.replace(trial.key(index), data, version)
        stored = trial.decode(data)
        self._known[index] = (stored, written)
        return stored

    def _create(self, record: Trial) -> Trial:
        data = trial.encode(record, uuid.uuid4().hex)
        version = self.store.create(trial.key(record.trial), data)
        stored = trial.decode(data)
        self._known[record.trial] = (stored, version)
        return stored

    # ---- asking

    def ask(
        self,
        worker: str,
        *,
        leased: bool = True,
        make: bool = True,
        wait: Callable[[float], object] = time.sleep,
    ) -> Trial | None:
        """A trial that now runs under `worker`'s name, or None when there is nothing to claim or to make.

        A pending trial is taken first, in shuffled order; otherwise (with `make`) the next candidate is
        generated, by one worker at a time. `wait` is called between tries with the seconds to wait, and may
        raise to give up.

        Raises:
            NothingToAsk: the optimizer cannot make another candidate, though the sweep's cap allows one.
            SweepClosed: the sweep is paused or stopped, or its budget is spent.
        """
        if (claimed := self._claim_lately_known(worker, leased=leased)) is not None:
            return claimed
        while True:
            records = self.trials()
            self._must_be_open(records)
            claimed = self._take_over(records, worker, leased=leased) or self._claim_one(
                records, worker, leased=leased
            )
            if claimed is not None:
                return claimed
            if not make or self.is_full(records):
                return None
            lease = ObjectLease(
                self.store,
                ASK_KEY,
                holder=worker,
                heartbeat_s=self.space.lease.heartbeat_s,
                expire_s=self.space.lease.expire_s,
            )
            with lease.held() as mine:
                if mine and (made := self._make_one(worker, leased=leased)) is not None:
                    return made
            if not mine:
                wait(random.uniform(*_POLL_S))  # noqa: S311 - spreads workers out, guards nothing

    def is_full(self, records: list[Trial]) -> bool:
        """Whether the sweep has as many trials of its own as its run cap allows; imported ones are extra."""
        own = sum(record.generator != "imported" for record in records)
        return self.space.run_cap is not None and own >= self.space.run_cap

    def _must_be_open(self, records: list[Trial]) -> None:
        match control.read(self.store):
            case "paused":
                raise SweepClosed("paused", f"{self.store.url} is paused; `sweep resume` opens it again")
            case "stopped":
                raise SweepClosed("stopped", f"{self.store.url} is stopped; `sweep resume` opens it again")
        if told := budget.exceeded(self.space.budget, records, self.store.now()):
            raise SweepClosed("spent", f"the budget of {self.store.url} is reached: {told}")

    def _claim_lately_known(self, worker: str, *, leased: bool) -> Trial | None:
        """Claim from the last listing while it is young: the store refuses what has gone meanwhile."""
        if time.monotonic() - self._listed > _CLAIM_WITHIN_S:
            return None
        records = [record for record, _ in self._known.values()]
        if not any(record.status == "pending" for record in records):
            return None
        self._must_be_open(records)
        return self._claim_one(records, worker, leased=leased)

    def _take_over(self, records: list[Trial], worker: str, *, leased: bool) -> Trial | None:
        """Claim a trial whose worker fell silent; whoever sees it first does it.

        One write ends the lost attempt and begins the next: a bucket takes one write a second of a name.
        """
        lease, now = self.space.lease, self.store.now()
        event = lifecycle.Expire(after_s=lease.expire_s, max_attempts=lease.max_attempts)
        claim = lifecycle.Claim(worker=worker, leased=leased)
        for record in records:
            if not lifecycle.is_stale(record, now, lease.expire_s):
                continue
            changed = lifecycle.apply(record, event, now)
            log.warning("trial %d: %s", record.trial, changed.history[-1])
            if changed.status == "pending":
                changed = lifecycle.apply(changed, claim, now)
            try:
                stored = self._replace(record.trial, changed, self._known[record.trial][1])
            except StoreConflict:
                self._known.pop(record.trial, None)
                continue
            if stored.status == "running":
                return stored
        return None

    def _claim_one(self, records: list[Trial], worker: str, *, leased: bool) -> Trial | None:
        pending = [record for record in records if record.status == "pending"]
        claim, now = lifecycle.Claim(worker=worker, leased=leased), self.store.now()
        while pending:
            # At random: workers that race for one name lose time; nothing else depends on it.
            record = pending.pop(random.randrange(len(pending)))  # noqa: S311 - guards nothing
            try:
                changed = lifecycle.apply(record, claim, now)
                return self._replace(record.trial, changed, self._known[record.trial][1])
            except (StoreConflict, IllegalTransition):
                self._known.pop(record.trial, None)  # somebody was faster: the next listing reads it again
        return None

    def _make_one(self, worker: str, *, leased: bool) -> Trial | None:
        """Generate the next candidate and store it as running; None if somebody else was faster."""
        records = self.trials()
        if self.is_full(records) or any(record.status == "pending" for record in records):
            return None
        index = records[-1].trial + 1 if records else 0
        parameters, generator = self._candidate(records)
        now = self.store.now()
        fresh = Trial(trial=index, status="pending", parameters=parameters, generator=generator, created=now)
        claimed = lifecycle.apply(fresh, lifecycle.Claim(worker=worker, leased=leased), now)
        try:
            return self._create(claimed)
        except AlreadyExists:
            log.info("trial %d was made by another worker; adopting it", index)
            return None

    def _candidate(self, records: list[Trial]) -> tuple[dict[str, Value], Generator]:
        if self.space.baseline is not None and all(r.generator == "imported" for r in records):
            return dict(self.space.baseline), "baseline"
        if self._optimizer is None:
            from sweeps.optimizer import Optimizer

            self._optimizer = Optimizer(self.space)
        self._optimizer.observe(records)
        (candidate,) = self._optimizer.generate(1)
        return dict(candidate.parameters), candidate.generator
