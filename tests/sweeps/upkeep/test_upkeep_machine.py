"""Findings about a machine: versions out of range, torch without CUDA, a TPU without its package, no cache,
nothing compiled."""

from __future__ import annotations

import compileall
import platform
import sys
from pathlib import Path

import pytest

from sweeps.text.installation import install_command
from sweeps.upkeep import machine
from trainer import cache


def kinds(findings):
    return [finding.kind for finding in findings]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv(machine.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)


@pytest.fixture
def bare(tmp_path, monkeypatch) -> Path:
    """A machine without devices: no programs to find, an empty root."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    return tmp_path / "root"


def nvidia_smi(bare: Path, script: str) -> None:
    program = bare.parent / "bin" / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def torch_is(version: str, tmp_path: Path, monkeypatch) -> None:
    installed(tmp_path, "torch", version)
    monkeypatch.syspath_prepend(str(tmp_path))


def installed(folder: Path, name: str, version: str, *about: str) -> None:
    """A distribution in `folder`, as pip would leave it."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    head = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *about]
    (info / "METADATA").write_text("\n".join(head) + "\n")


def test_this_machine_fits_what_pyproject_says(bare):
    facts, findings = machine.examine(bare)
    assert findings == []
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert facts["torch"].startswith("2.")
    assert facts["devices"].endswith("CPU cores")


def test_versions_out_of_range_are_reported_with_a_remedy(bare, tmp_path, monkeypatch):
    needs = ["torch<2", "ax-platform>=1", "no-such-package>=3", "optuna>99; extra == 'dev'"]
    about = [f"Requires-Dist: {need}" for need in needs]
    installed(tmp_path, machine.DISTRIBUTION, "0.1", "Requires-Python: >=9", *about)
    monkeypatch.syspath_prepend(str(tmp_path))
    _, findings = machine.examine(bare)
    assert kinds(findings) == ["version"] * 3
    assert [finding.remedy for finding in findings] == [
        "use a Python that is >=9",
        "pip install 'torch<2'",
        "pip install 'no-such-package>=3'",
    ]
    assert findings[2].what == "no-such-package is not installed"


