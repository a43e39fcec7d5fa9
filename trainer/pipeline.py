"""One run, from its teacher to its result: Stage 1 → 1.9 → 2 → 3 → adapters → held-out loss.

Called by `__main__`, which handles the run's folder, signals and exit status, and prepares text and teacher.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import islice, takewhile

import torch
from torch import Tensor, nn

from trainer.checkpoint.manifest import METRICS
from trainer.checkpoint.stage_snapshot import Identity, StageNumbers, StageSnapshots, measured_alike
from trainer.config import Config, sha256
from trainer.config.run import step_weights
from trainer.cost.flops import flops_per_token
from trainer.data.corpus import Corpus, stage_text
from trainer.data.inputs import Inputs
from trainer.devices.device import micro_batches
from trainer.devices.dtypes import dtype_name
from trainer.distributed.ranks import Ranks
from trainer.errors import DataError
from trainer.models import tensor_parallel
from trainer.models.adapters import adapters_for, add_adapters
from trainer.models.causal_lm import computes_in_bfloat16, parameter_count
from trainer.models.subln import make_student
from trainer.optim.build import optimizers, require_model, require_student
from trainer.optim.muon import muon_dtype
from trainer.outcome import Outcome, Report, stage_usd
from trainer.quant import fp8
from trainer.quant.warmup import Lambda
from trainer.result import Provenance, Result, code_version
from trainer.stages import distill, layerwise, pretrain, recover
from trainer.stages.teacher import teacher_sha256
from trainer.teachers.cached import index
from trainer.teachers.teacher_loss import teacher_loss
from trainer.telemetry.run import Telemetry
from trainer.training.auto_freeze import auto_freeze
from trainer.training.context import StageContext
from trainer.training.evaluation import HeldOutLoss, Measured, StageEvaluation, held_out_loss
from trainer.training.loop import StageTrace
from trainer.training.parallel import running, shard_models
from trainer.training.weight_average import WeightAverage

__all__ = ["Outcome", "run"]


def run(
    config: Config,
    inputs: Inputs,
    teacher: nn.Module,
    context: StageContext,
    telemetry: Telemetry,
    *,
    snapshots: StageSnapshots | None = None,
    forced: tuple[str, ...] = (),
    config_sha256: str | None = None,
) -> Outcome:
    """Train and evaluate. Goes on from a snapshot, or where `context.checkpoints` restores the run.

    Args:
        teacher: of `stages.teacher.prepare_teacher`.
        context: without `watch`, auto-freeze, evaluation, points, average and rule of scale, which are set
            here.
        telemetry: opened; it gets every step.
        forced: refusals of the preflight that `force` has passed over.
        config_sha256: of the configuration as the user gave it; None: of `config`.

    Raises:
        TrainerError: of the kind that says why the run ended early.
    """
    device, stop, checkpoints = context.device, context.stop, context.checkpoints
    corpus = inputs.corpus
    _require_same_text(corpus, device.ranks)
    caches = index.check(config, corpus, teacher)
    require_model(config, teacher)
    tensor_parallel.check(teacher, config.device.mesh)
    if not device.ranks.alone:
        stop.share(device.ranks.any)  # a signal to one process ends all of them at the same step
    torch.manual_seed(config.seed)  # of the student's new parameters
    # Products of bfloat16 weights are bfloat16, whatever the device's are.
    in_bfloat16 = computes_in_bfloat16(teacher, config.model.master_dtype)
    dtype = dtype_name(torch.bfloat16 if in_bfloat16 else device.dtype)
    # Of each stage in order: what one of its steps counts for in effective steps, and its steps.
    weights = step_weights(config)
    lengths = {name: (weight, getattr(config, name).max_steps) for name, weight in weights.items()}
    telemetry.plan(sum(weight * steps for weight, steps in lengths.values()))

    @cache  # training waits while it is computed, which takes seconds for a pretrained teacher
    def teacher_digest() -> str:
        return teacher_sha256(config, corpus, teacher, device)

    def measure_loss(model: nn.Module, when: str, batches: list[Tensor] = inputs.held_out) -> HeldOutLoss:
        with telemetry.during("evaluating", when), stop.together(when):
            return held_out_loss(model, batches, device=device, stage=when)

    # Of a snapshot of a stage or of a point within it: what must agree to start there, and its own numbers.
    evaluation = {name: getattr(config.eval, name) for name in ("batches", "batch_size", "part_batches")}
    traces: dict[str, StageTrace] = {}  # of the stages that have ended, and their operations
    flops: dict[str, float] = {}

    def identity(key: str) -> Identity:
        return Identity(
            key=key, data_sha256=corpus.sha256, teacher=teacher_digest(), device=device.kind, dtype=dtype
        )

    def numbers_within(stage: str, seconds: float) -> StageNumbers:
        dollars = partial(stage_usd, config, context)
        earlier = {name: trace.seconds for name, trace in traces.items() if trace.losses}
        return StageNumbers(
            seconds=seconds,
            usd=dollars(stage, seconds),
            metrics={},
            evaluation=evaluation,
            usd_of_earlier={name: dollars(name, took) for name, took in earlier.items()},
        )

    def write_point(stage: str, step: int, seconds: Callable[[], float]) -> None:
        if snapshots and snapshots.is_due(stage, step):
            snapshots.write_point(stage, step, identity, partial(numbers_within, stage, seconds()))

    # Stage 1: the student, from the teacher. All stages are checked to be able to train it before one does.
    def ternary_student(calibration: list[Tensor] | None) -> tuple[nn.Module, Lambda]:
        return make_student(
            teacher,
            config.stage1,
            calibration,
            quant=config.quant,
            device=device,
            master_dtype=config.model.master_dtype,
        )

    def student_at_snapshot(snapshots: StageSnapshots) -> tuple[nn.Module, Lambda] | None:
        for place in snapshots.candidates():
            found = snapshots.find(place, identity)
            if found is None:
                continue
            student, lambda_ = ternary_student(None)  # uncalibrated: the stage begins by restoring weights
            if snapshots.start(found, place, student, evaluation):
                alike = measured_alike(found, evaluation)
                reached = place.stage if place.step is None else str(place)
                telemetry.take_over(found.path / METRICS, reached, lengths, held_out=alike)
                return student, lambda_
        return None

    def calibrated_student() -> tuple[nn.Module, Lambda]:
        # Batches as Stage 1.9 will see them; the evaluation's size must not reach the weights.
        with stage_text(corpus, config, "stage1", config.stage1_9.batch_size) as feed:
            return ternary_student(
                [
                    ids_bT
                    for ids_BT in islice(feed, config.stage1.calibration_batches)
                    for ids_bT in micro_batches(ids_BT, config.stage1_9.micro_batch_size)
                ]
            )

    begun = student_at_snapshot(snapshots) if snapshots else None
    student, lambda_ = begun or calibrated_student()
    require_student(config, student)
    if snapshots and device.ranks.first and device.teacher == "sharded":
        teacher_digest()  # while this process has all of it
    shard_models(student, teacher, device)
    fp8.require_multiples(student, config.stage2, config.data.sequence_length, processes=device.ranks.world)
    distill.require_trainable(student, config.stage3, inputs.held_out[0][:1], stop=stop)
    adapters = adapters_for(student, config.recovery) if config.recovery.max_steps else None

    # What watches the steps of the stages.
    last = next(((name, steps) for name, (_, steps) in reversed(lengths.items()) if steps), None)
    ends_with_snapshot = last and (
        (config.snapshots.write and last[0] == layerwise.NAME) or (snapshots and snapshots.is_due(*last))
    )
    within_stages = StageEvaluation(
        config.eval,
        inputs.held_out,
        device=device,
        # A run that starts at that snapshot needs the line of its step, which must come before the snapshot.
        last=None if ends_with_snapshot else last,
        report=telemetry.record_held_out,
        during=partial(telemetry.during, "evaluating"),
    )
    freeze = auto_freeze(config, student)
    average = None
    if (averaged := config.averaged_stage) is not None:
        average = WeightAverage(student, config.average, stage=averaged, steps=lengths[averaged][1])
    # Not `context` again: points hold that one, and would keep themselves and the teacher alive in a circle.
    watched = replace(
        context,
        watch=telemetry.watch,
        hooks=replace(
            context.hooks,
            freeze=freeze,
            evaluation=within_stages,
            points=write_point if snapshots else None,
            average=average,
        ),
        scale_rule=config.scale_rule,
    )
    if context.hooks.memory:
        context.hooks.memory.models(student, teacher)
    size = parameter_count(student)  # before adapters are added
    device.reset_peak_memory()
    stop.begun()

    def train(name: str, stage: Callable[..., StageTrace]) -> None:
        settings = getattr(config, name)
        if not settings.max_steps:
            traces[name], flops[name] = StageTrace(), 0.0
            return
        settings = settings.with_carried_lr(config.data.sequence_length)
        per_token = flops_per_token(config, name, student, teacher)
        before = (lengths[earlier] for earlier in takewhile(name.__ne__, lengths))
        telemetry.begin(
            name,
            finished=sum(weight * steps for weight, steps in before),
            weight=lengths[name][0],
            device=device,
            flops_per_token=per_token,
        )
        # Objectives are built with a model that runs: they look at what its head computes.
        with stage_text(corpus, config, name, settings.batch_size, device.ranks) as feed, running(student):
            traces[name] = stage(student, teacher, lambda_, settings, feed, watched)
        flops[name] = traces[name].tokens * per_token

    train(layerwise.NAME, layerwise.align)

    def loss_before_stage2() -> dict[str, float]:
        return {"mean": measure_loss(student, "the start of stage2").mean}

    noted = checkpoints.once("stage2_start", loss_before_stage2)  # which a resumed run does not measure again
    start = HeldOutLoss(mean=noted["mean"])

    def report() -> Report:
        return Report(
            config=config,
            inputs=inputs,
            context=context,
            traces=traces,
            flops=flops,
            start=start,
            keys=snapshots.keys if snapshots else {},
            model_parameters=size,
        )

    if snapshots:

        def numbers_at_end() -> StageNumbers:
            so_far = report()
            (stage,) = so_far.stages()
            return StageNumbers(
                seconds=stage.seconds, usd=stage.usd, metrics=so_far.of_alignment(), evaluation=evaluation
            )

        with stop.hold(f"the end of {layerwise.NAME}"):
            snapshots.write(layerwise.NAME, identity, numbers_at_end)

    train(pretrain.NAME, pretrain.pretrain)
    train(distill.NAME, distill.distill)

    loss_without_adapters = None
    if adapters:
        loss_without_adapters = checkpoints.once(
            f"{recover.NAME}_start",
            lambda: {"mean": measure_loss(student, f"the start of {recover.NAME}").mean},
        )["mean"]
        # A signal may come before recovery begins: its checkpoint is of the stage before, without adapters.
        checkpoints.keep_names()
        add_adapters(student, adapters, seed=config.seed)
    train(recover.NAME, recover.recover)

    # The evaluation: of the student, and of the teacher on the same text.
    loss_without_average = None
    if average is not None:
        loss_without_average = checkpoints.once(  # a resumed run may have the average already
            "unaveraged",
            lambda: {"mean": measure_loss(student, "the final evaluation without the average").mean},
        )["mean"]
        average.apply()

    def measure(what: str, batches: list[Tensor], documents: tuple[int, ...]) -> Measured:
        return Measured(
            final=measure_loss(student, f"the final {what}", batches),
            reference=teacher_loss(
                lambda: measure_loss(teacher, f"the teacher's {what}", batches),
                config,
                batches,
                device=device,
                dtype=dtype,
                sha256=teacher_digest,
            ),
            documents=documents,
        )

    held_out = measure("evaluation", inputs.held_out, inputs.held_out_documents)
    within_stages.at_end(held_out.final)
    test = measure("test", inputs.test, inputs.test_documents) if inputs.test else None

    finished = report()
    stages = finished.stages()
    return Outcome(
        result=Result(
            metrics=finished.metrics(held_out, test, loss_without_average, loss_without_adapters),
            provenance=Provenance(
                config_sha256=config_sha256 or sha256(config),
                code_version=code_version(),
                device=device.name,
                torch=torch.__version__,
                seed=config.seed,
                data_sha256=corpus.sha256,
                dtype=dtype,
                muon_dtype={
                    key.removesuffix(".optimizer"): dtype_name(found)
                    for key, optimizer in optimizers(config)
                    if (found := muon_dtype(optimizer, device.torch_device)) is not None
                },
                reused_stages=tuple(stage.name for stage in stages if stage.reused),
                forced=forced,
                teacher_cache_sha256=caches.teacher,
                anchor_cache_sha256=caches.anchor,
            ),
            warnings=telemetry.warnings,
            stages=tuple(stage for stage in stages if stage.cost),
        ),
        student=student,
        tokenizer=corpus.tokenizer_dir,
        held_out=held_out,
        test=test,
    )


def _require_same_text(corpus: Corpus, ranks: Ranks) -> None:
    """Raise DataError in all processes of a run if they read different texts: losses are means over them."""
    texts = ranks.all_gather(corpus.order_sha256)
    other = next((rank for rank, text in enumerate(texts) if text != texts[0]), None)
    if other is not None:
        raise DataError(
            f"process {other} reads another text or tokenizer than process 0; give all hosts of the run the "
            "same files, and for data=stdlib the same Python"
        )
