"""One matrix of versions for TPUs: what is installed, by hand and on a VM, and what is told, is what is checked."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from runners.tpu_versions import REQUIREMENTS
from trainer.devices.tpu_versions import MATRIX

ROOT = Path(__file__).parents[2]
ALLOWED = {package.name: SpecifierSet(package.allowed) for package in MATRIX}
PINS = {package.name: package.pin for package in MATRIX}


def named(requirements: list[str]) -> dict[str, SpecifierSet]:
    found = [Requirement(text) for text in requirements]
    return {each.name: each.specifier for each in found if each.name in ALLOWED}


def test_the_extras_install_what_is_allowed() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert named(extras["xla"]) == {name: ALLOWED[name] for name in ("torch", "torch_xla")}
    assert named(extras["tpu"]) == {name: ALLOWED[name] for name in ("torch_xla", "libtpu")}
    assert "stagesweep[xla]" in extras["tpu"]
    assert named(extras["flash"]) == {name: ALLOWED[name] for name in ("jax", "jaxlib")}


def test_a_vm_gets_what_is_allowed() -> None:
    given = named(list(REQUIREMENTS))
    assert given == {
        "torch": SpecifierSet(f"=={PINS['torch']}"),
        "torch_xla": ALLOWED["torch_xla"],
        "libtpu": ALLOWED["libtpu"],
    }


@pytest.mark.parametrize("package", MATRIX, ids=lambda package: package.name)
def test_a_pin_is_allowed_and_the_page_tells_the_range(package) -> None:
    assert SpecifierSet(package.allowed).contains(package.pin)
    page = (ROOT / "docs" / "tpu.md").read_text(encoding="utf-8")
    assert f"| {package.name} | `{package.allowed}` | `{package.pin}` |" in page
