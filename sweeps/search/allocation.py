"""Allocation of trials to workers: a pending one, one whose worker fell silent, or a new candidate.

`experiment.ask` calls it. `optimizer` is imported only to generate candidates, because it imports Ax; random
search needs it only where parameters are constrained.
"""

from __future__ import annotations

import itertools
import logging
import random
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from sweeps.errors import AlreadyExists, Busy, Interrupted, StoreConflict, SweepClosed
from sweeps.search import stop_rule
from sweeps.search.confirm import rounds
from sweeps.search.grid import Grid
from sweeps.space.definition import Space, Value
from sweeps.storage.base import Store
from sweeps.trials import brake, budget, control, lifecycle
from sweeps.trials.amendments import Amendments
from sweeps.trials.lease import ObjectLease, Silence
from sweeps.trials.record import Generator, Trial
from sweeps.trials.repository import ENDED_S, FRESH_S, Records, free_index

if TYPE_CHECKING:
    from sweeps.search.optimizer import FidelityOptimizer, Optimizer
    from sweeps.search.random_search import RandomSearch

log = logging.getLogger(__name__)

ASK_KEY = "ask.lock"
_POLL_S = (0.05, 0.25)
# A wait between two tries is up to this share of the time waited so far, at most of two leases: of many
# workers that wait, each lists the trials a few times in all, not several times a second.
_WAIT_SHARE = 0.5
# Claims lost to other workers before the trials are listed again: most of an old list is taken by then.
_TRIES = 3
# Records that are read before a claim where more than twice as many are new.
_SAMPLE = 32
# How long a trial is skipped after its record was found locked by another process.
_STUCK_S = 30.0
# The least seconds for which a worker has the lease in a bucket of Google.
_TURN_S = 2.0
# Each takes 0.1 s, or 1 s by the surrogate, and delays this worker's own trial.
_MOST_SPARE = 15


def draws_without_ax(space: Space) -> bool:
    """Return whether candidates are points of a sequence, as of random search without constraints."""
    return space.search.method == "random" and not space.parameter_constraints and not space.transfer


