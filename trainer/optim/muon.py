"""Muon in float32, and for sharded matrices and XLA. Chosen by `optim.build`.

`torch.optim.Muon` always orthogonalises in bfloat16. That amplifies earlier rounding errors to differences of
1e-4 in the losses, and on a CPU without bfloat16 instructions it took 12 times as long as float32 (28
matrices of 128 x 128 and 384 x 128, AVX2: 0.92 s a step against 0.08 s).

Shapes: a weight [O, I]; the smaller of O and I comes first inside the iteration.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trainer.config import OptimizerConfig
from trainer.devices.dtypes import auto_dtype
from trainer.distributed.tensors import full_tensor, redistribute_like


def muon_dtype(config: OptimizerConfig, device: torch.device) -> torch.dtype | None:
    """Return the dtype of Muon's orthogonalisation on that device; None for other types of optimizer."""
    if config.type not in ("muon", "muonclip"):
        return None
    if config.muon.dtype == "auto":
        return auto_dtype(device)
    return getattr(torch, config.muon.dtype)  # type: ignore[no-any-return] # named as torch names it


class Float32Muon(torch.optim.Muon):
    """`torch.optim.Muon` (Jordan et al., 2024, kellerjordan.github.io/posts/muon) in float32.

    It takes torch's arguments with `adjust_lr_fn="match_rms_adamw"` (arXiv:2502.16982, equation 4), and its
    state is that of torch.
    """

    _dtype = torch.float32

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step over the parameters that have a gradient; return the closure's loss, if any."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight_OI in group["params"]:
                if weight_OI.grad is not None:
                    self._update(weight_OI, weight_OI.grad, group)
        return loss

    def _update(self, weight_OI: Tensor, grad_OI: Tensor, group: dict[str, Any]) -> None:
        state, momentum = self.state[weight_OI], group["momentum"]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(grad_OI)
        average_OI = state["momentum_buffer"].lerp_(grad_OI, 1 - momentum)
        ahead_OI = grad_OI.lerp(average_OI, momentum) if group["nesterov"] else average_OI
        update_OI = self._orthogonalise(ahead_OI, group)
        weight_OI.mul_(1 - group["lr"] * group["weight_decay"])
        # The root mean square of an orthogonal matrix is 1/sqrt(max(O, I)); AdamW's updates have about 0.2.
        rate = group["lr"] * 0.2 * math.sqrt(max(weight_OI.shape))
        if isinstance(rate, Tensor):
            weight_OI.sub_((update_OI * rate).to(weight_OI.dtype))
        else:
            weight_OI.add_(update_OI.to(weight_OI.dtype), alpha=-rate)

    def _orthogonalise(self, matrix_OI: Tensor, group: dict[str, Any]) -> Tensor:
        coefficients, steps, eps = group["ns_coefficients"], group["ns_steps"], group["eps"]
        return orthogonalised(matrix_OI.to(self._dtype), coefficients, steps=steps, eps=eps)


class PlainMuon(Float32Muon):
    """Muon in plain sums and products: for XLA, and for matrices that are sharded with their momentum.

    Every process gathers one matrix at a time, orthogonalises all of it and keeps its shard of the update. So
    the Newton-Schulz iteration is repeated on each process, and no second collective is needed.

    Args:
        *arguments: of torch's Muon, positional.
        dtype: of the orthogonalisation.
        **settings: of torch's Muon, by name.
    """

    def __init__(self, *arguments: Any, dtype: torch.dtype = torch.float32, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._dtype = dtype

    def _orthogonalise(self, matrix_OI: Tensor, group: dict[str, Any]) -> Tensor:
        return redistribute_like(matrix_OI, super()._orthogonalise(full_tensor(matrix_OI), group))


def orthogonalised(
    matrix_OI: Tensor, coefficients: tuple[float, float, float], *, steps: int, eps: float
) -> Tensor:
    """Approximate U·Vᵀ of the singular value decomposition U·S·Vᵀ by the quintic Newton-Schulz iteration.

    The singular values converge to between about 0.7 and 1.2, which suffices (Jordan et al., 2024).

    Args:
        matrix_OI: in the dtype to compute in.
        coefficients: a, b and c of X ← aX + (bXXᵀ + c(XXᵀ)²)X.
        steps: number of iterations.
        eps: lower bound of the norm that the matrix is divided by.
    """
    a, b, c = coefficients
    tall = matrix_OI.shape[0] > matrix_OI.shape[1]
    x_SL: Tensor = matrix_OI.T if tall else matrix_OI
    x_SL = x_SL / torch.linalg.matrix_norm(x_SL).clamp(min=eps)  # the norm bounds every singular value
    for _ in range(steps):
        gram_SS = x_SL @ x_SL.T
        x_SL = a * x_SL + (b * gram_SS + c * (gram_SS @ gram_SS)) @ x_SL
    return x_SL.T if tall else x_SL
