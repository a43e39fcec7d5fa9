"""The most memory that a stage's training step takes, from running it on shapes. Used by `memory`.

What is run is the program itself (student, teacher, losses, recomputation), so that a change there needs no
change here; optimizers, which look at numbers, are left to `preflight.optimizer`. Running all layers of a
deep model would take many seconds. Two or three of them do: in every phase of a step the most that is alive
grows by the same amount with each layer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainer.config import CachedTeacherConfig, Config, Stage2Config, Stage3Config, Stage19Config
from trainer.devices.device import Device
from trainer.losses.hidden_state_loss import DistillWeight
from trainer.losses.next_token import NextTokenLoss, cross_entropy
from trainer.losses.sparse import DTYPES, Sample, Targets
from trainer.models.causal_lm import freeze
from trainer.models.subln import normalised_projections, quantise
from trainer.preflight.fake_trace import Live, shapes_alone
from trainer.preflight.meta_model import Blueprint
from trainer.quant.ternary import held_weights
from trainer.quant.warmup import Lambda
from trainer.stages import distill, layerwise, pretrain
from trainer.stages.distill_cached import from_cache
from trainer.training.activation_checkpointing import recompute_layers
from trainer.training.train_step import Objective

Stage = Stage19Config | Stage2Config | Stage3Config

FEW, ONE_MORE = 2, 3  # layers; with one alone, the top one would be the bottom one


@dataclass(frozen=True, kw_only=True)
class Models:
    """Student and teacher on shapes, and what the student obeys."""

    student: nn.Module
    teacher: nn.Module
    strength: Lambda


def step_peak(config: Config, stage: Stage, plan: Blueprint, device: Device, *, micro_batch: int) -> int:
    """Bytes alive at most in forward and backward passes of one step: weights of student and teacher,
    gradients, activations and logits, without the optimizer's state."""

    def run(live: Live, models: Models, config: Config) -> None:
        student = models.student.train()
        if device.recompute:
            recompute_layers(student)
        _mark_the_top(student, live)
        with ExitStack() as stack:
            if stage.batch_size > micro_batch:
                for parameter in student.parameters():  # of the micro-batches before
                    parameter.grad = torch.zeros_like(parameter)
                if config.device.parallel == "none":
                    stack.enter_context(held_weights(student))
            objective = _objective(config, stage, models, stack)
            ids_bT = torch.zeros(micro_batch, config.data.sequence_length, dtype=torch.long)
            live.begin("forward")
            with device.autocast():
                loss = objective(ids_bT)["loss"]
            live.begin("backward of the top layer")
            loss.backward()  # type: ignore[no-untyped-call] # torch has no annotation here

    return _over_depths(config, plan, device, run)


def step_once(config: Config, stage: Stage, plan: Blueprint, device: Device, *, micro_batch: int) -> None:
    """Forward and backward passes with numbers, of models with random weights and of the run's depths, on the
    device that is the default one. Raises torch.OutOfMemoryError."""
    theirs = plan.dimensions.layers
    ours = config.stage1.keep_layers or theirs
    shallow = _without_layers_named(config, ours)
    models = _models(shallow, plan, ours, theirs)
    student = models.student.train()
    if device.recompute:
        recompute_layers(student)
    with ExitStack() as stack:
        objective = _objective(shallow, stage, models, stack)
        ids_bT = torch.zeros(micro_batch, config.data.sequence_length, dtype=torch.long)
        for _ in range(2 if stage.batch_size > micro_batch else 1):
            with device.autocast():
                loss = objective(ids_bT)["loss"]
            loss.backward()  # type: ignore[no-untyped-call] # torch has no annotation here


def evaluation_peak(config: Config, plan: Blueprint, device: Device) -> int:
    """Bytes alive at most while the held-out loss is measured, weights of both models included."""

    def run(live: Live, models: Models, config: Config) -> None:
        predict = NextTokenLoss(models.student.eval())
        ids_BT = torch.zeros(config.eval.batch_size, config.data.sequence_length, dtype=torch.long)
        live.begin("forward")
        with torch.no_grad(), device.autocast():
            predict(ids_BT)

    return _over_depths(config, plan, device, run)


