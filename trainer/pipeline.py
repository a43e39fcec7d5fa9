"""One run, from its configuration to its result: teacher → Stage 1 → 1.9 → 2 → 3 → held-out loss.

Called by `__main__`, which handles the run's folder, signals and exit status.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, takewhile
from pathlib import Path

import torch
from torch import nn

from trainer import result
from trainer.checkpoint.checkpoints import Checkpoints
from trainer.config import Config, Stage2Config, Stage3Config, Stage19Config, sha256
from trainer.config.effective_steps import weights as _weights
from trainer.cost.flops import usd
from trainer.cost.stage_flops import flops_per_token
from trainer.data import Feed
from trainer.data.stage_text import stage_text
from trainer.devices.device import micro_batches
from trainer.devices.dtypes import dtype_name
from trainer.distributed.ranks import ALONE as SINGLE_PROCESS
from trainer.distributed.ranks import Ranks
from trainer.errors import TrainerError
from trainer.layout import HELD_OUT_FILE, MODEL_FOLDER, RESULT_FILE, Progress
from trainer.models import student_folder
from trainer.models.causal_lm import seed_everything
from trainer.models.subln import make_student
from trainer.optim.muon import muon_dtype
from trainer.optim.validate import optimizers, require_model
from trainer.quant import fp8
from trainer.quant.warmup import Lambda
from trainer.result import Metrics, Provenance, Result, code_version
from trainer.stages import distill, layerwise, pretrain
from trainer.teachers.cached import compatibility
from trainer.teachers.local import PreparedInputs, prepare_inputs
from trainer.telemetry import Telemetry
from trainer.training.auto_freeze import auto_freeze
from trainer.training.context import StageContext
from trainer.training.evaluation import HeldOutLoss, Measured, bits_per_byte, held_out_loss
from trainer.training.loop import StageTrace
from trainer.training.stage_evaluation import StageEvaluation


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A finished run.

    Args:
        result: metrics and provenance.
        student: with lambda at 1.
        tokenizer: folder of the tokenizer.
        held_out: losses on the selection text.
        test: losses on the test text, if `eval.test` asked for them.
    """

    result: Result
    student: nn.Module
    tokenizer: Path
    held_out: Measured
    test: Measured | None = None


@dataclass(frozen=True, kw_only=True)
class _Run:
    config: Config
    config_sha256: str
    inputs: PreparedInputs
    context: StageContext
    telemetry: Telemetry
    forced: tuple[str, ...]
    caches: compatibility.Digests = compatibility.NO_CACHES

    def batches(self, stage: str, batch_size: int, ranks: Ranks = SINGLE_PROCESS) -> Feed:
        return stage_text(self.inputs.corpus, self.config, stage, batch_size, ranks)

    def held_out_loss(self, model: nn.Module, when: str, *, test: bool = False) -> HeldOutLoss:
        device, stop = self.context.device, self.context.stop
        batches = self.inputs.test if test else self.inputs.held_out
        with self.telemetry.during("evaluating", when), stop.together(when):
            return held_out_loss(model, batches, device=device, stage=when)

    def measured(self, student: nn.Module, *, test: bool = False) -> Measured:
        name = "test" if test else "evaluation"
        return Measured(
            final=self.held_out_loss(student, f"the final {name}", test=test),
            reference=self.held_out_loss(self.inputs.teacher, f"the teacher's {name}", test=test),
        )

    def flops_per_token(self, stage: str, student: nn.Module) -> float:
        return flops_per_token(self.config, stage, student, self.inputs.teacher)


def run(
    config: Config,
    context: StageContext,
    telemetry: Telemetry,
    *,
    progress: Progress = lambda message, fraction: None,
    forced: tuple[str, ...] = (),
    config_sha256: str | None = None,
) -> Outcome:
    """Train and evaluate. Goes on from the checkpoint that `context.checkpoints` restores.

    Args:
        config: of the run.
        context: without `watch` and auto-freeze, which are set here.
        telemetry: opened; it gets every step.
        progress: called while text and teacher are prepared.
        forced: refusals of the preflight that `force` has passed over.
        config_sha256: of the configuration as the user gave it; None: of `config`.

    Raises:
        TrainerError: of the kind that says why the run ended early.
    """
    device, stop = context.device, context.stop
    inputs = prepare_inputs(config, device=device, stop=stop, progress=progress)
    require_model(config, inputs.teacher)
    if not device.ranks.alone:
        stop.share(device.ranks.any)
    seed_everything(config.seed)
    this = _Run(
        config=config,
        config_sha256=config_sha256 or sha256(config),
        inputs=inputs,
        context=replace(context, watch=telemetry.watch),
        telemetry=telemetry,
        forced=forced,
    )
    student, strength = _student(this)
    evaluation = _stage_evaluation(this)
    hooks = replace(context.hooks, freeze=auto_freeze(config, student), evaluation=evaluation)
    caches = compatibility.check(config, inputs.corpus, inputs.teacher)
    this = replace(this, caches=caches, context=replace(this.context, hooks=hooks))
    if context.hooks.memory:
        context.hooks.memory.models(student, inputs.teacher)
    device.reset_peak_memory()
    telemetry.plan(sum(_effective_steps(config).values()))
    stop.begun()
    traces, start = _train_stages(this, student, strength)
    return _evaluate(this, student, traces, start, evaluation)


