"""Cache of the records: in order, and never known to be outdated."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from memory_store import MemoryStore

from sweeps.errors import Conflict
from sweeps.trials import brake, lifecycle, repository
from sweeps.trials.lifecycle import Abandon, Claim, Complete, Fail, Retry
from sweeps.trials.record import Trial
from sweeps.trials.repository import Records


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    for index in range(3):
        pending = Trial(trial=index, status="pending", parameters={"x": index / 10}, generator="sobol")
        Records(store).create(pending)
    return store


def claimed(record: Trial, worker: str = "w") -> Trial:
    return lifecycle.apply(record, Claim(worker=worker), now=1.0)


def statuses(found: list[Trial]) -> list[tuple[int, str]]:
    return [(record.trial, record.status) for record in found]


def test_the_last_listing_is_remembered_with_our_own_changes(store):
    mine = Records(store)
    assert mine.lately() == []
    listed = mine.all()
    mine.replace(claimed(listed[1]))
    mine.create(Trial(trial=3, status="pending", parameters={"x": 0.9}, generator="sobol"))
    assert statuses(mine.lately()) == [(0, "pending"), (1, "running"), (2, "pending"), (3, "pending")]


def test_it_is_forgotten_when_it_is_old(store, monkeypatch):
    mine = Records(store)
    mine.all()
    monkeypatch.setattr(repository, "FRESH_S", -1.0)
    assert mine.lately() == []


def test_after_a_lost_race_it_is_known_to_be_old(store):
    """Without the record that somebody else has now, the list would be short of a trial."""
    mine, theirs = Records(store), Records(store)
    listed = mine.all()
    theirs.replace(claimed(theirs.all()[1], "other"))
    with pytest.raises(Conflict):
        mine.replace(claimed(listed[1]))
    assert mine.lately() == []
    assert statuses(mine.all()) == [(0, "pending"), (1, "running"), (2, "pending")]
    assert mine.all()[1].worker == "other"


def test_a_record_that_was_read_in_between_keeps_its_place(store):
    mine, theirs = Records(store), Records(store)
    listed = mine.all()
    theirs.replace(claimed(theirs.all()[0], "other"))
    with pytest.raises(Conflict):
        mine.replace(claimed(listed[0]))
    mine.read(0)
    mine.apply(2, Abandon(by="me"))
    assert [record.trial for record in mine.all()] == [0, 1, 2]
    assert [record.trial for record in mine.lately()] == [0, 1, 2]


def many(count: int) -> MemoryStore:
    store = MemoryStore()
    writer = Records(store)
    for index in range(count):
        writer.create(Trial(trial=index, status="pending", parameters={"x": index / 10}, generator="sobol"))
    return store


def test_some_of_many_new_records_are_read():
    store = many(40)
    mine = Records(store)
    found, unread = mine.some(8)
    assert (len(found), unread, len(mine)) == (8, 32, 8)
    assert found == sorted(found, key=lambda record: record.trial)
    assert mine.lately() == []  # it is no listing
    more, unread = mine.some(8)
    assert (len(more), unread) == (16, 24)
    assert {record.trial for record in found} < {record.trial for record in more}


def test_of_few_new_records_all_are_read():
    found, unread = Records(many(16)).some(8)
    assert not unread
    assert [record.trial for record in found] == list(range(16))


def test_none_of_some_is_known_to_be_outdated():
    store = many(40)
    mine, theirs = Records(store), Records(store)
    mine.all()
    for record in theirs.all()[:30]:
        theirs.replace(claimed(record, "other"))
    found, unread = mine.some(8)
    assert unread == 22
    assert len(found) == 10 + 8
    assert [record for record in found if record != theirs.read(record.trial)] == []
    assert mine.all() == theirs.all()


def test_failure_of_the_trial_that_ended_last_is_known_after_every_change():
    """It is kept up to date, by one writer and by what a listing brings of another."""
    seen = Counter()
    for seed in range(20):
        draw, store = random.Random(seed), MemoryStore()
        mine, theirs = Records(store), Records(store)
        for _ in range(60):
            writer = draw.choice((mine, theirs))
            record = draw.choice(writer.all() or [None])
            if record is None or draw.random() < 0.2:
                fresh = Trial(trial=len(writer.all()), status="pending", parameters={}, generator="sobol")
                writer.create(fresh)
                continue
            held = {"worker": record.worker or "", "attempt": record.attempt}
            ends = Complete(metrics={}, **held), Fail(error="e", failure="crashed", **held), Abandon(by="ada")
            events = {"pending": Claim(worker="w"), "running": draw.choice(ends), "failed": Retry(by="ada")}
            if record.status in events:
                if draw.random() < 0.5:
                    mine.all()
                mine.last_failed()  # from here on it is kept up to date, and not found anew
                writer.apply(record.trial, events[record.status])
                mine.read(draw.choice(writer.known()).trial)  # perhaps one that ended earlier
                seen[mine.last_failed()] += 1
                assert mine.last_failed() == brake.last_failed(mine.known())
    assert min(seen[True], seen[False]) > 50
