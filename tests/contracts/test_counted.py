"""Counts in messages are grammatical and the same in each package."""

from __future__ import annotations

import pytest

import analysis.labels
import runners.counted
import sweeps.text.counted
import trainer.text

COUNTED = {
    "analysis": analysis.labels.counted,
    "runners": runners.counted.counted,
    "sweeps": sweeps.text.counted.counted,
    "trainer": trainer.text.counted,
}


@pytest.mark.parametrize("package", COUNTED)
def test_a_count_goes_with_its_noun(package: str) -> None:
    texts = [COUNTED[package](count, "worker") for count in (0, 1, 2)]
    assert texts == ["0 workers", "1 worker", "2 workers"]


@pytest.mark.parametrize("package", sorted(set(COUNTED) - {"analysis"}))
def test_a_noun_may_have_a_plural_of_its_own(package: str) -> None:
    assert COUNTED[package](1, "process", "processes") == "1 process"
    assert COUNTED[package](3, "process", "processes") == "3 processes"
