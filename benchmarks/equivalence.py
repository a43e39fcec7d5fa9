"""Similarity of two ways to compute the same training: cosines of gradients, logits and weights.

    a = trace(["stage2.batch_size=16"])
    b = trace(["stage2.batch_size=16", "stage2.micro_batch_size=4"])
    assert likeness(a, b).gradients > 0.999999

Each trains the same student, through the stage's own code, on the same random ids. A wrong configuration may
still compute the right loss: hence the gradient and the weights.

Shapes: B sequences, T tokens; `ids_BT`. All vectors are flat and float64.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from trainer.config import Config, TinyModelConfig
from trainer.config.compose import compose_config
from trainer.devices.device import Device, open_device
from trainer.models.causal_lm import build_tiny, freeze, run
from trainer.models.host_layers import place_teacher
from trainer.models.subln import make_student
from trainer.quant.warmup import Lambda
from trainer.stages import distill, layerwise, pretrain
from trainer.training.context import StageContext
from trainer.training.loop import Step

Stage = Literal["stage1_9", "stage2", "stage3"]
_TRAIN: dict[Stage, Callable[..., object]] = {
    "stage1_9": layerwise.align,
    "stage2": pretrain.pretrain,
    "stage3": distill.distill,
}


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Results of one training.

    Args:
        losses: of each step.
        gradient: of the first step, after clipping.
        logits: of the trained student on ids that it was not trained on.
        attention: transformers' implementation that the student had.
        before, after: all weights, at the start and after the last step.
        parameters: their names.
    """

    losses: list[float]
    gradient: Tensor
    logits: Tensor
    attention: str
    before: Tensor
    after: Tensor
    parameters: list[str]


@dataclass(frozen=True, kw_only=True)
class Likeness:
    """Cosines of two traces, 1 if they are equal, and the largest relative difference of a step's loss.

    `updates` compares the changes of the weights. It is far more sensitive than `weights`, which are mostly
    the initial ones after a few steps.
    """

    losses: float
    logits: float
    gradients: float
    weights: float
    updates: float


def trace(
    overrides: Sequence[str], *, stage: Stage = "stage2", steps: int = 6, attention: str | None = None
) -> Trace:
    """Train a tiny model for some steps of one stage, and return its trace.

    Args:
        overrides: of the trainer's configuration, with `model=tiny`.
        stage: to train.
        steps: optimizer steps.
        attention: transformers' implementation; None: the device's own choice.
    """
    config = compose_config([f"{stage}.max_steps={steps}", *overrides])
    device = open_device(config.device)
    if attention is not None:
        device = dataclasses.replace(device, attention=attention, eager_below=0)
    teacher, student, lambda_ = _models(config, device)
    settings = getattr(config, stage)
    ids = _ids(config, settings.batch_size)
    held_out_BT = next(ids)
    before, losses = _flat(list(student.parameters())), list[float]()

    def watch(step: Step) -> None:
        losses.append(step.losses["loss"])

    with _FirstGradient(student) as first:
        _TRAIN[stage](student, teacher, lambda_, settings, ids, StageContext(device=device, watch=watch))
    student.eval()
    with torch.no_grad(), device.autocast():
        logits = run(student, device.place(held_out_BT)).logits
    return Trace(
        losses=losses,
        gradient=first.gradient,
        logits=_flat([logits]),
        attention=str(cast(Any, student).config._attn_implementation),
        before=before,
        after=_flat(list(student.parameters())),
        parameters=[name for name, _ in student.named_parameters()],
    )


def likeness(a: Trace, b: Trace) -> Likeness:
    """Compare two traces of equally many steps."""
    return Likeness(
        losses=max(abs(x - y) / abs(x) for x, y in zip(a.losses, b.losses, strict=True)),
        logits=_cosine(a.logits, b.logits),
        gradients=_cosine(a.gradient, b.gradient),
        weights=_cosine(a.after, b.after),
        updates=_cosine(a.after - a.before, b.after - b.before),
    )


class _FirstGradient:
    """Hook that keeps the gradient of the first optimizer step."""

    gradient: Tensor

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __enter__(self) -> _FirstGradient:
        self._handle = register_optimizer_step_pre_hook(self._keep)
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.remove()

    def _keep(self, *_: Any) -> None:
        if not hasattr(self, "gradient"):
            self.gradient = _flat([p.grad for p in self._model.parameters() if p.grad is not None])


def _models(config: Config, device: Device) -> tuple[nn.Module, nn.Module, Lambda]:
    if not isinstance(config.model, TinyModelConfig):
        raise TypeError("models to compare are model=tiny")
    torch.manual_seed(config.seed)
    teacher = build_tiny(
        config.model,
        vocab_size=config.data.vocab_size,
        sequence_length=config.data.sequence_length,
        attention=device.attention_for(config.data.sequence_length),
    )
    teacher = place_teacher(freeze(teacher), device)
    calibration = next(_ids(config, 2))
    student, lambda_ = make_student(
        teacher,
        config.stage1,
        [calibration],
        quant=config.quant,
        device=device,
        master_dtype=config.model.master_dtype,
    )
    return teacher, student, lambda_


def _ids(config: Config, batch_size: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(config.seed)
    shape = (batch_size, config.data.sequence_length)
    while True:
        yield torch.randint(config.data.vocab_size, shape, generator=generator)


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().double().cpu().flatten() for tensor in tensors])


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.dot(a, b) / (a.norm() * b.norm()))
