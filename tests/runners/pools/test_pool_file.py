"""A pool's file names processes that are there, and never somebody else's."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runners.pools import pool_file
from runners.pools.pool_file import PoolFile, RecordedProcess


def test_it_comes_back_as_it_was_written(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        pool_file.write(tmp_path / "logs", {1: child.pid})
        found = pool_file.read(tmp_path / "logs")
        assert found is not None
        assert [process.pid for process in found.alive()] == [os.getpid(), child.pid]
        child.communicate(b"\n")
    assert [process.pid for process in found.alive()] == [os.getpid()]


def test_a_process_id_that_was_given_to_another_is_not_ours() -> None:
    me = pool_file.record_process(os.getpid())
    other_boot = dataclasses.replace(me, birth=f"another-boot:{me.birth.partition(':')[2]}")
    earlier = dataclasses.replace(me, birth=f"{me.birth}0")
    of_an_earlier_version = dataclasses.replace(me, birth="", began=me.began - 1)
    for stranger in (other_boot, earlier, of_an_earlier_version):
        assert PoolFile(keeper=stranger).alive() == []


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux reckons the start of a process from the clock"
)
def test_a_process_is_still_ours_after_the_clock_was_set() -> None:
    me = pool_file.record_process(os.getpid())
    shifted = dataclasses.replace(me, began=me.began + 3600)  # psutil's value before the clock was set back
    assert [process.pid for process in PoolFile(keeper=shifted).alive()] == [os.getpid()]


def test_a_worker_that_ended_before_it_was_written_is_left_out(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    pool_file.write(tmp_path, {1: child.pid})
    found = pool_file.read(tmp_path)
    assert found is not None
    assert found.workers == ()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"keeper": 3}', '{"keeper": {"pid": 1}, "workers": []}'], ids=str
)
def test_what_is_not_legible_is_no_pool(text: str, tmp_path: Path) -> None:
    (tmp_path / pool_file.FILE).write_text(text)
    assert pool_file.read(tmp_path) is None


def test_removing_it_twice_is_fine(tmp_path: Path) -> None:
    pool_file.write(tmp_path, {})
    for _ in range(2):
        pool_file.remove(tmp_path)
    assert pool_file.read(tmp_path) is None
    assert RecordedProcess(pid=2**22 + 1, began=0.0).process() is None
