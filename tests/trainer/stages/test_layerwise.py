"""Stage 1.9: what it minimises, which layers it compares, and what it logs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trainer.api import METRICS_FILE, check
from trainer.config import Config, TinyModelConfig
from trainer.devices.device import Device
from trainer.losses.hidden_state_loss import layer_weights
from trainer.models.causal_lm import build_tiny, freeze, run
from trainer.models.depth import matched_layers
from trainer.models.subln import make_student
from trainer.pipeline import Outcome
from trainer.quant.ternary import ternary_layers
from trainer.stages import layerwise
from trainer.training.context import StageContext
from trainer.training.loop import Step

Run = Callable[..., Outcome]
DEVICE = Device(torch_device=torch.device("cpu"), dtype=torch.float32, name="CPU", attention="eager")
IDS = torch.randint(300, (4, 16), generator=torch.Generator().manual_seed(0))


def lines_of(tmp_path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (tmp_path / METRICS_FILE).read_text().splitlines()]
    return [line for line in lines if line["stage"] == "stage1_9"]


@pytest.mark.parametrize("kind", ["uniform", "exponential", "[0,3]"])
def test_each_line_has_all_parts_and_they_add_up(kind: str, run_small: Run, tmp_path: Path) -> None:
    outcome = run_small(
        f"stage1_9.layer_weights={kind}",
        "stage1_9.lm_loss_weight=0.25",
        "stage1_9.distill_schedule.type=linear",
        "stage1_9.distill_schedule.initial=2",
        "stage2.max_steps=0",
    )
    given = check([f"stage1_9.layer_weights={kind}", "model.layers=2"]).stage1_9.layer_weights
    weights = layer_weights(given, 2)
    lines = lines_of(tmp_path)
    assert [line["distill_weight"] for line in lines] == pytest.approx([2.0, 1.6, 1.2, 0.8, 0.4, 0.0])
    for line in lines:
        by_layer = [line["distill_layer_1"], line["distill_layer_2"]]
        assert line["distill"] == pytest.approx(sum(w * d for w, d in zip(weights, by_layer, strict=True)))
        expected = 0.75 * line["distill_weight"] * line["distill"] + 0.25 * (line["ce"] + line["kl"]) / 2
        assert line["loss"] == pytest.approx(expected)
        assert "distill_layer_3" not in line
    metrics = outcome.result.metrics
    for metric, part in {
        "distill_loss": "distill",
        "ce_loss": "ce",
        "kl_loss": "kl",
        "final_loss": "loss",
    }.items():
        expected = sum(line[part] for line in lines) / 6
        assert getattr(metrics, f"stage1_9_{metric}") == pytest.approx(expected)


def test_distillation_of_weight_zero_changes_nothing(run_small: Run) -> None:
    """Only a·(CE + KL)/2 is left; Muon and clipping ignore how large a is."""
    from trainer_outcomes import weights_digest

    off = "stage1_9.distill_schedule.initial=0"
    runs = [run_small(off, f"stage1_9.loss_type={kind}", "stage2.max_steps=0") for kind in ("mse", "cosine")]
    assert weights_digest(runs[0]) == weights_digest(runs[1])


def config_of(small: tuple[str, ...], *overrides: str) -> tuple[Config, nn.Module]:
    config = check([*small, *overrides])
    assert isinstance(config.model, TinyModelConfig)
    torch.manual_seed(0)
    return config, freeze(build_tiny(config.model, vocab_size=300, sequence_length=16, attention="eager"))


@pytest.mark.parametrize("kept", [1, 2, 3, 5])
def test_shallower_student_compares_its_source_layers(
    kept: int, small: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, teacher = config_of(small, "model.layers=5", f"stage1.keep_layers={kept}")
    compared_pairs: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []
    hidden_loss = layerwise.hidden_loss

    def spying(student: Any, teacher: Any, **others: Any) -> Any:
        compared_pairs.append((list(student), list(teacher)))
        return hidden_loss(student, teacher, **others)

    monkeypatch.setattr(layerwise, "hidden_loss", spying)
    student, lambda_ = make_student(teacher, config.stage1, [IDS], quant=config.quant, device=DEVICE)
    steps: list[Step] = []
    context = StageContext(device=DEVICE, watch=steps.append)
    layerwise.align(student, teacher, lambda_, config.stage1_9, iter([IDS] * 6), context)
    with torch.no_grad():
        expected = run(teacher, IDS, hidden=True).hidden
    assert len(expected) == 5
    ours, theirs = compared_pairs[0]
    assert len(ours) == kept
    for compared, index in zip(theirs, matched_layers(kept, 5), strict=True):
        assert torch.equal(compared, expected[index])
    assert [step.details["distill_layer"].shape for step in steps] == [(kept,)] * 6


def test_a_shallower_student_has_copies_of_the_matched_layers(small: tuple[str, ...]) -> None:
    config, teacher = config_of(small, "model.layers=5", "stage1.keep_layers=3")
    student, _ = make_student(teacher, config.stage1, [IDS], quant=config.quant, device=DEVICE)
    assert len(ternary_layers(student)) == 3 * 7
    for ours, theirs in enumerate((0, 2, 4)):
        mine = student.get_submodule(f"model.layers.{ours}.self_attn.q_proj").weight
        original = teacher.get_submodule(f"model.layers.{theirs}.self_attn.q_proj").weight
        assert torch.equal(mine, original)
        assert mine is not original
        assert student.get_submodule(f"model.layers.{ours}.self_attn").layer_idx == ours
    assert (student.config.num_hidden_layers, teacher.config.num_hidden_layers) == (3, 5)
    assert len(run(student, IDS, hidden=True).hidden) == 3


@pytest.mark.parametrize("loss_type", ["mse_normalized", "cosine", "mse", "kl", "inner_product"])
def test_every_distance_brings_the_student_nearer_to_its_teacher(
    loss_type: str, small: tuple[str, ...]
) -> None:
    config, teacher = config_of(
        small,
        f"stage1_9.loss_type={loss_type}",
        "stage1_9.lm_loss_weight=0",
        "stage1_9.max_steps=25",
        "stage1_9.optimizer.lr=0.002",
    )
    student, lambda_ = make_student(teacher, config.stage1, [IDS], quant=config.quant, device=DEVICE)
    steps: list[Step] = []
    context = StageContext(device=DEVICE, watch=steps.append)
    layerwise.align(student, teacher, lambda_, config.stage1_9, iter([IDS] * 25), context)
    offset = 1.0 if loss_type == "inner_product" else 0.0  # its least is -1
    assert steps[-1].losses["loss"] + offset < 0.7 * (steps[0].losses["loss"] + offset)
