"""One run, from its configuration to its result: teacher → Stage 1 → 1.9 → 2 → 3 → adapters → held-out loss.

Called by `__main__`, which handles the run's folder, signals and exit status.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice, takewhile

import torch
from torch import Tensor, nn

from trainer.checkpoint.manifest import METRICS
from trainer.checkpoint.snapshot_place import Identity, StageNumbers
from trainer.checkpoint.stage_snapshot import StageSnapshots, measured_alike
from trainer.config import Config, RecoveryConfig, Stage2Config, Stage3Config, Stage19Config, sha256
from trainer.config.effective_steps import weights
from trainer.cost.stage_flops import flops_per_token
from trainer.data import Feed
from trainer.data.stage_text import stage_text
from trainer.devices.device import micro_batches
from trainer.distributed.ranks import ALONE as SINGLE_PROCESS
from trainer.distributed.ranks import Ranks
from trainer.layout import Progress
from trainer.models.adapters import add_adapters, planned
from trainer.models.causal_lm import seed_everything
from trainer.models.subln import make_student
from trainer.optim.validate import require_model, require_student
from trainer.outcome import Outcome, Report, muon_dtypes, products_dtype, stage_usd
from trainer.quant import fp8
from trainer.quant.warmup import Lambda
from trainer.result import Provenance, Result, StageResult, code_version
from trainer.stages import distill, layerwise, pretrain, recover
from trainer.teachers.cached import compatibility
from trainer.teachers.local import PreparedInputs, prepare_inputs, teacher_sha256
from trainer.teachers.teacher_loss import teacher_loss
from trainer.telemetry import Telemetry
from trainer.training.auto_freeze import auto_freeze
from trainer.training.context import StageContext
from trainer.training.evaluation import HeldOutLoss, Measured, held_out_loss
from trainer.training.loop import StageTrace
from trainer.training.stage_evaluation import StageEvaluation
from trainer.training.weight_average import WeightAverage

__all__ = ["Outcome", "run"]


@dataclass(frozen=True, kw_only=True)
class _Run:
    config: Config
    config_sha256: str
    inputs: PreparedInputs
    context: StageContext
    telemetry: Telemetry
    forced: tuple[str, ...]
    snapshots: StageSnapshots | None
    teacher_digest: Callable[[], str]  # one for all copies: training waits while it is computed
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
            reference=self._teacher_loss(f"the teacher's {name}", test=test),
        )

    def _teacher_loss(self, when: str, *, test: bool) -> HeldOutLoss:
        teacher, device = self.inputs.teacher, self.context.device
        return teacher_loss(
            lambda: self.held_out_loss(teacher, when, test=test),
            self.config,
            self.inputs.test if test else self.inputs.held_out,
            device=device,
            dtype=products_dtype(self.config, teacher, device),
            sha256=self.teacher_digest,
        )

    def flops_per_token(self, stage: str, student: nn.Module) -> float:
        return flops_per_token(self.config, stage, student, self.inputs.teacher)

    def identity(self, key: str) -> Identity:
        device, teacher = self.context.device, self.inputs.teacher
        return Identity(
            key=key,
            data_sha256=self.inputs.corpus.sha256,
            teacher=self.teacher_digest(),
            device=device.kind,
            dtype=products_dtype(self.config, teacher, device),
        )

    @property
    def keys(self) -> Mapping[str, str]:
        return self.snapshots.keys if self.snapshots else {}

    @property
    def evaluation(self) -> dict[str, int]:
        config = self.config.eval
        return {name: getattr(config, name) for name in ("batches", "batch_size", "part_batches")}

    def report(self, student: nn.Module, traces: Mapping[str, StageTrace], start: HeldOutLoss) -> Report:
        return Report(
            config=self.config,
            inputs=self.inputs,
            context=self.context,
            traces=traces,
            flops={
                name: trace.tokens * self.flops_per_token(name, student) for name, trace in traces.items()
            },
            start=start,
            keys=self.keys,
        )


def run(
    config: Config,
    context: StageContext,
    telemetry: Telemetry,
    *,
    snapshots: StageSnapshots | None = None,
    progress: Progress = lambda message, fraction: None,
    forced: tuple[str, ...] = (),
    config_sha256: str | None = None,
) -> Outcome:
    """Train and evaluate. Goes on from a snapshot, or where `context.checkpoints` restores the run.

    Args:
        config: of the run.
        context: without `watch` and auto-freeze, which are set here.
        telemetry: opened; it gets every step.
        snapshots: of stages, in the run's folder.
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
        snapshots=snapshots,
        teacher_digest=cache(partial(teacher_sha256, config, inputs, device)),
    )
    telemetry.plan(sum(_effective_steps(config).values()))
    student, strength = _student(this)
    evaluation = _stage_evaluation(this)
    traces: dict[str, StageTrace] = {}
    hooks = replace(
        context.hooks,
        freeze=auto_freeze(config, student),
        evaluation=evaluation,
        points=_Points(this, snapshots, traces) if snapshots else None,
        average=_average(config, student),
    )
    caches = compatibility.check(config, inputs.corpus, inputs.teacher)
    this = replace(this, caches=caches, context=replace(this.context, hooks=hooks))
    if context.hooks.memory:
        context.hooks.memory.models(student, inputs.teacher)
    device.reset_peak_memory()
    stop.begun()
    start = _train_stages(this, student, strength, traces)
    frozen = _recover(this, student, strength, traces)
    return _evaluate(this, student, traces, start, frozen, evaluation)


