"""The column of a metric says which metric it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from named import METRICS

from sweeps.text.columns import PARAMETER, RESERVED, SEM, is_seed, metric_column, metric_of


@given(METRICS)
def test_column_of_a_metric_says_which_it_is(metric: str) -> None:
    column = metric_column(metric)
    assert column not in RESERVED
    assert not column.startswith(PARAMETER)
    assert metric_of(column) == metric
    assert metric_column(metric + SEM) == column + SEM


@pytest.mark.parametrize("parameter", ["seed", "param.data.seed", "SEED", "randomState", "seed_2"])
def test_a_seed_is_known_by_its_name(parameter: str) -> None:
    assert is_seed(parameter)


@pytest.mark.parametrize("parameter", ["seed_words", "eval.test", "seeds", "lr"])
def test_other_names_are_no_seeds(parameter: str) -> None:
    assert not is_seed(parameter)
