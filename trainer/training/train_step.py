"""One training step: forward and backward in micro-batches, clipping, the optimizer. Called by `loop`.

Shapes: B sequences of a step, b of a micro-batch, T tokens; `ids_BT`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import cast

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm

from trainer.devices.device import Device, micro_batches
from trainer.devices.lazy_tensor import is_lazy
from trainer.distributed.ranks import is_collective_error
from trainer.distributed.tensors import full_tensor
from trainer.errors import TrainerError
from trainer.models.causal_lm import hidden_matrices
from trainer.optim.build import OptimizerSet
from trainer.quant.ternary import effective_weights, held_weights
from trainer.training.compilation import (
    compiled,
    compiled_quantiser,
    failure_reason,
    warn_of_failure,
    with_compiled_layers,
)
from trainer.training.context import StagePlan
from trainer.training.parallel import ParallelStrategy
from trainer.training.step_results import StepResult

Objective = Callable[[Tensor], Mapping[str, Tensor]]
"""ids_BT → tensors: `loss`, which is 0-d, is minimised, the others are logged. Of these, 1-D ones (a number
per layer, say) only where a line is written, as they would be many.

Each is a mean over sequences that count alike, so that the mean over micro-batches is that over the batch.
A function of the ids and the weights alone: it may be called again with the same ids, and compiled.
"""


KINDS = ("grad_norm_matrices", "grad_norm_ends", "grad_norm_gains")
"""Gradient norms by kind, to show what diverges: hidden matrices; embeddings and head; gains and biases."""


class GradientNorms:
    """Gradient norms of all parameters of a model, and by kind."""

    def __init__(self, model: nn.Module) -> None:
        self._model, self._hidden = model, {id(parameter) for parameter in hidden_matrices(model)}

    def __call__(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the current norm, 0-d, and those of the kinds that have gradients.

        All are made of one norm per parameter, so that each gradient is read once.
        """
        trained = [p for p in self._model.parameters() if p.grad is not None]
        if not trained:
            return torch.zeros(()), {}
        gradients = [cast(Tensor, p.grad) for p in trained]
        # XLA has no norm of a list, and compiles a loop to one graph.
        lazy = is_lazy(gradients[0])
        norms = [vector_norm(each) for each in gradients] if lazy else torch._foreach_norm(gradients)
        norms_P = full_tensor(torch.stack(list(norms)))
        kinds: dict[str, list[Tensor]] = {}
        for parameter, norm in zip(trained, norms_P.unbind(), strict=True):
            ends_or_gains = KINDS[1] if parameter.ndim >= 2 else KINDS[2]
            kind = KINDS[0] if id(parameter) in self._hidden else ends_or_gains
            kinds.setdefault(kind, []).append(norm)
        by_kind = {name: vector_norm(torch.stack(kinds[name])) for name in KINDS if name in kinds}
        return vector_norm(norms_P), by_kind


