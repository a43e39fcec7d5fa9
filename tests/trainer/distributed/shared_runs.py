"""The processes of a run that is shared, as the tests see them. Used by `conftest` here."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from trainer_outcomes import TIMES, lines_without_times

from trainer.api import METRICS_FILE, MODEL_FOLDER, RESULT_FILE
from trainer.evaluations.student import FinishedStudent
from trainer.models.student_folder import WEIGHTS

TIMEOUT_S = 90


class Started:
    """Processes under way."""

    def __init__(self, processes: Sequence[BaseProcess], outputs: Sequence[Path]) -> None:
        self.processes, self._outputs = processes, outputs

    def end(self) -> list[int | None]:
        """Waits for all; their exit statuses."""
        for process in self.processes:
            process.join(TIMEOUT_S)
        return [process.exitcode for process in self.processes]

    def output(self, rank: int) -> str:
        """What a process wrote to stdout and stderr; without what it was preparing, which any of them may do."""
        lines = self._outputs[rank].read_text().splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith("preparing "))


def take_part(argv: list[str], environment: dict[str, str], output: Path) -> None:
    """One process of a run."""
    os.environ.update(environment)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    from trainer.__main__ import main

    sys.exit(main(argv))


def take_part_until_measured(when: str, argv: list[str], environment: dict[str, str], output: Path) -> None:
    """One process of a run, which gets SIGTERM while the loss of that name is measured."""
    from trainer import pipeline

    measure = pipeline.held_out_loss

    def signalled(*arguments: Any, stage: str, **options: Any) -> Any:
        if stage == when:
            os.kill(os.getpid(), signal.SIGTERM)
        return measure(*arguments, stage=stage, **options)

    pipeline.held_out_loss = signalled
    take_part(argv, environment, output)


def exam(student: FinishedStudent) -> dict[str, float]:
    """A hook that takes until the test lets it go on."""
    (student.folder / "exam begun").touch()
    deadline = time.monotonic() + TIMEOUT_S
    while not (student.folder / "go on").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return {"letters": len(student.continuations(["def"], 2)[0])}


def lines(folder: Path) -> list[dict[str, Any]]:
    """Those of `metrics.jsonl`."""
    return [json.loads(line) for line in (folder / METRICS_FILE).read_text().splitlines()]


def metrics(folder: Path) -> dict[str, Any]:
    """The run's result."""
    found: dict[str, Any] = json.loads((folder / RESULT_FILE).read_text())["metrics"]
    return found


def contribute(function: Callable[..., Any], place: tuple[int, int], meeting: Path, out: Path) -> None:
    """One process of those that call a function together."""
    rank, world = place
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    torch.save(function(), out)
    dist.destroy_process_group()


def outcome(folder: Path) -> tuple[bytes, dict[str, Any], list[dict[str, Any]]]:
    """All that two runs on as many processes have in common, bit for bit: student, result and lines."""
    numbers = {name: value for name, value in metrics(folder).items() if name not in TIMES}
    return (folder / MODEL_FOLDER / WEIGHTS).read_bytes(), numbers, lines_without_times(folder / METRICS_FILE)


_EXACT = ("stage", "step", "of", "lr", "lambda", "done")
_TIMES = (
    *("tokens_per_second", "data_seconds", "compute_seconds", "save_seconds", "unix_seconds"),
    *("held_out_seconds", "memory_mib", "peak_memory_mib"),
)
_COUNTED = ("effective_steps", "train_flops", "tokens")
_LOSSES = ("final_loss", "stage1_9_final_loss", "stage2_start_loss", "stage2_train_loss")
_MEASURED = dict.fromkeys(_LOSSES, 1e-3) | {"final_loss_sem": 3e-2, "final_loss_text_sem": 3e-2}


# Sums over processes round differently. Where that takes a weight or an activation over the edge between two of
# its levels, the quantised value jumps, after some steps everywhere: a little in losses, more in gradients and in
# small divergences.
_LOSS, _REST = 1e-3, 3e-2


def assert_the_same(folder: Path, expected: Path) -> None:
    """Every number that two runs have logged and reported, times excepted."""
    ours, theirs = lines(folder), lines(expected)
    assert len(ours) == len(theirs)
    for line, other in zip(ours, theirs, strict=True):
        assert line.keys() == other.keys()
        for name in line.keys() - set(_TIMES):
            rel = 0.0 if name in _EXACT else _LOSS if name == "loss" else _REST
            assert line[name] == (pytest.approx(other[name], rel=rel, abs=0) if rel else other[name]), name
    result, known = metrics(folder), metrics(expected)
    assert {name: result[name] for name in _COUNTED} == {name: known[name] for name in _COUNTED}
    for name, rel in _MEASURED.items():
        assert result[name] == pytest.approx(known[name], rel=rel), name
