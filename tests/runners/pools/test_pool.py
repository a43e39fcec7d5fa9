"""Pools that make no sense are refused where they are made, and a label is one for every engine."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runners_pools import PLAIN

from runners.errors import PoolError
from runners.pools.pool import worker_command


def test_a_worker_is_this_interpreter_with_the_sweeps_url():
    assert worker_command("./a b/sweep", max_trials=3) == (
        sys.executable,
        "-P",
        "-m",
        "sweeps",
        "worker",
        "--storage",
        "./a b/sweep",
        "--max-trials",
        "3",
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workers": 0}, "less than 1"),
        ({"threads": -1}, "less than 1"),
        ({"accelerator_count": 0}, "less than 1"),
        ({"restarts": -1}, "at least 0"),
        ({"grace_s": float("nan")}, "at least 0"),
        ({"max_dollars_per_hour": float("inf")}, "at least 0"),
        ({"command": ()}, "empty"),
        ({"environment": {"A B": "x"}}, "not a name of a variable"),
        ({"secrets": ("x;rm -rf /",)}, "not a name of a variable"),
        ({"environment": {"X": "1"}, "secrets": ("X",)}, "X is in the environment"),
        ({"setup": ("echo \0",)}, "cannot be passed to a program"),
        ({"command": ("python3", "\ud800")}, "cannot be passed to a program"),
        ({"devices": ("0", "1")}, "3 workers would share 2 accelerators"),
    ],
    ids=str,
)
def test_a_pool_that_makes_no_sense_is_refused_where_it_is_made(changes, message):
    with pytest.raises(PoolError, match=re.escape(message)) as caught:
        replace(PLAIN, **changes)
    assert caught.value.field in {*changes, "workers"}


@given(name=st.text(min_size=1), storage=st.text())
def test_a_label_is_a_name_that_every_engine_takes(name, storage):
    try:
        label = replace(PLAIN, name=name, storage=storage).label
    except PoolError:
        return
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,43}[a-z0-9])?", label)


def test_sweeps_of_one_name_in_two_places_have_two_labels():
    assert replace(PLAIN, storage="gs://other/toy").label != PLAIN.label == replace(PLAIN, workers=9).label
