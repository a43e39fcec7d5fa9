"""Muon over stacks of matrices (Jordan et al., 2024, kellerjordan.github.io/posts/muon). For `optim.build`.

Not `torch.optim.Muon`, which goes matrix by matrix (6,002 operations a step for SmolLM2-135M, in place of
about 300) and always orthogonalises in bfloat16. That amplifies earlier rounding errors to differences of
1e-4 in the losses, and on a CPU without bfloat16 instructions it took 12 times as long as float32 (28
matrices of 128 x 128 and 384 x 128, AVX2: 0.92 s a step against 0.08 s).

Shapes: N matrices of a stack; a weight [O, I]; S the smaller of O and I, L the larger.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from trainer.config import OptimizerConfig
from trainer.devices.dtypes import auto_dtype
from trainer.devices.lazy_tensor import is_lazy
from trainer.distributed.ranks import ALONE, Ranks
from trainer.distributed.tensors import full_tensor, local_tensor, redistribute_like, stacked_like
from trainer.optim.base import OwnOptimizer
from trainer.optim.stochastic_rounding import StochasticRounding

STACK = 2**24
"""Elements of a stack at most, unless one matrix of each process has more: it bounds the temporary memory."""

Coefficients = tuple[float, float, float]


def muon_dtype(config: OptimizerConfig, device: torch.device) -> torch.dtype | None:
    """Return the dtype of Muon's orthogonalisation on that device; None for other types of optimizer."""
    if config.type not in ("muon", "muonclip"):
        return None
    if config.muon.dtype == "auto":
        return auto_dtype(device)
    return getattr(torch, config.muon.dtype)  # type: ignore[no-any-return] # named as torch names it


