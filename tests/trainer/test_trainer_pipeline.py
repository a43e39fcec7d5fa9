"""Whole runs, small: determinism and the result's contract."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from trainer_outcomes import weights_digest, without_times
from transformers import AutoTokenizer

from trainer import result as result_file
from trainer.api import METRICS_FILE, check
from trainer.config import sha256
from trainer.data.inputs import prepare_inputs
from trainer.pipeline import Outcome
from trainer.quant.ternary import TernaryLinear

Run = Callable[..., Outcome]


def test_same_seed_gives_the_same_bits(run_small: Run) -> None:
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
    assert set(document) == {"schema", "status", "metrics", "provenance", "warnings", "stages"}
    metrics = document["metrics"]
    assert set(metrics) == {
        *(
            "final_loss",
            "final_loss_sem",
            "final_loss_text_sem",
            "perplexity",
            "stage1_9_final_loss",
            "stage2_start_loss",
        ),
        *("stage1_9_distill_loss", "stage1_9_ce_loss", "stage1_9_kl_loss", "bits_per_byte"),
        *("stage2_train_loss", "stage3_final_loss", "effective_steps", "train_flops", "train_seconds"),
        *("compile_seconds", "eval_seconds", "tokens"),
        *("tokens_per_second", "peak_memory_gib", "usd", "model_parameters"),
    }
    assert metrics["effective_steps"] == 2 * 6 + 6
    assert metrics["tokens"] == (6 + 6) * 4 * 16
    assert metrics["usd"] == 0
    layer = 4 * 32 * 32 + 3 * 32 * 48
    forward = 2 * (2 * layer + 300 * 32) + 4 * 16 * 32 * 2
    assert metrics["train_flops"] == forward * (6 * 64 * 4 + 6 * 64 * 3)
    # Embedding and head; norms: two in a layer, one at the end, and before the outputs of attention and MLP.
    assert metrics["model_parameters"] == 2 * layer + 2 * 300 * 32 + 5 * 32 + 2 * (32 + 48)
    assert set(document["provenance"]) == {
        *("config_sha256", "code_version", "device", "torch", "seed", "data_sha256", "reused_stages"),
        *("forced", "teacher_cache_sha256", "anchor_cache_sha256", "dtype", "muon_dtype"),
    }
    assert document["provenance"]["teacher_cache_sha256"] is None
    assert document["provenance"]["anchor_cache_sha256"] is None


def test_bits_per_byte_by_hand(run_small: Run, small: tuple[str, ...]) -> None:
    """Nats of tokens 2..16 of each window over the bytes of their text, as the tokenizer spells them."""
    metrics = run_small("stage1_9.max_steps=0", "stage2.max_steps=0").result.metrics
    inputs = prepare_inputs(check(small))
    corpus, batches = inputs.corpus, inputs.held_out
    tokenizer = AutoTokenizer.from_pretrained(corpus.tokenizer_dir)
    scored = [index for ids in batches for row in ids.tolist() for index in row[1:]]
    assert len(scored) == 2 * 4 * 15
    spelt = "".join(t for t in tokenizer.convert_ids_to_tokens(scored) if t != tokenizer.eos_token)
    assert metrics.bits_per_byte == pytest.approx(
        metrics.final_loss * len(scored) / (len(spelt) * math.log(2))
    )


def test_longest_warmup_ends_at_lambda_one(run_small: Run, tmp_path: Path) -> None:
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


def test_logged_lambda_warms_up_in_stage2_alone(run_small: Run, tmp_path: Path) -> None:
    run_small()
    lines = [json.loads(line) for line in (tmp_path / METRICS_FILE).read_text().splitlines()]
    by_stage = {
        name: [line["lambda"] for line in lines if line["stage"] == name] for name in ("stage1_9", "stage2")
    }
    assert by_stage["stage1_9"] == [1.0] * 6
    assert by_stage["stage2"] == pytest.approx([3 / 4, 5 / 6, 11 / 12, 1, 1, 1])
    assert [line["done"] for line in lines] == pytest.approx(
        [2 / 18, 4 / 18, 6 / 18, 8 / 18, 10 / 18, 12 / 18, 13 / 18, 14 / 18, 15 / 18, 16 / 18, 17 / 18, 1],
        abs=1e-6,
    )
    assert {"stage", "step", "of", "loss", "lr", "grad_norm", "tokens_per_second", "memory_mib"} <= set(
        lines[0]
    )
    assert {"distill", "ce", "kl"} <= set(lines[0])


@pytest.mark.parametrize("on", ["weights", "activations"])
def test_what_does_not_warm_up_stays_at_lambda_one(
    on: str, run_small: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    values: list[tuple[float, float]] = []
    forward = TernaryLinear.forward

    def spying(layer: TernaryLinear, x: torch.Tensor) -> torch.Tensor:
        if layer.training:
            values.append((float(layer.lambda_.weights.value), float(layer.lambda_.activations.value)))
        return forward(layer, x)

    monkeypatch.setattr(TernaryLinear, "forward", spying)
    off = {"weights": "activations", "activations": "weights"}[on]
    run_small("stage1_9.max_steps=0", f"stage2.lambda_warmup.{off}=false")
    ramp = [3 / 4, 5 / 6, 11 / 12, 1.0, 1.0, 1.0]
    expected = [(value, 1.0) if on == "weights" else (1.0, value) for value in ramp]
    layers = len(values) // len(ramp)
    assert values[::layers] == [pytest.approx(pair) for pair in expected]
    assert set(values[:layers]) == {expected[0]}


def test_without_stage1_9_its_metrics_are_none(run_small: Run, tmp_path: Path) -> None:
    metrics = run_small("stage1_9.max_steps=0").result.metrics
    assert metrics.stage1_9_final_loss is None
    assert metrics.effective_steps == 6
    assert metrics.tokens == 6 * 64
    assert "stage1_9" not in (tmp_path / METRICS_FILE).read_text()


def test_what_teacher_and_head_cost_is_counted(run_small: Run) -> None:
    """A student of one layer beside a teacher of two; with `kl`, its layer is read by the head."""
    overrides = ("stage1.keep_layers=1", "stage1_9.loss_type=kl")
    layer, head, tokens = 4 * 32 * 32 + 3 * 32 * 48, 300 * 32, 6 * 64
    teacher = 2 * (2 * layer + head) + 4 * 16 * 32 * 2
    student = 2 * (layer + head) + 4 * 16 * 32
    assert run_small(*overrides[:1]).result.metrics.train_flops == tokens * (2 * 3 * student + teacher)
    assert run_small(*overrides).result.metrics.train_flops == tokens * (2 * 3 * student + teacher + 6 * head)


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


def test_the_configs_digest_ignores_where_things_are_written(small: tuple[str, ...]) -> None:
    config = check(small)
    assert sha256(config) == sha256(check([*small, "run_dir=x", "wandb.name=y", "log_every=7"]))
    assert sha256(config) != sha256(check([*small, "seed=1"]))


def test_the_code_version_is_that_of_the_source() -> None:
    assert result_file.code_version().count("+src.") == 1
