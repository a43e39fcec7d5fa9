"""The loop: what it reports, and how it ends early."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from trainer.api import check
from trainer.checkpoint.policy import Measured
from trainer.checkpoint.state import State
from trainer.data import prefetch
from trainer.data.feed import Feed
from trainer.devices.device import Device
from trainer.errors import DivergedError, PreemptedError
from trainer.optim.build import OptimizerSet
from trainer.training.context import StageContext, StagePlan
from trainer.training.evaluation import held_out_loss
from trainer.training.loop import StageTrace, Step, train
from trainer.training.preemption import StopSignal

DEVICE = Device(torch_device=torch.device("cpu"), dtype=torch.float32, name="CPU", attention="eager")
context = partial(StageContext, device=DEVICE)


class Toy(nn.Module):
    """A bigram model with the two ends that the trainer asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        self.middle = nn.Linear(4, 4, bias=False)

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def losses(self, ids_BT: Tensor) -> Mapping[str, Tensor]:
        logits = self.head(self.middle(self.embedding(ids_BT[:, :-1])))
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), ids_BT[:, 1:].flatten())}


def plan(steps: int = 12, *overrides: str) -> StagePlan:
    stage = check([f"stage2.max_steps={steps}", "stage2.lambda_warmup.warmup_steps=0", *overrides]).stage2
    return StagePlan(name="toy", steps=steps, optimizer=stage.optimizer, schedule=stage.schedule)


def stream() -> Iterator[Tensor]:
    while True:
        yield torch.arange(16).reshape(2, 8) % 8


def test_it_learns_and_reports_each_step() -> None:
    torch.manual_seed(0)
    toy, steps = Toy(), list[Step]()
    trace = train(plan(30), toy, toy.losses, stream(), context(watch=steps.append))
    assert [step.step for step in steps] == list(range(1, 31))
    assert steps[-1].losses["loss"] < steps[0].losses["loss"]
    assert trace.tokens == 30 * 16
    assert trace.seconds == pytest.approx(sum(step.seconds for step in steps))
    assert trace.final_loss == pytest.approx(sum(step.losses["loss"] for step in steps[-10:]) / 10)


def test_a_trace_that_is_brought_back_has_all_parts_of_the_loss() -> None:
    toy = Toy()

    def losses(ids_BT: Tensor) -> Mapping[str, Tensor]:
        loss = toy.losses(ids_BT)["loss"]
        return {"loss": loss, "half": loss / 2, "layer": torch.stack([loss.detach(), loss.detach()])}

    trace = train(plan(), toy, losses, stream(), context())
    back = StageTrace()
    back.restore(trace.state())
    assert back == trace
    assert back.final("half") == pytest.approx(sum(trace.losses[-10:]) / 20)
    assert set(back.parts) == {"loss", "half"}
    assert StageTrace().final("half") is None


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_logged_learning_rate_is_the_optimizers(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    toy, steps, used = Toy(), list[Step](), list[float]()
    step = OptimizerSet.step

    def spying(optimizer: OptimizerSet) -> None:
        used.append(optimizer.optimizers[0].param_groups[0]["lr"])
        step(optimizer)

    monkeypatch.setattr(OptimizerSet, "step", spying)
    this = plan(12, f"stage2.optimizer.type={kind}")
    train(this, toy, toy.losses, stream(), context(watch=steps.append))
    assert [step.lr for step in steps] == used
    expected = [this.optimizer.lr * this.schedule.lr_factor(index, 12) for index in range(12)]
    assert used == expected
    assert len(set(used)) > 3  # it moves


class Slow:
    """Batches that take `data_s` each, of a run whose checkpoints take `save_s` after every second step."""

    def __init__(self, data_s: float, save_s: float) -> None:
        self.data_s, self.save_s, self.done = data_s, save_s, 0
        self.batches = stream()

    def __iter__(self) -> Slow:
        return self

    def __next__(self) -> Tensor:
        time.sleep(self.data_s)
        return next(self.batches)

    @contextmanager
    def stage(self, name: str, steps: int, parts: object) -> Iterator[Slow]:
        yield self

    def after(self, step: int, values: Mapping[str, float]) -> bool:
        if step % 2 == 0:
            time.sleep(self.save_s)
        return step % 2 == 0

    def once(self, name: str, measure: Callable[[], Measured]) -> Measured:
        return measure()

    def peak(self, peak_memory_bytes: int) -> int:
        return peak_memory_bytes

    def compiled(self, seconds: float) -> float:
        return seconds


def test_a_steps_time_is_split_into_data_computing_and_saving() -> None:
    toy, steps, slow = Toy(), list[Step](), Slow(data_s=0.02, save_s=0.03)
    trace = train(plan(5), toy, toy.losses, slow, context(watch=steps.append, checkpoints=slow))
    assert all(0.02 <= step.data_seconds <= step.seconds for step in steps)
    # Saving is reported with the step after it, and is no part of what training took.
    assert [step.save_seconds >= 0.03 for step in steps] == [False, False, True, False, True]
    assert trace.seconds == pytest.approx(sum(step.seconds for step in steps))


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_names_its_step_and_stage(poison: float) -> None:
    toy, steps = Toy(), list[Step]()

    def losses(ids_BT: Tensor) -> Mapping[str, Tensor]:
        loss = toy.losses(ids_BT)["loss"]
        return {"loss": loss * poison if len(steps) == 4 else loss}

    with pytest.raises(DivergedError, match=r"(nan|inf) at step 5 of toy") as caught:
        train(plan(), toy, losses, stream(), context(watch=steps.append))
    assert (caught.value.step, caught.value.stage) == (5, "toy")
    assert all(p.isfinite().all() for p in toy.parameters())


def test_gradient_that_is_not_finite_changes_no_weight() -> None:
    toy = Toy()

    def losses(ids_BT: Tensor) -> Mapping[str, Tensor]:
        loss = toy.losses(ids_BT)["loss"]
        loss.register_hook(lambda gradient: gradient * math.inf)
        return {"loss": loss}

    with pytest.raises(DivergedError, match=r"gradient norm .* step 1"):
        train(plan(), toy, losses, stream(), context())
    assert all(p.isfinite().all() for p in toy.parameters())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_run_after_the_step_it_came_in(number: signal.Signals) -> None:
    toy, steps, stop = Toy(), list[Step](), StopSignal()
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}

    def losses(ids_BT: Tensor) -> Mapping[str, Tensor]:
        if len(steps) == 2:
            os.kill(os.getpid(), number)
        return toy.losses(ids_BT)

    try:
        stop.install()
        with pytest.raises(PreemptedError, match=f"{number.name} after step 3"):
            train(plan(), toy, losses, stream(), context(stop=stop, watch=steps.append))
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert len(steps) == 3