class Allocator:
    """Claims and creates trials of one sweep, for one worker at a time.

    Attributes:
        lease: held while candidates are generated.
    """

    def __init__(
        self, store: Store, space: Space, records: Records, amendments: Amendments, silence: Silence
    ) -> None:
        self._store, self._space, self._records = store, space, records
        self._amendments, self._silence = amendments, silence
        self._optimizer: Optimizer | FidelityOptimizer | None = None
        self._judged = ""  # digest of the records on which the search was not to end
        self._stuck: dict[int, float] = {}  # index → the monotonic time until when it is left out
        times = space.lease
        self.lease = ObjectLease(store, ASK_KEY, heartbeat_s=times.heartbeat_s, expire_s=times.expire_s)

    def ask(
        self,
        worker: str,
        *,
        leased: bool,
        make: bool,
        confirming: bool = False,
        wait: Callable[[float], object],
    ) -> Trial | None:
        """Return a trial that now runs under `worker`'s name; see `Experiment.ask`."""
        claim = lifecycle.Claim(worker=worker, leased=leased, nodes=self._space.program.nodes)
        if (claimed := self._claim_from_recent_listing(claim, confirming=confirming)) is not None:
            return claimed
        searching = make and not confirming
        rivals: set[str] = set()
        began = time.monotonic()
        trust_ended_s = ENDED_S
        while True:
            with self._silence.contact():
                records, complete = self._some(trust_ended_s, searching=searching)
                self._must_be_open(records if complete else [])
            wanted = _wanted(self._records.unsettled() if complete else records, confirming=confirming)
            claimed = self._take_over(wanted, claim) or self._claim_one(wanted, claim)
            if claimed is not None:
                return claimed
            if self._claimable(wanted):
                wait(self._longer(began))
                continue  # other workers won the race, but some trials remain
            if complete and not self._may_create(records, searching=searching):
                if not self._records.is_partial:
                    return None
                trust_ended_s = 0.0  # before the worker leaves: a trial may have been retried just now
                continue
            by_ax = self._grid is None and self._random is None and self._due_baseline(records) is None
            if searching and by_ax and not (complete and self.is_full(records)):
                self._ax()  # takes seconds to import: before the lease, workers may do it side by side
            with self.lease.held(worker) as mine:
                if mine and (made := self.create_claimed(claim, searching=searching)):
                    others = len(rivals)
                    if rivals and self._space.search.method == "random":
                        # This worker looked at the lease rarely, and saw few of those that had it meanwhile.
                        others = max(others, int((time.monotonic() - began) / _TURN_S))
                    self._create_for_others(made, others, wait, searching=searching)
                    return made
            if not mine:
                rivals.add(self.lease.rival)
                least_s = random.uniform(*_POLL_S)  # noqa: S311 - spreads workers out, guards nothing
                wait(least_s + self._longer(began))

    def _some(self, trust_ended_s: float, *, searching: bool) -> tuple[list[Trial], bool]:
        """Return trials to claim from, and whether these are all.

        A thousand workers that start together would read a million records, of which each needs one that is
        pending. Where many are new, a worker in a bucket therefore looks at some of them first, and reads all
        only under the lease, to make a candidate. It reads all, too, where a claim depends on all: on a
        budget, on trials that failed last, or on there being no more to make.
        """
        limits = self._limits
        if self._store.is_remote and searching and self._grid is None and not budget.amounts(limits.budget):
            standing = self.standing()
            cap = limits.run_cap
            if (cap is None or len(self._records) < cap) and not (standing is not None and standing.ended):
                records, unread = self._records.some(_SAMPLE)
                full = cap is not None and len(records) + unread >= cap and not self._claimable(records)
                if not unread or not (full or brake.last_failed(records)):
                    return records, not unread
        return self._records.all(trust_ended_s=trust_ended_s), True

    def _longer(self, began: float) -> float:
        """Return seconds to wait beside the least, by the monotonic time when this worker began to."""
        if not self._store.is_remote:  # a folder refuses nobody, and a free lease is a worker that idles
            return 0.0
        # Without a limit, those that come later would always be first, as they try more often.
        waited_s = min(time.monotonic() - began, 2 * self._space.lease.expire_s)
        return random.uniform(0.0, _WAIT_SHARE) * waited_s  # noqa: S311 - spreads workers out

    def is_full(self, records: list[Trial]) -> bool:
        """Return whether its run cap, its grid or `search.stop` allows the sweep no more trials of its own.

        Imported trials, those of a confirmation, and those below the target of a sweep with fidelities do not
        count towards the run cap; imported ones do cover their configuration in a grid.
        """
        run_cap = self._limits.run_cap
        if run_cap is not None and len(records) >= run_cap <= budget.run_cap_count(self._space, records):
            return True
        if self._grid is not None:
            return not self._grid.left(records)
        return (standing := self.standing()) is not None and standing.ended

    def standing(self) -> stop_rule.Standing | None:
        """Return where the search stands by its `search.stop`, None without one; nothing is fitted."""
        return stop_rule.standing(self._store, self._limits)

    def _may_create(self, records: list[Trial], *, searching: bool) -> bool:
        """Return whether a new trial may be made: for the search, or for a round of the confirmation."""
        if searching and not self.is_full(records):
            return True
        return self._repeat(records) is not None

    @cached_property
    def _grid(self) -> Grid | None:
        if self._space.search.method != "grid":
            return None
        return Grid(self._space)

    @cached_property
    def _random(self) -> RandomSearch | None:
        if not draws_without_ax(self._space):
            return None
        from sweeps.search.random_search import RandomSearch  # imports NumPy, which most commands need not

        return RandomSearch(self._space)

    @property
    def _limits(self) -> Space:
        """Return the space with all amendments of the last check: `_must_be_open` looks for new ones."""
        return self._amendments.space

    def _must_be_open(self, records: list[Trial]) -> None:
        url = self._store.url
        while True:
            self._amendments.refresh()
            switch = control.switch(self._store)
            if switch.braked:
                raise SweepClosed("braked", f"{url} has paused itself: {switch.why}; {brake.REMEDY}")
            if switch.state == "paused":
                raise SweepClosed("paused", f"{url} is paused; `sweep resume` opens it again")
            if switch.state == "stopped":
                raise SweepClosed("stopped", f"{url} is stopped; `sweep resume` opens it again")
            if reached := budget.reached_limit(self._limits, records, self._store.now()):
                raise SweepClosed("spent", f"the budget of {url} is reached: {reached}")
            # Looked for only after a failure: this runs for every trial.
            has_failed = bool(records) and self._records.last_failed()
            why = brake.reason_to_pause(self._space.brake, records, since=switch.at) if has_failed else ""
            if not why:
                return
            if not self._claimable(records) and not self._may_create(records, searching=True):
                return  # nothing is left to save
            control.brake(self._store, switch, why)  # one worker's write wins; all check again

    # ---- existing trials

    def _claim_from_recent_listing(self, claim: lifecycle.Claim, *, confirming: bool) -> Trial | None:
        """Claim from the last listing while it is recent: the store refuses a claim on an outdated record."""
        records = self._records.lately()
        wanted = _wanted(self._records.unsettled() if records else [], confirming=confirming)
        if not self._claimable(wanted) or self._records.last_failed():  # more may have failed since
            return None
        self._must_be_open(records)
        return self._claim_one(wanted, claim)

    def _take_over(self, records: list[Trial], claim: lifecycle.Claim) -> Trial | None:
        """Claim a trial whose lease has expired.

        One write ends the lost attempt and begins the next: a bucket allows one write per second and object.
        """
        lease, now = self._space.lease, self._store.now()
        event = lifecycle.Expire(after_s=lease.expire_s, max_attempts=lease.max_attempts)
        self._silence.observe(now)
        for record in records:
            if not self._silence.is_stale(record, now) or self._is_stuck(record):
                continue
            changed = lifecycle.apply(record, event, now)
            if changed.status == "pending":
                changed = lifecycle.apply(changed, claim, now)
            if (stored := self._replace(changed)) is None:
                continue
            log.warning("trial %d: %s", stored.trial, stored.history[-1])
            if stored.status == "running":
                return stored
        return None

    def _claim_one(self, records: list[Trial], claim: lifecycle.Claim) -> Trial | None:
        """Claim a pending trial; None if there is none, or after `_TRIES` lost races.

        A user's own come before those of the search, the oldest first, also where two workers begin at the
        same time. Random order of the others only keeps workers from racing for the same record.
        """
        pending, now = self._claimable(records), self._store.now()
        own = [record for record in pending if record.generator == "enqueued"]
        oldest, others = own[:2], own[2:] if own else pending
        for record in oldest + random.sample(others, min(_TRIES - len(oldest), len(others))):
            if (claimed := self._replace(lifecycle.apply(record, claim, now))) is not None:
                return claimed
        return None

    def _claimable(self, records: list[Trial]) -> list[Trial]:
        return [record for record in records if record.status == "pending" and not self._is_stuck(record)]

    def _replace(self, changed: Trial) -> Trial | None:
        """Store the trial; None if another worker wrote it first, or holds its lock."""
        try:
            return self._records.replace(changed)
        except StoreConflict:
            return None
        except Busy as error:
            log.warning("trial %d is left out for now: %s", changed.trial, error)
            self._stuck[changed.trial] = time.monotonic() + _STUCK_S
            return None

    def _is_stuck(self, record: Trial) -> bool:
        return self._stuck.get(record.trial, 0.0) > time.monotonic()

    # ---- new trials, created while holding the ask lease

    def create_claimed(self, claim: lifecycle.Claim, *, searching: bool = True) -> Trial | None:
        """Generate the next candidate and store it as running.

        Args:
            searching: whether it may be one of the search; otherwise only one of the confirmation.

        Returns:
            The trial, or None if the sweep is full, a trial became claimable, or its index was taken.
        """
        records = self._records.all(trust_ended_s=ENDED_S)
        # Again: while this worker imported Ax or waited for the lease, the sweep may have been deleted and
        # another made of its name. Nobody deletes or renames it while the lease is held.
        self._must_be_open(records)
        if self._claimable(_wanted(self._records.unsettled(), confirming=not searching)):
            return None
        return self._create(records, claim, searching=searching)

    def _create(
        self,
        records: list[Trial],
        claim: lifecycle.Claim | None = None,
        *,
        searching: bool,
        repeats: bool = True,
    ) -> Trial | None:
        """Generate the next candidate and store it, claimed or pending; None if there is none to make.

        A repeat that the confirmation waits for comes before a new candidate of the search, if `repeats`.
        """
        index = free_index(self._store, records)
        generator: Generator
        if repeats and (repeat := self._repeat(records)) is not None:
            parameters, generator = repeat, "confirm"
        elif searching and not self.is_full(records) and not self._ends(records):
            parameters, generator = self.candidate(records)
        else:
            return None
        now = self._store.now()
        fresh = Trial(trial=index, status="pending", parameters=parameters, generator=generator, created=now)
        try:
            return self._records.create(fresh if claim is None else lifecycle.apply(fresh, claim, now))
        except AlreadyExists:
            log.info("trial %d was created by another worker first", index)
        except Busy as error:
            log.warning("trial %d cannot be created: %s", index, error)
        return None

    def _repeat(self, records: list[Trial]) -> dict[str, Value] | None:
        """Return the parameters of the next repeat that the confirmation waits for, or None."""
        found = rounds.of_store(self._store, self._space, records)
        return found[0].repeat(*found[1].due[0]) if found is not None and found[1].due else None

    def _create_for_others(
        self, made: Trial, rivals: int, wait: Callable[[float], object], *, searching: bool
    ) -> None:
        """Generate pending trials for the workers that wait for the lease.

        In a bucket of Google the lease changes hands about every two seconds (one write per second and
        object), in S3 twice a second, so a hundred workers that start together would wait for minutes. Each
        trial is stored before the next is generated: a worker gets the same candidate as if it had held the
        lease itself. This worker's own trial is already running and waits: this ends before its heartbeat
        is overdue, and errors are only logged.
        """
        if not self._store.is_remote:
            return
        until = time.monotonic() + self._space.lease.heartbeat_s / 2
        newest: Trial | None = made
        checked = time.monotonic()
        try:
            for count in itertools.count():
                if newest is None or time.monotonic() >= until:
                    return
                if not self._makes_another(newest, count, rivals):
                    return
                wait(0.0)  # raises once the worker is asked to stop
                records, repeats = self._records.lately(), True
                if not records and self._space.search.method == "random":
                    # Nobody else makes trials now, and a point depends on no result. To read what all the
                    # others write meanwhile would take longer than to make it.
                    records, repeats = self._records.known(), False
                    if time.monotonic() - checked > FRESH_S:
                        self._must_be_open(records)
                        checked, repeats = time.monotonic(), True
                elif not records or newest.generator == "botorch":
                    records = self._records.all()
                    self._must_be_open(records)
                newest = self._create(records, searching=searching, repeats=repeats)
        except (Exception, Interrupted) as error:  # noqa: BLE001 - see above
            log.info("no more trials are created for other workers: %s", error)

    def _makes_another(self, newest: Trial, made: int, rivals: int) -> bool:
        """Return whether to create one more trial for others.

        In random search a point does not depend on when it is drawn, so spare ones cost nothing; each of the
        others has made some, and still there is a queue. A candidate of the surrogate is better the later it
        is made, and points of Sobol beyond the first design would stand in for it: so their number follows
        the length of the queue.

        Args:
            newest: the last trial that was made.
            made: number of trials made for others so far.
            rivals: number of other workers that held the lease while this one waited.
        """
        if newest.generator in ("botorch", "fidelity"):
            return made < min(rivals - 1, _MOST_SPARE)
        if newest.generator != "sobol":
            return made < (_MOST_SPARE if rivals else 0)
        if self._space.search.method == "random":
            return made < _MOST_SPARE * rivals
        in_design = newest.trial < self._ax().first_trials  # a baseline, the first trial, is not counted
        return made < min(rivals, _MOST_SPARE) or (rivals > 0 and in_design)

    def candidate(self, records: list[Trial]) -> tuple[dict[str, Value], Generator]:
        """Return the next trial's parameters and what generated them."""
        if (baseline := self._due_baseline(records)) is not None:
            return dict(baseline), "baseline"
        if self._grid is not None:
            return self._grid.in_order(records)[0], "grid"
        if self._random is not None:
            return self._random.candidate(records), "sobol"
        optimizer = self._ax()
        optimizer.observe(records)
        (candidate,) = optimizer.generate(1)
        return dict(candidate.parameters), candidate.generator

    def _ends(self, records: list[Trial]) -> bool:
        """Return whether the search ends here by its `search.stop`; a fit per new result, by one worker."""
        stop = self._limits.search.stop
        if stop is None or not stop_rule.applies(self._space, records):
            return False
        digest = stop_rule.digest_of(stop, records)
        if digest == self._judged:
            return False
        self._judged, standing = digest, self.standing()
        if standing is None or standing.found is None or standing.found.digest != digest:
            optimizer = self._ax()
            from sweeps.search.optimizer import SURROGATE_FAILURES

            results = stop_rule.results(self._space, records)
            optimizer.observe(records)
            try:
                found = optimizer.optimum(results, more=stop.trials)
            except SURROGATE_FAILURES as error:
                log.warning("search.stop waits for another result, because the surrogate failed: %s", error)
                return False
            if found is None:  # all results lie outside of this space
                return False
            expectation = stop_rule.Expectation(
                gain=found.gains[-1],
                trials=stop.trials,
                results=len(results),
                digest=digest,
                at=self._store.now(),
            )
            stop_rule.keep(self._store, expectation)
        return (standing := self.standing()) is not None and standing.ended

    def _due_baseline(self, records: list[Trial]) -> Mapping[str, Value] | None:
        """Return the baseline, the search's own first candidate, while it is still to be made."""
        if not all(record.is_imported or record.generator == "enqueued" for record in records):
            return None
        return self._space.baseline

    def _ax(self) -> Optimizer | FidelityOptimizer:
        if self._optimizer is None:
            from sweeps.search.optimizer import asker

            self._optimizer = asker(self._space)
        return self._optimizer


def _wanted(records: list[Trial], *, confirming: bool) -> list[Trial]:
    """Return the open trials that a worker may get: all, or those of the confirmation alone."""
    found = [record for record in records if record.status == "pending" or record.status == "running"]
    return [record for record in found if record.generator == "confirm"] if confirming else found
