"""Packs of ended records: readers find the same with and without them, and only requests are saved."""

from __future__ import annotations

import gzip
import json
import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_store import MemoryStore

from sweeps.dashboard.reader import SweepReader
from sweeps.dashboard.readonly import ReadOnlyStore
from sweeps.errors import Conflict, DamagedObject, StoreUnavailable
from sweeps.experiment import Experiment
from sweeps.operations import copying
from sweeps.programs.signals import Stop
from sweeps.storage.base import Entry, Store
from sweeps.storage.gcs.store import GcsStore
from sweeps.storage.keys import SWEEP_KEY
from sweeps.storage.local import LocalStore
from sweeps.storage.objects.store import ObjectStore
from sweeps.storage.retries import RetryPolicy
from sweeps.trials import packs, record
from sweeps.trials.lifecycle import Claim, Complete, Retry
from sweeps.trials.record import Trial
from sweeps.trials.repository import Records
from sweeps.upkeep import doctor
from sweeps.upkeep.diagnostics import plan
from sweeps.upkeep.inventory import survey
from sweeps.upkeep.renaming import rename
from sweeps.upkeep.repair import carry_out
from sweeps.worker import loop

QUICK = RetryPolicy(total_s=20.0, attempt_s=5.0, first_wait_s=0.02, longest_wait_s=0.2)


class RemoteMemory(MemoryStore):
    """A bucket in memory that counts what is read, and may fail or die at a write."""

    is_remote = True

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []
        self.before_write: Callable[[str], object] = lambda key: None
        self.after_write: Callable[[str], object] = lambda key: None

    def read_many(self, keys: Sequence[str]) -> list[tuple[bytes, str] | None]:
        self.reads += keys
        return super().read_many(keys)

    def create(self, key: str, data: bytes) -> str:
        self.before_write(key)
        version = super().create(key, data)
        self.after_write(key)
        return version

    def replace(self, key: str, data: bytes, expected: str) -> str:
        self.before_write(key)
        version = super().replace(key, data, expected)
        self.after_write(key)
        return version


def ended(index: int) -> Trial:
    return Trial(
        trial=index,
        status="completed",
        parameters={"x": index / 10_000, "n": 1 + index % 100, "seed": 1},
        generator="sobol",
        attempt=1,
        metrics={"loss": float(index)},
        created=1.0,
        ended=2.0,
    )


def fill(store: Store, statuses: Sequence[str]) -> None:
    """Make a sweep of so many trials."""
    store.create(SWEEP_KEY, b'{"schema": 1}')
    for index, status in enumerate(statuses):
        made = ended(index)
        if status != "completed":
            made = replace(made, status=status, metrics={}, ended=None, attempt=0)
        store.create(record.key(index), record.encode(made, uuid.uuid4().hex))


def truth(store: Store) -> list[Trial]:
    """Return all trials as the records have them."""
    return [record.decode(store.read(entry.key)[0]) for entry in store.list(record.PREFIX)]


@pytest.fixture
def memory() -> RemoteMemory:
    return RemoteMemory()


@pytest.fixture(params=["memory", "gcs", "s3", "az"])
def bucket(request: pytest.FixtureRequest) -> Callable[[], Store]:
    """Return a function that opens the same empty bucket."""
    url = f"bucket/packs/{uuid.uuid4().hex}"
    if request.param == "memory":
        store = RemoteMemory()
        return lambda: store
    if request.param == "gcs":
        endpoint = request.getfixturevalue("gcs").url
        return lambda: GcsStore(f"gs://{url}", endpoint=endpoint, retries=QUICK)
    if request.param == "s3":
        endpoint = request.getfixturevalue("s3").door("front")
    else:
        endpoint = request.getfixturevalue("azure")
    return lambda: ObjectStore(f"{request.param}://{url}", endpoint=endpoint, retries=QUICK)


def test_reader_finds_the_records_in_packs(bucket):
    fill(bucket(), ["completed"] * 70 + ["pending"] * 3)
    assert Records(bucket()).pack() == [0]
    store = bucket()
    versions = {int(entry.key[7:13]): entry.version for entry in store.list(record.PREFIX)}
    found = packs.read(store, versions)
    assert sorted(found) == list(range(70))
    assert found == {index: store.read(record.key(index)) for index in range(70)}
    assert Records(bucket()).all() == truth(store)
    assert Records(bucket()).pack() == []  # nothing has changed


