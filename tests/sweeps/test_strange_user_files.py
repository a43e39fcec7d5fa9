"""A pipe, a loop, a folder or a device where a user's file should be: one line at once, never a wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from strange import KINDS, stand_in

from analysis.errors import AnalysisError
from analysis.table import read as read_analysis
from sweeps.errors import EnvironmentFault, InputError
from sweeps.programs import process
from sweeps.space import space_file
from sweeps.upkeep import tables

pytestmark = pytest.mark.timeout(60)


def outcome(call: Callable[[], object]) -> BaseException | None:
    """What the call raises, within ten seconds: a thread that waits for a pipe cannot be ended."""
    raised: list[BaseException | None] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)
        else:
            raised.append(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive(), "it waits"
    return raised[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_to_import(tmp_path: Path, kind: str, suffix: str) -> None:
    stand_in(kind, tmp_path / f"table{suffix}")
    error = outcome(lambda: tables.read(tmp_path / f"table{suffix}"))
    assert isinstance(error, InputError)
    assert "cannot be read" in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", [".csv", ".json", ".parquet"])
def test_a_table_for_pareto(tmp_path: Path, kind: str, suffix: str) -> None:
    stand_in(kind, tmp_path / f"table{suffix}")
    error = outcome(lambda: read_analysis(tmp_path / f"table{suffix}"))
    assert isinstance(error, AnalysisError)
    assert "\n" not in str(error)


@pytest.mark.parametrize("kind", KINDS)
def test_a_search_space(tmp_path: Path, kind: str) -> None:
    stand_in(kind, tmp_path / "space.yaml")
    error = outcome(lambda: space_file.load(tmp_path / "space.yaml"))
    assert isinstance(error, InputError)
    assert "\n" not in str(error)


@pytest.mark.parametrize("kind", ["pipe", "loop", "folder", "socket"])
def test_a_log_that_a_program_shall_write_into(tmp_path: Path, kind: str) -> None:
    stand_in(kind, tmp_path / "log.txt")
    error = outcome(
        lambda: process.run(
            ["true"], log_file=tmp_path / "log.txt", env={}, should_stop=lambda: False, grace_s=1
        )
    )
    assert isinstance(error, EnvironmentFault)
    assert "log.txt" in str(error)
