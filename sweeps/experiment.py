"""One sweep in one store: ask for a trial, report its result, list all trials.

The records in the store are the only state; only `trials.repository` and `upkeep` write them, always with a
compare-and-swap. `trials.lifecycle` decides what a record becomes, and `search.allocation` which trial a
worker gets.
"""

from __future__ import annotations

import json
import logging
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from sweeps.errors import AlreadyExists, DamagedObject, InputError, SweepError, SweepNotFound, unreadable
from sweeps.search.allocation import Allocator
from sweeps.search.enqueueing import enqueue
from sweeps.search.stop_rule import REMEDY, Standing
from sweeps.space import space_json
from sweeps.space.definition import Space, Stop, Value
from sweeps.space.priors import without_new_defaults
from sweeps.storage import keys
from sweeps.storage.base import NotFound, Store
from sweeps.trials import lifecycle, packs, storable
from sweeps.trials.amendments import GAIN, Amendment, Amendments, Changes, limits
from sweeps.trials.lease import Silence
from sweeps.trials.record import Trial
from sweeps.trials.redaction import redact, redacted_line
from sweeps.trials.repository import Records

SWEEP_KEY = keys.SWEEP_KEY

REMOTE_EXPIRE_S = 150.0
"""Minimal lease of a sweep made in a bucket, in seconds: a request may be retried for over two minutes."""

log = logging.getLogger(__name__)


