"""The column of a metric is the same to those who write tables and those who read them."""

from __future__ import annotations

from hypothesis import given
from named import METRICS

from analysis.table import SEM, metric_column
from sweeps.export import table


@given(METRICS)
def test_column_of_a_metric_says_which_it_is(metric: str) -> None:
    column = table.metric_column(metric)
    assert column == metric_column(metric)
    assert column not in table.RESERVED
    assert not column.startswith(table.PARAMETER)
    assert table.metric_of(column) == metric
    assert table.metric_column(metric + SEM) == column + SEM
