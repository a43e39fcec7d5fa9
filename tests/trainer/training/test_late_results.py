"""Steps whose results are read when the next one is submitted, as on CUDA: here on a CPU that says it does."""

from __future__ import annotations

import math
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from same_training import BASE
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.equivalence import Stage, trace
from trainer.api import check
from trainer.checkpoint.policy import NO_CHECKPOINTS, Parts
from trainer.devices import device as devices
from trainer.devices import sdpa
from trainer.devices.device import Device
from trainer.errors import DivergedError, PreemptedError
from trainer.optim.build import OptimizerSet
from trainer.training.context import StageContext, StageHooks, StagePlan
from trainer.training.loop import Step, train
from trainer.training.preemption import StopSignal

POISONED = 5
"""The one-based step that diverges."""


class LateDevice(Device):
    """A CPU that reads results as CUDA does."""

    reads_late = True  # type: ignore[assignment] # a property of its base


LATE, AT_ONCE = (
    kind(torch_device=torch.device("cpu"), dtype=torch.float32, name="CPU", attention=sdpa.register())
    for kind in (LateDevice, Device)
)
context = partial(StageContext, device=LATE)


class Toy(nn.Module):
    """A bigram model; its loss or its gradient is not finite in the calls that `poison` has."""

    def __init__(self, **poison: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        self.middle = nn.Linear(4, 4, bias=False)
        self.calls, self.poison = 0, poison

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def losses(self, ids_BT: Tensor) -> Mapping[str, Tensor]:
        self.calls += 1
        logits = self.head(self.middle(self.embedding(ids_BT[:, :-1])))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids_BT[:, 1:].flatten())
        if self.calls == POISONED and "loss" in self.poison:
            loss = self.poison["loss"](loss)
        if self.calls == POISONED and "gradient" in self.poison:
            loss.register_hook(self.poison["gradient"])
        return {"loss": loss, "by_layer": torch.stack([loss.detach(), loss.detach()])}

    def weights(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.parameters()]


POISONS = {
    "loss": Toy(loss=lambda loss: loss * math.nan).poison,
    "gradient": Toy(gradient=lambda gradient: gradient * math.inf).poison,
}


def plan(steps: int = 12, kind: str = "adamw") -> StagePlan:
    warmup = "stage2.lambda_warmup.warmup_steps=0"
    stage = check([f"stage2.max_steps={steps}", warmup, f"optimizer@stage2.optimizer={kind}"]).stage2
    return StagePlan(name="toy", steps=steps, optimizer=stage.optimizer, schedule=stage.schedule)


def batches() -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(1)
    while True:
        yield torch.randint(8, (2, 8), generator=generator)


def weights_before_the_poison(kind: str = "adamw") -> list[Tensor]:
    toy = Toy()

    def stop(step: Step) -> None:
        if step.step == POISONED - 1:
            raise StopIteration

    with pytest.raises(StopIteration):
        train(plan(kind=kind), toy, toy.losses, batches(), StageContext(device=AT_ONCE, watch=stop))
    return toy.weights()


