"""Untrusted programs in the sandbox: what they cannot do, as root and not, and that nothing of them is left."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from isolation import ISOLATED

from trainer.evaluations import sandbox
from trainer.evaluations.sandbox import CLONE, CLONE3, DENIED, IOCTL, LIBRARIES, Limits

BWRAP = shutil.which("bwrap")
COMPILER = shutil.which("g++")
LIMITS = Limits(seconds=20)
SECRET = "kept from all others"
OTHER_USER = 54321
# As the trainer calls it, in a process that another user may start and that a test may kill.
TRAINER = """
import dataclasses, json, sys
sys.path.insert(0, sys.argv[1])
import sandbox
asked = json.loads(sys.argv[2])
exec(asked.pop("before"))
asked["limits"] = sandbox.Limits(**asked["limits"])
with open(asked.pop("program"), "rb") as program:
    try:
        found = dataclasses.asdict(sandbox.run(**asked, program=program))
    except sandbox.SandboxError as error:
        found = {"refused": str(error)}
print(json.dumps(found))
"""

pytestmark = ISOLATED


@pytest.fixture(scope="module")
def public() -> Iterator[Path]:
    """A folder that every user may enter, with the module, the attacks, and a file of its owner's alone."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copy(sandbox.__file__, folder / "sandbox.py")
        source = Path(__file__).with_name("attacks.cpp")
        assert COMPILER is not None
        subprocess.run([COMPILER, "-w", "-o", str(folder / "attacks"), str(source)], check=True)
        shown = folder / "shown"
        shown.mkdir()
        (shown / "secret").write_text(SECRET)
        (shown / "secret").chmod(0o600)
        shown.chmod(0o777)
        yield folder


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """A process that runs attacks in the sandbox.

    Args:
        user: that it belongs to.
        folder: see `public`.
        temporary: its folder for temporary files.
    """

    user: int
    folder: Path
    temporary: Path

    def start(self, argv: tuple[str, ...], **changed: Any) -> subprocess.Popen[str]:
        asked = {
            **{"argv": argv, "limits": asdict(LIMITS), "bwrap": BWRAP, "tree": LIBRARIES, "before": ""},
            **{"program": str(self.folder / "attacks")},
        }
        python = sys.executable if self.user == os.getuid() else "/usr/bin/python3"
        return subprocess.Popen(
            [python, "-I", "-c", TRAINER, str(self.folder), json.dumps(asked | changed)],
            env={"TMPDIR": str(self.temporary), "PATH": os.environ["PATH"]},
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            **(
                {}
                if self.user == os.getuid()
                else {"user": self.user, "group": self.user, "extra_groups": []}
            ),
        )

    def run(self, *argv: str, **changed: Any) -> dict[str, Any]:
        with self.start(argv, **changed) as process:
            output, _ = process.communicate(timeout=100)
        assert list(self.temporary.iterdir()) == []
        found: dict[str, Any] = json.loads(output)
        return found

    def output(self, *argv: str, **changed: Any) -> str:
        found = self.run(*argv, **changed)
        assert found.get("end") == "exited", found
        return str(found["output"]).strip()


@pytest.fixture
def start(public: Path) -> Callable[[int], Trainer]:
    """Return a trainer of a user."""
    temporary = Path(tempfile.mkdtemp(dir=public))
    temporary.chmod(0o777)
    return lambda user: Trainer(user=user, folder=public, temporary=temporary)


@pytest.fixture
def user_trainer(start: Callable[[int], Trainer]) -> Trainer:
    """Return a trainer that does not run as root."""
    if os.getuid() == 0 and not Path("/usr/bin/python3").exists():
        pytest.skip("needs an interpreter that every user may start")
    return start(os.getuid() or OTHER_USER)


@pytest.fixture(params=["root", "user"])
def trainer(request: pytest.FixtureRequest, start: Callable[[int], Trainer]) -> Trainer:
    """Return a trainer that runs as root, and one that does not."""
    if request.param == "user":
        found: Trainer = request.getfixturevalue("user_trainer")
        return found
    if os.getuid() != 0:
        pytest.skip("needs to be root")
    return start(0)


MODES = pytest.mark.parametrize("bwrap", [BWRAP, None], ids=["bwrap", "machine"])


