"""The record of a pool comes back as it was, and an illegible one is an error of one line."""

from __future__ import annotations

import json
import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from runners_pools import FULL

from runners.errors import RunnerError
from runners.pools import launched
from runners.pools.launched import Launched

GOLDEN = Path(__file__).parents[2] / "golden"


def test_record_round_trip_and_permissions(tmp_path: Path) -> None:
    written = Launched(runner="slurm", pool=replace(FULL, folder=tmp_path), notes={"jobs": [12]})
    launched.write(written)
    assert launched.read(tmp_path) == written
    assert stat.S_IMODE((tmp_path / launched.FILE).stat().st_mode) == 0o600
    launched.remove(tmp_path)
    assert launched.read(tmp_path) is None


def test_a_file_of_the_first_schema_is_read(tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "launched_v1.json", tmp_path / launched.FILE)
    command = tuple(word for word in FULL.command if word != "-P")  # workers were started without it
    pool = replace(FULL, folder=tmp_path, command=command)
    assert launched.read(tmp_path) == Launched(runner="slurm", pool=pool, notes={"jobs": [12]})


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 2}', '{"schema": 1, "pool": {}}'], ids=str)
def test_what_is_not_legible_is_told_in_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / launched.FILE).write_text(text)
    with pytest.raises(RunnerError, match=r"launched\.json: "):
        launched.read(tmp_path)


def test_file_of_a_later_version_is_not_to_be_removed(tmp_path: Path) -> None:
    """Its pool runs, and this is all that `sweep down` knows of it."""
    (tmp_path / launched.FILE).write_text('{"schema": 2}')
    with pytest.raises(RunnerError, match="a later version of stagesweep wrote it") as caught:
        launched.read(tmp_path)
    assert "remove" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [("workers", "two"), ("command", "sweep"), ("environment", [1]), ("secrets", [1]), ("spot", 0)],
    ids=str,
)
def test_value_of_a_wrong_type_is_named(field: str, value: object, tmp_path: Path) -> None:
    document = json.loads((GOLDEN / "launched_v1.json").read_text())
    document["pool"][field] = value
    (tmp_path / launched.FILE).write_text(json.dumps(document))
    with pytest.raises(RunnerError, match=rf"launched\.json: pool\.{field}\b") as caught:
        launched.read(tmp_path)
    assert "\n" not in str(caught.value)


def test_pipe_in_its_place_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / launched.FILE)
    with pytest.raises(RunnerError, match="a named pipe"):
        launched.read(tmp_path)