def _over_depths(
    config: Config, plan: Blueprint, device: Device, run: Callable[[Live, Models, Config], None]
) -> int:
    """The peak at the run's depths, from those of few layers."""
    theirs = plan.dimensions.layers
    ours = config.stage1.keep_layers or theirs

    def peaks(student: int, teacher: int) -> Mapping[str, int]:
        shallow = _without_layers_named(config, student)
        with shapes_alone(device.torch_device) as live:
            run(live, _models(shallow, plan, student, teacher), shallow)
            return dict(live.peaks)

    if max(ours, theirs) <= ONE_MORE:
        return max(peaks(ours, theirs).values())
    if ours == theirs:
        few, more = peaks(FEW, FEW), peaks(ONE_MORE, ONE_MORE)
        return max(few[phase] + (ours - FEW) * (more[phase] - few[phase]) for phase in few)
    shallow = min(ours, FEW)
    few, deeper, both = peaks(shallow, FEW), peaks(shallow, ONE_MORE), peaks(shallow + 1, ONE_MORE)
    return max(
        few[phase]
        + (theirs - FEW) * (deeper[phase] - few[phase])
        + (ours - shallow) * (both[phase] - deeper[phase])
        for phase in few
    )


def _without_layers_named(config: Config, layers: int) -> Config:
    """With settings that go with any number of layers; which layer is named makes no difference to memory."""
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, layers=layers)
        if config.model.kind == "tiny"
        else config.model,
        stage1=dataclasses.replace(config.stage1, keep_layers=None),
        stage1_9=dataclasses.replace(config.stage1_9, layer_weights="uniform"),
        stage3=dataclasses.replace(config.stage3, attention_layer=-1),
    )


def _models(config: Config, plan: Blueprint, student_layers: int, teacher_layers: int) -> Models:
    teacher, student = freeze(plan.build(teacher_layers)), plan.build(student_layers)
    strength = Lambda()
    gains = {} if config.stage1.subln == "none" else dict.fromkeys(normalised_projections(student), 1.0)
    quantise(student, strength, config.quant, gains, blended=config.stage1.subln == "blended")
    return Models(student=student, teacher=teacher, strength=strength)


def _mark_the_top(student: nn.Module, live: Live) -> None:
    """Tells when the last gradient of the top layer is there: activations are freed and gradients made from
    the top down, so before that the most is alive of the one, and after the last layer of the other."""
    left = set()

    def arrived(parameter: Tensor) -> None:
        left.discard(id(parameter))
        if not left:
            live.begin("backward of the others")

    for parameter in student.get_decoder().layers[-1].parameters():  # type: ignore[operator]
        if parameter.ndim == 1:  # the norm of the layer's input is the last of all
            left.add(id(parameter))
            parameter.register_post_accumulate_grad_hook(arrived)


def _objective(config: Config, stage: Stage, models: Models, stack: ExitStack) -> Objective:
    student, teacher = models.student, models.teacher
    if isinstance(stage, Stage19Config):
        return layerwise.alignment(student, teacher, DistillWeight(1.0), config.stage1_9)
    if isinstance(stage, Stage2Config):
        taught = stage.distill.enabled
        return pretrain.distillation(student, teacher, stage.distill) if taught else cross_entropy(student)
    if stage.teacher.kind == "cached":
        return from_cache(student, _targets(config, stage.teacher), config.stage3, stage.teacher)
    if stage.teacher.kind == "http":  # a teacher elsewhere leaves candidates here, some of a vocabulary
        return cross_entropy(student)
    return distill.from_teacher(student, teacher, config.stage3, stack)


def _targets(config: Config, teacher: CachedTeacherConfig) -> Callable[[int], Targets]:
    """What caches hold of so many sequences, all of it of the first token."""
    positions, kept = config.data.sequence_length - 1, teacher.top_k + teacher.negatives

    def sample(rows: int) -> Sample:
        shape = rows, positions, kept
        logits = torch.zeros(shape, dtype=DTYPES[teacher.dtype])
        return Sample(ids=torch.zeros(shape, dtype=torch.int32), logits=logits)

    def targets(rows: int) -> Targets:
        return Targets(teacher=sample(rows), anchor=sample(rows) if teacher.anchored else None)

    return targets