@MODES
def test_output_and_status_are_returned(trainer: Trainer, bwrap: str | None) -> None:
    found = trainer.run("status", bwrap=bwrap)
    assert (found["end"], found["status"], found["output"].split()) == ("exited", 3, ["out", "err"])
    assert trainer.run("abort", bwrap=bwrap)["status"] == 128 + signal.SIGABRT


@MODES
def test_time_output_and_memory_are_limited(trainer: Trainer, bwrap: str | None) -> None:
    short = asdict(Limits(seconds=0.5))
    began = time.monotonic()
    assert trainer.run("sleep", bwrap=bwrap, limits=short)["end"] == "timeout"
    assert time.monotonic() - began < 15
    found = trainer.run("flood", bwrap=bwrap, limits=asdict(Limits(disk=2**20)))
    assert (found["end"], len(found["output"])) == ("limit", 4096)
    assert trainer.output("memory", bwrap=bwrap) == "Cannot allocate memory"


@MODES
def test_processes_are_limited_and_none_is_left(trainer: Trainer, bwrap: str | None) -> None:
    marker = uuid.uuid4().hex
    limits = asdict(Limits(seconds=0.7, processes=20))
    few = asdict(Limits(processes=20))
    # Without namespaces, those of other tests count too, and end.
    assert int(trainer.output("count forks", marker, bwrap=bwrap, limits=few)) < (20 if bwrap else 300)
    assert trainer.run("forks", marker, bwrap=bwrap, limits=limits)["end"] == "timeout"
    assert trainer.output("leave", marker, bwrap=bwrap) == "left"
    assert started_with(marker) == []


def test_it_has_no_rights(trainer: Trainer) -> None:
    assert trainer.output("rights") == "uid 65534 capabilities 0 bounding 0 no_new_privs 1 seccomp 2"


def test_the_tree_cannot_be_made_writable(trainer: Trainer) -> None:
    shown = trainer.folder / "shown"
    found = trainer.output("remount", str(shown / "new"), tree=[*LIBRARIES, str(shown)])
    assert found.splitlines() == ["mount Operation not permitted", "write Read-only file system"]
    assert not (shown / "new").exists()
    assert trainer.output("write", "/new", "new").splitlines() == [
        "write Read-only file system",
        "write done",
    ]


def test_a_mount_with_a_blank_is_read_only(trainer: Trainer) -> None:
    shown = trainer.folder / "shown"
    before = f"""
import ctypes, os
libc, user, group = ctypes.CDLL(None, use_errno=True), os.getuid(), os.getgid()
assert libc.unshare(0x20000 | (0x10000000 if user else 0)) == 0
if user:
    for name, text in (("setgroups", "deny"), ("uid_map", f"{{user}} {{user}} 1"), ("gid_map", f"{{group}} {{group}} 1")):
        open(f"/proc/self/{{name}}", "w").write(text)
assert libc.mount(b"none", b"/", None, 16384 | 1 << 18, None) == 0
assert libc.mount(b"tmpfs", {str(shown).encode()!r}, b"tmpfs", 0, None) == 0
os.mkdir({str(shown / "a b")!r})
assert libc.mount(b"tmpfs", {str(shown / "a b").encode()!r}, b"tmpfs", 0, b"mode=0777") == 0
"""
    found = trainer.output("write", str(shown / "a b" / "new"), tree=[*LIBRARIES, str(shown)], before=before)
    assert found == "write Read-only file system"


def test_nothing_of_others_is_read(trainer: Trainer) -> None:
    secret = trainer.folder / "shown" / "secret"
    paths = [str(secret), "/etc/passwd", "/proc/self/environ", str(Path.home()), "/sys/kernel", "/dev/zero"]
    assert set(trainer.output("read", *paths).splitlines()) == {"read No such file or directory"}
    if os.getuid() == 0:  # root's own file, where the program sees it
        found = trainer.output("read", str(secret), tree=[*LIBRARIES, str(secret.parent)])
        assert found == "read Permission denied"


@MODES
def test_names_in_its_folder_are_not_read(trainer: Trainer, bwrap: str | None) -> None:
    shown = trainer.folder / "shown"
    found = trainer.output("outputs", str(shown / "secret"), bwrap=bwrap, tree=[*LIBRARIES, str(shown)])
    assert found == "done"


