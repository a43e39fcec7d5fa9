"""`sweeps.text.python_words`: what is put into Python's words, and what is left alone."""

from __future__ import annotations

import pytest

from sweeps.text.python_words import words


@pytest.mark.parametrize(
    ("message", "in_python"),
    [
        ("`sweep extend --run-cap 9 --storage here/x` raises it", "`sweep.extend(run_cap=9)` raises it"),
        ("`sweep extend --expected-gain none` goes on", "`sweep.extend(expected_gain=None)` goes on"),
        (
            "`sweep extend --expected-gain 0.1 --storage here/x` raises it",
            "`sweep.extend(expected_gain=0.1)` raises it",
        ),
        ("fix the cause, then run `sweep resume`", "fix the cause, then call `sweep.resume()`"),
        ("st--big-store/a--name b: no sweep here", "st--big-store/a--name b: no sweep here"),
    ],
)
def test_options_become_arguments_and_paths_stay(message, in_python):
    assert words(message) == in_python
