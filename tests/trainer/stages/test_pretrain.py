"""Stage 2 with and without its teacher: what is minimised, what is counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer import pipeline
from trainer.api import METRICS_FILE, check
from trainer.config import Stage2DistillConfig, TinyModelConfig
from trainer.losses.next_token import next_token_loss
from trainer.models.causal_lm import build_tiny, freeze, run
from trainer.pipeline import Outcome
from trainer.stages import pretrain

Run = Callable[..., Outcome]
IDS = torch.randint(300, (4, 16), generator=torch.Generator().manual_seed(0))
ON = "stage2.distill.weight=0.5"


def lines_of(tmp_path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (tmp_path / METRICS_FILE).read_text().splitlines()]
    return [line for line in lines if line["stage"] == "stage2"]


def models(small: tuple[str, ...]) -> tuple[nn.Module, nn.Module]:
    config = check(small).model
    assert isinstance(config, TinyModelConfig)
    torch.manual_seed(0)
    made = [build_tiny(config, vocab_size=300, sequence_length=16, attention="eager") for _ in range(2)]
    return made[0], freeze(made[1])


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_loss_equals_torchs_divergence(temperature: float, small: tuple[str, ...]) -> None:
    student, teacher = models(small)
    config = Stage2DistillConfig(weight=0.7, temperature=temperature)
    parts = pretrain.distillation(student, teacher, config)(IDS)
    ours, theirs = (run(model, IDS).logits[:, :-1].flatten(0, 1) for model in (student, teacher))
    kl = F.kl_div(
        (ours / temperature).log_softmax(-1),
        (theirs / temperature).log_softmax(-1),
        log_target=True,
        reduction="batchmean",
    )
    ce = next_token_loss(run(student, IDS).logits, IDS)
    torch.testing.assert_close(parts["kl"], kl)
    torch.testing.assert_close(parts["ce"], ce)
    torch.testing.assert_close(parts["loss"], ce + 0.7 * temperature**2 * kl)


def test_the_squared_temperature_keeps_the_gradients_size(small: tuple[str, ...]) -> None:
    """With it, the distillation's gradient tends to a limit as τ grows; without it, to nothing."""

    def gradient_norm(temperature: float) -> float:
        student, teacher = models(small)
        config = Stage2DistillConfig(weight=1.0, temperature=temperature)
        parts = pretrain.distillation(student, teacher, config)(IDS)
        gradients = torch.autograd.grad(parts["loss"] - parts["ce"], list(student.parameters()))
        return float(torch.stack([gradient.norm() for gradient in gradients]).norm())

    assert gradient_norm(50.0) == pytest.approx(gradient_norm(100.0), rel=0.05)
    assert gradient_norm(100.0) > 0.2 * gradient_norm(1.0)


def test_without_a_weight_the_teacher_is_not_run(run_small: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[bool] = []
    measure = pipeline.held_out_loss

    def spying(model: nn.Module, ids_BT: Tensor, **others: Any) -> Any:
        frozen.append(not any(parameter.requires_grad for parameter in model.parameters()))
        return run(model, ids_BT, **others)

    def measuring(*given: Any, **named: Any) -> Any:
        """Evaluate without being counted: the teacher's loss is the reference of the student's."""
        before = list(frozen)
        loss = measure(*given, **named)
        frozen[:] = before
        return loss

    monkeypatch.setattr("trainer.losses.next_token.run", spying)
    monkeypatch.setattr(pipeline, "held_out_loss", measuring)
    run_small("stage1_9.max_steps=0")
    assert len(frozen) >= 6
    assert not any(frozen)
    run_small("stage1_9.max_steps=0", ON)
    assert sum(frozen) == 6


def test_parts_are_logged_and_cross_entropy_reported(run_small: Run, tmp_path: Path) -> None:
    outcome = run_small(ON, "stage2.distill.temperature=2")
    lines = lines_of(tmp_path)
    for line in lines:
        assert line["loss"] == pytest.approx(line["ce"] + 0.5 * 4 * line["kl"])
    mean = sum(line["ce"] for line in lines) / 6
    assert outcome.result.metrics.stage2_train_loss == pytest.approx(mean)


def test_a_step_beside_the_teacher_counts_as_one_of_stage1_9(run_small: Run, tmp_path: Path) -> None:
    alone, taught = run_small("stage1_9.max_steps=3"), run_small("stage1_9.max_steps=3", ON)
    assert alone.result.metrics.effective_steps == 2 * 3 + 6
    assert taught.result.metrics.effective_steps == 2 * 3 + 2 * 6
    done = [line["done"] for line in lines_of(tmp_path)]
    assert done == pytest.approx([(6 + 2 * step) / 18 for step in range(1, 7)], abs=1e-6)
    forward = 2 * (2 * (4 * 32 * 32 + 3 * 32 * 48) + 300 * 32) + 4 * 16 * 32 * 2
    assert taught.result.metrics.train_flops - alone.result.metrics.train_flops == 6 * 64 * forward


def test_a_taught_student_ends_nearer_to_its_teacher(run_small: Run, tmp_path: Path) -> None:
    divergences = []
    for weight in (0.001, 20):
        run_small(f"stage2.distill.weight={weight}", "stage1_9.max_steps=0", "stage2.max_steps=40")
        divergences.append(sum(line["kl"] for line in lines_of(tmp_path)[-10:]))
    assert divergences[1] < 0.8 * divergences[0]