def test_a_record_that_returns_to_its_bytes_is_not_taken_from_the_pack(bucket):
    """A, B, A: the version is another one, in S3 as well, and so the copy is not used."""
    store = bucket()
    fill(store, ["completed"] * 60)
    Records(store).pack()
    first, version = store.read(record.key(7))
    other = store.replace(record.key(7), first.replace(b"7.0", b"8.0"), version)
    store.replace(record.key(7), first, other)
    versions = {int(entry.key[7:13]): entry.version for entry in store.list(record.PREFIX)}
    assert sorted(packs.read(store, versions)) == [index for index in range(60) if index != 7]
    assert Records(bucket()).all() == truth(store)


def test_only_what_the_packs_lack_is_read_singly(memory):
    fill(memory, ["completed"] * 1100 + ["pending"] * 5)
    Records(memory).pack()
    memory.reads.clear()
    assert len(Records(memory).all()) == 1105
    assert memory.reads == [SWEEP_KEY, "packs/000.gz", "packs/001.gz", *map(record.key, range(1100, 1105))]


def test_records_that_may_change_are_never_copied(memory):
    fill(memory, ["completed", "pending"] * 40)
    Records(memory).pack()
    (pack,) = packs.read_all(memory)
    assert sorted(pack.records) == list(range(0, 80, 2))


def test_a_thousand_trials_take_at_most_forty_writes(memory, space):
    """Each fiftieth trial's worker writes, once enough has ended; whatever the order of the ends."""
    fill(memory, ["pending"] * 300)
    written: list[str] = []
    memory.after_write = lambda key: written.append(key) if key.startswith(packs.PREFIX) else None
    experiment = Experiment(memory, space)
    order = list(range(300))
    random.Random(1).shuffle(order)
    for index in order:
        experiment.apply(index, Claim(worker="w"))
        experiment.apply(index, Complete(worker="w", attempt=1, metrics={"loss": 1.0}))
        experiment.pack_records(after=index)
    assert 1 <= len(written) <= 300 // packs.LACKING
    (pack,) = packs.read_all(memory)
    assert len(pack.records) > 300 - packs.EVERY - packs.LACKING


def test_worker_writes_a_pack_after_its_fiftieth_trial(memory, space):
    experiment = Experiment.create(memory, replace(space, run_cap=51))

    class Quiet:
        started = ended = dropped = progressed = waiting = closed = lambda self, *_: None

    loop.work(experiment, stop=Stop(), watcher=Quiet(), function=lambda parameters: {"loss": 1.0})
    (pack,) = packs.read_all(memory)
    assert sorted(pack.records) == list(range(50))


def test_a_folder_has_no_packs(tmp_path, space):
    store = LocalStore(tmp_path / "sweep")
    fill(store, ["completed"] * 60)
    Experiment(store, space).pack_records()
    assert store.list(packs.PREFIX) == []


# ---- packs that are not as they should be


def rewrite(store: Store, change: Callable[[bytes], bytes]) -> None:
    data, version = store.read("packs/000.gz")
    store.replace("packs/000.gz", change(data), version)


def with_head(**fields: object) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        head, _, rest = gzip.decompress(data).partition(b"\n")
        return gzip.compress(json.dumps(json.loads(head) | fields).encode() + b"\n" + rest)

    return change


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


