"""Estimated memory of a process of a sharded run: against the tensors of real stages, counted while they train."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.tensor_memory import peak_bytes
from trainer.api import check
from trainer.checkpoint.state import State
from trainer.config import Config
from trainer.data.feed import Feed
from trainer.devices.device import Device, open_device
from trainer.distributed.ranks import Ranks
from trainer.distributed.tensors import local_tensor
from trainer.models.causal_lm import freeze
from trainer.models.host_layers import place_teacher
from trainer.models.subln import make_student
from trainer.preflight.memory import (
    evaluation_memory,
    loading_memory,
    stage_memory,
    stages,
    student_bytes,
    teacher_bytes,
)
from trainer.preflight.preflight import per_process
from trainer.preflight.trace import Blueprint, blueprint
from trainer.quant.warmup import Lambda
from trainer.stages import layerwise, pretrain
from trainer.training.context import StageContext, StageHooks
from trainer.training.evaluation import held_out_loss
from trainer.training.parallel import running, shard_models

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # several processes, each of which loads torch

SHAPE = (
    "model.layers=6", "model.hidden_size=64", "model.intermediate_size=160", "model.heads=2",
    "data.vocab_size=600", "data.sequence_length=48", "stage1_9.batch_size=4", "stage2.batch_size=4",
    "stage2.lambda_warmup.warmup_steps=1", "device=cpu", "device.threads=1", "device.dtype=float32",
    "device.parallel=fsdp", "stage1_9.schedule.warmup_steps=0", "stage2.schedule.warmup_steps=0",
)  # fmt: skip
FIRST, SECOND = (
    ("stage1_9.max_steps=2", "stage2.max_steps=0"),
    ("stage1_9.max_steps=0", "stage2.max_steps=2"),
)
WEIGHTS = ("data.sequence_length=8", "model.hidden_size=256")  # little but weights
IN_BFLOAT16 = ("model.master_dtype=bfloat16", "device.dtype=bfloat16", "device.recompute=true")
ADAMW = ("stage1_9.optimizer.type=adamw", "stage2.optimizer.type=adamw")
CASES: Mapping[tuple[int, int], tuple[tuple[str, ...], ...]] = {
    (2, 1): (
        (*FIRST, "device.teacher=sharded"),
        (*FIRST, *WEIGHTS, *ADAMW, "device.teacher=sharded", "stage1_9.micro_batch_size=1"),
        (*SECOND, *WEIGHTS, *ADAMW, "device.teacher=host"),
        (*SECOND, *WEIGHTS),
    ),
    (4, 2): (
        FIRST,
        (*SECOND, *WEIGHTS, *IN_BFLOAT16, "device.teacher=sharded"),
    ),
}


EVALUATED: Mapping[tuple[int, int], tuple[str, ...]] = {
    (2, 1): (*FIRST, "device.teacher=sharded", "eval.at=[]", "eval.batch_size=4"),
    (4, 2): (*FIRST, *WEIGHTS, *IN_BFLOAT16, "device.teacher=sharded", "eval.at=[]", "eval.batch_size=2"),
}


def process_part(*overrides: str, ranks: Ranks) -> tuple[Config, Blueprint, Device]:
    """A process's part of a run."""
    config = check([*SHAPE, *overrides])
    device = dataclasses.replace(open_device(config.device), ranks=ranks)
    return per_process(config, ranks.data_world), blueprint(config, device), device


class Zeros(Feed):
    """Batches of nothing but the first token."""

    def __init__(self, *shape: int) -> None:
        self.ids = torch.zeros(shape, dtype=torch.long)

    def __next__(self) -> torch.Tensor:
        return self.ids

    def state(self) -> State:
        return State(values={})

    def restore(self, state: State) -> None:
        pass


class Lasting:
    """Bytes of this process's own tensors as a stage's optimizer finds and leaves them."""

    def __init__(self, student: nn.Module, teacher: nn.Module, on_device: Callable[[str], bool]) -> None:
        self._student = student
        theirs = [each for name, each in teacher.named_parameters() if on_device(name)]
        self.found = {"teacher": _bytes(theirs)}

    def begin(self, name: str, optimizers: list[torch.optim.Optimizer], *, done: int) -> None:
        self._optimizers = optimizers
        optimizers[0].register_step_pre_hook(self._before_step)

    def _before_step(self, *_: object) -> None:
        weights: list[Any] = [*self._student.parameters()]  # other objects than before they were sharded
        self.found["student"] = _bytes(weights)
        self.found["gradients"] = _bytes(each.grad for each in weights)

    def log_step(self, **_: object) -> None:
        states = [state for each in self._optimizers for state in each.state.values()]
        kept = [each for state in states for each in state.values() if isinstance(each, torch.Tensor)]
        self.found["optimizer"] = _bytes(each for each in kept if each.ndim)

    def read_graph(self) -> None:
        pass


def _bytes(tensors: Any) -> int:
    return sum(local_tensor(each).nbytes for each in tensors)


def sharded_models(config: Config, teacher: nn.Module, device: Device) -> tuple[nn.Module, Lambda]:
    """A student of the teacher and its lambda; both models as `pipeline` leaves them to the stages."""
    without_text = dataclasses.replace(config.stage1, subln="ones")
    master_dtype = config.model.master_dtype
    student, lambda_ = make_student(
        teacher, without_text, [], quant=config.quant, device=device, master_dtype=master_dtype
    )
    shard_models(student, teacher, device)
    return student, lambda_


