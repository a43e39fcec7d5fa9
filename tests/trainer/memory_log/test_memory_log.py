"""`memory.jsonl`: which points a run tells, what each level adds, and what no trouble with it can do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_outcomes import weights_digest

from trainer import __main__ as program
from trainer.api import MEMORY_FILE, check
from trainer.config import sha256
from trainer.devices.base import MEMORY_COUNTS
from trainer.devices.device import Device, open_device
from trainer.errors import ConfigError
from trainer.memory_log.log import MemoryLog
from trainer.models.causal_lm import build_tiny
from trainer.pipeline import Outcome
from trainer.training.preemption import StopSignal

Run = Callable[..., Outcome]
GAINS = "auto_freeze.parameters=['*.norm.weight']"
FREEZE = ("auto_freeze.enabled=true", "auto_freeze.every_steps=1", "auto_freeze.start_step=0", GAINS)


@pytest.fixture
def run_in(small: tuple[str, ...]) -> Run:
    def run(folder: Path, *overrides: str) -> Outcome:
        return program.train_in(folder, check([*small, *overrides, f"run_dir={folder}"]), StopSignal())

    return run


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_log_lists_points_in_order_without_changing_the_run(run_in: Run, tmp_path: Path) -> None:
    overrides = ("memory_log.level=metrics", "memory_log.every=2", "checkpoint.every_steps=5")
    frozen = (*FREEZE, "auto_freeze.patience=1", "auto_freeze.threshold=1e9", "stage1_9.micro_batch_size=2")
    with_it = run_in(tmp_path / "with", *overrides, *frozen)
    assert weights_digest(with_it) == weights_digest(run_in(tmp_path / "without", *frozen))
    assert not (tmp_path / "without" / MEMORY_FILE).exists()

    lines = lines_of(tmp_path / "with" / MEMORY_FILE)
    assert [(line["phase"], line["point"], line["stage"], line["opt_step"]) for line in lines] == [
        ("init", "after_model_init", None, 0),
        ("init", "after_optimizer_init", "stage1_9", 0),
        ("warmup", "after_first_step", "stage1_9", 1),
        ("warmup", "after_warmup_compile", "stage1_9", 2),
        ("save", "after_auto_freeze", "stage1_9", 2),
        ("train", "after_step", "stage1_9", 4),
        ("save", "on_checkpoint_save", "stage1_9", 5),
        ("train", "after_step", "stage1_9", 6),
        ("init", "after_optimizer_init", "stage2", 0),
        ("warmup", "after_first_step", "stage2", 1),
        ("warmup", "after_warmup_compile", "stage2", 2),
        ("train", "after_step", "stage2", 4),
        ("save", "on_checkpoint_save", "stage2", 4),
        ("train", "after_step", "stage2", 6),
    ]
    by_point = {(line["stage"], line["point"]): line for line in lines}
    assert [line["micro_step"] for line in lines[1:5]] == [0, 2, 4, 4]
    for line in lines:
        hbm = line["hbm"]
        assert 0 < hbm["used_bytes"] < hbm["total_bytes"]
        assert 0 < hbm["free_bytes"] <= hbm["total_bytes"]
        assert hbm["used_pct"] == pytest.approx(100 * hbm["used_bytes"] / hbm["total_bytes"], abs=0.06)
        assert {"compiled_graphs", "minor_page_faults"} <= line["metrics"].keys()
    # Four sequences by two, two heads, 16 tokens, 300 entries; student and teacher of 4 bytes a weight.
    begun, first = by_point["stage1_9", "after_optimizer_init"], by_point["stage1_9", "after_first_step"]
    assert begun["estimates"]["attention"]["worst_case"]["bytes"] == 2 * 2 * 16 * 16 * 4
    assert begun["estimates"]["logits"]["logits_full"]["bytes"] == 2 * 16 * 300 * 4
    trained = sum(p.numel() for p in with_it.student.parameters())
    assert 8 * trained > begun["tensors"]["weights_bytes"] > 7 * trained
    assert (begun["tensors"]["gradients_bytes"], begun["tensors"]["optimizer_bytes"]) == (0, 0)
    assert first["tensors"]["optimizer_bytes"] > 4 * trained


def test_a_level_adds_to_the_one_before(run_in: Run, tmp_path: Path) -> None:
    """At `basic` alone; and only the phases that were asked for, in the file that was."""
    run_in(
        tmp_path / "run",
        "memory_log.level=basic",
        "memory_log.phases=[warmup]",
        f"memory_log.path={tmp_path / 'elsewhere.jsonl'}",
    )
    assert not (tmp_path / "run" / MEMORY_FILE).exists()
    lines = lines_of(tmp_path / "elsewhere.jsonl")
    assert [line["point"] for line in lines] == ["after_first_step", "after_warmup_compile"] * 2
    assert all(line.keys().isdisjoint({"estimates", "tensors", "metrics", "hlo"}) for line in lines)


class Uncounted(Device):
    """A device that nobody counts the memory of, as XLA's on a CPU."""

    def memory_counts(self) -> dict[str, int | None]:
        return dict.fromkeys(MEMORY_COUNTS)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_device_counts_its_own_memory(small: tuple[str, ...]) -> None:
    device = open_device(check([*small, "device=cuda"]).device)
    before = device.memory_counts()
    held = torch.zeros(2**20, device=device.torch_device)
    counts = device.memory_counts()
    used, free, total, _, reserved = counts.values()
    assert used == (before["used_bytes"] or 0) + held.nbytes
    assert used <= reserved <= total - free  # type: ignore[operator]  # a GPU counts all of them
    assert device.counters()["allocations"] > 0


