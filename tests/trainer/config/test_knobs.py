"""No knob is inert: each key of the configuration is flipped, and a gradient or the run's result must change.

A new key needs a line in KNOBS (its flipped value, and what else must be set for it to matter), or in
ELSEWHERE the test that shows its effect.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import pytest
from trainer_outcomes import weights_digest, without_times

from trainer.config.compose import keys
from trainer.pipeline import Outcome
from trainer.training.step_results import StepResult
from trainer.training.train_step import TrainStep

Run = Callable[..., Outcome]

# Flipped values for every key that changes what is computed, and what else must be set for it to matter.
SALIENT = ("stage1_9.saliency.enabled=true",)
ADAMW = ("stage1_9.optimizer.type=adamw",)
STAGE3 = ("stage3.max_steps=6", "stage3.batch_size=4", "stage3.schedule.warmup_steps=1")
RECOVERY = (
    *("recovery.max_steps=6", "recovery.batch_size=4", "recovery.schedule.warmup_steps=1"),
    "optimizer@recovery.optimizer=muon",
)
FREEZE = (
    "auto_freeze.enabled=true",
    "auto_freeze.every_steps=1",
    "auto_freeze.start_step=1",
    "auto_freeze.patience=1",
    "auto_freeze.threshold=1e9",
)
LATER = {"stage3": STAGE3, "recovery": RECOVERY}
NOT_OF_ADAPTERS = {
    ("recovery", "optimizer.muonclip.tau=0.001"),
    ("recovery", "optimizer.adamw_lr_ratio=0.5"),
}
KNOBS: dict[str, tuple[str, ...]] = {
    "seed=1": (),
    "model.hidden_size=16": (),
    "model.intermediate_size=32": (),
    "model.layers=1": (),
    "model.heads=1": (),
    "model.master_dtype=bfloat16": (),
    "model.teacher.max_steps=5": (),
    "model.teacher.batch_size=3": (),
    "model.teacher.seed=1": (),
    "model.teacher.schedule.warmup_steps=3": (),
    "model.teacher.schedule.decay_fraction=0.0": (),
    "model.teacher.schedule.final_lr_ratio=0.9": (),
    "data.vocab_size=310": (),
    "data.sequence_length=12": (),
    "data.held_out_fraction=0.3": (),
    "data.test_fraction=0.3": (),
    "data.max_bytes=400000": (),
    "quant.weight_scale=absmedian": (),
    "quant.group_size=8": (),
    "quant.activations=none": (),
    "stage1.subln=ones": (),
    "stage1.subln=none": (),
    "stage1.subln=blended": (),
    "stage1.calibration_batches=2": (),
    "stage1.keep_layers=1": (),
    "stage1_9.max_steps=5": (),
    "stage1_9.batch_size=3": (),
    "stage1_9.loss_type=mse": (),
    "stage1_9.loss_type=cosine": (),
    "stage1_9.loss_type=inner_product": (),
    "stage1_9.loss_type=kl": (),
    "stage1_9.layer_weights=uniform": (),
    "stage1_9.layer_weights=[1,5]": (),
    "stage1_9.layer_weights=exponential": ("model.layers=3",),
    "stage1_9.lm_loss_weight=0.2": (),
    "stage1_9.distill_schedule.type=linear": (),
    "stage1_9.distill_schedule.type=cosine": (),
    "stage1_9.distill_schedule.initial=0.5": (),
    "stage1_9.distill_schedule.final=0.5": ("stage1_9.distill_schedule.type=linear",),
    "stage1_9.saliency.enabled=true": (),
    "stage1_9.saliency.initial_k=0.5": SALIENT,
    "stage1_9.saliency.final_k=0.1": SALIENT,
    "stage1_9.saliency.warmup_steps=3": (*SALIENT, "stage1_9.saliency.initial_k=0.5"),
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
    "stage2.distill.weight=0.5": (),
    "stage2.distill.temperature=2.0": ("stage2.distill.weight=0.5",),
    "stage2.lambda_warmup.enabled=false": (),
    "stage2.lambda_warmup.start=0.5": (),
    "stage2.lambda_warmup.warmup_steps=5": (),
    "stage2.lambda_warmup.schedule=cosine": (),
    "stage2.lambda_warmup.weights=false": (),
    "stage2.lambda_warmup.activations=false": (),
    "stage3.max_steps=5": STAGE3,
    "stage3.batch_size=2": STAGE3,
    "stage3.logits_weight=2.0": STAGE3,
    "stage3.attention_weight=2.0": STAGE3,
    "stage3.temperature=1.0": STAGE3,
    "stage3.attention_layer=0": STAGE3,
    "stage3.attention_heads=1": STAGE3,
    "stage3.attention_relation=cosine": STAGE3,
    "recovery.max_steps=5": RECOVERY,
    "recovery.batch_size=2": RECOVERY,
    "recovery.rank=2": RECOVERY,
    "recovery.alpha=2.0": RECOVERY,
    "recovery.targets=mlp": RECOVERY,
    "recovery.distill.weight=0.5": RECOVERY,
    "recovery.distill.temperature=2.0": RECOVERY,
    "auto_freeze.enabled=true": FREEZE[1:],
    'auto_freeze.parameters=["*embed*"]': FREEZE,
    "auto_freeze.threshold=1e-9": FREEZE,
    "auto_freeze.patience=3": FREEZE,
    "auto_freeze.every_steps=2": FREEZE,
    "auto_freeze.start_step=4": FREEZE,
    "auto_freeze.dry_run=true": FREEZE,
    "average.type=ema": (),
    "average.type=last": ("average.steps=3",),
    "average.decay=0.3": ("average.type=ema",),
    "average.steps=2": ("average.type=last", "average.steps=3"),
    "scale_rule.type=rms": (),
    "scale_rule.type=mup": (),
    "scale_rule.base_width=16": ("scale_rule=rms",),
    "scale_rule.base_depth=1": ("scale_rule=rms",),
    "eval.batches=3": (),
    "eval.batch_size=3": (),
    "eval.test=true": ("data.test_fraction=0.3",),
    "device.dtype=bfloat16": (),
    "device.usd_per_hour=3600": (),
    **{
        f"{stage}.{knob}": (*setting, *LATER.get(stage, ()))
        for stage in ("model.teacher", "stage1_9", "stage2", "stage3", "recovery")
        for knob, setting in {
            "micro_batch_size=2": (),  # rounding only; `test_train_step.py` says how little
            "optimizer.type=adamw": (),
            "optimizer.lr=0.003": (),
            "optimizer.base_tokens=7": (),
            "optimizer.base_batch_tokens=7": (),
            "optimizer.tokens_exponent=0.3": (f"{stage}.optimizer.base_tokens=7",),
            "optimizer.batch_exponent=0.3": (f"{stage}.optimizer.base_batch_tokens=7",),
            "optimizer.weight_decay=0.5": (),
            "optimizer.weight_decay_until=0.5": (),
            "optimizer.momentum=0.5": (),
            "optimizer.adamw_lr_ratio=0.5": (),
            "optimizer.beta1=0.5": (),
            "optimizer.beta2=0.5": (),
            "optimizer.max_grad_norm=0.01": (f"{stage}.optimizer.type=adamw",),
            "optimizer.muon.dtype=bfloat16": (),
            "optimizer.muonclip.tau=0.001": (f"{stage}.optimizer.type=muonclip",),
            "optimizer.apollo.rank=4": (f"{stage}.optimizer.type=apollo",),
            "optimizer.apollo.update_interval=2": (f"{stage}.optimizer.type=apollo",),
            "optimizer.apollo.scale=1.0": (
                f"{stage}.optimizer.type=apollo",
                f"{stage}.optimizer.apollo.rank=4",
            ),
            "optimizer.apollo_mini.update_interval=2": (f"{stage}.optimizer.type=apollo_mini",),
            "optimizer.apollo_mini.scale=1.0": (f"{stage}.optimizer.type=apollo_mini",),
        }.items()
        if (stage, knob) not in NOT_OF_ADAPTERS
    },
    **{  # Muon leaves AdamW none of them
        f"recovery.optimizer.{beta}=0.5": (*RECOVERY, "recovery.optimizer.type=adamw")
        for beta in ("beta1", "beta2")
    },
    **{
        f"{stage}.{knob}": LATER.get(stage, ())
        for stage in ("stage1_9", "stage2", "stage3", "recovery")
        for knob in ("schedule.warmup_steps=4", "schedule.decay_fraction=0.0", "schedule.final_lr_ratio=0.9")
    },
    **{
        f"{stage}.optimizer.stochastic_rounding=true": (
            "model.master_dtype=bfloat16",
            *(STAGE3 if stage == "stage3" else ()),
        )
        for stage in ("stage1_9", "stage2", "stage3")
    },
}
ELSEWHERE = {
    **{
        f"checkpoint.{key}": "tests/trainer/checkpoint/test_checkpoint_policy.py"
        for key in ("every_steps", "every_seconds", "keep")
    },
    "checkpoint.notice_seconds": "tests/trainer/preflight/test_notice.py",
    "checkpoint.format": "tests/trainer/distributed/test_sharded_checkpoints.py",
    "snapshots.write": "tests/trainer/checkpoint/test_stage_snapshot.py",
    "stage1_9.trunk_every": "tests/trainer/checkpoint/test_trunk_points.py",
    "stage2.trunk_every": "tests/trainer/checkpoint/test_trunk_points.py",
    **{
        f"eval.{key}": "tests/trainer/training/test_stage_evaluation.py"
        for key in ("at", "every_steps", "part_batches")
    },
    "run_dir": "tests/trainer/test_trainer_main.py",
    "save_model": "tests/trainer/export/test_export_main.py",
    "log_every": "tests/trainer/telemetry/test_telemetry_run.py",
    "telemetry.dense_steps": "tests/trainer/telemetry/test_telemetry_run.py",
    "telemetry.tensorboard": "tests/trainer/telemetry/test_telemetry_tensorboard.py",
    "telemetry.heartbeat_seconds": "tests/trainer/telemetry/test_telemetry_heartbeat.py",
    **{
        f"memory_log.{key}": "tests/trainer/memory_log/test_memory_log.py"
        for key in ("level", "phases", "every", "path")
    },
    "stage2.fp8": "tests/trainer/quant/test_quant_fp8.py",
    "model.teacher.optimizer.stochastic_rounding": "tests/trainer/optim/test_optimizer_validate.py",
    **{
        f"stage2.fp8_recipe.{key}": "tests/trainer/quant/test_quant_fp8.py"
        for key in ("products", "accumulator", "min_size", "exclude")
    },
    "recovery.optimizer.muonclip.tau": "refused: what it scales is frozen",
    "recovery.optimizer.adamw_lr_ratio": "adapters are hidden matrices, all of them",
    "recovery.optimizer.stochastic_rounding": "refused: adapters are float32",
    "force": "tests/trainer/preflight/test_preflight.py",
    "overwrite": "tests/trainer/test_finished_runs.py",
    **{f"samples.{key}": "tests/trainer/test_finished_runs.py" for key in ("enabled", "prompts", "tokens")},
    **{f"hooks.{key}": "tests/trainer/evaluations/test_hooks.py" for key in ("names", "timeout_s")},
    **{
        f"hooks.cpp.{key}": "tests/trainer/evaluations/test_cpp_hook.py"
        for key in ("problems", "tokens", "compiler", "seconds", "memory_mib", "sandbox")
    },
    **{
        f"hooks.lm_eval.{key}": "tests/trainer/evaluations/test_lm_eval_hook.py"
        for key in ("tasks", "include_path", "limit")
    },
    "device.memory_target_gib": "tests/trainer/preflight/test_preflight.py",
    "device.auto_micro_batch": "tests/trainer/preflight/test_batch_size_search.py",
    "device.type": "tests/trainer/devices/test_device.py",
    "device.threads": "tests/trainer/devices/test_device.py",
    "device.pricing": "tests/trainer/cost/test_cost.py",
    "device.compile": "tests/trainer/training/test_compilation.py",
    "device.recompute": "tests/trainer/training/test_activation_checkpointing.py",
    "device.hold_weights": "tests/trainer/training/test_equivalence.py",
    "device.teacher": "tests/trainer/models/test_host_layers.py",
    "device.num_chips": "tests/trainer/xla/test_xla_chips.py",
    "device.parallel": "tests/trainer/distributed/test_shared_training.py",
    **{f"device.mesh.{key}": "tests/trainer/distributed/test_mesh.py" for key in ("data", "tensor")},
    **{
        f"wandb.{key}": "tests/trainer/telemetry/test_telemetry_wandb.py"
        for key in ("mode", "project", "group", "name", "id", "tags")
    },
    "model.kind": "the group model",
    "stage3.teacher.kind": "the group stage3/teacher",
    "data.tokenizer": "tests/trainer/data/test_data_memory.py",
    "data.document_masks": "tests/trainer/models/test_documents.py",
    "data.name": "the group data; tests/trainer/data/test_data_knobs.py has the keys of its other options",
}


SLOW = {
    f"{stage}.{knob.removeprefix('stage2.')}"
    for stage in ("model.teacher", "stage1_9", "stage3", "recovery")
    for knob in KNOBS
    if knob.startswith("stage2.optimizer.")
} & set(KNOBS)
"""The optimizers' keys of the other stages: a third of the knobs, and the same code."""


