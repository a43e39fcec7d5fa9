"""What a run leaves when it is over: the result first, and then whatever else was asked for."""

from __future__ import annotations

import errno
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trainer import __main__ as program
from trainer.api import MODEL_FOLDER, RESULT_FILE, quote
from trainer.errors import EXIT_CONFIG, EXIT_DONE, EXIT_FAILED, EXIT_PREEMPTED
from trainer.layout import SAMPLES_FILE
from trainer.models.student_folder import load

KEPT = ("save_model=true", "checkpoint.every_steps=10")

fsync = os.fsync
Run = Callable[..., int]


@pytest.fixture
def run(small: tuple[str, ...]) -> Iterator[Run]:
    """`run(folder, *overrides)`: the command in this process, which gets its own handlers back."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield lambda folder, *more: program.main([*small, *more, f"run_dir={quote(str(folder))}"])
    for number, handler in handlers.items():
        signal.signal(number, handler)


def final_loss(folder: Path) -> float:
    document = json.loads((folder / RESULT_FILE).read_text())
    assert document["status"] == "completed"
    loss: float = document["metrics"]["final_loss"]
    return loss


def full_disk_for_results(descriptor: int) -> None:
    """`os.fsync`, which refuses a draft of `result.json`."""
    if RESULT_FILE in Path(f"/proc/self/fd/{descriptor}").readlink().name:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    fsync(descriptor)


def test_unsaved_student_leaves_the_result(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the same command, once that is mended, saves it without training anew."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / MODEL_FOLDER).write_text("in the way")
    assert run(folder, *KEPT) == EXIT_DONE
    loss = final_loss(folder)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("trainer: warning: ")
    assert f"{str(folder / MODEL_FOLDER)!r}: " in line
    assert {path.name for path in folder.iterdir()} == {
        *(
            "result.json",
            "held_out.json",
            "metrics.jsonl",
            "heartbeat.json",
            "config.json",
            "checkpoints",
            MODEL_FOLDER,
        )
    }

    (folder / MODEL_FOLDER).unlink()
    assert run(folder, *KEPT) == EXIT_DONE
    assert "after step 4 of stage2" in capsys.readouterr().out
    assert final_loss(folder) == loss
    assert load(folder / MODEL_FOLDER).model is not None
    assert not (folder / "checkpoints").exists()


def test_whatever_fails_in_saving_the_student_is_one_line(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("invalid python storage")

    monkeypatch.setattr("trainer.models.student_folder.fully_quantised", fail)
    assert run(tmp_path / "run", "save_model=true") == EXIT_DONE
    assert final_loss(tmp_path / "run") > 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "(RuntimeError: invalid python storage)" in line


@pytest.mark.skipif(sys.platform != "linux", reason="the file is known by its link in /proc")
def test_unwritable_result_leaves_the_checkpoint(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    with monkeypatch.context() as context:
        context.setattr("os.fsync", full_disk_for_results)
        assert run(folder, *KEPT) == EXIT_FAILED
    line = capsys.readouterr().err.splitlines()[-1]
    assert "No space left on device" in line
    assert not (folder / RESULT_FILE).exists()
    assert run(folder, *KEPT) == EXIT_DONE
    assert "from checkpoint 00000010" in capsys.readouterr().out
    assert final_loss(folder) > 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize("where", ["trainer.result.write", "trainer.models.student_folder.save"])
def test_signal_while_saving_changes_nothing(
    where: str, number: signal.Signals, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, _, name = where.rpartition(".")
    write = getattr(importlib.import_module(module), name)

    def signalled(*given: object, **more: object) -> None:
        os.kill(os.getpid(), number)
        write(*given, **more)

    monkeypatch.setattr(where, signalled)
    folder = tmp_path / "run"
    assert run(folder, *KEPT) == EXIT_DONE
    assert final_loss(folder) > 0
    assert load(folder / MODEL_FOLDER).model is not None
    assert not (folder / "checkpoints").exists()


def test_a_finished_run_is_not_trained_again_nor_lost(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path) == EXIT_DONE
    before = (tmp_path / RESULT_FILE).read_bytes()
    loss = final_loss(tmp_path)
    capsys.readouterr()
    assert run(tmp_path) == EXIT_DONE
    out = capsys.readouterr().out
    assert str(loss) in out
    assert "overwrite=true" in out
    assert run(tmp_path, "seed=1") == EXIT_CONFIG
    error = capsys.readouterr().err
    assert error.startswith(f"trainer: error: run_dir: {str(tmp_path)!r} ")
    assert str(loss) in error
    assert "overwrite=true" in error
    assert (tmp_path / RESULT_FILE).read_bytes() == before
    assert run(tmp_path, "seed=1", "overwrite=true") == EXIT_DONE
    assert final_loss(tmp_path) != loss


@pytest.mark.parametrize(
    "text", ["{}", '{"status": "failed"}', "no JSON", '{"status": "completed", "metrics": 3}']
)
def test_a_result_that_is_no_finished_run_is_no_obstacle(run: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / RESULT_FILE).write_text(text)
    assert run(tmp_path) == EXIT_DONE
    assert final_loss(tmp_path) > 0


HOOK = """
import os, signal

