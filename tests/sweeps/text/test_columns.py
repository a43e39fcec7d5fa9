"""The column of a metric says which metric it is."""

from __future__ import annotations

from hypothesis import given
from named import METRICS

from sweeps.text.columns import PARAMETER, RESERVED, SEM, metric_column, metric_of


@given(METRICS)
def test_column_of_a_metric_says_which_it_is(metric: str) -> None:
    column = metric_column(metric)
    assert column not in RESERVED
    assert not column.startswith(PARAMETER)
    assert metric_of(column) == metric
    assert metric_column(metric + SEM) == column + SEM
