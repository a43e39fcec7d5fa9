"""`sweep enqueue`: trials of one's own from the command line."""

from __future__ import annotations

import json

import pytest


@pytest.fixture(autouse=True)
def _made(sweep, space_file):
    sweep("init", str(space_file))


def test_a_trial_is_added_and_run_first(sweep):
    ran = sweep("enqueue", "x=0.25", "n=7")
    assert (ran.status, ran.out) == (0, "trial 0 enqueued: x=0.25 n=7 mode=fast\n")
    ran = sweep("enqueue", "n=7", "x=0.25", "--skip-if-exists")
    assert "already" in ran.out
    assert "x=0.25 n=7 mode=fast" in ran.out
    assert sweep("worker", "--max-trials", "1").status == 0
    (trial,) = json.loads(sweep("trials", "--format", "json").out)
    assert (trial["generator"], trial["status"]) == ("enqueued", "completed")
    assert trial["parameters"] == {"x": 0.25, "n": 7, "mode": "fast"}


def test_a_file_has_several(sweep, tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text("- {x: 0.5}\n- {n: 3}\n")
    ran = sweep("enqueue", "--from", str(file))
    assert [line.split(":")[0] for line in ran.out.splitlines()] == ["trial 0 enqueued", "trial 1 enqueued"]