BAD = {
    "empty": lambda data: b"",
    "cut short": lambda data: data[:-9],
    "one bit": flipped,
    "text": lambda data: b"not gzip at all",
    "gzip of nothing": lambda data: gzip.compress(b""),
    "gzip of a list": lambda data: gzip.compress(b"[1, 2]\n"),
    "gzip of NaN": lambda data: gzip.compress(b"NaN\n"),
    "deep": lambda data: gzip.compress(b"[" * 100_000),
    "bomb": lambda data: gzip.compress(bytes(100_000_000), 9),
    "later schema": with_head(schema=2),
    "another sweep's": with_head(sweep="1-of-another"),
    "no records": with_head(records=None),
    "odd entries": with_head(records=[[0, "1"], "abc"]),
    "another pack's trials": with_head(records=[[1000, "1", 10]]),
    "version is a number": with_head(records=[[0, 1, 10]]),
    "negative size": with_head(records=[[0, "1", -10]]),
    "index is a text": with_head(records=[["0", "1", 10]]),
    "sizes that do not fit": with_head(records=[[0, "1", 10]]),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_damaged_pack_costs_requests_and_is_replaced(memory, bad):
    fill(memory, ["completed"] * 60)
    Records(memory).pack()
    rewrite(memory, bad)
    assert Records(memory).all() == truth(memory)
    assert packs.read_all(memory)[0].problem
    assert Records(memory).pack() == [0]
    assert len(packs.read_all(memory)[0].records) == 60


def test_copies_that_are_no_records_are_read_again(memory, space):
    """By the right version and checksum, as only a faulty writer could make it."""
    fill(memory, ["completed"] * 60)
    Records(memory).pack()
    rewrite(
        memory,
        lambda data: gzip.compress(gzip.decompress(data).replace(b'"schema": 1,\n', b'"schema": 9,\n')),
    )
    assert not packs.read_all(memory)[0].problem
    assert Records(memory).all() == truth(memory)
    memory.delete(SWEEP_KEY, memory.read(SWEEP_KEY)[1])
    sweep_like = Experiment.create(memory, space)
    rewrite(memory, with_head(sweep=memory.read(SWEEP_KEY)[1]))
    view = SweepReader(ReadOnlyStore(sweep_like.store)).refresh(listing=True)
    assert (view.damaged, len(view.records)) == ((), 60)


def test_pack_of_a_deleted_sweep_of_this_name_is_not_used(memory):
    """Its versions may even be those of the new records, as in a store that counts them from 1."""
    fill(memory, ["completed"] * 60)
    Records(memory).pack()
    old = memory.read("packs/000.gz")[0]
    fresh = RemoteMemory()
    fresh.create("unrelated", b"")
    fill(fresh, ["completed"] * 60)
    fresh.create("packs/000.gz", old)
    assert packs.read_all(fresh)[0].problem == "it is a copy of another sweep's"
    assert Records(fresh).all() == truth(fresh)


def test_a_damaged_record_is_not_hidden_by_its_copy(memory):
    fill(memory, ["completed"] * 60)
    Records(memory).pack()
    data, version = memory.read(record.key(5))
    memory.replace(record.key(5), data[:40], version)
    with pytest.raises(DamagedObject, match="trials/000005"):
        Records(memory).all()
    readable, damaged = Records(memory).readable()
    assert [each.trial for each in readable] == [index for index in range(60) if index != 5]
    assert [error.key for error in damaged] == [record.key(5)]


def test_a_record_that_was_removed_is_not_brought_back(memory):
    fill(memory, ["completed"] * 60)
    Records(memory).pack()
    memory.delete(record.key(59), memory.read(record.key(59))[1])
    assert len(Records(memory).all()) == 59


def test_large_records_are_read_singly_and_tried_once(memory):
    fill(memory, ["completed"] * 60)
    for index in range(30):
        version = memory.read(record.key(index))[1]
        large = replace(ended(index), status="failed", error="x" * 70_000, failure="crashed")
        memory.replace(record.key(index), record.encode(large, uuid.uuid4().hex), version)
    assert Records(memory).pack() == [0]
    assert len(memory.read("packs/000.gz")[0]) < 10_000
    assert Records(memory).all() == truth(memory)
    assert Records(memory).pack() == []


# ---- writers


def test_of_two_writers_one_wins_and_nothing_is_lost(memory):
    fill(memory, ["completed"] * 60)
    before = packs.read_all(memory)
    settled = {int(entry.key[7:13]): entry.version for entry in memory.list(record.PREFIX)}
    assert Records(memory).pack() == [0]
    winner = memory.read("packs/000.gz")
    assert packs.write(memory, before, settled) == []
    assert memory.read("packs/000.gz") == winner


class Killed(BaseException):
    """The end of a process, which no code of ours catches."""


@pytest.mark.parametrize("earlier", [False, True], ids=["first pack", "a later one"])
@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_writer_that_dies_leaves_the_last_pack_or_the_new_one(memory, earlier, done):
    fill(memory, ["completed"] * 60 + ["pending"] * 30)
    if earlier:
        Records(memory).pack()
        for index in range(60, 90):
            Records(memory).apply(index, Claim(worker="w"))
            Records(memory).apply(index, Complete(worker="w", attempt=1, metrics={"loss": 1.0}))

    def die(key: str) -> None:
        raise Killed(key)

    if done:
        memory.after_write = die
    else:
        memory.before_write = die
    with pytest.raises(Killed, match=r"packs/000\.gz"):
        Records(memory).pack()
    memory.before_write = memory.after_write = lambda key: None
    copied = [len(pack.records) for pack in packs.read_all(memory)]
    assert copied == ([90 if earlier else 60] if done else [60] * earlier)
    assert Records(memory).all() == truth(memory)
    assert Records(memory).pack() == ([] if done else [0])


def test_an_error_of_the_store_ends_no_worker(memory, space, caplog):
    fill(memory, ["completed"] * 60)

    def refuse(key: str) -> None:
        raise StoreUnavailable(f"{key}: no answer")

    memory.before_write = refuse
    with caplog.at_level("INFO"):
        Experiment(memory, space).pack_records(after=49)
    assert "packs/000.gz: no answer" in caplog.text
    assert memory.list(packs.PREFIX) == []


def test_a_pack_that_was_written_meanwhile_is_not_set_back(memory):
    """A writer who listed the records early must not throw out what others have copied since."""
    fill(memory, ["completed"] * 60 + ["pending"] * 30)
    early = packs.read_all(memory)
    settled = {index: memory.read(record.key(index))[1] for index in range(60)}
    for index in range(60, 90):
        Records(memory).apply(index, Claim(worker="w"))
        Records(memory).apply(index, Complete(worker="w", attempt=1, metrics={"loss": 1.0}))
    Records(memory).pack()
    assert packs.write(memory, early, settled) == []
    assert len(packs.read_all(memory)[0].records) == 90


class Meanwhile(RemoteMemory):
    """A bucket in which something happens right before one of its prefixes is listed, or after that."""

    before: tuple[str, Callable[[], object]] | None = None
    after: tuple[str, Callable[[], object]] | None = None

    def list(self, prefix: str) -> list[Entry]:
        if self.before is not None and self.before[0] == prefix:
            (_, then), self.before = self.before, None
            then()
        found = super().list(prefix)
        if self.after is not None and self.after[0] == prefix:
            (_, then), self.after = self.after, None
            then()
        return found


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("prefix", [packs.PREFIX, record.PREFIX])
def test_what_others_pack_while_a_writer_lists_stays(when, prefix):
    store = Meanwhile()
    fill(store, ["completed"] * 60 + ["pending"] * 30)
    Records(store).pack()

    def others() -> None:
        for index in range(60, 90):
            Records(store).apply(index, Claim(worker="w"))
            Records(store).apply(index, Complete(worker="w", attempt=1, metrics={"loss": 1.0}))
        Records(store).pack()

    setattr(store, when, (prefix, others))
    assert Records(store).pack() == []
    assert len(packs.read_all(store)[0].records) == 90


def test_a_record_that_is_opened_while_a_writer_works_is_not_copied():
    store = RemoteMemory()
    fill(store, ["completed"] * 60)
    version = store.read(record.key(3))[1]
    failed = replace(ended(3), status="failed", metrics={}, error="e", failure="crashed")
    store.replace(record.key(3), record.encode(failed, uuid.uuid4().hex), version)
    before = packs.read_all(store)
    settled = {int(entry.key[7:13]): entry.version for entry in store.list(record.PREFIX)}
    Records(store).apply(3, Retry(by="me"))
    assert packs.write(store, before, settled) == [0]
    assert 3 not in packs.read_all(store)[0].records


def test_reading_writes_nothing(memory, space):
    experiment = Experiment.create(memory, space)
    for index in range(60):
        memory.create(record.key(index), record.encode(ended(index), uuid.uuid4().hex))

    def refuse(key: str) -> None:
        raise AssertionError(key)

    memory.before_write = refuse
    assert len(experiment.trials()) == len(experiment.readable_trials()[0]) == 60
    assert len(SweepReader(ReadOnlyStore(memory)).refresh(listing=True).records) == 60


def test_dashboard_reads_packs(memory, space):
    Experiment.create(memory, space)
    for index in range(60):
        memory.create(record.key(index), record.encode(ended(index), uuid.uuid4().hex))
    without = SweepReader(ReadOnlyStore(memory)).refresh(listing=True).records
    Records(memory).pack()
    memory.reads.clear()
    assert SweepReader(ReadOnlyStore(memory)).refresh(listing=True).records == without
    assert [key for key in memory.reads if key.startswith(record.PREFIX)] == []


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["end", "retry", "edit", "pack", "damage", "remove"]), st.integers(0, 119))
    )
)
def test_the_same_records_with_and_without_packs(history):
    """Whatever was done in whatever order: a reader that has seen nothing, or something, finds the truth."""
    store = RemoteMemory()
    fill(store, ["completed"] * 60 + ["pending"] * 60)
    Records(store).pack()
    watching = Records(store)
    for what, index in history:
        present = record.decode(store.read(record.key(index))[0])
        mine = Records(store)
        if what == "end" and present.status == "pending":
            claimed = mine.apply(index, Claim(worker="w"))
            mine.apply(index, Complete(worker="w", attempt=claimed.attempt, metrics={"loss": 1.0}))
        elif what == "edit":
            data, version = store.read(record.key(index))
            store.replace(record.key(index), data + b" ", version)
        elif what == "retry" and present.finished:
            data, version = store.read(record.key(index))
            failed = replace(present, status="failed", metrics={}, error="e", failure="crashed")
            store.replace(record.key(index), record.encode(failed, uuid.uuid4().hex), version)
            Records(store).apply(index, Retry(by="me"))
        elif what == "pack":
            mine.pack()
        elif store.list(packs.PREFIX) and what == "damage":
            rewrite(store, flipped)
        elif store.list(packs.PREFIX) and what == "remove":
            store.delete("packs/000.gz", store.read("packs/000.gz")[1])
        if index % 3 == 0:
            assert watching.all() == truth(store)
    assert Records(store).all() == watching.all() == truth(store)


