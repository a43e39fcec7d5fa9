"""How numbers are written."""

from __future__ import annotations

import numpy as np
import pytest

from analysis import labels

NAN = float("nan")


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0.0024123, "0.002412"),
        (1200.0, "1,200"),
        (3.1e12, "3.1e+12"),
        (1.5e-7, "1.5e-7"),
        (-2.0, "-2"),
        (-0.0, "0"),
        (9999.96, "10,000"),
        (-12345.6, "-12,346"),
        (NAN, "–"),
        (None, "–"),
        (float("inf"), "∞"),
        (float("-inf"), "-∞"),
    ],
)
def test_numbers_have_four_digits(value: float | None, written: str) -> None:
    assert labels.number(value) == written


@pytest.mark.parametrize(
    ("value", "sem", "written"),
    [
        (3.41234, 0.0182, "3.412 ± 0.018"),
        (3.4, 0.018, "3.400 ± 0.018"),
        (1234.5, 12.0, "1234 ± 12"),
        (1234.5, 300.0, "1234 ± 300"),
        (0.0123456789, 1.2e-9, "0.0123456789 ± 1.2e-9"),
        (3.2e-11, 1e-12, "3.2e-11 ± 1e-12"),
        (-3.2e-11, 1.24e-12, "-3.2e-11 ± 1.2e-12"),
        (0.0, 1.24e-12, "0 ± 1.2e-12"),
        (3.4, 0.0, ""),
        (3.4, NAN, ""),
        (NAN, 0.1, ""),
        (3.4, None, ""),
    ],
)
def test_a_standard_error_sets_the_digits(value: float, sem: float | None, written: str) -> None:
    assert labels.with_error(value, sem) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (True, "true"),
        (np.bool_(False), "false"),
        (np.float64(0.1), "0.1"),
        (np.int64(12), "12"),
        ("3.0", "3.0"),
        (None, "–"),
        (NAN, "–"),
    ],
)
def test_cells_are_written_as_what_they_are(value: object, written: str) -> None:
    assert labels.cell(value) == written


def test_columns_have_units_where_they_are_known() -> None:
    assert labels.title("peak_memory_gib") == "peak memory (GiB)"
    assert labels.title("my_metric") == "my_metric"
