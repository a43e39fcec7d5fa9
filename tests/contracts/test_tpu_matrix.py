"""One matrix of versions for TPUs: what is installed, by hand and on a VM, and what the pages say, is what is checked."""

from __future__ import annotations

import pytest
from packaging.specifiers import SpecifierSet
from tpu_matrix import COPIES, ROOT, regenerated

from trainer.devices.tpu_versions import MATRIX


@pytest.mark.parametrize("file", COPIES)
def test_every_copy_of_the_matrix_is_as_generated(file: str) -> None:
    current = (ROOT / file).read_text(encoding="utf-8")
    assert regenerated(file) == current, "run: python tests/contracts/tpu_matrix.py"


@pytest.mark.parametrize("package", MATRIX, ids=lambda package: package.name)
def test_a_pin_is_allowed(package) -> None:
    assert SpecifierSet(package.allowed).contains(package.pin)