# ---- upkeep


def test_doctor_and_repair_remove_copies_of_what_a_record_was(memory, space):
    """A secret that somebody has taken out of a record must not live on in its copy."""
    experiment = Experiment.create(memory, space)
    for index in range(60):
        memory.create(record.key(index), record.encode(ended(index), uuid.uuid4().hex))
    experiment.pack_records()
    assert doctor.examine(lambda: experiment, expected=True).findings == ()
    data, version = memory.read(record.key(3))
    memory.replace(record.key(3), data.replace(b"3.0", b"4.0"), version)
    memory.create("packs/notes.txt", b"mine")
    findings = doctor.examine(lambda: experiment, expected=True).findings
    assert [(f.kind, f.level, f.where) for f in findings] == [
        ("pack", "note", "memory://sweep/packs/000.gz"),
        ("foreign", "note", "memory://sweep/packs/notes.txt"),
    ]
    steps = plan(experiment, survey(memory))
    assert [(step.kind, carry_out(step).state) for step in steps] == [("pack", "done")]
    assert [entry.key for entry in memory.list(packs.PREFIX)] == ["packs/notes.txt"]
    assert plan(experiment, survey(memory)) == []


def test_next_writer_drops_copies_of_what_a_record_was(memory):
    fill(memory, ["completed"] * 60)
    Records(memory).pack()
    data, version = memory.read(record.key(3))
    memory.replace(record.key(3), data.replace(b"3.0", b"4.0"), version)
    assert Records(memory).pack() == [0]
    assert b'"loss": 3.0' not in gzip.decompress(memory.read("packs/000.gz")[0])