def _student(this: _Run) -> tuple[nn.Module, Lambda]:
    """Stage 1. Return the student, which all stages were checked to be able to train, and its lambda.

    Where there is a snapshot, nothing is calibrated: the student's weights are restored as Stage 1.9 begins.
    """
    config, device = this.config, this.context.device
    student, strength = _from_snapshot(this) or _ternary(this, _calibration(this))
    require_student(config, student)
    fp8.require_multiples(student, config.stage2, config.data.sequence_length, processes=device.ranks.world)
    distill.require_trainable(student, config.stage3, this.inputs.held_out[0][:1], stop=this.context.stop)
    if config.recovery.max_steps:
        planned(student, config.recovery)
    return student, strength


def _from_snapshot(this: _Run) -> tuple[nn.Module, Lambda] | None:
    for place in this.snapshots.candidates() if this.snapshots else ():
        found = this.snapshots.find(place, this.identity) if this.snapshots else None
        if found is None:
            continue
        student, strength = _ternary(this, None)
        if this.snapshots and this.snapshots.start(found, place, student, this.evaluation):
            alike = measured_alike(found, this.evaluation)
            reached = place.stage if place.step is None else str(place)
            this.telemetry.take_over(found.path / METRICS, reached, _lengths(this.config), held_out=alike)
            return student, strength
    return None


def _calibration(this: _Run) -> list[Tensor]:
    config = this.config
    # Batches as Stage 1.9 will see them; the evaluation's size must not reach the weights.
    with this.batches("stage1", config.stage1_9.batch_size) as feed:
        return [
            ids_bT
            for ids_BT in islice(feed, config.stage1.calibration_batches)
            for ids_bT in micro_batches(ids_BT, config.stage1_9.micro_batch_size)
        ]


def _ternary(this: _Run, calibration: list[Tensor] | None) -> tuple[nn.Module, Lambda]:
    config, device = this.config, this.context.device
    return make_student(
        this.inputs.teacher,
        config.stage1,
        calibration,
        quant=config.quant,
        device=device,
        master_dtype=config.model.master_dtype,
    )


class _Points:
    """Writes the points of trunks.

    Args:
        run: of which.
        snapshots: in its folder.
        traces: of the stages that have ended; filled while the run goes on.
    """

    def __init__(self, run: _Run, snapshots: StageSnapshots, traces: Mapping[str, StageTrace]) -> None:
        self._run, self._snapshots, self._traces = run, snapshots, traces
        self.is_due = snapshots.is_due

    def write(self, stage: str, step: int, seconds: float) -> None:
        """See `TrunkPoints`."""
        self._snapshots.write_point(stage, step, self._run.identity, partial(self._numbers, stage, seconds))

    def _numbers(self, stage: str, seconds: float) -> StageNumbers:
        dollars = partial(stage_usd, self._run.config, self._run.context)
        earlier = {name: trace.seconds for name, trace in self._traces.items() if trace.losses}
        return StageNumbers(
            seconds=seconds,
            usd=dollars(stage, seconds),
            metrics={},
            evaluation=self._run.evaluation,
            usd_of_earlier={name: dollars(name, took) for name, took in earlier.items()},
        )


def _average(config: Config, student: nn.Module) -> WeightAverage | None:
    stage = config.averaged_stage
    if stage is None:
        return None
    steps = getattr(config, stage).max_steps
    return WeightAverage(student, config.average, stage=stage, steps=steps)


def _take_average(this: _Run, student: nn.Module) -> float | None:
    """Give the student its averaged weights; return the loss before, None where there is no average."""
    average = this.context.hooks.average
    if average is None:
        return None

    def measure() -> dict[str, float]:
        return {"mean": this.held_out_loss(student, "the final evaluation without the average").mean}

    noted = this.context.checkpoints.once("unaveraged", measure)  # a resumed run may have the average already
    average.apply()
    return noted["mean"]


def _stage_evaluation(this: _Run) -> StageEvaluation:
    trained = [(name, getattr(this.config, name).max_steps) for name in weights(this.config)]
    last = next(((name, steps) for name, steps in reversed(trained) if steps), None)
    ends_a_stage = this.config.snapshots.write and last and last[0] == layerwise.NAME
    if ends_a_stage or (last and this.snapshots and this.snapshots.is_due(*last)):
        last = (
            None  # a run that starts there needs the line of that step, which is to come before the snapshot
        )
    return StageEvaluation(
        this.config.eval,
        this.inputs.held_out,
        device=this.context.device,
        last=last,
        report=this.telemetry.measured,
        during=partial(this.telemetry.during, "evaluating"),
    )


