"""One run, from its configuration to its result: teacher → Stage 1 → 1.9 → 2 → 3 → held-out loss.

Called by `__main__`, which owns the run's folder, its signals and its exit status.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn

from trainer.checkpoint.policy import NO_CHECKPOINTS, CheckpointPolicy
from trainer.config import Config, Stage2Config, Stage3Config, Stage19Config, sha256
from trainer.cost.flops import usd
from trainer.cost.stage_flops import flops_per_token
from trainer.data import Corpus, Feed
from trainer.data.stage_text import stage_text
from trainer.devices.device import Device, dtype_name, micro_batches
from trainer.distributed.ranks import ALONE as UNSHARED
from trainer.distributed.ranks import Ranks
from trainer.layout import Progress
from trainer.memory_log.log import MemoryLog
from trainer.models.causal_lm import seed_everything
from trainer.models.subln import make_student
from trainer.optim.muon import muon_dtype
from trainer.optim.validate import optimizers, require_model
from trainer.quant import fp8
from trainer.quant.warmup import Lambda
from trainer.result import Metrics, Provenance, Result, code_version
from trainer.stages import distill, layerwise, pretrain
from trainer.teachers.cached import compatibility
from trainer.teachers.local import prepare_inputs
from trainer.telemetry import Telemetry
from trainer.training.auto_freeze import auto_freeze
from trainer.training.evaluation import HeldOutLoss, bits_per_byte, held_out_loss
from trainer.training.hooks import NO_HOOKS, StageHooks
from trainer.training.loop import StageTrace
from trainer.training.preemption import StopSignal

# Of one step in effective steps, the notebook's measure: a teacher's forward pass makes a step count twice.
ALONE, TAUGHT = 1, 2


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A finished run: its numbers, the student with lambda at 1, and the folder of its tokenizer."""

    result: Result
    student: nn.Module
    tokenizer: Path


@dataclass(frozen=True, kw_only=True)
class _Run:
    """What every part of one run needs."""

    config: Config
    corpus: Corpus
    held_out: list[Tensor]
    held_out_bytes: int | None
    device: Device
    stop: StopSignal
    telemetry: Telemetry
    keep: CheckpointPolicy
    forced: tuple[str, ...]
    config_sha256: str
    caches: compatibility.Digests = compatibility.NO_CACHES
    hooks: StageHooks = NO_HOOKS

    def batches(self, stage: str, batch_size: int, ranks: Ranks = UNSHARED) -> Feed:
        """Training text for a stage, as `stage_text` has it."""
        return stage_text(self.corpus, self.config, stage, batch_size, ranks)

    def measure(self, student: nn.Module, when: str) -> HeldOutLoss:
        """Held-out loss now."""
        with self.telemetry.during("evaluating", when), self.stop.together(when):
            return held_out_loss(student, self.held_out, device=self.device, stage=when)


def run(
    config: Config,
    *,
    device: Device,
    telemetry: Telemetry,
    stop: StopSignal,
    progress: Progress,
    keep: CheckpointPolicy = NO_CHECKPOINTS,
    memory: MemoryLog | None = None,
    forced: tuple[str, ...] = (),
    config_sha256: str | None = None,
) -> Outcome:
    """Trains, and measures what came of it. Goes on from where `keep` brings it back to.

    Args:
        memory: told of the run's points; None: nobody asked.
        forced: what the preflight said against the run.
        config_sha256: of the configuration as it was given; None: of `config`.

    Raises:
        TrainerError: of the kind that says why the run ended early.
    """
    prepared = prepare_inputs(config, device=device, stop=stop, progress=progress)
    require_model(config, prepared.teacher)
    if not device.ranks.alone:
        stop.share(device.ranks.any)
    seed_everything(config.seed)
    this = _Run(
        config=config,
        corpus=prepared.corpus,
        held_out=prepared.held_out,
        held_out_bytes=prepared.held_out_bytes,
        device=device,
        stop=stop,
        telemetry=telemetry,
        keep=keep,
        forced=forced,
        config_sha256=config_sha256 or sha256(config),
    )
    # Batches as Stage 1.9 will see them; the evaluation's size must not reach the weights.
    with this.batches("stage1", config.stage1_9.batch_size) as feed:
        calibration = [
            ids_bT
            for ids_BT in islice(feed, config.stage1.calibration_batches)
            for ids_bT in micro_batches(ids_BT, config.stage1_9.micro_batch_size)
        ]
    student, strength = make_student(
        prepared.teacher, config.stage1, calibration, quant=config.quant, device=device
    )
    fp8.require_multiples(student, config.stage2, config.data.sequence_length, processes=device.ranks.world)
    distill.check(student, config.stage3, this.held_out[0][:1], stop=stop)
    this = replace(
        this,
        caches=compatibility.check(config, prepared.corpus, prepared.teacher),
        hooks=StageHooks(freeze=auto_freeze(config, student), memory=memory),
    )
    if memory:
        memory.models(student, prepared.teacher)
    device.reset_peak_memory()
    telemetry.plan(_before_stage3(config) + _stage3_weight(config) * config.stage3.max_steps)

    stop.begun()
    models = student, prepared.teacher, strength
    one, two, three = config.stage1_9, config.stage2, config.stage3
    aligned = _trained(this, layerwise.NAME, layerwise.align, one, models, finished=0, weight=TAUGHT)
    start = HeldOutLoss(
        **keep.once("stage2_start", lambda: asdict(this.measure(student, "the start of stage2")))
    )
    trained = _trained(
        this,
        pretrain.NAME,
        pretrain.pretrain,
        two,
        models,
        finished=TAUGHT * one.max_steps,
        weight=_stage2_weight(config),
    )
    distilled = _trained(
        this,
        distill.NAME,
        distill.distill,
        three,
        models,
        finished=_before_stage3(config),
        weight=_stage3_weight(config),
    )
    final = this.measure(student, "the final evaluation")
    stages = {layerwise.NAME: aligned, pretrain.NAME: trained, distill.NAME: distilled}
    flops = float(
        sum(
            stage.tokens * flops_per_token(config, name, student, prepared.teacher)
            for name, stage in stages.items()
        )
    )
    metrics = _metrics(
        this, aligned=aligned, start=start, trained=trained, distilled=distilled, final=final, flops=flops
    )
    outcome = Result(metrics=metrics, provenance=_provenance(this, student), warnings=telemetry.warnings)
    return Outcome(result=outcome, student=student, tokenizer=prepared.corpus.tokenizer_dir)