def test_copy_and_rename_leave_packs_behind(gcs, monkeypatch, space, tmp_path):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    place = f"gs://bucket/packs/{uuid.uuid4().hex}"
    store = GcsStore(f"{place}/old", endpoint=gcs.url, retries=QUICK)
    experiment = Experiment.create(store, space)
    for index in range(60):
        store.create(record.key(index), record.encode(ended(index), uuid.uuid4().hex))
    experiment.pack_records()
    assert len(store.list(packs.PREFIX)) == 1
    copying.copy(store.url, str(tmp_path / "copy"), live=False, on_notice=print)
    assert not (tmp_path / "copy" / "packs").exists()
    renamed = rename(experiment, "new", "me")
    assert renamed.store.list(packs.PREFIX) == []
    assert store.list("") == []
    assert len(renamed.trials()) == 60


def test_import_into_a_bucket_packs_its_rows(memory, space, tmp_path):
    from sweeps.upkeep.importing import import_table

    experiment = Experiment.create(memory, space)
    rows = "\n".join(f"{index / 100},{1 + index},1,completed,{index}.5" for index in range(60))
    (tmp_path / "t.csv").write_text(f"param.x,param.n,param.seed,status,loss\n{rows}\n")
    import_table(experiment, tmp_path / "t.csv", worker="me")
    assert len(packs.read_all(memory)[0].records) == 60


def test_conflict_is_no_error_for_the_writer(memory):
    fill(memory, ["completed"] * 60)

    def lose(key: str) -> None:
        raise Conflict(key)

    memory.before_write = lose
    assert Records(memory).pack() == []
