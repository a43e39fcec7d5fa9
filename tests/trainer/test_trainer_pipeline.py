"""Whole runs, small: determinism, the result's contract, and that every knob does something."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer import result as result_file
from trainer.api import METRICS_FILE, check
from trainer.compose import keys
from trainer.config import sha256
from trainer.pipeline import Outcome

Run = Callable[..., Outcome]

TIMES = ("train_seconds", "tokens_per_second", "peak_memory_gib")


def without_times(outcome: Outcome) -> dict[str, Any]:
    metrics = dataclasses.asdict(outcome.result.metrics)
    return {name: value for name, value in metrics.items() if name not in TIMES}


def weights_digest(outcome: Outcome) -> str:
    digest = hashlib.sha256()
    for name, value in outcome.student.state_dict().items():
        digest.update(name.encode() + value.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def test_the_same_config_and_seed_give_the_same_weights_and_metrics_bit_for_bit(run_small: Run) -> None:
    first, second = (run_small("stage1_9.saliency.enabled=true") for _ in range(2))
    assert weights_digest(first) == weights_digest(second)
    assert without_times(first) == without_times(second)
    assert first.result.provenance == second.result.provenance


def test_what_is_drawn_elsewhere_does_not_change_a_run(run_small: Run) -> None:
    first = run_small()
    torch.rand(100)
    assert weights_digest(run_small()) == weights_digest(first)


def test_the_result_has_the_contracts_fields_and_counts(run_small: Run, tmp_path: Path) -> None:
    outcome = run_small()
    result_file.write(outcome.result, tmp_path / "result.json")
    document = json.loads((tmp_path / "result.json").read_text())
    assert (document["schema"], document["status"]) == (1, "completed")
    assert set(document) == {"schema", "status", "metrics", "provenance"}
    metrics = document["metrics"]
    assert set(metrics) == {
        *("final_loss", "final_loss_sem", "perplexity", "stage1_9_final_loss", "stage2_start_loss"),
        *("stage2_train_loss", "effective_steps", "train_flops", "train_seconds", "tokens"),
        *("tokens_per_second", "peak_memory_gib", "usd"),
    }
    assert metrics["effective_steps"] == 2 * 6 + 6
    assert metrics["tokens"] == (6 + 6) * 4 * 16
    assert metrics["usd"] == 0
    layer = 4 * 32 * 32 + 3 * 32 * 48
    forward = 2 * (2 * layer + 300 * 32) + 4 * 16 * 32 * 2
    assert metrics["train_flops"] == forward * (6 * 64 * 4 + 6 * 64 * 3)
    assert set(document["provenance"]) == {
        *("config_sha256", "code_version", "device", "torch", "seed", "data_sha256", "reused_stages"),
    }


def test_the_last_step_is_trained_at_lambda_one_after_the_longest_warmup(
    run_small: Run, tmp_path: Path
) -> None:
    run_small("stage2.lambda_warmup.warmup_steps=5")
    last = json.loads((tmp_path / METRICS_FILE).read_text().splitlines()[-1])
    assert (last["stage"], last["step"], last["lambda"]) == ("stage2", 6, 1.0)


def test_how_much_is_evaluated_does_not_reach_the_weights(run_small: Run) -> None:
    assert weights_digest(run_small("eval.batch_size=3", "eval.batches=3")) == weights_digest(run_small())


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_run_on_cuda_measures_the_device_and_ends_ternary(run_small: Run) -> None:
    from trainer.quant.ternary import ternary_layers

    outcome = run_small("device=cuda", "device.usd_per_hour=1")
    layers = ternary_layers(outcome.student)
    assert {layer.weight.device.type for layer in layers} == {"cuda"}
    assert all(layer.effective_weight().unique().numel() == 3 for layer in layers)
    assert outcome.result.provenance.device == torch.cuda.get_device_name()
    assert 0 < outcome.result.metrics.peak_memory_gib < 1
    assert 0 < outcome.result.metrics.final_loss < 10


def test_lambda_in_the_log_warms_up_in_stage2_and_is_one_in_stage1_9(run_small: Run, tmp_path: Path) -> None:
    run_small()
    lines = [json.loads(line) for line in (tmp_path / METRICS_FILE).read_text().splitlines()]
    by_stage = {
        name: [line["lambda"] for line in lines if line["stage"] == name] for name in ("stage1_9", "stage2")
    }
    assert by_stage["stage1_9"] == [1.0] * 6
    assert by_stage["stage2"] == pytest.approx([0, 1 / 3, 2 / 3, 1, 1, 1])
    assert [line["done"] for line in lines] == pytest.approx(
        [2 / 18, 4 / 18, 6 / 18, 8 / 18, 10 / 18, 12 / 18, 13 / 18, 14 / 18, 15 / 18, 16 / 18, 17 / 18, 1],
        abs=1e-6,
    )
    assert {"stage", "step", "of", "loss", "lr", "grad_norm", "tokens_per_second", "memory_mib"} <= set(
        lines[0]
    )
    assert {"distill", "ce", "kl"} <= set(lines[0])


def test_without_stage1_9_its_metrics_are_absent_and_it_costs_nothing(run_small: Run, tmp_path: Path) -> None:
    metrics = run_small("stage1_9.max_steps=0").result.metrics
    assert metrics.stage1_9_final_loss is None
    assert metrics.effective_steps == 6
    assert metrics.tokens == 6 * 64
    assert "stage1_9" not in (tmp_path / METRICS_FILE).read_text()


def test_without_any_training_the_student_is_only_measured(run_small: Run) -> None:
    metrics = run_small("stage1_9.max_steps=0", "stage2.max_steps=0").result.metrics
    assert metrics.final_loss == metrics.stage2_start_loss
    assert (metrics.tokens, metrics.stage2_train_loss, metrics.tokens_per_second) == (0, None, 0.0)


def test_stage1_9_brings_the_student_nearer_to_its_teacher(run_small: Run, tmp_path: Path) -> None:
    run_small(
        "stage1_9.max_steps=60",
        "stage1_9.lm_loss_weight=0.0",
        "stage1_9.optimizer.lr=0.001",
        "stage2.max_steps=0",
    )
    lines = [json.loads(line) for line in (tmp_path / METRICS_FILE).read_text().splitlines()]
    distill = [line["distill"] for line in lines]
    assert sum(distill[-5:]) < 0.8 * sum(distill[:5]), distill


# Flipped values for every key that changes what is computed, and what else must be set for it to matter.
SALIENT = ("stage1_9.saliency.enabled=true",)
ADAMW = ("stage1_9.optimizer.type=adamw",)
KNOBS: dict[str, tuple[str, ...]] = {
    "seed=1": (),
    "model.hidden_size=16": (),
    "model.intermediate_size=32": (),
    "model.layers=1": (),
    "model.heads=1": (),
    "model.teacher.max_steps=5": (),
    "model.teacher.batch_size=3": (),
    "model.teacher.seed=1": (),
    "model.teacher.schedule.warmup_steps=3": (),
    "model.teacher.schedule.decay_fraction=0.0": (),
    "model.teacher.schedule.final_lr_ratio=0.9": (),
    "data.vocab_size=310": (),
    "data.sequence_length=12": (),
    "data.held_out_fraction=0.3": (),
    "data.max_bytes=400000": (),
    "stage1.subln=ones": (),
    "stage1.calibration_batches=2": (),
    "stage1_9.max_steps=5": (),
    "stage1_9.batch_size=3": (),
    "stage1_9.loss_type=mse": (),
    "stage1_9.loss_type=cosine": (),
    "stage1_9.layer_weights=uniform": (),
    "stage1_9.layer_weights=exponential": ("model.layers=3",),
    "stage1_9.lm_loss_weight=0.2": (),
    "stage1_9.saliency.enabled=true": (),
    "stage1_9.saliency.initial_k=0.5": SALIENT,
    "stage1_9.saliency.final_k=0.1": SALIENT,
    "stage1_9.saliency.schedule_type=linear": (*SALIENT, "stage1_9.saliency.initial_k=0.5"),
    "stage1_9.saliency.ema_decay=0.0": (
        *SALIENT,
        "stage1_9.saliency.initial_k=0.5",
        "stage1_9.saliency.final_k=0.5",
        "stage1_9.saliency.update_interval=1",
        "stage1_9.optimizer.lr=0.05",
    ),
    "stage1_9.saliency.update_interval=1": (
        *SALIENT,
        "stage1_9.saliency.initial_k=0.5",
        "stage1_9.saliency.final_k=0.5",
        "stage1_9.saliency.ema_decay=0.0",
        "stage1_9.optimizer.lr=0.05",
    ),
    "stage2.max_steps=5": (),
    "stage2.batch_size=3": (),
    "stage2.lambda_warmup.enabled=false": (),
    "stage2.lambda_warmup.warmup_steps=5": (),
    "stage2.lambda_warmup.schedule=cosine": (),
    "eval.batches=3": (),
    "eval.batch_size=3": (),
    "device.dtype=float32": (),
    "device.usd_per_hour=3600": (),
    **{
        f"{stage}.{knob}": setting
        for stage in ("model.teacher", "stage1_9", "stage2")
        for knob, setting in {
            "optimizer.type=adamw": (),
            "optimizer.lr=0.003": (),
            "optimizer.weight_decay=0.5": (),
            "optimizer.momentum=0.5": (),
            "optimizer.adamw_lr_ratio=0.5": (),
            "optimizer.beta1=0.5": (),
            "optimizer.beta2=0.5": (),
            "optimizer.max_grad_norm=0.01": (f"{stage}.optimizer.type=adamw",),
        }.items()
    },
    **{
        f"{stage}.{knob}": ()
        for stage in ("stage1_9", "stage2")
        for knob in ("schedule.warmup_steps=4", "schedule.decay_fraction=0.0", "schedule.final_lr_ratio=0.9")
    },
}
ELSEWHERE = {
    "run_dir": "tests/trainer/test_trainer_main.py",
    "log_every": "tests/trainer/test_trainer_telemetry.py",
    "device.type": "tests/trainer/test_trainer_device.py",
    "device.threads": "tests/trainer/test_trainer_device.py",
    **{
        f"wandb.{key}": "tests/trainer/test_trainer_telemetry.py"
        for key in ("mode", "project", "group", "name", "tags")
    },
    "model.kind": "the group model",
    "data.name": "one source so far; others are refused",
}


def test_every_key_is_flipped_here_or_tested_elsewhere() -> None:
    flipped = {knob.partition("=")[0] for knob in KNOBS}
    assert flipped | set(ELSEWHERE) == set(keys())


@pytest.fixture(scope="module")
def known() -> dict[tuple[str, ...], object]:
    """What a run of certain overrides came to: runs are deterministic, so each is made once."""
    return {}


@pytest.mark.parametrize("knob", KNOBS)
def test_no_knob_is_inert(knob: str, run_small: Run, known: dict[tuple[str, ...], object]) -> None:
    def outcome_of(*overrides: str) -> object:
        if overrides not in known:
            outcome = run_small(*overrides)
            known[overrides] = (weights_digest(outcome), without_times(outcome))
        return known[overrides]

    assert outcome_of(*KNOBS[knob]) != outcome_of(*KNOBS[knob], knob)


def test_the_configs_digest_ignores_where_things_are_written(small: tuple[str, ...]) -> None:
    config = check(small)
    assert sha256(config) == sha256(check([*small, "run_dir=x", "wandb.name=y", "log_every=7"]))
    assert sha256(config) != sha256(check([*small, "seed=1"]))


def test_the_code_version_is_that_of_the_source() -> None:
    assert result_file.code_version().count("+src.") == 1
