"""Values as people read them."""

from __future__ import annotations

import pytest

from sweeps.text.shorten import shorten, shown_bytes


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (None, "of unknown size"),
        (0, "0 bytes"),
        (1536, "1.5 KiB"),
        (2**20, "1.0 MiB"),
        (5 * 2**30, "5.0 GiB"),
    ],
)
def test_sizes_are_reported_in_the_unit_that_fits(count, expected):
    assert shown_bytes(count) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ""),
        (True, "true"),
        (3.14159265, "3.1416"),
        (123456.0, "1.235e+05"),
        (123456.7, "1.2346e+05"),
        (12, "12"),
        (10**7, "1.000e+07"),
        (float("inf"), "inf"),
        (float("-inf"), "-inf"),
        (float("nan"), "nan"),
        ("a\x1b[2J", "a [2J"),
    ],
)
def test_values_have_five_digits_and_no_escape_codes(value, expected):
    assert shorten(value) == expected
