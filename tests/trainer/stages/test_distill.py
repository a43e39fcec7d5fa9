"""Stage 3 in whole small runs with the teacher in the same process: what it counts, logs, trains and refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from trainer_outcomes import weights_digest, without_times
from trainer_precision import FLOAT32

from benchmarks.tensor_memory import most_bytes
from trainer.api import METRICS_FILE, check
from trainer.errors import DivergedError
from trainer.losses import chunked
from trainer.losses.candidates import Candidates
from trainer.models.causal_lm import build_tiny
from trainer.models.projections import Projections
from trainer.pipeline import Outcome
from trainer.quant.ternary import ternary_layers
from trainer.stages import distill

Run = Callable[..., Outcome]
ON = ("stage3.max_steps=4", "stage3.batch_size=4", "stage3.schedule.warmup_steps=1")


def logged(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / METRICS_FILE).read_text().splitlines()]


def hooks(model: nn.Module) -> int:
    """Count those on projections: transformers has some of its own elsewhere, and torch no public count."""
    projections = (module for name, module in model.named_modules() if name.endswith("_proj"))
    return sum(len(module._forward_hooks) for module in projections)


def test_it_comes_after_stage_2_at_lambda_one_and_logs_its_parts(run_small: Run, tmp_path: Path) -> None:
    outcome = run_small(*ON)
    lines = [line for line in logged(tmp_path) if line["stage"] == "stage3"]
    assert [line["stage"] for line in logged(tmp_path)][-5:] == ["stage2", *["stage3"] * 4]
    assert [line["lambda"] for line in lines] == [1.0] * 4
    for line in lines:
        total = line["ce"] + 25.0 * line["logits_kl"] + 1.0 * line["attention_kl"]
        assert line["loss"] == pytest.approx(total, rel=1e-5)
        assert min(line["logits_kl"], line["attention_kl"]) > 0
    assert [line["done"] for line in lines] == pytest.approx([20 / 26, 22 / 26, 24 / 26, 1], abs=1e-6)
    assert hooks(outcome.student) == 0
    assert all(layer.effective_weight().unique().numel() == 3 for layer in ternary_layers(outcome.student))


def test_its_costs_count_the_teacher(run_small: Run) -> None:
    without, metrics = run_small().result.metrics, run_small(*ON).result.metrics
    assert without.stage3_final_loss is None
    assert metrics.stage3_final_loss is not None
    assert metrics.effective_steps == without.effective_steps + 2 * 4
    assert metrics.tokens == without.tokens + 4 * 4 * 16
    forward = without.train_flops / (4 * 6 * 64 + 3 * 6 * 64)
    relations = (
        4 * 3 * 2 * 16 * 32
    )  # of queries, keys and values: three passes of the student, one of the teacher
    expected = without.train_flops + (4 * forward + relations) * 4 * 4 * 16
    assert metrics.train_flops == pytest.approx(expected)
    assert metrics.stage2_train_loss == without.stage2_train_loss


def test_the_final_loss_is_measured_after_it(run_small: Run) -> None:
    assert run_small(*ON).result.metrics.final_loss != run_small().result.metrics.final_loss


def test_left_out_its_other_knobs_change_nothing(run_small: Run) -> None:
    first, second = run_small(), run_small("stage3.temperature=1.0", "stage3.optimizer.lr=1.0")
    assert weights_digest(first) == weights_digest(second)
    assert without_times(first) == without_times(second)


def test_student_approaches_the_teacher(run_small: Run, tmp_path: Path) -> None:
    """The teacher has learnt little, and Stage 2 leads away from it: the way back is long enough to measure."""
    run_small(
        *("stage1_9.max_steps=0", "stage2.max_steps=20", *ON, "stage3.max_steps=30"),
        *("stage3.temperature=1.0", "stage3.logits_weight=100.0", "stage3.attention_weight=100.0"),
    )
    lines = [line for line in logged(tmp_path) if line["stage"] == "stage3"]
    for part in ("logits_kl", "attention_kl"):
        values = [line[part] for line in lines]
        assert sum(values[-5:]) < 0.6 * sum(values[:5]), (part, values)


def test_without_a_weight_the_attention_is_not_looked_at(run_small: Run, tmp_path: Path) -> None:
    run_small(*ON, "stage3.attention_weight=0.0")
    assert all("attention_kl" not in line for line in logged(tmp_path))


def test_micro_batches_add_up_to_the_batch(run_small: Run, tmp_path: Path) -> None:
    losses = []
    for size in ("null", "2"):
        run_small(*ON, f"stage3.micro_batch_size={size}", *FLOAT32)
        losses.append([line["loss"] for line in logged(tmp_path) if line["stage"] == "stage3"])
    assert losses[0][0] == pytest.approx(losses[1][0], rel=1e-6)
    assert losses[0] == pytest.approx(
        losses[1], rel=1e-3
    )  # a rounding may tip a weight from one value to another


def test_shallower_student_compares_the_source_layer(run_small: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Spied(Projections):
        def __init__(self, model: nn.Module, layer: int) -> None:
            asked.append(layer)
            super().__init__(model, layer)

    monkeypatch.setattr(distill, "Projections", Spied)
    run_small("model.layers=5", "stage1.keep_layers=3", *ON, "stage3.attention_layer=1")
    assert asked == [1, 2]  # layers 0, 2 and 4 of the teacher were kept


def test_hooks_are_gone_after_a_run_that_diverged(run_small: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    models: list[nn.Module] = []
    stage = distill.distill

    def spied(student: nn.Module, teacher: nn.Module, *rest: Any, **named: Any) -> Any:
        models.extend([student, teacher])
        nothing = torch.tensor(float("nan"), requires_grad=True)
        monkeypatch.setattr(distill, "relation_divergence", lambda *_, **__: nothing)
        return stage(student, teacher, *rest, **named)

    monkeypatch.setattr(distill, "distill", spied)
    with pytest.raises(DivergedError, match="step 1 of stage3"):
        run_small(*ON)
    assert [hooks(model) for model in models] == [0, 0]


VOCABULARY = 4096  # so many that logits are by far the largest tensor


def answers(rows: int, length: int) -> Candidates:
    """Return one sure candidate for each token."""
    shape = (rows, length - 1)
    return Candidates(
        ids=torch.zeros(*shape, 1, dtype=torch.long),
        logprobs=torch.zeros(*shape, 1),
        rest=torch.full(shape, -20.0),
    )


@pytest.mark.parametrize("source", ["in process", "http"])
def test_no_tensor_is_as_large_as_the_logits_of_a_batch(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked, "_CPU_ELEMENTS", 32 * VOCABULARY)
    config = check([f"data.vocab_size={VOCABULARY}", "data.sequence_length=32", "stage3.logits_weight=2.0"])
    student, teacher = (
        build_tiny(config.model, vocab_size=VOCABULARY, sequence_length=32, attention="eager")
        for _ in range(2)
    )
    ids = torch.randint(VOCABULARY, (16, 32), generator=torch.Generator().manual_seed(0))
    with ExitStack() as stack:
        if source == "http":
            objective = distill.from_answers(student, lambda rows: answers(rows, 32), config.stage3)
        else:
            objective = distill.from_teacher(student, teacher, config.stage3, stack)
        most = most_bytes(lambda: objective(ids)["loss"].backward())
        parts = objective(ids)
    assert most.largest < 0.5 * 16 * 31 * VOCABULARY * 4
    others = (parts[name] * weight for name, weight in (("ce", 1.0), ("logits_kl", 2.0)))
    attention = config.stage3.attention_weight * parts.get("attention_kl", torch.zeros(()))
    torch.testing.assert_close(parts["loss"], sum(others) + attention)


def test_omitted_stage_may_name_a_missing_layer(small: tuple[str, ...]) -> None:
    assert check([*small, "stage3.attention_layer=7"]).stage3.max_steps == 0