def measure(tensor: int, cases: tuple[tuple[str, ...], ...]) -> list[tuple[int, dict[str, int]]]:
    """Peak and lasting bytes of this process in each case."""
    torch.set_num_threads(1)
    found = []
    for overrides in cases:
        rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        ranks = Ranks(rank=rank, world=world, parallel="fsdp", tensor=tensor)
        config, plan, device = process_part(*overrides, ranks=ranks)
        ((_, stage),) = stages(config)
        train: Any = layerwise.align if config.stage1_9.max_steps else pretrain.pretrain
        feed = Zeros(stage.batch_size, config.data.sequence_length)
        lasting: list[Lasting] = []

        def build(plan: Blueprint = plan, device: Device = device) -> nn.Module:
            return place_teacher(freeze(plan.build(plan.dimensions.layers)), device)

        on_host = device.teacher == "host"
        # Here the host's memory is the device's: what was there before is not counted.
        host = [build()] if on_host else []

        def work(
            config: Config = config, device: Device = device, build: Any = build, host: Any = host,
            stage: Any = stage, train: Any = train, feed: Any = feed, lasting: Any = lasting,
        ) -> None:  # fmt: skip
            teacher = host[0] if host else build()
            student, lambda_ = sharded_models(config, teacher, device)
            lasting.append(Lasting(student, teacher, lambda name: not host or ".layers." not in name))
            hooks = StageHooks(memory=lasting[0])  # type: ignore[arg-type] # as much of a memory log as a stage calls
            with running(student):
                train(student, teacher, lambda_, stage, feed, StageContext(device=device, hooks=hooks))

        peak = peak_bytes(work)
        found.append((peak + (lasting[0].found["teacher"] if on_host else 0), lasting[0].found))
    return found


@pytest.mark.parametrize(("world", "tensor"), CASES)
def test_estimate_is_within_5_percent_of_a_process_s_tensors(
    world: int, tensor: int, together: Callable[..., list[Any]]
) -> None:
    cases = CASES[world, tensor]
    ranks = Ranks(rank=0, world=world, parallel="fsdp", tensor=tensor)
    of_first = together(measure, tensor, cases, world=world)[0]
    for overrides, (peak, lasting) in zip(cases, of_first, strict=True):
        config, plan, device = process_part(*overrides, ranks=ranks)
        ((name, stage),) = stages(config)
        estimate = stage_memory(config, name, stage, plan, device)
        assert estimate.peak == pytest.approx(peak, rel=0.05), overrides
        expected = {
            "teacher": teacher_bytes(plan.dimensions, device),
            "student": student_bytes(config, plan.dimensions, device),
            "gradients": estimate.gradients,
            "optimizer": estimate.optimizer,
        }
        assert lasting == pytest.approx(expected, rel=0.01), overrides
        assert estimate.weights == expected["teacher"] + expected["student"]


def made(tensor: int, overrides: tuple[str, ...]) -> tuple[int, int]:
    """Peak bytes of this process until both models are sharded: on a CPU, and beside a host that has the teacher."""
    torch.set_num_threads(1)
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    config, plan, device = process_part(
        *overrides, ranks=Ranks(rank=rank, world=world, parallel="fsdp", tensor=tensor)
    )

    def build() -> nn.Module:
        return place_teacher(freeze(plan.build(plan.dimensions.layers)), device)

    kept: list[object] = []
    on_cpu = peak_bytes(lambda: kept.append(sharded_models(config, build(), device)))
    loaded = build()
    beside = peak_bytes(lambda: kept.append(sharded_models(config, loaded, device)))
    return on_cpu, beside


LOADED = (*FIRST, *WEIGHTS, "device.teacher=sharded")


def test_neither_model_is_whole_while_they_are_sharded(together: Callable[..., list[Any]]) -> None:
    """But for the teacher, where it was loaded to: the device, if that is a CPU."""
    on_cpu, beside = together(made, 1, LOADED, world=4)[0]
    config, plan, device = process_part(*LOADED, ranks=Ranks(rank=0, world=4, parallel="fsdp"))
    assert loading_memory(config, plan, device).peak == pytest.approx(on_cpu, rel=0.05)
    whole = plan.dimensions.parameters * plan.dimensions.weight_bytes
    assert beside < 0.8 * whole
    ((name, stage),) = stages(config)
    assert beside < stage_memory(config, name, stage, plan, device).peak


def evaluated(tensor: int, overrides: tuple[str, ...]) -> int:
    """Peak bytes of this process while the held-out loss of a student is measured."""
    torch.set_num_threads(1)
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    config, plan, device = process_part(
        *overrides, ranks=Ranks(rank=rank, world=world, parallel="fsdp", tensor=tensor)
    )
    models: list[nn.Module] = []

    def make() -> None:
        teacher = place_teacher(freeze(plan.build(plan.dimensions.layers)), device)
        student, _ = sharded_models(config, teacher, device)
        models.extend((student, teacher))

    ids = torch.zeros(config.eval.batch_size, config.data.sequence_length, dtype=torch.long)
    return peak_bytes(
        lambda: held_out_loss(models[0], [ids] * world, device=device, stage="here"), after=make
    )


@pytest.mark.parametrize(("world", "tensor"), EVALUATED)
def test_estimate_of_an_evaluation_is_within_5_percent(
    world: int, tensor: int, together: Callable[..., list[Any]]
) -> None:
    overrides = EVALUATED[world, tensor]
    peak = together(evaluated, tensor, overrides, world=world)[0]
    config, plan, device = process_part(
        *overrides, ranks=Ranks(rank=0, world=world, parallel="fsdp", tensor=tensor)
    )
    assert evaluation_memory(config, plan, device).peak == pytest.approx(peak, rel=0.05)
