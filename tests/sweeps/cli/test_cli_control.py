"""Control of a sweep from the command line while its workers run."""

from __future__ import annotations

import json

import pytest

from sweeps.experiment import Experiment
from sweeps.storage.local import LocalStore
from sweeps.trials.lifecycle import Fail


def state(sweep) -> str:
    states = [line.split()[1] for line in sweep("status").out.splitlines() if line.startswith("state")]
    return states[0].rstrip(";") if states else "running"


def test_the_switch_is_turned_and_shown(sweep, space_file):
    sweep("init", str(space_file))
    assert state(sweep) == "running"
    for command, expected in (
        ("pause", "paused"),
        ("stop", "stopped"),
        ("resume", "running"),
        ("pause", "paused"),
    ):
        ran = sweep(command)
        assert (ran.status, ran.out) == (0, f"./sweep-store/toy is {expected}\n")
        assert state(sweep) == expected
    assert "sweep resume" in sweep("status").out


@pytest.mark.parametrize("command", ["pause", "stop"])
def test_a_closed_sweep_hands_out_nothing(sweep, space_file, command):
    sweep("init", str(space_file))
    sweep(command)
    ran = sweep("ask")
    assert (ran.status, ran.out, ran.err.count("\n")) == (1, "", 1)
    ran = sweep("worker", "--exit-when-idle")
    assert ran.status == 0
    assert "`sweep resume`" in ran.err
    assert sweep("resume").status == 0
    assert sweep("worker", "--max-trials", "1").status == 0


def test_a_failed_trial_is_put_back_and_run_again(sweep, space_file):
    url = sweep("init", str(space_file)).out.strip()
    experiment = Experiment.open(LocalStore(url))
    record = experiment.ask("w")
    experiment.apply(0, Fail(worker="w", attempt=1, error="diverged", failure="diverged"))
    ran = sweep("retry", "0")
    assert (ran.status, ran.out) == (0, "trial 0 is pending\n")
    sweep("worker", "--max-trials", "1")
    again = experiment.trial(0)
    assert (again.status, again.attempt, again.parameters) == ("completed", 2, record.parameters)


def test_a_trial_is_abandoned(sweep, space_file):
    url = sweep("init", str(space_file)).out.strip()
    Experiment.open(LocalStore(url)).ask("w")
    assert sweep("abandon", "0").out.split()[-1] == "abandoned"
    assert json.loads(sweep("status", "--format", "json").out)["trials"]["abandoned"] == 1


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["retry", "0"], "only a failed, stopped or abandoned trial can be tried again"),
        (["abandon", "0"], "it has ended"),
        (["retry", "99"], "there is no trial 99"),
        (["abandon", "99"], "there is no trial 99"),
    ],
    ids=["retry-completed", "abandon-completed", "retry-none", "abandon-none"],
)
def test_what_makes_no_sense_is_one_line_and_status_2(sweep, finished, argv, expected):
    ran = sweep(*argv)
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert expected in ran.err


def test_a_damaged_switch_is_reported_and_not_guessed(sweep, space_file, tmp_path):
    sweep("init", str(space_file))
    (tmp_path / "sweep-store" / "toy" / "control.json").write_text('{"state": "go"}')
    ran = sweep("worker")
    assert ran.status == 1
    assert "control.json" in ran.err


def test_events_as_json_are_one_document_a_line(sweep, space_file):
    sweep("init", str(space_file))
    events = [json.loads(line) for line in sweep("worker", "--log-format", "json").err.splitlines()[:-1]]
    assert [event["event"] for event in events] == ["started", "ended"] * 5
    assert events[1]["status"] == "completed"
    assert events[1]["metrics"]["loss"] > 0