class TrainStep:
    """The step of one stage, over a model and the optimizer of its parameters.

    Args:
        plan: gives the stage's name (for errors), the micro-batches and the norm that gradients are clipped
            to (0 switches clipping off).
        strategy: of the processes that share the run; None: there is one process.
        again: called before the micro-batches of a step are computed once more.
        teacher: another model that the objective runs, to be compiled with it.
    """

    def __init__(
        self,
        plan: StagePlan,
        model: nn.Module,
        objective: Objective,
        optimizer: OptimizerSet,
        device: Device,
        *,
        strategy: ParallelStrategy | None = None,
        again: Callable[[], None] | None = None,
        teacher: nn.Module | None = None,
    ) -> None:
        self.plan, self._model, self._eager, self._optimizer = plan, model, objective, optimizer
        self._objective = objective
        self._quantise = compiled_quantiser() if device.compile else effective_weights
        if device.compile == "layers":
            self._objective = with_compiled_layers(objective, [model, *([teacher] if teacher else [])])
        elif device.compile:
            self._objective = compiled(objective)
        self._device = device
        self._max_grad_norm = plan.optimizer.max_grad_norm
        self._gradient_norms = GradientNorms(model)
        self._guards = device.reads_late and optimizer.can_skip
        self._finite: Tensor | None = None  # of all steps so far
        self._strategy = strategy or ParallelStrategy()
        self._again = again

    def __call__(self, batch: Tensor | Sequence[Tensor], *, number: int) -> StepResult:
        """Take one step.

        Args:
            batch: token ids on the device: [B, T], or in its micro-batches [b, T] already.
            number: one-based, for errors.

        Raises:
            DivergedError: a loss or the gradient is not finite. The weights are those before the step. On a
                device that reads late this is raised when the result is read, and no step since has changed
                the weights; nor does one that records its steps as a graph raise it before.
        """
        parts = self._strategy.mean(self.accumulate(batch))
        losses = {name: part for name, part in parts.items() if part.ndim == 0}
        details = {name: part for name, part in parts.items() if part.ndim}
        norm, norms = self._gradient_norms()
        result = StepResult(losses, norm, details | norms | self._optimizer.readings(), stage=self.plan.name)
        if self._device.checks_before_update and not self._guards:
            result.refuse_divergence(number)  # the one place of a step that waits for the device
        if self._max_grad_norm:
            torch.nn.utils.clip_grads_with_norm_(self._model.parameters(), self._max_grad_norm, norm)
        if self._guards:
            finite = torch.isfinite(losses["loss"]) & torch.isfinite(norm)
            # On the device, and of all steps until this one: no later step counts either.
            self._finite = finite if self._finite is None else self._finite & finite
            self._optimizer.step(self._finite)
        else:
            self._optimizer.step()
        self._optimizer.zero_grad()
        return result

    def accumulate(self, batch: Tensor | Sequence[Tensor]) -> dict[str, Tensor]:
        """Add the gradient of the mean loss over a batch to the parameters', which must have none.

        Of processes that share the batch each has its own rows.

        Returns:
            The mean of each part of the loss over the rows of this process; the gradient is of all rows.
        """
        micro = micro_batches(batch, self.plan.micro_batch_size) if isinstance(batch, Tensor) else batch
        try:
            return self._backward(self._objective, micro)
        except Exception as error:
            # Compilers fail in many ways, and late: the backward pass is compiled when it first runs.
            other = isinstance(error, (TrainerError, torch.OutOfMemoryError)) or is_collective_error(error)
            if other or self._objective is self._eager:
                raise
            reason = failure_reason(error)
            if not self._strategy.may_retry:
                raise TrainerError(
                    f"torch.compile failed ({reason}); processes that share a run cannot go on within a "
                    "step; write device.compile=false"
                ) from error
            cause: BaseException | None = error
            while cause:  # the frames of its traceback hold the activations of the failed pass
                cause.__traceback__, cause = None, cause.__cause__ or cause.__context__
        self._optimizer.zero_grad()  # what the micro-batches before this one left
        if self._again:
            self._again()
        self._quantise = effective_weights
        parts = self._backward(self._eager, micro)  # an error of the objective's own is raised here
        self._objective = self._eager
        warn_of_failure(reason)
        return parts

    def _backward(self, objective: Objective, micro: Sequence[Tensor]) -> dict[str, Tensor]:
        total: dict[str, Tensor] = {}
        hold = len(micro) > 1 and self._strategy.may_hold_weights and self._device.hold_weights
        dtype = self._device.dtype
        with held_weights(self._model, self._quantise, dtype=dtype) if hold else nullcontext():
            for number, ids_bT in enumerate(micro, start=1):
                with self._strategy.accumulation(last=number == len(micro)):
                    with self._device.autocast():
                        computed = self._strategy(objective, ids_bT)
                        losses = {name: loss / len(micro) for name, loss in computed.items()}
                    # torch has no annotation here
                    losses["loss"].backward()  # type: ignore[no-untyped-call]
                for name, loss in losses.items():
                    share = loss.detach().float()
                    total[name] = total[name] + share if name in total else share
        return total
