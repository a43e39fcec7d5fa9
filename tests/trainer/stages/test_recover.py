"""The stage `recovery` in runs: what it trains, counts, logs, measures and refuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from trainer_outcomes import weights_digest
from trainer_precision import FLOAT32

from trainer.api import METRICS_FILE, check
from trainer.config.run import sha256
from trainer.errors import MachineError
from trainer.models.adapters import adapters_of, remove_adapters
from trainer.optim.build import require_packages
from trainer.pipeline import Outcome
from trainer.quant.ternary import ternary_layers
from trainer.training.train_step import TrainStep

pytest.importorskip("peft")

Run = Callable[..., Outcome]
ON = ("recovery.max_steps=4", "recovery.batch_size=4", "recovery.schedule.warmup_steps=1")
ALONE = ("stage1_9.max_steps=0", "stage2.max_steps=0")


def logged(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / METRICS_FILE).read_text().splitlines()]


def test_the_ternary_student_is_that_of_the_run_without_it(run_small: Run, tmp_path: Path) -> None:
    plain, outcome = run_small(*FLOAT32), run_small(*ON, *FLOAT32, "eval.at=[1.0]", "eval.part_batches=1")
    metrics, before = outcome.result.metrics, plain.result.metrics
    assert metrics.recovery_start_loss == before.final_loss
    assert metrics.final_loss < before.final_loss
    assert (before.recovery_start_loss, before.recovery_train_loss) == (None, None)
    lines = [line for line in logged(tmp_path) if line["stage"] == "recovery" and "loss" in line]
    assert [line["lambda"] for line in lines] == [1.0] * 4
    for line in lines:
        assert line["loss"] == pytest.approx(line["ce"] + line["kl"], rel=1e-5)
    mean = sum(line["ce"] for line in lines) / 4
    assert metrics.recovery_train_loss == pytest.approx(mean, rel=1e-5)
    assert [
        line["step"] for line in logged(tmp_path) if "held_out_loss" in line and line["stage"] == "recovery"
    ] == [4]
    assert adapters_of(outcome.student) is not None
    remove_adapters(outcome.student)
    assert weights_digest(outcome) == weights_digest(plain)
    assert all(layer.effective_weight().unique().numel() == 3 for layer in ternary_layers(outcome.student))


def test_without_the_teacher_its_loss_is_the_cross_entropy(run_small: Run, tmp_path: Path) -> None:
    outcome = run_small(*ALONE, *ON, "recovery.distill.weight=0.0")
    lines = [line for line in logged(tmp_path) if line["stage"] == "recovery"]
    mean = sum(line["loss"] for line in lines) / 4
    assert outcome.result.metrics.recovery_train_loss == pytest.approx(mean, rel=1e-5)
    assert outcome.result.metrics.effective_steps == 4
    (stage,) = outcome.result.stages
    assert (stage.name, stage.cost, stage.key) == ("recovery", 4, "")


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_its_operations_are_what_torch_counts(
    weight: float, run_small: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the gradients of the first layer's input, which nobody needs: counted all the same."""
    counted = 0
    accumulate = TrainStep.accumulate

    def counting(step: TrainStep, ids_BT: Tensor) -> dict[str, Tensor]:
        nonlocal counted
        with FlopCounterMode(display=False) as counter:
            parts = accumulate(step, ids_BT)
        counted += counter.get_total_flops() * (step.plan.name == "recovery")
        return parts

    monkeypatch.setattr(TrainStep, "accumulate", counting)
    found = run_small(*ALONE, *ON, f"recovery.distill.weight={weight}", "recovery.rank=2").result.metrics
    assert found.effective_steps == (8 if weight else 4)
    into_queries_keys_values = 2 * 3 * (32 * 32 + 2 * 32)
    assert found.train_flops == pytest.approx(counted + 4 * 4 * 16 * into_queries_keys_values, rel=1e-6)


def test_auto_freeze_and_what_it_watches_stay_out(run_small: Run) -> None:
    """It would find the frozen student at rest, and round it below the adapters."""
    freeze = ("auto_freeze.enabled=true", "auto_freeze.every_steps=1", "auto_freeze.start_step=1")
    at_rest = (*freeze, "auto_freeze.patience=2", "auto_freeze.threshold=1e-9")
    outcome = run_small(*ON, *at_rest)
    plain = run_small()
    remove_adapters(outcome.student)
    assert weights_digest(outcome) == weights_digest(plain)


def test_off_by_default_and_settings_inert() -> None:
    assert check([]).recovery.max_steps == 0
    assert sha256(check([])) == sha256(check(["recovery.rank=3", "optimizer@recovery.optimizer=muonclip"]))
    assert sha256(check([])) != sha256(check(["recovery.max_steps=1", "recovery.schedule.warmup_steps=0"]))


def test_a_missing_package_is_refused_before_any_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    require_packages(check([]))
    with pytest.raises(MachineError, match=r"^recovery.max_steps: .*peft"):
        require_packages(check([*ON]))


def test_gradients_pass_a_student_that_recomputes_its_layers(run_small: Run) -> None:
    plain = run_small(*ALONE, *ON, *FLOAT32)
    recomputed = run_small(*ALONE, *ON, *FLOAT32, "device.recompute=true")
    assert weights_digest(recomputed) == weights_digest(plain)
    assert torch.isfinite(torch.tensor(plain.result.metrics.final_loss))
