"""The training loop that the teacher and every stage share. Called by `stages` and `teacher`.

Shapes: B sequences, T tokens; `ids_BT`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from trainer.checkpoint.parts import parts_of
from trainer.checkpoint.policy import NO_CHECKPOINTS, CheckpointPolicy, Parts
from trainer.checkpoint.state import State, Stateful
from trainer.config import OptimizerConfig, ScheduleConfig
from trainer.data.feed import Feed
from trainer.data.labelled_feed import Taught
from trainer.devices.device import Device
from trainer.optim.build import build_optimizer
from trainer.training.activation_checkpointing import recompute_layers
from trainer.training.auto_freeze import PART as AUTO_FREEZE
from trainer.training.auto_freeze import Look
from trainer.training.hooks import NO_HOOKS, StageHooks
from trainer.training.lr_schedule import lr_factor
from trainer.training.parallel import strategy_for
from trainer.training.preemption import StopSignal
from trainer.training.step_results import PendingResults
from trainer.training.train_step import Objective, TrainStep

__all__ = ["Objective", "Prepare", "StagePlan", "StageTrace", "Step", "Watch", "train"]

LAST_STEPS = 10  # a stage's training loss is the mean over these: one batch is noise


@dataclass(frozen=True, kw_only=True)
class StagePlan:
    """What the loop needs to know of a stage."""

    name: str
    steps: int
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    micro_batch_size: int | None = None


@dataclass(frozen=True, kw_only=True)
class Step:
    """One finished optimizer step.

    Args:
        step: one-based, of `of`.
        losses: `loss`, which was minimised, and its parts.
        details: 0-d and 1-D tensors, on the device; reading them waits for it.
        lr: what the optimizer used.
        grad_norm: before clipping.
        tokens: trained on in this step.
        seconds: it took, from asking for its batch to the end of its computation, without `compile_seconds`.
        data_seconds: of these, waiting for the batch and placing it.
        save_seconds: that saving took after the step before it; not in `seconds`.
        settings: what the stage set for this step (lambda, k, …).
        look: what auto-freeze saw after it; None: it did not look.
        compile_seconds: that the compiler took for this step, where it can be told apart.
    """

    stage: str
    step: int
    of: int
    losses: Mapping[str, float]
    lr: float
    grad_norm: float
    tokens: int
    seconds: float
    settings: Mapping[str, float]
    details: Mapping[str, Tensor] = field(default_factory=dict)
    data_seconds: float = 0.0
    save_seconds: float = 0.0
    look: Look | None = None
    compile_seconds: float = 0.0


@dataclass(kw_only=True)
class StageTrace:
    """What a stage leaves behind, beside the weights: the loss and its parts at each step, by name."""

    parts: dict[str, list[float]] = field(default_factory=dict)
    tokens: int = 0
    seconds: float = 0.0
    complete: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)
    """Called before the state is asked for: brings what is still on the device."""

    def add(self, step: Step) -> None:
        for name, value in step.losses.items():
            self.parts.setdefault(name, []).append(value)
        self.tokens += step.tokens
        self.seconds += step.seconds

    def state(self) -> State:
        self.complete()
        parts = {name: torch.tensor(values, dtype=torch.float64) for name, values in self.parts.items()}
        return State(tensors=parts, values={"tokens": self.tokens, "seconds": self.seconds})

    def restore(self, state: State) -> None:
        self.parts = {name: values.tolist() for name, values in state.tensors.items()}
        self.tokens, self.seconds = state.values["tokens"], state.values["seconds"]

    @property
    def losses(self) -> list[float]:
        """What was minimised."""
        return self.parts.get("loss", [])

    def final(self, part: str) -> float | None:
        """Mean of a part of the loss over the last steps; None for a stage without steps."""
        last = self.parts.get(part, [])[-LAST_STEPS:]
        return sum(last) / len(last) if last else None

    @property
    def final_loss(self) -> float | None:
        """Mean training loss of the last steps; None for a stage without steps."""
        return self.final("loss")


Prepare = Callable[[int], Mapping[str, float]]
"""Called with the zero-based step before it is computed: sets lambda and the like, returns them to log."""

Watch = Callable[[Step], None]


def train(
    plan: StagePlan,
    model: nn.Module,
    objective: Objective,
    batches: Iterator[Tensor],
    *,
    device: Device,
    stop: StopSignal,
    watch: Watch,
    prepare: Prepare = lambda step: {},
    keep: CheckpointPolicy = NO_CHECKPOINTS,
    hooks: StageHooks = NO_HOOKS,
    more: Mapping[str, Stateful] | None = None,
) -> StageTrace:
    """Trains `model` in place for `plan.steps` steps.

    Args:
        keep: where the run is kept, and brought back from: the steps done before are not done again. It asks
            that `batches` is `Stateful`.
        beside: what else looks on, or has a hand in it.
        more: what else of the stage changes with its steps, beside model, optimizer and batches.

    Raises:
        ConfigError: the model cannot be trained as the device says.
        DivergedError: a loss or a gradient is not finite. The weights are those before that step, or of a
            later one where steps are read together (`Device.reads`).
        PreemptedError: a signal came; the step that was under way is finished.
    """
    model.train()
    if device.recompute:
        recompute_layers(model, device.checkpointing())
    shared = strategy_for(model, device)
    optimizer = build_optimizer(model, plan.optimizer, ranks=device.ranks)
    take_step = TrainStep(
        model,
        objective,
        optimizer,
        device=device,
        stage=plan.name,
        micro_batch_size=plan.micro_batch_size,
        max_grad_norm=plan.optimizer.max_grad_norm,
        strategy=shared,
        again=batches.again if isinstance(batches, Taught) else None,
    )
    trace, pending = StageTrace(), PendingResults[Step](device)
    freeze, memory = hooks.freeze, hooks.memory
    if freeze:
        freeze.begin(optimizer.leave_out_frozen)

    def tell() -> None:
        for step in pending.results():
            trace.add(step)
            watch(step)

    trace.complete = tell

    def parts() -> Parts:
        return parts_of(
            model,
            optimizer.optimizers,
            batches,
            trace,
            device=device.torch_device,
            more=more or {},
            lasting={AUTO_FREEZE: freeze} if freeze else {},
        )

    save_seconds = 0.0
    with closing(optimizer), shared, keep.stage(plan.name, plan.steps, parts) as kept:
        device.share_out(model, optimizer.optimizers)
        device.end_step()  # what was made or restored so far is no part of the first step
        if memory:
            memory.begin(plan.name, optimizer.optimizers, done=kept.done)
        for index in range(kept.done, plan.steps):
            started, compiled_before = time.perf_counter(), device.compile_seconds()
            if isinstance(batches, Feed):
                batches.wait()  # as long as it takes; nothing of the step is begun, so a signal need not wait
            waited_seconds = time.perf_counter() - started
            with stop.hold(f"step {index + 1} of {plan.name}"):
                settings = prepare(index)
                factor = lr_factor(plan.schedule, index, plan.steps)
                optimizer.scale_lr(factor)
                asked = time.perf_counter()
                ids_BT = next(batches)
                micro = device.place_parts(ids_BT, plan.micro_batch_size)
                data_seconds = waited_seconds + time.perf_counter() - asked
                stepped = take_step(micro, number=index + 1)
                if memory:
                    memory.recorded()
                device.end_step()
                due = device.reads(index + 1, plan.steps)
                if due:
                    pending.read([stepped])
                compile_seconds = device.compile_seconds() - compiled_before
                seconds = time.perf_counter() - started - compile_seconds
                look = freeze.look(index + 1) if freeze else None
                if look and look.froze:
                    device.end_step()  # the new values are no part of the next step
                lr = plan.optimizer.lr * factor
                told = partial(
                    Step,
                    stage=plan.name,
                    step=index + 1,
                    of=plan.steps,
                    lr=lr,
                    tokens=ids_BT.numel() * device.ranks.world,
                    seconds=seconds,
                    settings=settings,
                    data_seconds=data_seconds,
                    save_seconds=save_seconds,
                    look=look,
                    compile_seconds=compile_seconds,
                )
                pending.add(stepped, index + 1, told)
                if due:
                    tell()
                saving = time.perf_counter()
                saved = kept.after(index + 1, {"lr": lr, **settings})
                save_seconds = time.perf_counter() - saving
                if memory:
                    memory.stepped(saved=saved, froze=look is not None and look.froze)
    return trace
