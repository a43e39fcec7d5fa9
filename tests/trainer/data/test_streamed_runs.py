"""Complete runs on streamed text: reproducible, with a teacher of their own text, and without leftover threads."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from trainer_outcomes import weights_digest, without_times

from trainer import __main__ as program
from trainer import api
from trainer.api import check
from trainer.pipeline import Outcome
from trainer.stages import teacher
from trainer.training.preemption import StopSignal

Run = Callable[..., Outcome]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 documents of some 20 words in 150 row groups."""
    folder = tmp_path_factory.mktemp("shards")
    for part in range(2):
        numbers = range(300 * part, 300 * (part + 1))
        texts = [" ".join(f"{number * step % 997}" for step in range(1, 21)) for number in numbers]
        pq.write_table(pa.table({"text": texts}), folder / f"{part}.parquet", row_group_size=4)
    return folder


@pytest.fixture
def streamed(small: Sequence[str], folder: Path) -> list[str]:
    """Overrides of a run that takes a second."""
    source = [
        "data=parquet",
        f"data.files={api.quote(str(folder))}",
        "data.lanes=2",
        "data.held_out_tokens=400",
    ]
    return [*source, *(override for override in small if not override.startswith("data.max_bytes"))]


@pytest.fixture
def run(run_config: Callable[..., Outcome], streamed: list[str]) -> Run:
    def run(*overrides: str) -> Outcome:
        config = check([*streamed, *overrides])
        return run_config(config)

    return run


def test_the_same_run_has_the_same_weights_and_ends_its_threads(run: Run) -> None:
    one, again = run(), run()
    assert weights_digest(one) == weights_digest(again)
    assert without_times(one) == without_times(again)
    assert one.result.provenance.data_sha256 == again.result.provenance.data_sha256
    assert "training text" not in {thread.name for thread in threading.enumerate()}
    assert weights_digest(run("seed=1")) != weights_digest(one)


def test_a_teacher_that_saw_the_text_in_another_order_is_another(streamed: list[str]) -> None:
    one, again, other = (
        api.prepare([*streamed, *more])
        for more in ((), ("stage1_9.max_steps=3",), ("data.shuffle_windows=4",))
    )
    assert one.teacher == again.teacher
    assert one.teacher != other.teacher
    assert one.data_sha256 == other.data_sha256


@pytest.mark.slow
def test_the_command_ends_when_its_work_is_done(streamed: list[str], tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    subprocess.run(
        [sys.executable, "-m", "trainer", *streamed, f"run_dir={run_dir}"], check=True, timeout=100
    )
    assert (run_dir / "result.json").exists()


def test_missing_text_is_refused_early(
    streamed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StopSignal, "install", lambda stop: None)  # this process keeps its handlers
    monkeypatch.setattr(teacher, "train", lambda *given, **named: pytest.fail("a teacher is trained"))
    arguments = [*streamed, "data.files=/no/such/*.parquet", f"run_dir={tmp_path / 'run'}"]
    assert program.main(arguments) == api.EXIT_CONFIG
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("trainer: error: data.files: '/no/such/*.parquet' ")
