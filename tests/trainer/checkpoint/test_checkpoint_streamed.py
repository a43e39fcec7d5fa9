"""A run on streamed text that was ended and gone on with is the run that was never ended."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from kept_runs import Attempt, KilledError, Uninterrupted, kill, outcome_of, terminate
from streamed_parquet import files, streamed, write_part, write_parts

from trainer.errors import DataError, PreemptedError


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    write_parts(folder)
    return folder


@pytest.fixture
def small(small: tuple[str, ...], shards: Path) -> tuple[str, ...]:
    """The small run, on Parquet files."""
    return streamed(small, shards)


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param([(kill, 4)], marks=pytest.mark.slow),
        [(kill, 10), (kill, 2)],
        [(terminate, 1)] * 3,
        pytest.param([(terminate, 6), (terminate, 5)], marks=pytest.mark.slow),
    ],
    ids=[
        "killed in Stage 1.9",
        "killed in Stage 2, twice",
        "preempted after each step",
        "preempted at the ends",
    ],
)
def test_it_comes_to_the_same_bit_for_bit(
    ends: list, attempt: Attempt, uninterrupted: Uninterrupted, tmp_path: Path
) -> None:
    expected = uninterrupted()
    for end, at in ends:
        with pytest.raises((KilledError, PreemptedError)):
            attempt(tmp_path / "run", "checkpoint.every_steps=3", end=end, at=at)
    assert outcome_of(attempt(tmp_path / "run"), tmp_path / "run") == expected


@pytest.mark.slow
def test_document_masks_resume_bit_for_bit(
    attempt: Attempt, uninterrupted: Uninterrupted, tmp_path: Path
) -> None:
    """Where a document ends in a window is read again, not kept in the checkpoint."""
    masked, folder = ("data.document_masks=true", "data.sequence_length=40"), tmp_path / "run"
    expected = uninterrupted(*masked)
    assert expected != uninterrupted(*masked[1:])
    for end, at in [(kill, 4), (terminate, 6)]:
        with pytest.raises((KilledError, PreemptedError)):
            attempt(folder, *masked, "checkpoint.every_steps=3", end=end, at=at)
    assert outcome_of(attempt(folder, *masked), folder) == expected


def test_it_does_not_go_on_with_another_text(attempt: Attempt, tmp_path: Path, shards: Path) -> None:
    changed = shutil.copytree(shards, tmp_path / "changed")
    with pytest.raises(PreemptedError):
        attempt(tmp_path / "run", files(changed), end=terminate, at=3)
    write_part(changed / "1.parquet", 5000)
    with pytest.raises(DataError, match="checkpoint"):
        attempt(tmp_path / "run", files(changed))
