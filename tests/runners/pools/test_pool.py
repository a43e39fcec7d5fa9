"""Pools that make no sense are refused where they are made, and a label is one for every engine."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import golden_messages
from hypothesis import given
from hypothesis import strategies as st
from runners_pools import PLAIN

from runners.errors import PoolError
from runners.pools.pool import worker_command


def test_a_worker_is_this_interpreter_with_the_sweeps_url():
    assert worker_command("./a b/sweep", max_trials=3) == (
        *(sys.executable, "-P", "-m", "sweeps", "worker"),
        *("--storage", "./a b/sweep", "--max-trials", "3"),
    )


MISTAKES = (
    {"workers": 0},
    {"threads": -1},
    {"accelerator_count": 0},
    {"restarts": -1},
    {"grace_s": float("nan")},
    {"max_dollars_per_hour": float("inf")},
    {"command": ()},
    {"environment": {"A B": "x"}},
    {"secrets": ("x;rm -rf /",)},
    {"environment": {"X": "1"}, "secrets": ("X",)},
    {"setup": ("echo \0",)},
    {"command": ("python3", "\ud800")},
    {"devices": ("0", "1")},
)


def test_pools_are_refused_where_they_are_made():
    calls = {ascii(changes): lambda changes=changes: replace(PLAIN, **changes) for changes in MISTAKES}
    refused = golden_messages.compare_refusals("Pools", PoolError, calls)
    for changes, error in zip(MISTAKES, refused.values(), strict=True):
        assert error.field in {*changes, "workers"}


@given(name=st.text(min_size=1), storage=st.text())
def test_a_label_is_a_name_that_every_engine_takes(name, storage):
    try:
        label = replace(PLAIN, name=name, storage=storage).label
    except PoolError:
        return
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,43}[a-z0-9])?", label)


def test_sweeps_of_one_name_in_two_places_have_two_labels():
    assert replace(PLAIN, storage="gs://other/toy").label != PLAIN.label == replace(PLAIN, workers=9).label