def _train_stages(
    this: _Run, student: nn.Module, strength: Lambda, traces: dict[str, StageTrace]
) -> HeldOutLoss:
    """Train Stages 1.9, 2 and 3, each if it has steps. Add their traces; return the loss before Stage 2."""
    traces[layerwise.NAME] = _train(this, layerwise.NAME, layerwise.align, student, strength)

    def measure() -> dict[str, float]:
        loss = this.held_out_loss(student, "the start of stage2")
        return {"mean": loss.mean, "sem": loss.sem}

    noted = this.context.checkpoints.once("stage2_start", measure)
    start = HeldOutLoss(mean=noted["mean"], sem=noted["sem"])
    _write_snapshot(this, student, traces, start)
    traces[pretrain.NAME] = _train(this, pretrain.NAME, pretrain.pretrain, student, strength)
    traces[distill.NAME] = _train(this, distill.NAME, distill.distill, student, strength)
    return start


def _recover(this: _Run, student: nn.Module, strength: Lambda, traces: dict[str, StageTrace]) -> float | None:
    """Train adapters, if they have steps; return the held-out loss before, None without them."""
    config = this.config.recovery
    before = None
    if config.max_steps:

        def measure() -> dict[str, float]:
            return {"mean": this.held_out_loss(student, f"the start of {recover.NAME}").mean}

        before = this.context.checkpoints.once(f"{recover.NAME}_start", measure)["mean"]
        add_adapters(student, planned(student, config), seed=this.config.seed)
    traces[recover.NAME] = _train(this, recover.NAME, recover.recover, student, strength)
    return before


def _write_snapshot(
    this: _Run, student: nn.Module, traces: Mapping[str, StageTrace], start: HeldOutLoss
) -> None:
    """Write the end of Stage 1.9, if that is wanted. Before Stage 2, of which nothing is in it."""
    if this.snapshots is None:
        return

    def numbers() -> StageNumbers:
        report = this.report(student, traces, start)
        (stage,) = report.stages()
        return StageNumbers(
            seconds=stage.seconds,
            usd=stage.usd,
            metrics=report.of_alignment(),
            evaluation=this.evaluation,
        )

    with this.context.stop.hold(f"the end of {layerwise.NAME}"):
        this.snapshots.write(layerwise.NAME, this.identity, numbers)


def _train(
    this: _Run, name: str, train: Callable[..., StageTrace], student: nn.Module, strength: Lambda
) -> StageTrace:
    stage: Stage19Config | Stage2Config | Stage3Config | RecoveryConfig = getattr(this.config, name)
    if not stage.max_steps:
        return StageTrace()
    steps, device = _effective_steps(this.config), this.context.device
    this.telemetry.begin(
        name,
        finished=sum(steps[before] for before in takewhile(name.__ne__, steps)),
        weight=weights(this.config)[name],
        device=device,
        flops_per_token=this.flops_per_token(name, student),
    )
    with this.batches(name, stage.batch_size, device.ranks) as feed:
        return train(student, this.inputs.teacher, strength, stage, feed, this.context)


def _lengths(config: Config) -> dict[str, tuple[int, int]]:
    """Return, of each stage in order, what one of its steps counts for in effective steps, and its steps."""
    return {name: (weight, getattr(config, name).max_steps) for name, weight in weights(config).items()}


def _effective_steps(config: Config) -> dict[str, int]:
    """Return the effective steps of each stage, in the order of the stages."""
    return {name: weight * steps for name, (weight, steps) in _lengths(config).items()}


def _evaluate(
    this: _Run,
    student: nn.Module,
    traces: Mapping[str, StageTrace],
    start: HeldOutLoss,
    frozen: float | None,
    within_stages: StageEvaluation,
) -> Outcome:
    """Measure the student, and the teacher on the same text. `frozen` is the loss before adapters."""
    unaveraged = _take_average(this, student)
    held_out = this.measured(student)
    within_stages.at_end(held_out.final)
    test = this.measured(student, test=True) if this.inputs.test else None
    report = this.report(student, traces, start)
    stages = report.stages()
    return Outcome(
        result=Result(
            metrics=report.metrics(held_out, test, unaveraged, frozen),
            provenance=_provenance(this, student, stages),
            warnings=this.telemetry.warnings,
            stages=tuple(stage for stage in stages if stage.cost),
        ),
        student=student,
        tokenizer=this.inputs.corpus.tokenizer_dir,
        held_out=held_out,
        test=test,
    )


def _provenance(this: _Run, student: nn.Module, stages: list[StageResult]) -> Provenance:
    device = this.context.device
    return Provenance(
        config_sha256=this.config_sha256,
        code_version=code_version(),
        device=device.name,
        torch=torch.__version__,
        seed=this.config.seed,
        data_sha256=this.inputs.corpus.sha256,
        dtype=products_dtype(this.config, this.inputs.teacher, device),
        muon_dtype=muon_dtypes(this.config, device),
        reused_stages=tuple(stage.name for stage in stages if stage.reused),
        forced=this.forced,
        teacher_cache_sha256=this.caches.teacher,
        anchor_cache_sha256=this.caches.anchor,
    )