def test_modules_that_shadow_ours_are_a_note(bare, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("analysis", "runners"):
        (tmp_path / name).mkdir()
    (tmp_path / "runners" / "__init__.py").touch()
    (tmp_path / "trainer.py").touch()
    _, findings = machine.examine(bare)
    assert kinds(findings) == ["shadowed", "shadowed"]  # `analysis` holds no module: Python passes over it
    assert {finding.level for finding in findings} == {"note"}
    assert [finding.where for finding in findings] == [
        str(tmp_path / "trainer.py"),
        str(tmp_path / "runners" / "__init__.py"),
    ]
    monkeypatch.chdir(Path(cache.__file__).parents[1])  # our own packages
    assert machine.examine(bare)[1] == []


def test_packages_that_every_program_compiles_anew_are_a_note(bare, tmp_path, monkeypatch):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    installed(tmp_path, "torch", "2.13.0")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert machine.examine(bare)[1] == []

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (finding,) = machine.examine(bare)[1]
    assert (finding.kind, finding.level, finding.where) == ("python", "note", str(tmp_path))
    assert "PYTHONDONTWRITEBYTECODE" in finding.what

    compileall.compile_dir(tmp_path / "torch", quiet=2)
    assert machine.examine(bare)[1] == []


def test_a_gpu_that_torch_cannot_use_is_a_problem(bare, tmp_path, monkeypatch):
    nvidia_smi(bare, "echo 'NVIDIA H200, 143771 MiB'")
    torch_is("2.13.0+cpu", tmp_path, monkeypatch)
    facts, (blind,) = machine.examine(bare)
    assert facts["devices"].startswith("NVIDIA H200, 143771 MiB, ")
    assert (blind.kind, blind.level) == ("device", "problem")
    assert "2.13.0+cpu" in blind.what


def test_a_gpu_that_torch_can_use_is_a_fact(bare, tmp_path, monkeypatch):
    nvidia_smi(bare, "echo 'NVIDIA H200, 143771 MiB'")
    torch_is("2.13.0+cu128", tmp_path, monkeypatch)
    assert machine.examine(bare)[1] == []


@pytest.mark.parametrize(
    ("script", "expected"), [("echo driver mismatch; exit 9", "driver mismatch"), ("exit 9", "exit status 9")]
)
def test_a_driver_that_fails_is_a_problem(bare, script, expected):
    nvidia_smi(bare, script)
    _, (broken,) = machine.examine(bare)
    assert expected in broken.what
    assert "driver" in broken.remedy


@pytest.fixture
def _python_of_tpus(monkeypatch) -> None:
    """A version of Python that there is a torch_xla for, whatever the tests run on."""
    monkeypatch.setattr(platform, "python_version", lambda: "3.11.9")


@pytest.mark.usefixtures("_python_of_tpus")
def test_a_tpu_needs_torch_xla_and_the_torch_that_goes_with_it(bare, tmp_path, monkeypatch):
    (bare / "dev").mkdir(parents=True)
    (bare / "dev" / "accel0").touch()
    facts, (missing,) = machine.examine(bare)
    assert "TPU" in facts["devices"]
    assert missing.remedy == install_command("tpu")
    installed(tmp_path, "torch_xla", "2.9.0")
    installed(tmp_path, "libtpu", "0.0.23")
    torch_is("2.13.0", tmp_path, monkeypatch)
    facts, (other,) = machine.examine(bare)
    assert (other.kind, other.level, other.remedy) == ("version", "problem", "pip install torch==2.9.1")
    assert facts["libtpu"] == "0.0.23"


@pytest.mark.usefixtures("_python_of_tpus")
def test_tpu_version_misfits_are_reported_with_a_remedy(bare, tmp_path, monkeypatch):
    (bare / "dev" / "vfio").mkdir(parents=True)
    (bare / "dev" / "vfio" / "0").touch()
    present = {"torch_xla": "2.9.0", "libtpu": "0.0.35", "jax": "0.10.2", "jaxlib": "0.10.2"}
    for name, version in present.items():
        installed(tmp_path, name, version)
    torch_is("2.9.1", tmp_path, monkeypatch)
    _, found = machine.examine(bare)
    assert [(finding.level, finding.remedy) for finding in found] == [
        ("problem", "pip install libtpu==0.0.23.1"),
        ("note", "pip install libtpu==0.0.23.1 jax==0.9.0 jaxlib==0.9.0"),
        ("note", "pip install libtpu==0.0.23.1 jax==0.9.0 jaxlib==0.9.0"),
    ]


@pytest.mark.usefixtures("_python_of_tpus")
def test_torch_xla_without_a_tpu_needs_no_libtpu(bare, tmp_path, monkeypatch):
    installed(tmp_path, "torch_xla", "2.9.0")
    torch_is("2.9.1", tmp_path, monkeypatch)
    assert machine.examine(bare)[1] == []


def test_the_cache_is_where_the_trainer_has_it(monkeypatch):
    assert machine.CACHE_VARIABLE == cache.ROOT_VARIABLE
    assert machine.cache_folder() == cache.cache_root()
    monkeypatch.delenv(machine.CACHE_VARIABLE)
    assert machine.cache_folder() == cache.cache_root()


def test_the_size_of_the_cache_is_reported(bare, tmp_path):
    (tmp_path / "cache" / "teachers").mkdir(parents=True)
    (tmp_path / "cache" / "teachers" / "weights").write_bytes(b"x" * 3 * 2**20)
    facts, findings = machine.examine(bare)
    assert facts["cache"] == f"{tmp_path / 'cache'}, 3.0 MiB"
    assert findings == []


def test_a_cache_that_cannot_be_written_is_a_problem(bare, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(machine.CACHE_VARIABLE, str(tmp_path / "file" / "cache"))
    _, (finding,) = machine.examine(bare)
    assert finding.kind == "cache"
    assert machine.CACHE_VARIABLE in finding.remedy


def test_a_full_disk_is_reported_before_the_teacher_fills_it(bare, monkeypatch):
    monkeypatch.setattr(machine, "_SCARCE_BYTES", 2**80)
    _, (finding,) = machine.examine(bare)
    assert finding.what.startswith("only ")
    assert "are free" in finding.what
