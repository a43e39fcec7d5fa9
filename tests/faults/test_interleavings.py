"""Workers and people at the same time, in every order that differs from the first by one deviation, and in random ones.

`interleaving.py` has the scheduler, `protocol_cases.py` who does what and what must hold. Here the quick part of it runs, and faults that
were put into the protocol are found by it. A failure shows its schedule; `INTERLEAVING='TwoWorkers 31:freeze' pytest -k one_schedule`
repeats it and shows its steps.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator

import pytest
from interleaving import Violation, drawn, one_by_one
from memory_store import MemoryStore
from protocol_cases import (
    Asked,
    Case,
    Confirmed,
    Deleted,
    Enqueued,
    Extended,
    Failing,
    GivenUp,
    InBucket,
    PlannedTwice,
    Renamed,
    Shared,
    Switched,
    ToldToGo,
    TwoWorkers,
)

from sweeps.errors import AlreadyExists
from sweeps.search import allocation
from sweeps.transfer import removal
from sweeps.trials import lifecycle
from sweeps.trials.lease import Silence

CASES = (
    TwoWorkers, Enqueued, Extended, Switched, GivenUp, Failing, ToldToGo, Asked, Confirmed, PlannedTwice, InBucket, Shared, Deleted, Renamed,
)  # fmt: skip
SINGLE, PAIRS = 8, 3
"""Schedules of one deviation, and of two, that the quick test tries of each case."""


def schedules(case: type[Case], single: int | None, more: range, deviations: int = 2) -> Iterator[str]:
    """Yield the first schedule, some with one deviation (None: all), and those that the seeds `more` draw."""
    options = case().run().simulation.options
    yield ""
    singles = list(one_by_one(options))
    yield from singles if single is None else random.Random(single).sample(singles, min(single, len(singles)))
    yield from (drawn(options, deviations, seed) for seed in more)


@pytest.mark.parametrize("case", CASES)
def test_what_must_hold_does_in_some_orders(case):
    for schedule in schedules(case, SINGLE, range(PAIRS)):
        case(schedule).run()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("case", CASES)
def test_what_must_hold_does_in_many_orders(case):
    """HYPOTHESIS_PROFILE=thorough tries all of one deviation, and 300 of two and of four."""
    single, seeds = (None, 300) if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else (60, 20)
    for schedule in itertools.chain(
        schedules(case, single, range(seeds)), schedules(case, 0, range(seeds), 4)
    ):
        case(schedule).run()


def test_one_schedule_is_repeated():
    """Also by hand: see the head of this file."""
    name, _, schedule = os.environ.get("INTERLEAVING", "TwoWorkers 20:w2 31:freeze 40:kill").partition(" ")
    case = next(case for case in CASES if case.__name__ == name)
    first, second = case(schedule).run(), case(schedule).run()
    print("\n".join(first.simulation.steps))
    assert first.simulation.steps == second.simulation.steps


def at(case: type[Case], operation: str, deviation: str) -> Iterator[str]:
    """Yield a schedule for each step of the first one at which this is done: the deviation is there."""
    for step, line in enumerate(case().run().simulation.steps):
        if operation in line:
            yield f"{step}:{deviation}"


@pytest.mark.parametrize(
    ("case", "operation", "deviation"),
    [
        (TwoWorkers, "list runs/", "freeze"),
        (Enqueued, "create trials/", "freeze"),
        (Deleted, "read control.json", "ada"),
        (Deleted, "list", "w1"),
        (Renamed, "control.json", "w2"),
        (Renamed, "copy", "bob"),
    ],
    ids=[
        "frozen before it looks for files of a trial: it makes no copy of that one beyond the cap",
        "frozen before it stores a trial of its own: the cap holds",
        "deleted and made anew before a claim: no trial of the old sweep comes into the new one",
        "claimed amid a deletion: nothing is left for the next sweep of the name",
        "claimed before a rename has stopped the sweep: it waits, and the result is in the new place",
        "resumed amid a rename and claimed: the rename waits, and the result is in the new place",
    ],
)
def test_faults_that_were_found(case, operation, deviation):
    found = list(at(case, operation, deviation))
    assert found
    for schedule in found:
        case(schedule).run()


# ---- whether faults are found


def lose_condition(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryStore, "replace", lambda self, key, data, expected: self._put(key, data))


def create_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryStore, "create", lambda self, key, data: self._put(key, data))


def let_anybody_report(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lifecycle, "_check_holder", lambda record, event: None)


def take_over_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Silence, "is_stale", lambda self, record, now: record.status == "running")
    patch.setattr(lifecycle, "is_stale", lambda record, now, after_s: record.status == "running")


def count_no_claim(patch: pytest.MonkeyPatch) -> None:
    claim = lifecycle._claim
    patch.setattr(
        lifecycle,
        "_claim",
        lambda record, event, now: lifecycle.replace(
            claim(record, event, now), attempt=max(1, record.attempt)
        ),
    )


def forget_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(removal, "forget", lambda experiment, key: True)


def pass_over_trials(patch: pytest.MonkeyPatch) -> None:
    def free_index(store, records):
        index = records[-1].trial + 1 if records else 0
        while store.list(f"runs/{index:06d}/"):
            index += 1
        return index

    patch.setattr(allocation, "free_index", free_index)


def trust_old_check(patch: pytest.MonkeyPatch) -> None:
    create_claimed, check = allocation.Allocator.create_claimed, allocation.Allocator._must_be_open

    def skip_check(self, claim, **named):
        patch.setattr(allocation.Allocator, "_must_be_open", lambda self, records: None)
        try:
            return create_claimed(self, claim, **named)
        finally:
            patch.setattr(allocation.Allocator, "_must_be_open", check)

    patch.setattr(allocation.Allocator, "create_claimed", skip_check)


def take_number_of_another(patch: pytest.MonkeyPatch) -> None:
    create = MemoryStore.create

    def careless(self, key, data):
        try:
            return create(self, key, data)
        except AlreadyExists:
            if key.startswith("amendments/"):
                return self.read(key)[1]
            raise

    patch.setattr(MemoryStore, "create", careless)


@pytest.mark.parametrize(
    ("break_it", "case", "deviation"),
    [
        (lose_condition, TwoWorkers, "freeze"),
        (create_over, TwoWorkers, "freeze"),
        (create_over, PlannedTwice, "p2"),
        (let_anybody_report, TwoWorkers, "freeze"),
        (take_over_at_once, TwoWorkers, "w2"),
        (count_no_claim, TwoWorkers, "freeze"),
        (forget_nothing, Shared, "w2"),
        (pass_over_trials, TwoWorkers, "freeze"),
        (trust_old_check, Deleted, "ada"),
        (take_number_of_another, Extended, "bob"),
    ],
)
def test_broken_protocol_is_noticed(
    break_it: Callable[[pytest.MonkeyPatch], None], case, deviation, monkeypatch
):
    single = [each for each in schedules(case, None, range(0)) if each.endswith(deviation)]
    break_it(monkeypatch)
    assert any(is_noticed(case(schedule)) for schedule in single)


def is_noticed(case: Case) -> bool:
    try:
        case.run()
    except Violation:
        return True
    return False
