"""Stochastic rounding of float32 values to bfloat16 weights, and AdamW with it. Used by our optimizers.

bfloat16 has 8 significant bits: rounded to the nearest, a weight stays where it is unless an update exceeds
1/512 of it, and a decay of 1e-5 is always lost. Rounded up with the probability of what is cut off, the
expected weight is the float32 value (arXiv:1502.02551, §3; for bfloat16 optimizers arXiv:2010.06192).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW

from trainer.distributed.tensors import local_tensor
from trainer.optim.base import OwnOptimizer

STEP, SEED = "rounding_step", "rounding_seed"
"""Keys of a parameter group, which a checkpoint keeps: the random numbers follow from them."""

PIECE = 2**24
"""Elements that are updated at once, at most: it bounds the temporary memory."""


class StochasticRounding:
    """Rounding of one optimizer, whose random numbers follow from name, seed, step and order alone.

    So they are the same after every resumption, and in all processes that have the same weights.

    Args:
        name: of the optimizer among those of the model, and of the process where each rounds its own shards.
    """

    def __init__(self, name: str, seed: int) -> None:
        self._name, self._seed = name, seed
        self._step = self._calls = 0
        self._generators: dict[torch.device, torch.Generator] = {}

    def begin(self, groups: Sequence[dict[str, Any]]) -> None:
        """Begin a step of the optimizer that has these parameter groups."""
        self._step, self._calls = groups[0].get(STEP, 0) + 1, 0
        self._seed = groups[0].get(SEED, self._seed)  # that of the checkpoint
        for group in groups:
            group |= {STEP: self._step, SEED: self._seed}

    def copy_(self, targets: Sequence[Tensor], values: Tensor) -> None:
        """Round values into tensors of one dtype and device, in place; stochastically if that is bfloat16.

        Args:
            targets: of any shapes.
            values: float32, contiguous, those of all targets one after the other.
        """
        flat, first = values.view(-1), targets[0]
        if first.dtype == torch.bfloat16:
            flat = stochastically_rounded(flat, self._generator(first.device))
        parts = torch.split(flat, [target.numel() for target in targets])
        shaped = [part.view(target.shape) for part, target in zip(parts, targets, strict=True)]
        torch._foreach_copy_(list(targets), shaped)

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device)
        self._calls += 1
        name = f"{self._seed}/{self._name}/{self._step}/{self._calls}"
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1
        return self._generators[device].manual_seed(seed)


def stochastically_rounded(values: Tensor, generator: torch.Generator) -> Tensor:
    """Return float32 values in bfloat16, rounded up in magnitude with the probability of the part cut off.

    What bfloat16 can hold stays as it is, infinities and NaN too.

    Args:
        values: [N], float32, contiguous; unchanged.
        generator: on their device.
    """
    # Four numbers of 16 bits from each of 64: an eighth of the time of `randint` on a CPU.
    drawn = torch.empty(-(-values.numel() // 4), dtype=torch.int64, device=values.device)
    drawn.random_(-(2**63), None, generator=generator)
    bits = drawn.view(torch.uint16)[: values.numel()].to(torch.int32)
    del drawn
    # A bfloat16 is the upper half of a float32: a carry out of the lower half is the step to the next one.
    upper = bits.add_(values.view(torch.int32)).bitwise_right_shift_(16).to(torch.int16)
    del bits
    # CUDA's NaN has all bits set below the sign, so that a carry would make it a zero.
    return upper.view(torch.bfloat16).masked_fill_(values.isnan(), torch.nan)


class RoundedAdamW(OwnOptimizer, AdamW):
    """AdamW over bfloat16 weights, computed in float32; its state is that of `torch.optim.AdamW` in float32.

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
        del flat, shaped, root  # a third of the temporary memory
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
