"""Programs in the sandbox: what they cannot do, and that nothing of them is left."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainer.evaluations.sandbox import Ended, Limits, isolated, run

PYTHON = "/usr/bin/python3"
LIMITS = Limits(seconds=1.5, memory=2**30, disk=2**24, processes=16)

pytestmark = pytest.mark.skipif(
    not Path(PYTHON).exists(), reason="needs an interpreter that everybody may start"
)
NAMESPACES = pytest.mark.skipif(not isolated(), reason="this machine permits no namespaces")


def ended(code: str, folder: Path, limits: Limits = LIMITS) -> Ended:
    return run([PYTHON, "-c", code], folder, limits)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder below none that only its owner may enter, as pytest's are."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def test_output_and_status_are_returned(folder: Path) -> None:
    found = ended("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)", folder)
    assert (found.end, found.status, sorted(found.output.split())) == ("exited", 3, ["err", "out"])
    assert not found.succeeded
    assert ended("pass", folder).succeeded
    assert list(folder.iterdir()) == []


def test_a_signal_is_a_status_above_128(folder: Path) -> None:
    assert ended("import os; os.abort()", folder).status == 128 + 6


def test_an_endless_program_ends_with_its_time(folder: Path) -> None:
    began = time.monotonic()
    assert ended("while True: pass", folder).end == "timeout"
    assert ended("import time; time.sleep(600)", folder).end == "timeout"
    assert time.monotonic() - began < 10


def test_endless_output_and_files_end_it(folder: Path) -> None:
    assert not ended("while True: print('x' * 1000)", folder).succeeded
    many = "i = 0\nwhile True:\n    i += 1\n    open(f'f{i}', 'wb').write(bytes(2**20))"
    assert ended(many, folder).end == "limit"
    assert sum(path.stat().st_size for path in folder.rglob("*")) < 2**27


def test_memory_is_limited(folder: Path) -> None:
    assert "MemoryError" in ended("bytearray(2 * 2**30)", folder).output


def test_a_fork_bomb_ends_with_its_time_and_leaves_nothing(folder: Path) -> None:
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    assert ended(bomb, folder).end == "timeout"
    assert started_in(folder) == []


def test_what_left_the_session_is_killed_too(folder: Path) -> None:
    code = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\nprint('left')"
    assert ended(code, folder).output == "left\n"
    assert started_in(folder) == []


@NAMESPACES
def test_there_is_no_network(folder: Path) -> None:
    code = "import socket; socket.create_connection(('127.0.0.1', 9), 1)"
    assert "Network is unreachable" in ended(code, folder).output


@NAMESPACES
@pytest.mark.parametrize("place", ["/tmp", "/dev/shm", "/var/tmp"])
def test_nothing_outside_of_its_folder_is_written(folder: Path, place: str) -> None:
    name = f"{place}/sandbox-{os.getpid()}"
    found = ended(f"open({name!r}, 'w')", folder)
    assert not Path(name).exists()
    assert "Read-only file system" in found.output
    assert ended("open('inside', 'w').write('x')", folder).succeeded
    assert (folder / "inside").read_text() == "x"


@NAMESPACES
def test_other_processes_are_not_in_reach(folder: Path) -> None:
    found = ended(f"import os; os.kill({os.getpid()}, 0)", folder)
    assert "ProcessLookupError" in found.output or "PermissionError" in found.output


def started_in(folder: Path) -> list[str]:
    """Processes that were started with the folder for their files."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if (
                process.name.isdecimal()
                and f"TMPDIR={folder}\0".encode() in (process / "environ").read_bytes()
            ):
                found.append(process.name)
        except OSError:
            continue
    return found