def test_every_key_is_flipped_here_or_tested_elsewhere() -> None:
    flipped = {knob.partition("=")[0] for knob in KNOBS}
    assert flipped | set(ELSEWHERE) == set(keys())


# A stage's knobs change that stage: the others are left out, as far as they can be; and so for what any stage shows.
ALONE = {
    "model.teacher": ("stage1_9.max_steps=0", "stage2.max_steps=0"),
    "stage1_9": ("stage2.max_steps=0",),
    "stage2": ("stage1_9.max_steps=0",),
    "stage3": ("stage1_9.max_steps=0", "stage2.max_steps=0"),
    "recovery": ("stage1_9.max_steps=0", "stage2.max_steps=0"),
    **dict.fromkeys(("auto_freeze", "average", "scale_rule"), ("stage1_9.max_steps=0",)),
}


class DiffersError(Exception):
    """Raised after the first step whose gradient has another norm than in the run without the flip."""


@dataclass
class Recorded:
    """The norms of the gradients of a run, by stage, and what came of the run."""

    norms: dict[str, list[float]] = field(default_factory=dict)
    outcome: str = ""


@pytest.fixture
def record(run_small: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Recorded]:
    """Return `record(overrides, known)`: run with the overrides, until a step differs from those of `known`."""
    take_step = TrainStep.__call__
    found, expected = Recorded(), Recorded()

    def watching(self: TrainStep, *args: Any, number: int) -> StepResult:
        result = take_step(self, *args, number=number)
        norm = float(result.tensors[0][-1])
        found.norms.setdefault(self.plan.name, []).append(norm)
        known = expected.norms.get(self.plan.name, [])  # none of a teacher that was in the cache
        if number <= len(known) and norm != known[number - 1]:
            raise DiffersError
        return result

    monkeypatch.setattr(TrainStep, "__call__", watching)

    def record(overrides: tuple[str, ...], known: Recorded) -> Recorded:
        nonlocal found, expected
        found, expected = Recorded(), known
        outcome = run_small(*overrides)
        found.outcome = f"{weights_digest(outcome)} {without_times(outcome)}"
        return found

    return record


def test_without_a_flip_each_step_and_the_result_are_the_same(record: Callable[..., Recorded]) -> None:
    known = record((), Recorded())
    assert {"stage1_9", "stage2"} <= set(known.norms)
    assert record((), known).outcome == known.outcome


@pytest.mark.parametrize(
    "knob", [pytest.param(knob, marks=pytest.mark.slow) if knob in SLOW else knob for knob in KNOBS]
)
def test_no_knob_is_inert(
    knob: str, record: Callable[..., Recorded], remembered: Callable[[str, Callable[[], str]], str]
) -> None:
    if knob.startswith("recovery."):
        pytest.importorskip("peft")
    alone = next((steps for stage, steps in ALONE.items() if knob.startswith(f"{stage}.")), ())
    base = (*alone, *KNOBS[knob])
    text = remembered(f"knobs {base}", lambda: json.dumps(asdict(record(base, Recorded()))))
    known = Recorded(**json.loads(text))
    with suppress(DiffersError):
        assert record((*base, knob), known).outcome != known.outcome
