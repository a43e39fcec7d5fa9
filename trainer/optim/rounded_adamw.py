"""AdamW over bfloat16 weights with stochastic rounding and moments in float32. Built by `optim.build`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW

from trainer.distributed.tensors import local_tensor
from trainer.optim.base import OwnOptimizer
from trainer.optim.stochastic_rounding import StochasticRounding

PIECE = 2**24
"""Elements that are updated at once, at most: it bounds the temporary memory."""


class RoundedAdamW(OwnOptimizer, AdamW):
    """AdamW computed in float32, whose state is that of `torch.optim.AdamW` in float32.

    Args:
        groups: parameter groups with their own `lr` and `weight_decay`.
        **settings: of torch's AdamW, by name.
    """

    def __init__(
        self, groups: list[dict[str, Any]], *, rounding: StochasticRounding, **settings: Any
    ) -> None:
        super().__init__(groups, **settings)
        self._rounding = rounding

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override] # the loop has no closures
        """Update every parameter that has a gradient."""
        self._rounding.begin(self.param_groups)
        for group in self.param_groups:
            alike: dict[tuple[torch.dtype, int], list[tuple[Tensor, ...]]] = {}
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self._state(weight)  # of every process, also one that has no row of it
                if local_tensor(weight).numel():
                    of_weight = (weight.detach(), weight.grad, state["exp_avg"], state["exp_avg_sq"])
                    rows = tuple(local.view(local.shape or 1) for local in map(local_tensor, of_weight))
                    alike.setdefault((weight.dtype, int(state["step"])), []).append(rows)
            for (_, step), tensors in alike.items():
                lengths, sizes = zip(*((len(rows[0]), rows[0][0].numel()) for rows in tensors), strict=True)
                for piece in pieces(lengths, sizes):
                    cut = [[tensor[rows] for tensor in tensors[index]] for index, rows in piece]
                    self._update(*zip(*cut, strict=True), step=step, group=group)

    def _state(self, weight: Tensor) -> dict[str, Tensor]:
        """Return the state of a parameter, its step counted up; the count is on the CPU, where it is read."""
        state: dict[str, Tensor] = self.state[weight]
        if not state:
            state["step"] = torch.zeros(())
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = torch.zeros_like(weight, dtype=torch.float32)
        state["step"] += 1
        return state

    def _update(
        self,
        weights: Sequence[Tensor],
        grads: Sequence[Tensor],
        means: Sequence[Tensor],
        squares: Sequence[Tensor],
        *,
        step: int,
        group: dict[str, Any],
    ) -> None:
        """Update parts of parameters: as AdamW (arXiv:1711.05101, Algorithm 2), rounded once."""
        beta1, beta2 = group["betas"]
        flat = torch.split(_flat(grads).float(), [grad.numel() for grad in grads])
        shaped = [part.view(mean.shape) for part, mean in zip(flat, means, strict=True)]
        torch._foreach_lerp_(list(means), shaped, 1 - beta1)
        torch._foreach_mul_(list(squares), beta2)
        torch._foreach_addcmul_(list(squares), shaped, shaped, 1 - beta2)
        root = _flat(squares).div_(1 - beta2**step).sqrt_().add_(group["eps"])
        update = self._unless_skipped(_flat(means).div_(root))
        kept = _flat(weights).float().mul_(self._decay_factor(group))
        self._rounding.copy_(weights, kept.add_(update, alpha=-group["lr"] / (1 - beta1**step)))


def pieces(rows: Sequence[int], sizes: Sequence[int], most: int = PIECE) -> Iterator[list[tuple[int, slice]]]:
    """Yield rows of several tensors to take at once, in order: each with the index of its tensor.

    Args:
        rows: of each tensor, at least 1.
        sizes: elements of a row of each tensor, at least 1.
        most: elements of a piece, unless one row has more.
    """
    piece: list[tuple[int, slice]] = []
    room = most
    for index, (count, size) in enumerate(zip(rows, sizes, strict=True)):
        start = 0
        while start < count:
            taken = min(count - start, max(0, room // size))
            if not taken and piece:
                yield piece
                piece, room = [], most
                continue
            stop = start + max(1, taken)
            piece.append((index, slice(start, stop)))
            room -= (stop - start) * size
            start = stop
    if piece:
        yield piece


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])
