"""Sizes for people say something of the smallest run and of the largest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.text import byte_size

MIB, GIB = 2**20, 2**30


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 MiB"),
        (1000, "0.98 KiB"),
        (12 * 1024, "12.0 KiB"),
        (3 * MIB, "3.00 MiB"),
        (102 * MIB, "102 MiB"),
        (103 * MIB, "0.10 GiB"),
        (int(0.55 * GIB), "0.55 GiB"),
        (13 * GIB, "13.0 GiB"),
        (128 * GIB, "128 GiB"),
    ],
)
def test_below_a_tenth_of_a_gib_the_unit_is_smaller(size: int, text: str) -> None:
    assert byte_size(size) == text


@given(size=st.integers(103, 2**50))
def test_three_digits_are_not_far_from_the_truth(size: int) -> None:
    value, unit = byte_size(size).split()
    assert float(value) * {"KiB": 2**10, "MiB": MIB, "GiB": GIB}[unit] == pytest.approx(size, rel=0.06)
