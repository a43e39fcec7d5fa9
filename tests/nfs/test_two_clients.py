"""A folder that two clients of NFS share keeps the promises of a store; `make test-nfs` has such clients.

Each client answers from memory for up to a minute, unless it is made to ask. The store's tests elsewhere simulate
single answers of that kind.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from sweeps.errors import AlreadyExists, Conflict
from sweeps.storage.base import NotFound
from sweeps.storage.local import LocalStore

pytestmark = [pytest.mark.nfs, pytest.mark.timeout(180)]

TICK_S = 0.02
"""Over NFS 3 a folder's time tells that it has changed: two changes within a tick of the server look like one."""


@pytest.fixture
def folders(request) -> tuple[Path, Path]:
    name = request.node.name.replace("[", "-").replace("]", "")
    first, second = (Path(each, name) for each in os.environ["CLIENTS"].split(":"))
    return first, second


@pytest.fixture
def clients(folders) -> tuple[LocalStore, LocalStore]:
    ours, theirs = map(LocalStore, folders)
    ours.create("sweep.json", b"")
    assert theirs.read("sweep.json")[0] == b""
    return ours, theirs


ROUNDS = pytest.mark.parametrize("round_", range(4))  # what a client remembers depends on what came before


@ROUNDS
def test_object_that_was_missing_a_moment_ago_is_seen_and_not_overwritten(clients, round_):
    ours, theirs = clients
    for key in ("k", "folder/k", f"trials/{round_}"):
        with pytest.raises(NotFound):
            theirs.read(key)
        assert theirs.versions([key]) == [None]
        time.sleep(TICK_S)
        version = ours.create(key, b"ours")
        with pytest.raises(AlreadyExists):
            theirs.create(key, b"theirs")
        assert theirs.read(key) == ours.read(key) == (b"ours", version)


@ROUNDS
def test_version_that_was_replaced_can_be_neither_replaced_nor_deleted(clients, round_):
    ours, theirs = clients
    first = ours.create("trials/k", b"0")
    assert theirs.read("trials/k") == (b"0", first)
    if round_ % 2:
        theirs.list("trials/")
    second = ours.replace("trials/k", b"1", first)
    with pytest.raises(Conflict):
        theirs.replace("trials/k", b"2", first)
    with pytest.raises(Conflict):
        theirs.delete("trials/k", first)
    assert theirs.read("trials/k") == ours.read("trials/k") == (b"1", second)


@ROUNDS
def test_what_was_written_is_read_back_and_forth(clients, round_):
    version = clients[0].create("k", b"")
    for number, store in zip(range(20), itertools.cycle(clients[::-1])):
        version = store.replace("k", b"%d" % number, version)
        for each in clients:
            assert each.read("k") == (b"%d" % number, version)


@ROUNDS
def test_what_was_deleted_is_gone_and_can_be_created_anew(clients, round_):
    ours, theirs = clients
    versions = []
    for creator, remover in (clients, clients[::-1]):
        time.sleep(TICK_S)
        versions.append(creator.create("k", b"x"))
        remover.delete("k", versions[-1])
        with pytest.raises(NotFound):
            creator.read("k")
        with pytest.raises(Conflict):
            creator.delete("k", versions[-1])
    time.sleep(TICK_S)
    versions.append(theirs.create("k", b"y"))
    assert ours.read("k") == (b"y", versions[-1])
    assert len(set(versions)) == len(versions)


@ROUNDS
def test_listing_has_what_the_other_client_has_written(clients, round_):
    ours, theirs = clients
    for index in range(3):
        assert len(theirs.list("trials/")) == index
        time.sleep(TICK_S)
        version = ours.create(f"trials/{index}", b"")
        time.sleep(TICK_S)
        found = theirs.list("trials/")[index]
        assert (found.key, found.version) == (f"trials/{index}", version)
        assert theirs.versions([f"trials/{index}"]) == [version]