class HangingAfterTwo(Feed):
    """A read of the third batch that does not come back before it is let go."""

    def __init__(self) -> None:
        self.made, self.let_go = 0, threading.Event()

    def state(self) -> State:
        return State(values={"made": self.made})

    def restore(self, state: State) -> None:
        raise NotImplementedError

    def __next__(self) -> Tensor:
        if self.made == 2:
            self.let_go.wait(60)
        self.made += 1
        return next(stream())


def test_a_signal_does_not_wait_for_text_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "CLOSING_S", 0.1)
    toy, steps, stop, hanging, stage = Toy(), list[Step](), StopSignal(), HangingAfterTwo(), plan()
    feed = prefetch.Prefetched(hanging, ahead=1)
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM))

    def watch(step: Step) -> None:
        steps.append(step)
        if len(steps) == 2:  # a first step alone loads packages for seconds
            timer.start()

    try:
        stop.install()
        with pytest.raises(PreemptedError, match="SIGTERM"):
            train(stage, toy, toy.losses, feed, context(stop=stop, watch=watch))
        assert not hanging.let_go.is_set()
    finally:
        timer.cancel()
        hanging.let_go.set()
        feed.close()
        for each, handler in before.items():
            signal.signal(each, handler)
    assert len(steps) == 2
    assert feed.state() == State(values={"made": 2})


def test_signal_between_steps_is_raised_at_once() -> None:
    stop = StopSignal()
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    try:
        stop.install()
        with pytest.raises(PreemptedError, match=r"stopped by SIGTERM$"):
            os.kill(os.getpid(), signal.SIGTERM)
        stop.ignore()
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])


class Fixed(nn.Module):
    """Gives each batch the loss that its first token says."""

    def forward(self, input_ids: Tensor, **_: object) -> object:
        wrong = input_ids[0, 0].float()
        logits = torch.zeros(*input_ids.shape, 2)
        logits[..., 0] = -wrong
        return type("Outputs", (), {"logits": logits})


def test_held_out_loss_has_mean_and_sequences() -> None:
    batches = [torch.tensor([[k, 0, 0]]) for k in (0, 1, 2)]
    losses = [math.log(1 + math.exp(k)) for k in (0, 1, 2)]
    mean = sum(losses) / 3
    measured = held_out_loss(Fixed(), batches, device=DEVICE, stage="the end")
    assert measured.mean == pytest.approx(mean)
    assert measured.by_sequence == pytest.approx(losses)
    assert measured.perplexity == pytest.approx(math.exp(mean))


def test_a_held_out_loss_that_is_not_finite_is_a_divergence() -> None:
    class Poisoned(Fixed):
        def forward(self, input_ids: Tensor, **_: object) -> object:
            return type("Outputs", (), {"logits": torch.full((*input_ids.shape, 2), math.nan)})

    with pytest.raises(DivergedError, match="nan at step 0 of the end"):
        held_out_loss(Poisoned(), [torch.zeros(1, 3, dtype=torch.long)] * 2, device=DEVICE, stage="the end")