class Experiment:
    """Sweep that exists in `store`, made by `create` or `open`.

    Args:
        space: as `sweep init` has written it.
        silence: what this process knows of lost workers; None: nothing yet.
        records: those that are known; None: none yet.
        amendments: those that are known; None: none yet.
    """

    def __init__(
        self,
        store: Store,
        space: Space,
        silence: Silence | None = None,
        records: Records | None = None,
        amendments: Amendments | None = None,
    ) -> None:
        self.store, self.written = store, space
        self.amendments = Amendments(store, space) if amendments is None else amendments
        self._records = Records(store) if records is None else records
        self.silence = silence or Silence(space.lease.expire_s)
        self.allocator = Allocator(store, space, self._records, self.amendments, self.silence)

    @property
    def space(self) -> Space:
        """Return the space with the amendments that are known; `written` is that of `sweep init`."""
        return self.amendments.space

    @classmethod
    def create(cls, store: Store, space: Space, *, skip_if_exists: bool = False) -> Experiment:
        """Write `sweep.json` and return the new sweep.

        Raises:
            InputError: a sweep exists already (with `skip_if_exists`: see `require_same`), or the space could
                not be read back (half a surrogate pair in a text, for example).
        """
        document = {"schema": space_json.SCHEMA, "space": space_json.to_json(space)}
        try:
            data = (json.dumps(document, indent=1, allow_nan=False) + "\n").encode()
            # Read back here, since what cannot be read (half a surrogate pair) would end each worker.
            written = space_json.read(data)
            if unfit := [ascii(name) for name in space.metrics() if not storable.is_name(name)]:
                raise ValueError(f"no metric can be called {unfit[0]}")
        except ValueError as error:
            raise InputError(f"{space.name!a}: this search space cannot be stored: {error}") from None
        try:
            version = store.create(SWEEP_KEY, data)
        except AlreadyExists:
            if not skip_if_exists:
                raise InputError(
                    f"{store.url}: a sweep exists here; go on with "
                    f"`sweep worker --storage {shlex.quote(store.url)}`, "
                    "or choose another name in the search space file or another --storage"
                ) from None
        else:
            return cls(store, space, amendments=Amendments(store, space, (data, version)))
        existing = cls.open(store)
        existing.require_same(written)
        return existing

    @classmethod
    def open(cls, store: Store) -> Experiment:
        """Return the sweep in `store`, with its amendments, as far as these can be read.

        Raises:
            SweepNotFound: there is none.
            DamagedObject: its `sweep.json` cannot be read.
        """
        began = time.monotonic()
        try:
            data, version = store.read(SWEEP_KEY)
        except NotFound:
            raise SweepNotFound(
                f"{store.url}: no sweep here; make one with `sweep init SPACE.yaml`, "
                "or point --storage and --name at one"
            ) from None
        try:
            opened = space_json.read(data)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            reason = f"{type(error).__name__}: {error}".replace("\n", " ")
            raise unreadable(SWEEP_KEY, error, store.location(SWEEP_KEY), reason) from None
        found = cls(store, opened, amendments=Amendments(store, opened, (data, version)))
        found.amendments.load()
        found.silence.note_answer(began)
        return found

    def for_thread(self) -> Experiment:
        """Return the sweep for another thread, which shares no cache and begins with what this one knows."""
        return Experiment(
            self.store, self.written, self.silence, self._records.copy(), self.amendments.copy()
        )

    def extend(self, changes: Changes, *, by: str) -> Amendment:
        """Change limits of the sweep for all workers, from their next claim on, and return the record of it.

        Args:
            changes: new values of `run_cap` and of a budget's limits, by name; None lifts a limit. `until` is
                in seconds since the epoch. A function of the present space returns them, and is called again
                where somebody else has changed the sweep meanwhile.

        Raises:
            InputError: there is no such limit, or it cannot have this value; nothing was changed.
        """
        return self.amendments.add(changes, by)

    def require_same(self, space: Space) -> None:
        """Raise `InputError` with the differences if the sweep has another space; limits may differ."""
        there = self.written
        here = replace(space, name=there.name, run_cap=there.run_cap, budget=there.budget)
        if here.program.kind == "trainer":  # its stages follow from the rest, and change with its version
            here = replace(here, stages=there.stages)
        if [source.url for source in here.transfer] == [source.url for source in there.transfer]:
            here = replace(here, transfer=there.transfer)  # read once, when the sweep was made
        if max(here.lease.expire_s, there.lease.expire_s) == REMOTE_EXPIRE_S:
            # Creation raises it to that in a bucket, and `sweep copy` takes sweeps into and out of one.
            here = replace(here, lease=replace(here.lease, expire_s=there.lease.expire_s))
        here = without_new_defaults(here, there)
        stop, trials = here.search.stop, (there.search.stop or Stop(expected_gain=1.0)).trials
        if stop is None or stop.trials == trials:
            here = replace(here, search=replace(here.search, stop=there.search.stop))
        if here != there:
            raise InputError(
                f"{self.store.url}: the sweep here was made from another search space: "
                f"{redact(space_json.differences(there, here))}; go on with the settings that it has, or "
                "choose another name or another storage"
            )

    def raise_limits(self, space: Space, *, by: str) -> Amendment | None:
        """Extend the sweep by the limits of a space that are larger, and return the record of it; None: none.

        What `sweep init` wrote or `sweep extend` has set is no change.

        Raises:
            InputError: a limit is smaller; nothing was changed.
        """
        present = limits(self.amendments.refresh())
        written, wanted = limits(self.written), limits(space)
        changed = {
            name: limit for name, limit in wanted.items() if limit not in (written[name], present[name])
        }
        for name, limit in changed.items():
            now = present[name]
            verb = "sets" if now is None else "raises" if name == GAIN else "lowers"
            if limit is not None and (now is None or (limit > now if name == GAIN else limit < now)):
                # In full, as the command is to set this number.
                here, there = (repr(each).removesuffix(".0") for each in (now, limit))
                named = {"run_cap": f"--run-cap {there}", GAIN: f"--expected-gain {there}"}
                option = named.get(name, f"--budget {name}={there}")
                shown = "not limited" if now is None else here
                raise InputError(
                    f"{self.store.url}: {name} is {shown} in the sweep here and {there} in these settings; "
                    f"`sweep extend {option} --storage {shlex.quote(self.store.url)}` {verb} it"
                )
        return self.extend(changed, by=by) if changed else None

    def trials(self) -> list[Trial]:
        """Return every trial in index order; only records that changed since the last call are read.

        Raises:
            DamagedObject: a record is torn or was edited into something that it cannot be.
        """
        return self._records.all()

    def readable_trials(self) -> tuple[list[Trial], list[DamagedObject]]:
        """Return every trial that can be read, in index order, and an error for each that cannot."""
        return self._records.readable()

    def recent_trials(self) -> list[Trial]:
        """Return every trial as of a listing of the last second, or else of a new one."""
        return self._records.lately() or self.trials()

    def pack_records(self, *, after: int | None = None) -> None:
        """Copy ended records of a bucket into `packs`, so that new readers need not read each.

        Args:
            after: the trial that has just ended; then this is done for every fiftieth alone, by its worker.
        """
        if after is not None and after % packs.EVERY != packs.EVERY - 1:
            return
        try:
            if numbers := self._records.pack():
                log.debug("%s: wrote packs %s", self.store.url, numbers)
        except SweepError as error:
            log.info("records were not packed, a later trial will try again: %s", error)

    def trial(self, index: int) -> Trial:
        """Return one trial as it is now. Raises `InputError` if there is none with this index."""
        try:
            return self._records.read(index)
        except NotFound:
            raise InputError(f"{self.store.url}: there is no trial {index}; see `sweep trials`") from None

    def apply(self, index: int, event: lifecycle.Event) -> Trial:
        """Apply the event to the trial, store and return it; a lost race is retried on a fresh record.

        Raises:
            IllegalTransition: see `lifecycle.apply`.
        """
        with self.silence.contact():
            return self._records.apply(index, event)

    def ask(
        self,
        worker: str,
        *,
        leased: bool = True,
        make: bool = True,
        confirming: bool = False,
        wait: Callable[[float], object] = time.sleep,
    ) -> Trial | None:
        """Return a trial that now runs under `worker`'s name.

        A random pending trial comes first; otherwise one worker at a time generates the next candidate.

        Args:
            leased: whether the trial expires without heartbeats.
            make: whether a new candidate of the search may be generated; a repeat of a confirmation always.
            confirming: whether only trials of the confirmation are wanted.
            wait: called between tries with the seconds to wait; may raise to give up.

        Returns:
            The trial, or None when there is nothing to claim or to generate.

        Raises:
            NothingToAsk: the optimizer cannot make another candidate, though the sweep's cap allows one.
            SweepClosed: the sweep is paused or stopped, or its budget is spent.
        """
        return self.allocator.ask(
            redacted_line(worker), leased=leased, make=make, confirming=confirming, wait=wait
        )

    def enqueue(
        self, configurations: Sequence[Mapping[str, Value]], worker: str, *, skip_if_exists: bool = False
    ) -> list[Trial]:
        """Store trials that are run before the search's own candidates, all or none, and return them.

        They count towards the run cap and the budget, and the search learns from them as from others.

        Args:
            configurations: the active parameters of each (see `space.literals`).
            skip_if_exists: return the trial that has the same parameters already, if there is one.

        Raises:
            InputError: the run cap leaves no room for them.
            StoreUnavailable: others were creating trials for minutes; or others did while this process stood
                still for longer than its lease, and the message says how many are stored.
        """
        self.amendments.refresh()  # the run cap may have been raised
        return enqueue(
            *(self.store, self.space, self._records, self.allocator.lease, configurations),
            worker=redacted_line(worker),
            skip_if_exists=skip_if_exists,
        )

    def is_full(self, records: list[Trial]) -> bool:
        """Return whether the sweep has all trials that its run cap, its grid or `search.stop` allows."""
        return self.allocator.is_full(records)

    def standing(self) -> Standing | None:
        """Return where the search stands by its `search.stop`, None without one; nothing is fitted."""
        return self.allocator.standing()

    def why_done(self) -> str:
        """Return why the search has ended by itself and how it goes on, as one line; "" if it has not."""
        standing = self.standing()
        if standing is None or not standing.ended:
            return ""
        return f"{self.store.url}: {standing}; {REMEDY}"
