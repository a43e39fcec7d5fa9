"""One stage of a very small model on a device, with what each of its steps made XLA do."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainer.api import check
from trainer.devices.device import Device, open_device
from trainer.memory_log.log import MemoryLog
from trainer.models.causal_lm import build_tiny, freeze
from trainer.models.subln import make_student
from trainer.stages import distill, layerwise, pretrain
from trainer.training.auto_freeze import auto_freeze
from trainer.training.context import StageContext, StageHooks
from trainer.training.evaluation import HeldOutPoint, StageEvaluation
from trainer.training.loop import Step

VOCABULARY, LENGTH, BATCH = 64, 16, 4
SMALL = (
    "model.hidden_size=32",
    "model.intermediate_size=48",
    "model.layers=2",
    "model.heads=2",
    f"data.sequence_length={LENGTH}",
    *(
        f"{stage}.{setting}"
        for stage in ("stage1_9", "stage2", "stage3")
        for setting in ("max_steps=6", f"batch_size={BATCH}", "schedule.warmup_steps=2")
    ),
    "stage2.lambda_warmup.warmup_steps=4",
    "stage1_9.saliency.update_interval=2",
    "device.threads=1",
    "device.dtype=float32",  # Muon's own is float32 on XLA's CPU device
)
SMALLEST = ("model.layers=1", "stage1.subln=ones")
"""Compilers are slow: for what a second layer, or gains that are measured, would not show."""
TRAIN = {"stage1_9": layerwise.align, "stage2": pretrain.pretrain, "stage3": distill.distill}


@dataclass
class Ran:
    """Losses by name; graphs compiled, graphs run and operations that went back to the CPU, of all that comes
    before the first step and then of each step. Of several chips: the shapes of what each has, of a
    micro-batch and, at the end, of the weights and of what the optimizers keep of them."""

    parts: dict[str, list[float]]
    compiled: list[int] = field(default_factory=list)
    launched: list[int] = field(default_factory=list)
    fallen_back: list[int] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    held_out: list[HeldOutPoint] = field(default_factory=list)
    chips: int = 1
    rows: list[list[int]] = field(default_factory=list)
    kept: dict[str, list[list[int]]] = field(default_factory=dict)


def ids(steps: int, batch: int = BATCH) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return iter([torch.randint(VOCABULARY, (batch, LENGTH), generator=generator) for _ in range(steps)])


def run_stage(
    stage: str, kind: str, *overrides: str, memory_log: Path | None = None, measured: bool = False
) -> Ran:
    """Trains `stage` on the device `kind` from a fresh teacher of seed 0; `measured`: with held-out losses."""
    config = check([*SMALL, f"device={kind}", *overrides])
    opened = open_device(config.device)
    ran = Ran({})
    device = counting(opened, ran) if kind == "xla" else opened
    torch.manual_seed(0)
    teacher = build_tiny(
        config.model, vocab_size=VOCABULARY, sequence_length=LENGTH, attention=opened.attention_for(LENGTH)
    )
    teacher = freeze(device.move(copy.deepcopy(teacher)))
    student, lambda_ = make_student(teacher, config.stage1, list(ids(1)), quant=config.quant, device=device)
    ran.compiled.clear(), ran.launched.clear(), ran.fallen_back.clear()
    own = getattr(config, stage)
    memory = MemoryLog(memory_log, config, device, append=False) if memory_log else None
    if memory:
        memory.models(student, teacher)
    held_out = list(ids(config.eval.part_batches))
    evaluation = StageEvaluation(config.eval, held_out, device=device, last=None, report=ran.held_out.append)
    hooks = StageHooks(
        freeze=auto_freeze(config, student), memory=memory, evaluation=evaluation if measured else None
    )
    trace = TRAIN[stage](
        student,
        teacher,
        lambda_,
        own,
        ids(own.max_steps, own.batch_size),
        StageContext(device=device, watch=ran.steps.append, hooks=hooks),
    )
    ran.parts, ran.chips = trace.parts, device.chips
    if device.chips > 1:
        ran.rows = rows_on_each(device, own.micro_batch_size or own.batch_size)
        ran.kept = dict(shapes_on_each(student, teacher, device.optimizers))
    return ran


def rows_on_each(device: Device, size: int) -> list[list[int]]:
    """The shape of what each chip has of a micro-batch of `size`."""
    (placed,) = device.place_micro_batches(next(ids(1, size)), None)
    return on_each(placed)


def shapes_on_each(
    student: nn.Module, teacher: nn.Module, optimizers: Iterable[Optimizer]
) -> Iterator[tuple[str, list[list[int]]]]:
    """The full shape of each parameter and of each state, and after it those of what the chips have."""
    for model, whose in ((student, "student"), (teacher, "teacher")):
        for name, parameter in model.named_parameters():
            yield f"{whose} {name}", [list(parameter.shape), *on_each(parameter)]
    names = {parameter: name for name, parameter in student.named_parameters()}
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            for what, value in state.items():
                yield f"{what} {names[parameter]}", [list(value.shape), *on_each(value)]


def on_each(tensor: Tensor) -> list[list[int]]:
    """The shape of what each chip has of a tensor."""
    import torch_xla

    if not torch_xla._XLAC._get_xla_sharding_spec(tensor):
        return [list(tensor.shape)] * torch_xla.runtime.global_runtime_device_count()
    (shards,) = torch_xla._XLAC._get_local_shards([tensor])
    return [list(shard.shape) for shard, _ in shards]


def counting(device: Device, ran: Ran) -> Device:
    """The device, which notes what has happened whenever a step ends."""
    import torch_xla.debug.metrics as met

    def now() -> tuple[int, int, int]:
        uncached = met.counter_value("UncachedCompile") or 0
        cached = met.counter_value("CachedCompile") or 0
        fallbacks = [name for name in met.counter_names() if name.startswith("aten::")]
        return uncached, uncached + cached, sum(met.counter_value(name) or 0 for name in fallbacks)

    before = [now()]

    class Counting(type(device)):  # type: ignore[misc]
        def end_step(self) -> None:
            super().end_step()
            after = now()
            compiled, launched, fallen_back = (b - a for a, b in zip(before[0], after, strict=True))
            ran.compiled.append(compiled)
            ran.launched.append(launched)
            ran.fallen_back.append(fallen_back)
            before[0] = after

        def shard(self, model: nn.Module, optimizers: Sequence[Optimizer] = ()) -> None:
            super().shard(model, optimizers)
            object.__setattr__(self, "optimizers", optimizers)

    fields = {each.name: getattr(device, each.name) for each in dataclasses.fields(device)}
    return Counting(**fields)


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().cpu() for parameter in model.parameters()]
