"""The version matrix of TPUs: what was tried by others is accepted or refused as they found it, and the remedy it names works."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.api import check
from trainer.devices import tpu_versions
from trainer.devices.device import open_device
from trainer.devices.tpu_versions import MATRIX, flash_obstacle, installed, misfits, pip_line, require
from trainer.distributed import tpu_host
from trainer.errors import ConfigError

GOOD = {
    "python": "3.11.9",
    "torch": "2.9.1",
    "torch_xla": "2.9.0",
    "libtpu": "0.0.23.1",
    "jax": "0.9.0",
    "jaxlib": "0.9.0",
}
# (changed, what is wrong). Those with a libtpu or a jax were tried on v6e chips by others.
TRIED: list[tuple[dict[str, str | None], list[str]]] = [
    ({}, []),
    *(({"libtpu": version}, []) for version in ("0.0.21", "0.0.21.1", "0.0.22", "0.0.23")),
    *(({"libtpu": version}, ["libtpu"]) for version in ("0.0.20", "0.0.24", "0.0.27", "0.0.35", "0.0.52")),
    *(({"jax": version, "jaxlib": version}, []) for version in ("0.7.0", "0.7.2", "0.8.3")),
    *(({"jax": version, "jaxlib": version}, ["jax", "jaxlib"]) for version in ("0.4.38", "0.9.1", "0.10.2")),
    ({"jax": "0.8.0"}, ["jaxlib"]),
    ({"jax": None}, ["jax"]),
    ({"jaxlib": None}, ["jaxlib"]),
    ({"jax": None, "jaxlib": None}, []),
    ({"torch": "2.9.0"}, []),
    ({"torch": "2.9.1+cpu"}, []),
    ({"torch_xla": "2.9.0+gitabc"}, []),
    *(
        ({"torch": version}, ["torch"])
        for version in ("2.8.0", "2.10.0", "2.13.0", "2.13.0+cu128", "nightly")
    ),
    ({"torch_xla": "2.8.1"}, ["torch_xla"]),
    ({"torch_xla": None}, ["torch_xla"]),
    ({"libtpu": None, "torch": None}, ["torch", "libtpu"]),
    ({"python": "3.12.3"}, []),
    *(({"python": version}, ["python"]) for version in ("3.10.14", "3.14.0", "")),
    # Nothing that is installed into such an environment would help.
    ({"python": "3.10.14", "torch": "2.13.0"}, ["python"]),
]


def changed(change: dict[str, str | None]) -> dict[str, str]:
    return {name: version for name, version in (GOOD | change).items() if version is not None}


@pytest.mark.parametrize(("change", "wrong"), TRIED, ids=[str(change) for change, _ in TRIED])
def test_tried_versions_are_judged_as_found(change: dict[str, str | None], wrong: list[str]) -> None:
    assert [misfit.name for misfit in misfits(changed(change), tpu=True)] == wrong


def test_without_a_tpu_nobody_asks_for_libtpu() -> None:
    assert misfits(changed({"libtpu": "0.0.52"}), tpu=False) == []
    assert misfits(changed({"libtpu": None, "jax": None, "jaxlib": None}), tpu=False) == []


def test_the_words_are_exact() -> None:
    found = misfits(changed({"torch": "2.13.0+cpu", "libtpu": "0.0.35", "jax": "0.10.2"}), tpu=True)
    assert [(misfit.what, misfit.remedy, misfit.needed) for misfit in found] == [
        (
            "torch 2.13.0+cpu is not >=2.9,<2.10: torch_xla 2.9.0 is built against it",
            "pip install torch==2.9.1",
            True,
        ),
        (
            "libtpu 0.0.35 is not >=0.0.21,<=0.0.23.1: torch_xla 2.9.0 calls others through a struct of "
            "another size (PJRT_ExecuteOptions)",
            "pip install libtpu==0.0.23.1",
            True,
        ),
        (
            "jax 0.10.2 is not >=0.7.0,<=0.9.0: torch_xla's flash attention is written in the Pallas of these",
            "pip install libtpu==0.0.23.1 jax==0.9.0 jaxlib==0.9.0",
            False,
        ),
        (
            "jaxlib 0.9.0 is not jax's version, 0.10.2",
            "pip install libtpu==0.0.23.1 jax==0.9.0 jaxlib==0.9.0",
            False,
        ),
    ]
    (old,) = misfits(changed({"python": "3.10.14"}), tpu=True)
    assert old.what == "Python 3.10.14 is not >=3.11,<3.14: there is no torch_xla 2.9.0 for it"
    assert old.remedy.startswith("python3.11 -m venv")


@pytest.mark.parametrize(
    ("changes", "tpu", "obstacle"),
    [
        ({}, True, ""),
        ({"jax": "0.7.2", "jaxlib": "0.7.2"}, True, ""),
        ({}, False, "its kernel is for TPUs, and this is XLA's CPU device"),
        (
            {"jax": None, "jaxlib": None, "libtpu": "0.0.22"},
            True,
            "jax is not installed; pip install libtpu==0.0.22 jax==0.9.0 jaxlib==0.9.0",
        ),
        (
            {"jaxlib": None},
            True,
            "jaxlib is not installed, and must be >=0.7.0,<=0.9.0; "
            "pip install libtpu==0.0.23.1 jax==0.9.0 jaxlib==0.9.0",
        ),
        (
            {"jax": "0.10.2", "jaxlib": "0.10.2"},
            True,
            "jax 0.10.2 is not >=0.7.0,<=0.9.0: torch_xla's flash attention is written in the Pallas of these; "
            "pip install libtpu==0.0.23.1 jax==0.9.0 jaxlib==0.9.0",
        ),
        (
            {"jax": "0.8.0"},
            True,
            "jaxlib 0.9.0 is not jax's version, 0.8.0; pip install libtpu==0.0.23.1 jax==0.9.0 jaxlib==0.9.0",
        ),
    ],
)
def test_flash_attention_obstacle_names_the_command(
    changes: dict[str, str | None], tpu: bool, obstacle: str
) -> None:
    assert flash_obstacle(changed(changes), tpu=tpu) == obstacle


def test_jax_is_installed_without_moving_a_libtpu_that_works() -> None:
    versions = changed({"libtpu": "0.0.22", "jax": "0.10.2", "jaxlib": "0.10.2"})
    assert pip_line(["jax"], versions, tpu=True) == "pip install libtpu==0.0.22 jax==0.9.0 jaxlib==0.9.0"
    assert pip_line(["jax"], versions, tpu=False) == "pip install jax==0.9.0 jaxlib==0.9.0"


def pip(line: str, versions: dict[str, str]) -> dict[str, str]:
    """What the command leaves; whoever installs jax without a word of libtpu gets the newest."""
    pins = dict(word.split("==") for word in line.removeprefix("pip install ").split())
    newest = {"libtpu": "0.0.52"} if "jax" in pins else {}
    return versions | newest | pins


SOME = [
    None, "0.0.1", "0.0.22", "0.0.23.1", "0.0.52", "0.4.38", "0.8.0", "0.9.0", "2.9.0", "2.9.1", "2.13.0",
    "x",
]  # fmt: skip


@given(
    versions=st.fixed_dictionaries({package.name: st.sampled_from(SOME) for package in MATRIX}),
    tpu=st.booleans(),
)
def test_following_the_advice_leaves_no_misfit(versions: dict[str, str | None], tpu: bool) -> None:
    """One misfit after the other, and in the order given without looking again."""
    there = changed(versions)
    one_by_one, in_order = dict(there), dict(there)
    for _ in MATRIX:
        for misfit in misfits(one_by_one, tpu=tpu)[:1]:
            one_by_one = pip(misfit.remedy, one_by_one)
    for misfit in misfits(there, tpu=tpu):
        in_order = pip(misfit.remedy, in_order)
    assert misfits(one_by_one, tpu=tpu) == misfits(in_order, tpu=tpu) == []


def test_run_is_refused_only_for_required_packages() -> None:
    require(changed({"jax": "0.10.2"}), tpu=True)
    with pytest.raises(ConfigError, match=r"^device\.type: libtpu 0\.0\.24 .*libtpu==0\.0\.23\.1$"):
        require(changed({"libtpu": "0.0.24"}), tpu=True)
    require(changed({"libtpu": "0.0.24"}), tpu=False)


def test_a_device_is_not_opened_with_versions_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before torch_xla is imported, which is not even here."""
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    monkeypatch.setattr(tpu_host, "find_spec", lambda name: name)
    monkeypatch.setattr(tpu_versions, "installed", lambda: changed({"torch": "2.13.0"}))
    with pytest.raises(ConfigError, match=r"^device\.type: torch 2\.13\.0 .*torch==2\.9\.1"):
        open_device(check(["device=xla"]).device)


def test_versions_are_read_and_nothing_is_imported() -> None:
    program = (
        "import sys; from trainer.devices.tpu_versions import installed; found = installed(); "
        "print(found['python'], found['torch'], {'torch', 'torch_xla', 'jax'} & sys.modules.keys())"
    )
    stdout = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert stdout.split()[0] == ".".join(map(str, sys.version_info[:3]))
    assert stdout.split()[1] == installed()["torch"]
    assert stdout.endswith("set()\n")
