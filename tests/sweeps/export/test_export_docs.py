"""`docs/reference/files.md` names the fields of `sweep export TABLE.json`, and what `sweep report` adds to them."""

from __future__ import annotations

import re
from pathlib import Path

from sweeps.export import table
from sweeps.operations import report
from sweeps.space.definition import Objective, Program, Range, Space
from sweeps.trials.lifecycle import Claim, Complete, Release, apply, holder
from sweeps.trials.record import Trial

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "files.md").read_text(encoding="utf-8")
SPACE = Space(
    name="case",
    objectives=(Objective(metric="loss"),),
    outcome_constraints=("gb <= 4",),
    program=Program(kind="function", function="m:f"),
    parameters=(Range(name="x", min=0.0, max=1.0, kind="float"),),
)


def fields(lead: str) -> set[str]:
    """Return the names in the first column of the table behind this sentence."""
    rows = PAGE.split(lead)[1].split("\n\n")[1].splitlines()[2:]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def test_fields_of_the_exported_document() -> None:
    record = Trial(trial=0, status="pending", parameters={"x": 0.5}, generator="sobol")
    record = apply(record, Claim(worker="w"), 0.0)
    record = apply(record, Release(**holder(record)), 10.0)
    record = apply(record, Claim(worker="w", nodes=2), 20.0)
    record = apply(record, Complete(**holder(record), metrics={"loss": 1.0}), 30.0)
    exported = table.document(SPACE, "url", [record], {"0": {}})
    assert fields("`sweep export sweep.json` writes one document") == exported.keys()


def test_fields_that_the_report_adds() -> None:
    added = set(re.findall(r'document\["(\w+)"\] = ', Path(report.__file__).read_text(encoding="utf-8")))
    assert fields("`sweep report` adds") == added
