"""Which runs are meant for a TPU, and that none lands elsewhere without a word. A folder plays the machine."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from sweeps.text.installation import install_command
from trainer.distributed import tpu_host
from trainer.errors import ConfigError


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine without a TPU, on which one process runs."""
    process(tmp_path, 7, "init", [])
    return tmp_path


def chip(root: Path, name: str = "dev/vfio/0") -> str:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return f"/{name}"


def process(root: Path, number: int, command: str, files: list[str]) -> None:
    folder = root / "proc" / str(number) / "fd"
    folder.mkdir(parents=True)
    (folder.parent / "cmdline").write_bytes(command.replace(" ", "\0").encode() + b"\0")
    for descriptor, file in enumerate(files):
        (folder / str(descriptor)).symlink_to(file)


@pytest.fixture(autouse=True)
def _torch_xla_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu_host, "find_spec", lambda name: name)


@pytest.mark.parametrize("name", ["dev/accel0", "dev/vfio/0", "dev/vfio/17"])
@pytest.mark.parametrize(
    ("kind", "variable", "there", "xla"),
    [
        ("auto", None, False, False),
        ("auto", "TPU", True, True),
        ("auto", "tpu", True, True),
        ("auto", "CPU", True, False),  # meant for XLA, which `auto` has no reason to take then
        ("cpu", None, True, False),
        ("cpu", "TPU", True, False),
        ("cuda", "TPU", True, False),
        ("xla", "TPU", True, True),
        ("xla", "CPU", True, True),
        ("xla", "CPU", False, True),
    ],
)
def test_explicit_beats_environment_beats_hardware(
    machine: Path, name: str, kind: str, variable: str | None, there: bool, xla: bool
) -> None:
    if there:
        chip(machine, name)
    environment = {} if variable is None else {"PJRT_DEVICE": variable}
    assert tpu_host.uses_xla(kind, environment, machine) == xla


@pytest.mark.parametrize(
    ("kind", "variable", "there", "problem"),
    [
        ("auto", None, True, "this machine has a TPU, but PJRT_DEVICE is not set"),
        ("xla", None, True, "this machine has a TPU, but PJRT_DEVICE is not set"),
        ("xla", "", False, "PJRT_DEVICE does not say where and there is no TPU here"),
        ("xla", "TPU", False, "PJRT_DEVICE=TPU, but there is no TPU here"),
        ("auto", "TPU", False, "PJRT_DEVICE=TPU, but there is no TPU here"),
    ],
)
def test_silent_fallback_to_the_cpu_is_refused(
    machine: Path, kind: str, variable: str | None, there: bool, problem: str
) -> None:
    if there:
        chip(machine)
    with pytest.raises(ConfigError, match=rf"^device\.type: .*{problem}") as refused:
        tpu_host.uses_xla(kind, {} if variable is None else {"PJRT_DEVICE": variable}, machine)
    assert refused.value.exit_status == 2


def test_missing_torch_xla_names_the_install_command(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu_host, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=re.escape(install_command("tpu"))):
        tpu_host.uses_xla("xla", {"PJRT_DEVICE": "CPU"}, machine)


def test_a_busy_tpu_names_the_process_that_holds_it(machine: Path) -> None:
    file = chip(machine)
    process(machine, 41, "python -m something.else", ["/dev/null", "/dev/vfio/vfio"])
    assert tpu_host.uses_xla("xla", {"PJRT_DEVICE": "TPU"}, machine)
    process(machine, 42, "python -m trainer run_dir=out", ["/dev/null", file])
    with pytest.raises(ConfigError, match=r"process 42 \(python -m trainer run_dir=out\)"):
        tpu_host.uses_xla("xla", {"PJRT_DEVICE": "TPU"}, machine)
    assert list(tpu_host.holders(machine, own=42)) == []


def test_a_process_that_may_not_be_looked_into_is_passed_over(machine: Path) -> None:
    file = chip(machine)
    (machine / "proc" / "43").mkdir()  # no fd in it, as of one that has just ended
    process(machine, 44, "", [file])
    assert list(tpu_host.holders(machine, own=os.getpid())) == [(44, "unknown")]