def exam(student):
    text = student.continuations(["def"], 2)[0]
    if os.environ.get("EXAM") == "preempted":
        signal.raise_signal(signal.SIGTERM)
    if os.environ.get("EXAM") == "broken":
        raise RuntimeError("no paper")
    return {"letters": len(text)}
"""


@pytest.fixture
def exam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The override that has the student take an exam."""
    (tmp_path / "its_exam.py").write_text(HOOK)
    monkeypatch.syspath_prepend(tmp_path)
    return "hooks.names=['its_exam:exam']"


def test_scores_of_hooks_are_metrics_of_the_result(run: Run, tmp_path: Path, exam: str) -> None:
    folder = tmp_path / "run"
    assert run(folder) == EXIT_DONE
    without = json.loads((folder / RESULT_FILE).read_text())
    assert run(tmp_path / "scored", exam) == EXIT_DONE
    scored = json.loads((tmp_path / "scored" / RESULT_FILE).read_text())
    assert scored["metrics"]["exam_letters"] > 0
    assert scored["metrics"]["final_loss"] == without["metrics"]["final_loss"]
    assert (scored["hooks"], "hooks" in without) == ({"exam": None}, False)


def test_a_hook_that_fails_is_a_warning(
    run: Run, tmp_path: Path, exam: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EXAM", "broken")
    assert run(tmp_path / "run", exam) == EXIT_DONE
    assert capsys.readouterr().err.startswith("trainer: warning: the hook exam ")
    result = json.loads((tmp_path / "run" / RESULT_FILE).read_text())
    assert result["hooks"] == {"exam": "RuntimeError: no paper"}
    assert "exam_letters" not in result["metrics"]


def test_run_preempted_in_a_hook_is_scored_later(
    run: Run, tmp_path: Path, exam: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    monkeypatch.setenv("EXAM", "preempted")
    assert run(folder, exam, *KEPT) == EXIT_PREEMPTED
    loss = final_loss(folder)
    monkeypatch.delenv("EXAM")
    capsys.readouterr()
    assert run(folder, exam, *KEPT) == EXIT_DONE
    assert "after step 6 of stage2" in capsys.readouterr().out
    assert final_loss(folder) == loss
    assert json.loads((folder / RESULT_FILE).read_text())["metrics"]["exam_letters"] > 0
    assert run(folder, exam, *KEPT) == EXIT_DONE
    assert "finished already" in capsys.readouterr().out


def test_prompts_are_continued_in_samples(run: Run, tmp_path: Path) -> None:
    asked = ("samples.enabled=true", "samples.prompts=[def,class]", "samples.tokens=3")
    assert run(tmp_path / "run", *asked) == EXIT_DONE
    document = json.loads((tmp_path / "run" / SAMPLES_FILE).read_text())
    assert [each["prompt"] for each in document["samples"]] == ["def", "class"]
    assert all(isinstance(each["text"], str) for each in document["samples"])
    assert document["tokens"] == 3
