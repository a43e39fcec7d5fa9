"""The launcher over processes that stand in for the trainer: what it starts, forwards and ends with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer import api
from trainer.distributed import launch

pytestmark = pytest.mark.timeout(300)

ROOT = Path(api.__file__).parents[1]
# The program is told in an override what to do; it writes down who it is, and what signals it gets.
STAND_IN = """
import os, pathlib, signal, sys, time
rank = os.environ["RANK"]
assert os.environ["LOCAL_RANK"] == rank and os.environ["WORLD_SIZE"] == "2" and os.environ["MASTER_PORT"]
told = pathlib.Path(os.environ["OUT"]) / rank
def note(number, frame):
    with told.open("a") as file: file.write(f"signal {number}\\n")
    global left
    left = left or time.monotonic() + 0.5
left = None
signal.signal(signal.SIGTERM, note)
told.write_text(f"{os.getpid()}\\n")
what = sys.argv[1 + int(rank)]
if what == "unready":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pause()
while what == "wait" and (left is None or time.monotonic() < left): time.sleep(0.01)
if what == "late": time.sleep(0.5)
if what == "killed": os.kill(os.getpid(), signal.SIGKILL)
sys.exit({"wait": 75, "late": 70, "diverge": 70, "crash": 1, "end": 0}[what])
"""


@pytest.fixture
def launched(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """`launched("wait", "crash")`: the launcher over two processes, each told what to do."""
    package = tmp_path / "stand_in" / "trainer"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(STAND_IN)
    start = (
        "import os; from trainer.distributed import launch; os.environ['PYTHONPATH'] = os.environ['THEIRS']; "
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "THEIRS": str(package.parent), "OUT": str(tmp_path)}

    def launched(*what: str) -> subprocess.Popen[str]:
        code = start + f"launch.leave(launch.main({['2', *what]!r}))"
        return subprocess.Popen([sys.executable, "-c", code], env=environment, cwd=tmp_path, text=True)

    return launched


def lines_of(folder: Path, rank: int) -> list[str]:
    """What a process wrote down, its id first; waits for it to have begun."""
    deadline = time.monotonic() + 60
    while not (folder / str(rank)).exists() or not (folder / str(rank)).read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return (folder / str(rank)).read_text().splitlines()


@pytest.mark.parametrize(
    ("what", "status"),
    [
        (("end", "end"), 0),
        (("diverge", "diverge"), 70),
        (("late", "diverge"), 70),
        (("wait", "crash"), 1),  # the other would wait for ever
        (("wait", "killed"), -signal.SIGKILL),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_it_ends_as_the_run_ends(
    what: tuple[str, str], status: int, launched: Callable[..., subprocess.Popen[str]]
) -> None:
    assert launched(*what).wait(120) == status


def test_a_signal_reaches_every_process_once(
    launched: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = launched("wait", "wait")
    lines_of(tmp_path, 0), lines_of(tmp_path, 1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 75
    assert [lines_of(tmp_path, rank)[1:] for rank in range(2)] == [[f"signal {int(signal.SIGTERM)}"]] * 2


def test_early_forwarded_signal_ends_with_75(
    launched: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = launched("unready", "unready")
    lines_of(tmp_path, 0), lines_of(tmp_path, 1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 75


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children of their parent's death")
def test_no_process_outlives_it(launched: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    process = launched("wait", "wait")
    ids = [int(lines_of(tmp_path, rank)[0]) for rank in range(2)]
    process.kill()
    process.wait(120)
    deadline = time.monotonic() + 30
    while any(_is_alive(pid) for pid in ids):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"  # an orphan that nobody has reaped yet is dead


@pytest.mark.parametrize("count", ["two", "0", "-1", "1.5"])
def test_what_is_no_number_of_processes_is_refused(count: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch.main([count, "run_dir=x"]) == 2
    assert capsys.readouterr().err.startswith(f"trainer: error: {count!r} ")


def test_the_command_of_a_shared_run_starts_it(tmp_path: Path) -> None:
    assert api.command(["a=1"], "out", processes=3) == [
        *(sys.executable, "-P", "-m", "trainer.distributed.launch", "3", "a=1", "run_dir='out'"),
    ]
    assert api.command(["a=1"], "out")[1:4] == ["-P", "-m", "trainer"]


def test_processes_of_several_hosts_are_numbered_on(tmp_path: Path) -> None:
    package = tmp_path / "stand_in" / "trainer"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    (package / "__main__.py").write_text(
        "import os, pathlib, sys\n"
        f"told = ' '.join(os.environ[name] for name in {names!r})\n"
        "pathlib.Path(sys.argv[1], os.environ['RANK']).write_text(told)\n"
    )
    code = f"import os; from trainer.distributed import launch; os.environ['PYTHONPATH'] = {str(package.parent)!r}; "
    for host in (0, 1):
        words = ["2", "--host", f"{host}/2@fe80::1:4321", str(tmp_path)]
        start = [sys.executable, "-c", code + f"launch.leave(launch.main({words!r}))"]
        ran = subprocess.run(start, env=os.environ | {"PYTHONPATH": str(ROOT)}, cwd=tmp_path, check=False)
        assert ran.returncode == 0
    told = [(tmp_path / str(rank)).read_text() for rank in range(4)]
    assert told == [f"{rank} {rank % 2} 4 2 fe80::1 4321" for rank in range(4)]


@pytest.mark.parametrize("host", ["", "1/1@a:1", "2/2@a:1", "a/2@a:1", "0/2@a", "0/2"])
def test_a_wrong_host_is_refused_in_one_line(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    assert launch.main(["2", "--host", host]) == 2
    assert capsys.readouterr().err == f"trainer: error: --host {host!r} is not RANK/HOSTS@ADDRESS:PORT\n"
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