class Done(NamedTuple):
    increments: int
    created: list[str]
    odd: list[str]


def _work(folder: Path, name: str, until: float, done: multiprocessing.Queue[Done]) -> None:
    """Increment a counter, create the next record, and hold a lease, over and over."""
    store = LocalStore(folder, lock_timeout_s=60)
    increments, created, odd = 0, [], []
    while time.time() < until:
        try:
            value, version = store.read("count")
            try:
                store.replace("count", b"%d" % (int(value) + 1), version)
                increments += 1
            except Conflict:
                pass
            following = f"trials/{len(store.list('trials/')):06}.json"
            try:
                store.create(following, name.encode())
                created.append(following)
            except AlreadyExists:
                pass
            try:
                version = store.create("ask.lock", name.encode())
                if store.read("ask.lock") != (name.encode(), version):
                    odd.append("another one has the lease, too")
                store.delete("ask.lock", version)
            except AlreadyExists:
                pass
        except Exception as error:  # whatever it is, the parent shows it
            odd.append(f"{type(error).__name__}: {error}")
    done.put(Done(increments, created, odd))


def test_nothing_is_lost_or_doubled_by_six_processes(clients, folders):
    clients[0].create("count", b"0")
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.Queue[Done] = context.Queue()
    until = time.time() + 10
    for number, folder in zip(range(6), itertools.cycle(folders)):
        context.Process(target=_work, args=(folder, f"process {number}", until, queue)).start()
    done = [queue.get(timeout=120) for _ in range(6)]
    assert [line for each in done for line in each.odd] == []
    increments = sum(each.increments for each in done)
    assert increments > 50
    assert clients[1].read("count")[0] == b"%d" % increments
    creations = Counter(key for each in done for key in each.created)
    assert len(creations) > 20
    assert set(creations.values()) == {1}
    assert sorted(creations) == [entry.key for entry in clients[1].list("trials/")]


SPACE = """\
name: shared
objectives: [{{metric: loss}}]
program:
  command: [sh, -c, 'echo $SWEEP_RUN_DIR >> {starts}; sleep 0.3; echo "{{\\"loss\\": 1}}" > $SWEEP_RUN_DIR/result.json', "${{args}}"]
search: {{method: random}}
parameters: {{x: {{min: 0.0, max: 1.0}}}}
run_cap: 6
lease: {{heartbeat_s: 1, expire_s: 5}}
"""


def _sweep(host: int, folder: Path, *argv: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sweeps", *argv, "--storage", folder]
    as_host = ["unshare", "--uts", "sh", "-c", f'hostname worker-{host}; exec "$@"', "sh"]
    return subprocess.Popen([*as_host, *command], stdout=subprocess.PIPE, text=True, start_new_session=True)


def test_workers_of_both_clients_do_every_trial_once(folders, tmp_path):
    starts, space = tmp_path / "starts", tmp_path / "space.yaml"
    space.write_text(SPACE.format(starts=starts))
    with _sweep(0, folders[0], "init", space) as init:
        assert init.wait() == 0
    workers = [_sweep(number, folder, "worker") for number, folder in enumerate((*folders, folders[0]))]
    while not starts.exists() or len(starts.read_text().splitlines()) < 3:
        time.sleep(0.1)
    os.killpg(workers[1].pid, signal.SIGKILL)
    for worker in workers:
        worker.communicate(timeout=120)
    assert [worker.returncode for worker in workers] == [0, -signal.SIGKILL, 0]
    store = LocalStore(folders[1] / "shared")
    records = [json.loads(store.read(entry.key)[0]) for entry in store.list("trials/")]
    assert [record["status"] for record in records] == ["completed"] * 6
    begun = [line.partition("/shared/")[2] for line in starts.read_text().splitlines()]
    attempts = set(begun)
    assert len(attempts) == len(begun)
    assert {
        f"runs/{index:06}/attempt-{record['attempt']}" for index, record in enumerate(records)
    } <= attempts
