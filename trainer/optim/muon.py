"""Muon with float32 products, for processors that have no instructions for bfloat16. Chosen by `optim.build`.

`torch.optim.Muon` orthogonalises in bfloat16, whatever the weights are. On a CPU with AVX2 alone that took 12
times as long as in float32 (28 matrices of 128 x 128 and 384 x 128: 0.92 s a step against 0.08 s), most of a
training step of a small model.

Shapes: a weight [O, I]; the smaller of O and I comes first inside the iteration.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trainer.device import multiplies_bfloat16
from trainer.distributed.whole import shared_like, whole


class Float32Muon(torch.optim.Muon):
    """`torch.optim.Muon` (Jordan et al., 2024, kellerjordan.github.io/posts/muon) in float32.

    Takes torch's arguments, with `adjust_lr_fn="match_rms_adamw"` (arXiv:2502.16982, equation 4), and keeps
    torch's state.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes one step with the gradients as they are; those that are None are left out."""
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
        update_OI = self._orthogonalised(ahead_OI, group)
        weight_OI.mul_(1 - group["lr"] * group["weight_decay"])
        # The root mean square of an orthogonal matrix is 1/sqrt(max(O, I)); AdamW's updates have about 0.2.
        rate = group["lr"] * 0.2 * math.sqrt(max(weight_OI.shape))
        if isinstance(rate, Tensor):
            weight_OI.sub_((update_OI * rate).to(weight_OI.dtype))
        else:
            weight_OI.add_(update_OI.to(weight_OI.dtype), alpha=-rate)

    def _orthogonalised(
        self, matrix_OI: Tensor, group: dict[str, Any], dtype: torch.dtype = torch.float32
    ) -> Tensor:
        coefficients, steps, eps = group["ns_coefficients"], group["ns_steps"], group["eps"]
        return orthogonalised(matrix_OI.to(dtype), coefficients, steps=steps, eps=eps)


class PlainMuon(Float32Muon):
    """Muon in products and sums alone: for XLA, and for matrices of which each process has a part, and its
    part of the momentum.

    Such a matrix is orthogonalised as a whole: every process gathers it, one at a time, computes all of it
    and keeps its part of the update. So the work of Newton and Schulz is not shared, and no second exchange
    is needed. In bfloat16, as torch's own, where the processor has instructions for it.
    """

    def _orthogonalised(
        self, matrix_OI: Tensor, group: dict[str, Any], dtype: torch.dtype = torch.float32
    ) -> Tensor:
        if multiplies_bfloat16(matrix_OI.device):
            dtype = torch.bfloat16
        return shared_like(matrix_OI, super()._orthogonalised(whole(matrix_OI), group, dtype))


def orthogonalised(
    matrix_OI: Tensor, coefficients: tuple[float, float, float], *, steps: int, eps: float
) -> Tensor:
    """About U·Vᵀ of the singular value decomposition U·S·Vᵀ, by the quintic Newton-Schulz iteration.

    The singular values end between about 0.7 and 1.2, which does not hurt the training (Jordan et al., 2024).
    """
    a, b, c = coefficients
    tall = matrix_OI.shape[0] > matrix_OI.shape[1]
    x_SL: Tensor = matrix_OI.T if tall else matrix_OI
    x_SL = x_SL / torch.linalg.matrix_norm(x_SL).clamp(min=eps)  # no singular value is above the norm of all
    for _ in range(steps):
        gram_SS = x_SL @ x_SL.T
        x_SL = a * x_SL + (b * gram_SS + c * (gram_SS @ gram_SS)) @ x_SL
    return x_SL.T if tall else x_SL