class BatchedMuon(OwnOptimizer, torch.optim.Muon):
    """Muon whose matrices of one shape, transposed ones among them, are orthogonalised as one stack.

    Its state is that of `torch.optim.Muon`. A step's updates are scaled to AdamW's root mean square
    (arXiv:2502.16982, equation 4). Processes that train together each orthogonalise a share of every stack
    and exchange the updates; sharded matrices are gathered stack by stack.

    Args:
        params: 2-D parameters, or groups of them.
        dtype: of the orthogonalisation.
        ranks: the processes that train the model together, all of which have the same gradients or shards.
        rounding: of the updated bfloat16 weights; the momentum is in float32 then. None: to the nearest.
        **settings: of `torch.optim.Muon`, by name.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        dtype: torch.dtype = torch.float32,
        ranks: Ranks = ALONE,
        rounding: StochasticRounding | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(params, **settings, adjust_lr_fn="match_rms_adamw")
        self.dtype, self._ranks, self._rounding = dtype, ranks, rounding

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override] # the loop has no closures
        """Take one step over the parameters that have a gradient."""
        if self._rounding:
            self._rounding.begin(self.param_groups)
        for group in self.param_groups:
            self._step_group([weight for weight in group["params"] if weight.grad is not None], group)

    def _step_group(self, weights: Sequence[nn.Parameter], group: dict[str, Any]) -> None:
        for stack in stacks(weights, self._ranks.world):
            self._update(stack, group)

    def _update(self, weights: Sequence[nn.Parameter], group: dict[str, Any]) -> None:
        """Update matrices of one shape, which may be transposed.

        A function of its own, so that the tensors of one stack are freed before those of the next are made.
        """
        parts = [[w for w in weights if is_tall(w) is tall] for tall in (False, True)]
        parts = [part for part in parts if part]
        ahead = [self._advance_momenta(part, group) for part in parts]
        # Divided by their norms before they are transposed, as sums follow the order in memory.
        full = [_normalised(full_tensor(each_NOI).to(self.dtype), group["eps"]) for each_NOI in ahead]
        wide = [_transposed_if_tall(each_NOI) for each_NOI in full]
        iterate = partial(newton_schulz, coefficients=group["ns_coefficients"], steps=group["ns_steps"])
        update_NSL = self._ranks.shared(iterate, torch.cat(wide) if len(wide) > 1 else wide[0])
        for part, like, update in zip(parts, ahead, torch.split(update_NSL, [*map(len, parts)]), strict=True):
            update_NOI = update.mT if is_tall(part[0]) else update
            self._subtract(part, local_tensor(redistribute_like(like, update_NOI)), group)

    def _advance_momenta(self, weights: Sequence[nn.Parameter], group: dict[str, Any]) -> Tensor:
        """Advance the momenta of matrices of one shape; return what is to be orthogonalised, [N, O, I]."""
        grads_NOI = torch.stack([local_tensor(_gradient(weight)) for weight in weights])
        if self._rounding:
            grads_NOI = grads_NOI.float()
        averages = [local_tensor(self._momentum(weight)) for weight in weights]
        grads = grads_NOI.unbind()
        torch._foreach_lerp_(averages, grads, 1 - group["momentum"])
        if group["nesterov"]:
            torch._foreach_lerp_(grads, averages, group["momentum"])  # into the stack
        else:
            grads_NOI = torch.stack(averages)
        return stacked_like(weights[0], grads_NOI)

    def _momentum(self, weight: nn.Parameter) -> Tensor:
        state = self.state[weight]
        if "momentum_buffer" not in state:
            dtype = torch.float32 if self._rounding else None
            state["momentum_buffer"] = torch.zeros_like(_gradient(weight), dtype=dtype)
        buffer: Tensor = state["momentum_buffer"]
        return buffer

    def _subtract(self, weights: Sequence[nn.Parameter], update_NOI: Tensor, group: dict[str, Any]) -> None:
        """Let the weights of one shape decay, and subtract their updates."""
        ours = [local_tensor(weight) for weight in weights]
        rate, decay = _rate(group, weights[0]), self._decay_factor(group)
        dtype = torch.float32 if self._rounding else ours[0].dtype
        update_NOI = self._unless_skipped(update_NOI.to(dtype, memory_format=torch.contiguous_format))
        if ours[0].dtype == torch.float32:
            if group["weight_decay"]:
                torch._foreach_mul_(ours, decay)
            torch._foreach_add_(ours, update_NOI.unbind(), alpha=-rate)
            return
        # In a stack, as `_foreach_mul_` rounds the factor to bfloat16 on a CPU.
        new_NOI = torch.stack(ours).to(dtype).mul_(decay).add_(update_NOI, alpha=-rate)
        if self._rounding:
            self._rounding.copy_(ours, new_NOI)
        else:
            torch._foreach_copy_(ours, new_NOI.unbind())


class LazyMuon(BatchedMuon):
    """Muon matrix by matrix, in plain sums and products: for XLA, which compiles a step to one graph."""

    _step_supports_amp_scaling = False

    def _step_group(self, weights: Sequence[nn.Parameter], group: dict[str, Any]) -> None:
        for weight_OI in weights:
            grad_OI, average_OI = _gradient(weight_OI), self._momentum(weight_OI)
            average_OI.lerp_(grad_OI, 1 - group["momentum"])
            ahead_OI = grad_OI.lerp(average_OI, group["momentum"]) if group["nesterov"] else average_OI
            update_OI = orthogonalised(
                ahead_OI.to(self.dtype), group["ns_coefficients"], steps=group["ns_steps"], eps=group["eps"]
            )
            weight_OI.mul_(1 - group["lr"] * group["weight_decay"])
            # As `alpha` the rate would be read back and become a constant of the graph.
            weight_OI.sub_((update_OI * _rate(group, weight_OI)).to(weight_OI.dtype))


def stacks(weights: Iterable[nn.Parameter], world: int) -> Iterator[list[nn.Parameter]]:
    """Yield matrices of one shape or its transpose that are updated together, the wide before the tall.

    Args:
        world: number of processes that share the stacks.
    """
    alike: dict[tuple[Any, ...], list[nn.Parameter]] = {}
    for weight in weights:
        alike.setdefault((*sorted(weight.shape), weight.dtype), []).append(weight)
    for matrices in alike.values():
        matrices.sort(key=is_tall)
        size = stack_size(matrices[0].numel(), world)
        for start in range(0, len(matrices), size):
            yield matrices[start : start + size]


def stack_size(elements: int, world: int) -> int:
    """Return the number of matrices of a stack: those of STACK elements, and of each process as many.

    Args:
        elements: of a matrix.
        world: number of processes that share the stack.
    """
    return max(1, STACK // (elements * world)) * world


def is_tall(weight_OI: Tensor) -> bool:
    """Return whether a matrix, or a stack of them, has more rows than columns."""
    return weight_OI.shape[-2] > weight_OI.shape[-1]


def orthogonalised(matrix_OI: Tensor, coefficients: Coefficients, *, steps: int, eps: float) -> Tensor:
    """Approximate U·Vᵀ of the singular value decomposition U·S·Vᵀ by the quintic Newton-Schulz iteration.

    The singular values converge to between about 0.7 and 1.2, which suffices (Jordan et al., 2024).

    Args:
        matrix_OI: a matrix, or a stack [N, O, I], in the dtype to compute in; unchanged.
        coefficients: a, b and c of X ← aX + (bXXᵀ + c(XXᵀ)²)X.
        eps: lower bound of the norm that the matrix is divided by.
    """
    x_SL = _transposed_if_tall(_normalised(matrix_OI.clone(), eps))
    x_SL = newton_schulz(x_SL, coefficients, steps)
    return x_SL.mT if is_tall(matrix_OI) else x_SL


def newton_schulz(x_SL: Tensor, coefficients: Coefficients, steps: int) -> Tensor:
    """Return wide matrices, whose singular values are at most 1, after the iterations of `orthogonalised`.

    Args:
        x_SL: a matrix, or a stack [N, S, L]; may be overwritten.
        coefficients: see `orthogonalised`.
    """
    a, b, c = coefficients
    # One kernel for product and sum, which XLA lacks. Not in float32, where it would round otherwise.
    fused = x_SL.ndim == 3 and x_SL.dtype == torch.bfloat16 and not is_lazy(x_SL)
    for _ in range(steps):
        if fused:
            gram_SS = torch.bmm(x_SL, x_SL.mT)
            gram_SS = torch.baddbmm(gram_SS, gram_SS, gram_SS, beta=b, alpha=c)
            x_SL = torch.baddbmm(x_SL, gram_SS, x_SL, beta=a)
        else:
            gram_SS = _product(x_SL, x_SL.mT)
            square_SS = _product(gram_SS, gram_SS)
            gram_SS.mul_(b).add_(square_SS.mul_(c))
            del square_SS
            product_SL = _product(gram_SS, x_SL)
            x_SL.mul_(a).add_(product_SL)
            del product_SL  # otherwise it would stay in memory during the next iteration
    return x_SL


def _product(left: Tensor, right: Tensor) -> Tensor:
    # Not `@`, which takes five operations for two stacks.
    return torch.bmm(left, right) if left.ndim == 3 else torch.mm(left, right)


def _normalised(matrix_OI: Tensor, eps: float) -> Tensor:
    """Divide matrices by their norms, which bound every singular value, in place."""
    return matrix_OI.div_(torch.linalg.matrix_norm(matrix_OI, keepdim=True).clamp(min=eps))


def _transposed_if_tall(matrix_OI: Tensor) -> Tensor:
    return matrix_OI.mT if is_tall(matrix_OI) else matrix_OI


def _gradient(weight: nn.Parameter) -> Tensor:
    return cast(Tensor, weight.grad)


def _rate(group: dict[str, Any], weight_OI: Tensor) -> Any:
    """Return the factor of an update: orthogonal matrices have 1/√max(O, I) per element, AdamW about 0.2."""
    return group["lr"] * 0.2 * math.sqrt(max(weight_OI.shape))