def assert_equal(ours: list[Tensor], theirs: list[Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_the_same_steps_are_taken_and_reported(kind: str) -> None:
    late, once = Toy(), Toy()
    steps, expected = list[Step](), list[Step]()
    ours = train(plan(kind=kind), late, late.losses, batches(), context(watch=steps.append))
    theirs = train(
        plan(kind=kind), once, once.losses, batches(), StageContext(device=AT_ONCE, watch=expected.append)
    )
    assert_equal(late.weights(), once.weights())
    assert ours.parts == theirs.parts
    assert [(step.step, step.losses, step.grad_norm) for step in steps] == [
        (step.step, step.losses, step.grad_norm) for step in expected
    ]
    for step, other in zip(steps, expected, strict=True):
        assert step.details.keys() == other.details.keys() > {"by_layer", "grad_norm_matrices"}
        assert all(torch.equal(value, other.details[name]) for name, value in step.details.items())


def test_steps_are_reported_one_late() -> None:
    toy, reported = Toy(), list[tuple[int, int]]()
    train(
        plan(6),
        toy,
        toy.losses,
        batches(),
        context(watch=lambda step: reported.append((step.step, toy.calls))),
    )
    assert reported == [(1, 1), (2, 3), (3, 4), (4, 5), (5, 6), (6, 6)]


def test_reading_waits_for_the_step_before_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in flight when a step is read is the one that was submitted last."""
    toy, waits, begin = Toy(), list[tuple[int, int]](), devices.Device.begin_fetch

    def spying(device: Device, tensor: Tensor) -> Callable[[], Tensor]:
        sent_at, arrive = toy.calls, begin(device, tensor)

        def wait() -> Tensor:
            waits.append((sent_at, toy.calls))
            return arrive()

        return wait

    monkeypatch.setattr(devices.Device, "begin_fetch", spying)
    train(plan(6), toy, toy.losses, batches(), context())
    assert waits == [(2, 3), (3, 4), (4, 5), (5, 6)]


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("poison", POISONS)
def test_step_that_is_not_finite_changes_no_weight(poison: str, kind: str) -> None:
    toy, steps = Toy(**POISONS[poison]), list[Step]()
    with pytest.raises(DivergedError, match=rf"(loss|gradient norm) .* step {POISONED} of toy"):
        train(plan(kind=kind), toy, toy.losses, batches(), context(watch=steps.append))
    assert [step.step for step in steps] == [1, 2, 3, 4]
    assert toy.calls == POISONED + 1, "the next step was submitted before the loss was read"
    assert_equal(toy.weights(), weights_before_the_poison(kind))


def test_an_optimizer_that_cannot_skip_waits_for_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OptimizerSet, "can_skip", False)
    toy = Toy(**POISONS["loss"])
    with pytest.raises(DivergedError, match=f"step {POISONED}"):
        train(plan(), toy, toy.losses, batches(), context())
    assert toy.calls == POISONED
    assert_equal(toy.weights(), weights_before_the_poison())


class Saving:
    """A run whose state is read after a step, as by a checkpoint, and by a point of its trunk."""

    done = 0

    def __init__(self, at: int, *, by: str) -> None:
        self.at, self.by, self.saved = at, by, list[int]()

    @contextmanager
    def stage(self, name: str, steps: int, parts: Callable[[], Parts]) -> Iterator[Saving]:
        self.parts = parts() if self.by == "checkpoint" else None
        yield self

    def after(self, step: int, details: Mapping[str, float]) -> bool:
        if self.parts is None or step != self.at:
            return False
        losses = self.parts.trace.state().tensors["loss"]
        self.saved.append(len(losses))
        return True

    def write_point(self, stage: str, step: int, seconds: Callable[[], float]) -> None:
        if self.by == "point" and step == self.at:
            seconds()
            self.saved.append(step)


class Batches:
    """`batches`, with a position."""

    def __init__(self) -> None:
        self._batches = batches()

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Tensor:
        return next(self._batches)

    def state(self) -> Any:
        raise NotImplementedError

    restore = state


@pytest.mark.parametrize("by", ["checkpoint", "point"])
@pytest.mark.parametrize(("at", "saved"), [(4, [4]), (POISONED, [])])
def test_nothing_is_saved_of_a_step_that_is_not_finite(by: str, at: int, saved: list[int]) -> None:
    toy, saving = Toy(**POISONS["loss"]), Saving(at, by=by)
    hooks = StageHooks(points=saving.write_point)
    surroundings: Any = {"checkpoints": saving if by == "checkpoint" else NO_CHECKPOINTS, "hooks": hooks}
    with pytest.raises(DivergedError, match=f"step {POISONED}"):
        train(plan(), toy, toy.losses, Batches(), context(**surroundings))
    assert saving.saved == saved
    assert toy.calls == POISONED + (at != POISONED)


@pytest.mark.parametrize(("at", "error"), [(3, PreemptedError), (POISONED, DivergedError)])
def test_a_signal_waits_for_the_results_of_the_step_it_came_in(at: int, error: type[Exception]) -> None:
    toy, steps, stop = Toy(**POISONS["loss"]), list[Step](), StopSignal()
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

    def losses(ids_BT: Tensor) -> Mapping[str, Tensor]:
        if toy.calls == at - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return toy.losses(ids_BT)

    try:
        stop.install()
        with pytest.raises(error, match=f"step {at} of toy"):
            train(plan(), toy, losses, batches(), context(stop=stop, watch=steps.append))
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])
    assert len(steps) == min(at, POISONED - 1)


class HostReads(TorchDispatchMode):
    """Operations in steps that wait for a device, or would on CUDA: they have a result on the host."""

    NAMES = ("_local_scalar_dense", "nonzero", "masked_select", "equal")

    def __init__(self) -> None:
        super().__init__()
        self.places: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in self.NAMES:
            stack = [frame.name for frame in traceback.extract_stack()]
            if "_compute" in stack:
                self.places.append(" > ".join(stack[-8:-1]))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("stage", "kind"),
    [("stage1_9", "muon"), ("stage2", "muonclip"), ("stage2", "apollo"), ("stage3", "adamw")],
)
def test_no_step_waits_for_the_device(stage: Stage, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.equivalence.open_device", lambda config: LATE)
    small = [*BASE, "model.layers=1", f"{stage}.optimizer.type={kind}", f"{stage}.micro_batch_size=8"]
    with HostReads() as reads:
        trace(small, stage=stage, steps=4)
    assert reads.places == []


def test_the_search_would_find_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = Toy()

    def losses(ids_BT: Tensor) -> Mapping[str, Tensor]:
        losses = toy.losses(ids_BT)
        return losses if losses["loss"] > 0 else {}

    with HostReads() as reads:
        train(plan(6), toy, losses, batches(), context())
    assert len(reads.places) == 6
