"""`sweep history`: who did what to a sweep, and when."""

from __future__ import annotations

import json

from sweeps.experiment import Experiment
from sweeps.storage.local import LocalStore


def test_what_people_did_is_told_in_order_with_who_did_it(sweep, space_file, monkeypatch):
    url = sweep("init", str(space_file)).out.strip()
    ran = sweep("history")
    assert (ran.status, ran.out.count("\n")) == (0, 1)
    monkeypatch.setenv("SWEEP_USER", "ada")
    sweep("pause")
    sweep("extend", "--run-cap", "9")
    monkeypatch.setenv("SWEEP_USER", "bob\x1b[1m")
    sweep("resume")
    Experiment.open(LocalStore(url)).ask("w")
    assert sweep("abandon", "0", "--reason", "too slow").status == 0
    assert sweep("retry", "0").status == 0
    assert sweep("abandon", "77").status == 2  # what is refused is not noted
    sweep("archive")
    noted = [(row["by"], row["what"]) for row in json.loads(sweep("history", "--format", "json").out)]
    assert [what for _, what in noted] == [
        "pause",
        "extend: run_cap 9",
        "resume",
        "abandon trial 0: too slow",
        "retry trial 0",
        "archive",
    ]
    assert [by for by, _ in noted[:2]] == ["ada", "ada"]
    assert noted[2][0].startswith("bob")
    assert "\x1b" not in noted[2][0]
    table = sweep("history").out
    assert "extend: run_cap 9" in table
    assert " UTC" in table
    assert sweep("history", "--format", "csv").out.splitlines()[0] == "at,by,what"