def save(
    outcome: Outcome,
    config: Config,
    folder: Path,
    telemetry: Telemetry,
    checkpoints: Checkpoints,
    ranks: Ranks,
    warn: Callable[[str], None],
) -> None:
    """Write the result, save the student, and remove the checkpoints.

    A student that cannot be saved is a warning, as the run has its result. The checkpoints are kept then: the
    same command goes on from there.

    Raises:
        TrainerError: the disk refuses the result.
    """
    if ranks.first:
        measured = {("final", "teacher"): outcome.held_out, ("test", "test_teacher"): outcome.test}
        sequences = {
            name: loss.by_sequence
            for names, on_text in measured.items()
            if on_text is not None
            for name, loss in zip(names, (on_text.final, on_text.reference), strict=True)
        }
        result.write_held_out(sequences, folder / HELD_OUT_FILE, resumable=checkpoints.resumable)
        result.write(outcome.result, folder / RESULT_FILE, resumable=checkpoints.resumable)
    saved = True
    if config.save_model:
        try:
            with telemetry.during("saving", "the student"):
                student_folder.save(
                    outcome.student,
                    folder / MODEL_FOLDER,
                    tokenizer=outcome.tokenizer,
                    config_sha256=outcome.result.provenance.config_sha256,
                    ranks=ranks,
                )
        except Exception as error:  # noqa: BLE001 - whatever it is, the result was worth the training
            saved = False
            again = "goes on from its checkpoint" if checkpoints.resumable else "trains anew"
            why = error if isinstance(error, TrainerError) else f"{type(error).__name__}: {error}"
            warn(
                f"{RESULT_FILE} is written, but the student could not be saved ({why}); once that is mended, "
                f"the same command {again}"
            )
    if ranks.first:
        if saved:
            checkpoints.discard()
        telemetry.finish(outcome.result)


def _student(this: _Run) -> tuple[nn.Module, Lambda]:
    """Stage 1. Return the student, which all stages were checked to be able to train, and its lambda."""
    config, device = this.config, this.context.device
    # Batches as Stage 1.9 will see them; the evaluation's size must not reach the weights.
    with this.batches("stage1", config.stage1_9.batch_size) as feed:
        calibration = [
            ids_bT
            for ids_BT in islice(feed, config.stage1.calibration_batches)
            for ids_bT in micro_batches(ids_BT, config.stage1_9.micro_batch_size)
        ]
    student, strength = make_student(
        this.inputs.teacher, config.stage1, calibration, quant=config.quant, device=device
    )
    fp8.require_multiples(student, config.stage2, config.data.sequence_length, processes=device.ranks.world)
    distill.require_trainable(student, config.stage3, this.inputs.held_out[0][:1], stop=this.context.stop)
    return student, strength


def _stage_evaluation(this: _Run) -> StageEvaluation:
    trained = [(name, getattr(this.config, name).max_steps) for name in _weights(this.config)]
    return StageEvaluation(
        this.config.eval,
        this.inputs.held_out,
        device=this.context.device,
        last=next(((name, steps) for name, steps in reversed(trained) if steps), None),
        report=this.telemetry.measured,
        during=partial(this.telemetry.during, "evaluating"),
    )


def _train_stages(
    this: _Run, student: nn.Module, strength: Lambda
) -> tuple[dict[str, StageTrace], HeldOutLoss]:
    """Train Stages 1.9, 2 and 3, each if it has steps. Return their traces, and the loss before Stage 2."""
    traces = {layerwise.NAME: _train(this, layerwise.NAME, layerwise.align, student, strength)}

    def measure() -> dict[str, float]:
        loss = this.held_out_loss(student, "the start of stage2")
        return {"mean": loss.mean, "sem": loss.sem}

    start = this.context.checkpoints.once("stage2_start", measure)
    traces[pretrain.NAME] = _train(this, pretrain.NAME, pretrain.pretrain, student, strength)
    traces[distill.NAME] = _train(this, distill.NAME, distill.distill, student, strength)
    return traces, HeldOutLoss(mean=start["mean"], sem=start["sem"])