def _trained(
    this: _Run,
    name: str,
    train: Callable[..., StageTrace],
    config: Stage19Config | Stage2Config | Stage3Config,
    models: tuple[nn.Module, nn.Module, Lambda],
    *,
    finished: int,
    weight: int,
) -> StageTrace:
    """A stage, if it has steps: `finished` effective steps lie before it, and each of its own is `weight`."""
    if not config.max_steps:
        return StageTrace()
    student, teacher, _ = models
    this.telemetry.begin(
        name,
        finished=finished,
        weight=weight,
        device=this.device,
        flops_per_token=flops_per_token(this.config, name, student, teacher),
    )
    with this.batches(name, config.batch_size, this.device.ranks) as feed:
        return train(
            *models,
            config,
            feed,
            device=this.device,
            stop=this.stop,
            watch=this.telemetry.watch,
            keep=this.keep,
            hooks=this.hooks,
        )


def _before_stage3(config: Config) -> int:
    """Effective steps of the stages before it."""
    return TAUGHT * config.stage1_9.max_steps + _stage2_weight(config) * config.stage2.max_steps


def _stage2_weight(config: Config) -> int:
    return TAUGHT if config.stage2.distill.enabled else ALONE


def _stage3_weight(config: Config) -> int:
    """A cache's predictions were made before the run, and for many runs; a server's are made for this one."""
    return ALONE if config.stage3.teacher.kind == "cached" else TAUGHT


def _metrics(
    this: _Run,
    *,
    aligned: StageTrace,
    start: HeldOutLoss,
    trained: StageTrace,
    distilled: StageTrace,
    final: HeldOutLoss,
    flops: float,
) -> Metrics:
    stages = (aligned, trained, distilled)
    tokens, seconds = sum(stage.tokens for stage in stages), sum(stage.seconds for stage in stages)
    return Metrics(
        final_loss=final.mean,
        final_loss_sem=final.sem,
        perplexity=final.perplexity,
        bits_per_byte=this.held_out_bytes and bits_per_byte(final.mean, this.held_out, this.held_out_bytes),
        stage1_9_final_loss=aligned.final_loss,
        stage1_9_distill_loss=aligned.final("distill"),
        stage1_9_ce_loss=aligned.final("ce"),
        stage1_9_kl_loss=aligned.final("kl"),
        stage2_start_loss=start.mean,
        stage2_train_loss=trained.final("ce" if this.config.stage2.distill.enabled else "loss"),
        stage3_final_loss=distilled.final_loss,
        effective_steps=TAUGHT * len(aligned.losses)
        + _stage2_weight(this.config) * len(trained.losses)
        + _stage3_weight(this.config) * len(distilled.losses),
        train_flops=flops,
        train_seconds=seconds,
        tokens=tokens,
        tokens_per_second=tokens / seconds if seconds else 0.0,
        peak_memory_gib=this.device.ranks.all_reduce_max(this.keep.peak(this.device.peak_memory_bytes()))
        / 2**30,
        usd=usd(
            this.device,
            this.config.device.usd_per_hour,
            seconds,
            spot=this.config.device.pricing == "spot",
        ),
        compile_seconds=this.keep.compiled(this.device.compile_seconds()),
    )


def _provenance(this: _Run, student: nn.Module) -> Provenance:
    # Products of bfloat16 weights are bfloat16, whatever the device was told.
    held = any(parameter.dtype == torch.bfloat16 for parameter in student.parameters())
    muons = {
        key.removesuffix(".optimizer"): dtype_name(dtype)
        for key, optimizer in optimizers(this.config)
        if (dtype := muon_dtype(optimizer, this.device.torch_device)) is not None
    }
    return Provenance(
        config_sha256=this.config_sha256,
        code_version=code_version(),
        device=this.device.name,
        torch=torch.__version__,
        seed=this.config.seed,
        data_sha256=this.corpus.sha256,
        dtype=dtype_name(torch.bfloat16 if held else this.device.dtype),
        muon_dtype=muons,
        forced=this.forced,
        teacher_cache_sha256=this.caches.teacher,
        anchor_cache_sha256=this.caches.anchor,
    )
