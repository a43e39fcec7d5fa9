"""The training loop that the teacher and every stage share. Called by `stages` and `teachers`.

Shapes: B sequences, T tokens; `ids_BT`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from trainer.checkpoint import parts
from trainer.checkpoint.policy import Parts, StageCheckpoint
from trainer.checkpoint.state import State, Stateful
from trainer.data.feed import Feed, LabelledFeed
from trainer.devices.device import Device
from trainer.errors import ConfigError, PreemptedError
from trainer.optim.build import build_optimizer
from trainer.training.auto_freeze import PART as AUTO_FREEZE
from trainer.training.context import StageContext, StagePlan
from trainer.training.parallel import strategy_for
from trainer.training.step_results import PendingResults, Step, StepResult, Watch
from trainer.training.train_step import Objective, TrainStep

__all__ = ["Objective", "Prepare", "StageContext", "StagePlan", "StageTrace", "Step", "Watch", "train"]

LAST_STEPS = 10  # a stage's training loss is the mean over these: one batch is noise


@dataclass(kw_only=True)
class StageTrace:
    """Losses of a stage at each step, its tokens and its seconds. A part of a checkpoint.

    Args:
        parts: the loss and its parts, by name.
        eval_seconds: spent measuring held-out losses within the stage; not in `seconds`.
    """

    parts: dict[str, list[float]] = field(default_factory=dict)
    tokens: int = 0
    seconds: float = 0.0
    eval_seconds: float = 0.0
    complete: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)
    """Adds the steps that are still on the device; called before the state is read."""

    def add(self, step: Step) -> None:
        for name, value in step.losses.items():
            self.parts.setdefault(name, []).append(value)
        self.tokens += step.tokens
        self.seconds += step.seconds

    def state(self) -> State:
        self.complete()
        parts = {name: torch.tensor(values, dtype=torch.float64) for name, values in self.parts.items()}
        values = {"tokens": self.tokens, "seconds": self.seconds, "eval_seconds": self.eval_seconds}
        return State(tensors=parts, values=values)

    def restore(self, state: State) -> None:
        self.parts = {name: values.tolist() for name, values in state.tensors.items()}
        self.tokens, self.seconds = state.values["tokens"], state.values["seconds"]
        self.eval_seconds = state.values["eval_seconds"]

    @property
    def losses(self) -> list[float]:
        """Return the minimised loss at each step."""
        return self.parts.get("loss", [])

    def final(self, part: str) -> float | None:
        """Return the mean of a part of the loss over the last steps; None for a stage without steps."""
        last = self.parts.get(part, [])[-LAST_STEPS:]
        return sum(last) / len(last) if last else None

    @property
    def final_loss(self) -> float | None:
        """Return the mean training loss of the last steps; None for a stage without steps."""
        return self.final("loss")


Prepare = Callable[[int], Mapping[str, float]]
"""Called with the zero-based step before it is computed: sets lambda and the like, returns them to log."""


def train(
    plan: StagePlan,
    model: nn.Module,
    objective: Objective,
    batches: Iterator[Tensor],
    context: StageContext,
    *,
    prepare: Prepare = lambda step: {},
    teacher: nn.Module | None = None,
) -> StageTrace:
    """Train `model` in place for `plan.steps` steps, less those that a checkpoint has.

    Args:
        model: trained with all parameters that need gradients.
        objective: the losses of a batch, of which `loss` is minimised.
        batches: token ids [B, T] on the host; `Stateful` where there are checkpoints.
        teacher: another model that the objective runs, to be compiled with it.

    Raises:
        ConfigError: the model cannot be trained as the device says.
        DivergedError: a loss or a gradient is not finite. The weights are those before that step, or on XLA
            those of a later one. Nothing was saved since: what saves reads all results first.
        PreemptedError: a signal came; the step that was under way is finished.
    """
    model.train()
    if context.device.recompute:
        recompute_layers(model, context.device.checkpointing())
    return _StageLoop(plan, model, objective, batches, context, prepare, teacher).run()


def recompute_layers(model: nn.Module, by: Callable[..., Any] | None = None) -> None:
    """Make each decoder layer save its input alone, and recompute the rest for the backward pass.

    It saves memory for one more forward pass of the layers (Chen et al., arXiv:1604.06174).

    Args:
        by: called with a layer's function and its inputs; None: `torch.utils.checkpoint`.

    Raises:
        ConfigError: the model does not support it.
    """
    this = cast(Any, model)
    if not getattr(this, "supports_gradient_checkpointing", False):
        raise ConfigError(
            f"{type(model).__name__} cannot recompute its activations; write device.recompute=false and, "
            "for less memory, a smaller micro_batch_size",
            key="device.recompute",
        )
    # Without reentrance: hooks, keyword arguments and torch.compile work as they do without recomputation.
    settings = {"use_reentrant": False}
    if hasattr(this, "activation_checkpointing_enable"):
        this.activation_checkpointing_enable(activation_checkpointing_kwargs=settings)
    else:  # its earlier name
        this.gradient_checkpointing_enable(gradient_checkpointing_kwargs=settings)
    if by is not None:
        for module in model.modules():
            if hasattr(module, "_gradient_checkpointing_func"):
                cast(Any, module)._gradient_checkpointing_func = by


class _StageLoop:
    def __init__(
        self,
        plan: StagePlan,
        model: nn.Module,
        objective: Objective,
        batches: Iterator[Tensor],
        context: StageContext,
        prepare: Prepare,
        teacher: nn.Module | None,
    ) -> None:
        self._plan, self._model, self._batches, self._prepare = plan, model, batches, prepare
        self._device, self._stop, self._checkpoints = context.device, context.stop, context.checkpoints
        self._freeze, self._memory = context.hooks.freeze, context.hooks.memory
        self._evaluation, self._points = context.hooks.evaluation, context.hooks.points
        average = context.hooks.average
        self._average = average if average and average.stage == plan.name else None
        # Before the optimizer is built: it updates the parameters that this leaves.
        self._strategy = strategy_for(model, self._device)
        self._strategy.begin()
        self._optimizer = build_optimizer(
            model, plan.optimizer, scale_rule=context.scale_rule, ranks=self._device.ranks
        )
        self._take_step = TrainStep(
            plan,
            model,
            objective,
            self._optimizer,
            self._device,
            strategy=self._strategy,
            again=batches.rewind if isinstance(batches, LabelledFeed) else None,
            teacher=teacher,
        )
        self._trace, self._pending = StageTrace(), PendingResults[Step](self._device)
        # The trace outlives the stage, so it must not hold on to the optimizer's state.
        self._report = partial(_report, self._pending, self._trace, context.watch)
        self._trace.complete = partial(self._report, read=True)
        self._save_seconds = 0.0

    def run(self) -> StageTrace:
        plan, device, optimizer = self._plan, self._device, self._optimizer
        if self._freeze:
            self._freeze.begin(optimizer.leave_out_frozen)
        if self._average:
            self._average.begin()
        lasting = {AUTO_FREEZE: self._freeze, parts.AVERAGE: self._average}

        def everything() -> Parts:
            return Parts(
                lasting={
                    parts.MODEL: parts.Weights(self._model),
                    parts.RANDOM: parts.Random(device.torch_device),
                    **{name: part for name, part in lasting.items() if part},
                },
                passing={
                    parts.BUFFERS: parts.Buffers(self._model),
                    parts.OPTIMIZER: parts.OptimizerState(optimizer.optimizers, self._model),
                    parts.BATCHES: cast(Stateful, self._batches),
                },
                trace=self._trace,
            )

        with (
            closing(optimizer),
            self._strategy,
            self._checkpoints.stage(plan.name, plan.steps, everything) as checkpoint,
        ):
            device.shard(self._model, optimizer.optimizers)
            device.end_step()  # what was made or restored so far is no part of the first step
            if self._memory:
                self._memory.begin(plan.name, optimizer.optimizers, done=checkpoint.done)
            try:
                for number in range(checkpoint.done + 1, plan.steps + 1):
                    self._step(number, checkpoint)
            except PreemptedError:
                self._trace.complete()  # a diverged run is not to be resumed
                raise
        return self._trace

    def _step(self, number: int, checkpoint: StageCheckpoint) -> None:
        """Take the one-based step, report what was read, and let the checkpoint be saved."""
        plan, timer = self._plan, _StepTimer(self._device)
        if isinstance(self._batches, Feed):
            with timer.data():  # outside of `hold`: nothing of the step is begun, so a signal need not wait
                self._batches.wait()
        with self._stop.hold(f"step {number} of {plan.name}"):
            settings = self._prepare(number - 1)
            factor = plan.schedule.lr_factor(number - 1, plan.steps)
            self._optimizer.scale_lr(factor)
            if plan.optimizer.weight_decay_ends:
                decay = plan.optimizer.weight_decay_at(number - 1, plan.steps)
                self._optimizer.scale_weight_decay(decay / plan.optimizer.weight_decay)
                settings = {**settings, "weight_decay": decay}
            with timer.data():
                ids_BT = next(self._batches)
                micro = self._device.place_micro_batches(ids_BT, plan.micro_batch_size)
            result = self._compute(micro, number)
            timer.stop()
            inspection = self._freeze.inspect(number) if self._freeze else None
            if inspection and inspection.froze:
                self._device.end_step()  # the new values are no part of the next step
            lr = plan.optimizer.lr * factor
            step = partial(
                Step,
                stage=plan.name,
                step=number,
                of=plan.steps,
                lr=lr,
                tokens=ids_BT.numel() * self._device.ranks.data_world,
                seconds=timer.seconds,
                settings=settings,
                data_seconds=timer.data_seconds,
                save_seconds=self._save_seconds,
                inspection=inspection,
                compile_seconds=timer.compile_seconds,
            )
            self._pending.add(result, number, step)
            self._report()
            if self._evaluation and self._evaluation.due(plan.name, number, plan.steps):
                # After the lines of earlier steps, and before its own checkpoint, which
                # has the line then.
                self._trace.complete()
                self._trace.eval_seconds += self._evaluation.measure(
                    self._model, plan.name, number, plan.steps
                )
            began = time.perf_counter()
            saved = checkpoint.after(number, {"lr": lr, **settings})
            if self._points:
                self._points(plan.name, number, self._trained_seconds)
            self._save_seconds = time.perf_counter() - began
            if self._memory:
                self._memory.log_step(saved=saved, froze=inspection is not None and inspection.froze)

    def _trained_seconds(self) -> float:
        self._trace.complete()
        return self._trace.seconds

    def _compute(self, micro: Sequence[Tensor], number: int) -> StepResult:
        """Return the result of the step, once what is to be read now was read."""
        result = self._take_step(micro, number=number)
        if self._average:
            self._average.after(number)
        if self._memory:
            self._memory.read_graph()
        self._device.end_step()
        if self._device.reads(number, self._plan.steps):
            self._pending.read([result])
        elif self._device.reads_late:
            if not result.known:
                result.send(self._device)
            self._pending.read()  # the step before this one: the device always has work
        return result


def _report(pending: PendingResults[Step], trace: StageTrace, watch: Watch, *, read: bool = False) -> None:
    if read:
        pending.read()
    for step in pending.reports():
        trace.add(step)
        watch(step)


class _StepTimer:
    """Seconds of one step, from the construction to `stop`; those of the compiler are counted apart."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._began, self._compiled = time.perf_counter(), device.compile_seconds()
        self.seconds = self.data_seconds = self.compile_seconds = 0.0

    @contextmanager
    def data(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.data_seconds += time.perf_counter() - began

    def stop(self) -> None:
        self.compile_seconds = self._device.compile_seconds() - self._compiled
        self.seconds = time.perf_counter() - self._began - self.compile_seconds