def _train(
    this: _Run, name: str, train: Callable[..., StageTrace], student: nn.Module, strength: Lambda
) -> StageTrace:
    stage: Stage19Config | Stage2Config | Stage3Config = getattr(this.config, name)
    if not stage.max_steps:
        return StageTrace()
    effective_steps, device = _effective_steps(this.config), this.context.device
    this.telemetry.begin(
        name,
        finished=sum(effective_steps[before] for before in takewhile(name.__ne__, effective_steps)),
        weight=_weights(this.config)[name],
        device=device,
        flops_per_token=this.flops_per_token(name, student),
    )
    with this.batches(name, stage.batch_size, device.ranks) as feed:
        return train(student, this.inputs.teacher, strength, stage, feed, this.context)


def _effective_steps(config: Config) -> dict[str, int]:
    """Return the effective steps of each stage, in the order of the stages."""
    return {name: weight * getattr(config, name).max_steps for name, weight in _weights(config).items()}


def _evaluate(
    this: _Run,
    student: nn.Module,
    traces: Mapping[str, StageTrace],
    start: HeldOutLoss,
    within_stages: StageEvaluation,
) -> Outcome:
    """Measure the student, and the teacher on the same text."""
    held_out = this.measured(student)
    within_stages.at_end(held_out.final)
    test = this.measured(student, test=True) if this.inputs.test else None
    metrics = _metrics(this, student, traces, start=start, held_out=held_out, test=test)
    numbers = Result(metrics=metrics, provenance=_provenance(this, student), warnings=this.telemetry.warnings)
    return Outcome(
        result=numbers,
        student=student,
        tokenizer=this.inputs.corpus.tokenizer_dir,
        held_out=held_out,
        test=test,
    )


def _metrics(
    this: _Run,
    student: nn.Module,
    traces: Mapping[str, StageTrace],
    *,
    start: HeldOutLoss,
    held_out: Measured,
    test: Measured | None,
) -> Metrics:
    config, device, checkpoints = this.config, this.context.device, this.context.checkpoints
    aligned, trained, distilled = (traces[each.NAME] for each in (layerwise, pretrain, distill))
    tokens = sum(trace.tokens for trace in traces.values())
    seconds = sum(trace.seconds for trace in traces.values())
    eval_seconds = sum(trace.eval_seconds for trace in traces.values())
    flops = sum(trace.tokens * this.flops_per_token(name, student) for name, trace in traces.items())
    final, scored_bytes = held_out.final, this.inputs.held_out_bytes
    spot = config.device.pricing == "spot"
    return Metrics(
        final_loss=final.mean,
        final_loss_sem=held_out.paired_sem,
        final_loss_text_sem=final.sem,
        perplexity=final.perplexity,
        bits_per_byte=scored_bytes and bits_per_byte(final.mean, this.inputs.held_out, scored_bytes),
        stage1_9_final_loss=aligned.final_loss,
        stage1_9_distill_loss=aligned.final("distill"),
        stage1_9_ce_loss=aligned.final("ce"),
        stage1_9_kl_loss=aligned.final("kl"),
        stage2_start_loss=start.mean,
        stage2_train_loss=trained.final("ce" if config.stage2.distill.enabled else "loss"),
        stage3_final_loss=distilled.final_loss,
        effective_steps=sum(w * len(traces[name].losses) for name, w in _weights(config).items()),
        train_flops=float(flops),
        train_seconds=seconds,
        tokens=tokens,
        tokens_per_second=tokens / seconds if seconds else 0.0,
        peak_memory_gib=device.ranks.all_reduce_max(checkpoints.peak(device.peak_memory_bytes())) / 2**30,
        usd=usd(device, config.device.usd_per_hour, seconds, spot=spot),
        compile_seconds=checkpoints.compiled(device.compile_seconds()),
        eval_seconds=eval_seconds,
        test_loss=None if test is None else test.final.mean,
        test_loss_sem=None if test is None else test.paired_sem,
        test_loss_text_sem=None if test is None else test.final.sem,
    )


def _provenance(this: _Run, student: nn.Module) -> Provenance:
    device = this.context.device
    # Products of bfloat16 weights are bfloat16, whatever `device.dtype` is.
    bfloat16 = any(parameter.dtype == torch.bfloat16 for parameter in student.parameters())
    muons = {
        key.removesuffix(".optimizer"): dtype_name(dtype)
        for key, optimizer in optimizers(this.config)
        if (dtype := muon_dtype(optimizer, device.torch_device)) is not None
    }
    return Provenance(
        config_sha256=this.config_sha256,
        code_version=code_version(),
        device=device.name,
        torch=torch.__version__,
        seed=this.config.seed,
        data_sha256=this.inputs.corpus.sha256,
        dtype=dtype_name(torch.bfloat16 if bfloat16 else device.dtype),
        muon_dtype=muons,
        forced=this.forced,
        teacher_cache_sha256=this.caches.teacher,
        anchor_cache_sha256=this.caches.anchor,
    )