@MODES
def test_nested_folders_cost_nothing(trainer: Trainer, bwrap: str | None) -> None:
    assert trainer.output("nested", bwrap=bwrap) == "3000"


def test_files_are_limited_in_bytes_and_number(trainer: Trainer) -> None:
    limits = asdict(Limits(seconds=20, disk=2**25, files=100))
    assert 25 <= int(trainer.output("unlinked", limits=limits)) <= 32
    assert 90 <= int(trainer.output("files", limits=limits)) <= 101
    assert int(trainer.output("nested", limits=limits)) <= 101


def test_no_socket_answers(trainer: Trainer) -> None:
    address = trainer.folder / "shown" / "socket"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(address))
        address.chmod(0o777)
        server.listen()
        found = trainer.output("sockets", str(address), tree=[*LIBRARIES, str(address.parent)])
    address.unlink()
    assert found.splitlines() == ["connect Operation not permitted"] * 2


@MODES
def test_dangerous_system_calls_are_refused(trainer: Trainer, bwrap: str | None) -> None:
    assert trainer.output("calls", bwrap=bwrap) == "called"
    if os.uname().machine == "x86_64":
        assert trainer.run("32 bits", bwrap=bwrap)["status"] == 128 + signal.SIGSYS


def test_other_processes_and_programs_are_not_there(trainer: Trainer) -> None:
    assert trainer.output("kill", str(os.getpid())) == "No such process"
    assert trainer.output("system") == "0"


def test_it_cannot_change_itself(trainer: Trainer) -> None:
    chmod, unlink, write = trainer.output("itself").splitlines()
    assert (chmod, unlink) == ("chmod Read-only file system", "unlink Read-only file system")
    assert write != "write done"


@MODES
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_it_ends_without_the_trainer(trainer: Trainer, bwrap: str | None, number: int) -> None:
    marker = uuid.uuid4().hex
    limits = asdict(Limits(seconds=60 if number == signal.SIGKILL else 2))
    with trainer.start(("sleep", marker), bwrap=bwrap, limits=limits) as process:
        wait_for(lambda: any("program" in line for line in started_with(marker)))
        process.send_signal(number)
        try:
            wait_for(lambda: not [line for line in started_with(marker) if "before" not in line])
            wait_for(lambda: list(trainer.temporary.iterdir()) == [])
        finally:
            process.kill()


def test_without_namespaces_it_is_refused(user_trainer: Trainer) -> None:
    before = """
import ctypes, os
user, group = os.getuid(), os.getgid()
assert ctypes.CDLL(None).unshare(0x10000000) == 0
for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
    open(f"/proc/self/{name}", "w").write(text)
open("/proc/sys/user/max_user_namespaces", "w").write("0")
"""
    found = user_trainer.run("status", before=before)
    assert "user namespace" in found["refused"]
    assert user_trainer.run("status", before=before, bwrap=None)["status"] == 3


def test_a_broken_sandbox_is_no_verdict(trainer: Trainer) -> None:
    assert "bwrap" in trainer.run("status", bwrap="/no/such/bwrap")["refused"]
    assert "bwrap: " in trainer.run("status", tree=["/etc/ld.so.cache"])["refused"]


@pytest.mark.parametrize(
    ("own", "header"),
    [(0, "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), (1, "/usr/include/asm-generic/unistd.h")],
    ids=["x86_64", "aarch64"],
)
def test_numbers_are_those_of_the_kernel(own: int, header: str) -> None:
    if not Path(header).exists():
        pytest.skip(f"needs {header}")
    found = dict(re.findall(r"#define __NR3?264?_?_?(\w+)\s+(\d+)", Path(header).read_text()))
    found |= dict(re.findall(r"#define __NR_(\w+)\s+(\d+)", Path(header).read_text()))
    ours = {**DENIED, "clone": CLONE, "clone3": CLONE3, "ioctl": IOCTL}
    assert {name: str(numbers[own]) for name, numbers in ours.items()} == {name: found[name] for name in ours}


def started_with(marker: str) -> list[str]:
    """Command lines of processes that have an argument."""
    found = []
    for process in psutil.process_iter():
        try:
            line = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if marker in line and process.status() != psutil.STATUS_ZOMBIE:
            found.append(line)
    return found


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
