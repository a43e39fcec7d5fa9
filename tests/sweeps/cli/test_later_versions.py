"""Objects of a later version: each command says so in one line and leaves them as they are, or keeps their keys."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

LATER = "a later version of stagesweep wrote this"


def edit(file: Path, change: Callable[[Any], object]) -> None:
    document = json.loads(file.read_bytes())
    change(document)
    file.write_text(json.dumps(document))


def write(file: Path, document: object) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(document))


OBJECTS: dict[str, Callable[[Path], object]] = {
    "trials/000001.json": lambda file: edit(file, lambda record: record.update(schema=2)),
    "sweep.json": lambda file: edit(file, lambda document: document.update(schema=2)),
    "control.json": lambda file: write(file, {"schema": 2, "state": "draining", "by": "me", "at": 1.0}),
    "amendments/0001.json": lambda file: write(file, {"schema": 2, "changes": {"run_cap": 9}}),
    "confirm.json": lambda file: write(file, {"schema": 2, "metric": "loss"}),
}
UNKNOWN: dict[str, Callable[[Path], object]] = {
    "sweep.json": lambda file: edit(file, lambda document: document["space"]["search"].update(turbo=True)),
    "amendments/0001.json": lambda file: write(file, {"schema": 1, "changes": {"kelvin": 9.0}}),
}


each_object = pytest.mark.parametrize(
    ("name", "make"),
    [*OBJECTS.items(), *UNKNOWN.items()],
    ids=[*(f"{name}, schema" for name in OBJECTS), *(f"{name}, key" for name in UNKNOWN)],
)


@each_object
def test_object_of_a_later_version_is_left_alone(sweep, finished, name, make):
    file = Path(finished) / name
    make(file)
    stored = file.read_bytes()
    refused = [("worker",), ("ask",), ("repair", "--yes")]
    if name != "confirm.json":  # nobody else reads it
        refused += [("extend", "--run-cap", "9")] if name.startswith("amendments") else []
        refused += [("pause",), ("resume",)] if name == "control.json" else []
        refused += [("retry", "1"), ("rename", "other"), ("archive",)] if name.startswith("trials") else []
    for command in refused:
        ran = sweep(*command)
        assert (command, ran.status) == (command, 2)
        error = next(line for line in ran.err.splitlines() if LATER in line)
        assert name in error
        assert "quarantine" not in ran.err
        assert "Traceback" not in ran.err
    assert LATER.partition(" of ")[0] in sweep("doctor").out
    assert file.read_bytes() == stored
    assert not (Path(finished) / "quarantine").exists()


@each_object
def test_sweep_as_a_whole_stays_as_it_is(sweep, finished, tmp_path, name, make):
    """Who would stop, move or copy it reads all before the first write."""
    make(Path(finished) / name)
    sweeps = Path(finished).parent

    def files() -> dict[str, bytes]:
        return {os.fspath(path): path.read_bytes() for path in sweeps.rglob("*") if path.is_file()}

    stored, there = files(), tmp_path / "there"
    for command in (
        ("archive",),
        ("rename", "other"),
        ("delete", "--yes", "--storage", finished),
        ("copy", finished, str(there)),
        ("copy", "--live", finished, str(there)),
    ):
        ran = sweep(*command)
        assert (command, ran.status) == (command, 2)
        assert LATER in ran.err
        assert files() == stored
        assert not there.exists()


def test_tables_leave_a_later_record_out_and_say_so(sweep, finished):
    OBJECTS["trials/000001.json"](Path(finished) / "trials/000001.json")
    for command in ("status", "best", "trials"):
        shown = sweep(command)
        assert shown.status == 2
        assert f"{LATER} (schema is 2, this version reads 1)" in shown.err


def test_keys_of_a_later_version_are_no_fault(sweep, finished):
    file = Path(finished) / "trials/000001.json"
    edit(file, lambda record: record.update(zone="a1") or record["history"][0].update(host="h"))
    for command in (("status",), ("best",), ("trials",), ("show", "1"), ("repair", "--yes")):
        assert sweep(*command).status == 0
    assert sweep("doctor").status == 0
    assert json.loads(file.read_bytes())["zone"] == "a1"