@pytest.fixture
def log(small: tuple[str, ...], tmp_path: Path) -> Callable[..., MemoryLog]:
    def make(path: Path, *overrides: str, append: bool = False) -> MemoryLog:
        device = Uncounted(torch_device=torch.device("cpu"), dtype=torch.float32, name="X", attention="eager")
        return MemoryLog(path, check([*small, *overrides]), device, append=append)

    return make


def test_what_nobody_counts_is_null(log: Callable[..., MemoryLog], tmp_path: Path) -> None:
    log(tmp_path / "m", "memory_log.level=basic").begin("stage2", [], done=0)
    (line,) = lines_of(tmp_path / "m")
    assert set(line["hbm"]) == {
        *("used_bytes", "free_bytes", "total_bytes", "used_pct"),
        *("peak_bytes", "reserved_bytes"),
    }
    assert set(line["hbm"].values()) == {None}


def test_resumed_attempt_warms_up_again_and_appends(log: Callable[..., MemoryLog], tmp_path: Path) -> None:
    for done, append in ((0, False), (5, True)):
        memory = log(tmp_path / "m", "memory_log.level=basic", "memory_log.every=4", append=append)
        memory.begin("stage2", [], done=done)
        for _ in range(4):
            memory.log_step(saved=False, froze=False)
    lines = lines_of(tmp_path / "m")
    assert [(line["point"], line["opt_step"]) for line in lines] == [
        ("after_optimizer_init", 0),
        ("after_first_step", 1),
        ("after_warmup_compile", 2),
        ("after_step", 4),
        ("after_optimizer_init", 5),
        ("after_first_step", 6),
        ("after_warmup_compile", 7),
        ("after_step", 8),
    ]


def test_unwritable_file_is_reported_once(
    log: Callable[..., MemoryLog], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    memory = log(tmp_path / "nowhere" / "m", "memory_log.level=tensors")
    student = build_tiny(check([]).model, vocab_size=8, sequence_length=4, attention="eager")  # type: ignore[arg-type]
    memory.models(student, student)
    memory.begin("stage2", [], done=0)
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 1


def test_graphs_are_asked_of_xla_alone(log: Callable[..., MemoryLog], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"memory_log\.level: "):
        log(tmp_path / "m", "memory_log.level=hlo", "device=auto")


def test_it_is_no_part_of_what_decides_a_result(small: tuple[str, ...]) -> None:
    assert sha256(check([*small])) == sha256(check([*small, "memory_log.level=metrics"]))
