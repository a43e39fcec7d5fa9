"""The record of a pool comes back as it was, and an illegible one is an error of one line."""

from __future__ import annotations

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


def test_it_comes_back_as_it_was_written_and_is_for_its_owner_alone(tmp_path: Path) -> None:
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
    with pytest.raises(RunnerError, match=r"launched\.json: .*remove it"):
        launched.read(tmp_path)
