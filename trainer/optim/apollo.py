"""Apollo and Apollo-Mini (arXiv:2412.05270, Algorithm 1), written from the paper. Built by `optim.build`.

Shapes: a matrix is treated as [M, N] with M its smaller side (of a square one, its input side); R the rank;
`g_MN` a gradient, `p_RM` the random projection, `r_RN` the projected gradient.

Apollo keeps AdamW's two moments of a random projection of the gradient to rank R only, measures how much
AdamW would have scaled each channel there (each of the N columns), and scales the channels of the full
gradient by it. Apollo-Mini has rank 1 and one factor per matrix.

Two deviations from the paper. The moments are bias-corrected, as AdamW's are, before the norm-growth limiter
applies. A channel whose projected gradient is zero gets the factor 0, and the limiter is off after a gradient
of zero: in the paper the first divides by zero, and the second would hold every later step at zero.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from trainer.devices.lazy_tensor import step_scalar, to_device
from trainer.distributed.tensors import full_tensor, local_tensor, redistribute_like
from trainer.optim.base import OwnOptimizer
from trainer.optim.stochastic_rounding import StochasticRounding

MAX_NORM_GROWTH = 1.01  # gamma of the norm-growth limiter, §4.1

Corrections = tuple[float | Tensor, float | Tensor]
"""1 - beta^step of both moments."""


class Apollo(OwnOptimizer):
    """Apollo for matrices, with three float32 tensors of state per parameter.

    The projections are not state: a generator on the CPU draws them from `seed`, the index of the parameter
    and the step, so that they are the same on every device and after every resumption.

    Args:
        params: 2-D parameters, or groups of them.
        lr: learning rate; this and the settings below by name, for groups that have none of their own.
        betas: decays of the two moments.
        eps: added to the square root of the second moment.
        weight_decay: decoupled, times the learning rate.
        rank: R, capped at M.
        tensorwise: one factor per matrix (Apollo-Mini) and not one per channel.
        scale: alpha; None takes √(M / R) for each matrix, the factor by which norms of random projections
            fall short of AdamW's (§4), so that `lr` means what it means to AdamW.
        update_interval: T, steps between two projections. The moments survive a change, as in the paper.
        seed: of the projections.
        rounding: of the updated bfloat16 weights; None: to the nearest.
    """

    WHOLE_STATE = True
    """Where parameters are sharded, the state is replicated on every process: it is small."""

    def __init__(
        self, params: Iterable[Any], *, rounding: StochasticRounding | None = None, **settings: Any
    ) -> None:
        super().__init__(params, settings | {"step": 0})
        self._projections: dict[nn.Parameter, tuple[str, Tensor]] = {}
        self._rounding = rounding

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override] # the loop has no closures
        if self._rounding:
            self._rounding.begin(self.param_groups)
        for group in self.param_groups:
            group["step"] += 1
            beta1, beta2 = group["betas"]
            first = group["params"][0]  # under XLA each is one transfer to the device, for all matrices
            corrections = (
                step_scalar(1 - beta1 ** group["step"], first),
                step_scalar(1 - beta2 ** group["step"], first),
            )
            for index, parameter in enumerate(group["params"]):
                if parameter.grad is not None:
                    self._update(parameter, full_tensor(parameter.grad).float(), index, group, corrections)

    def _update(
        self,
        parameter: nn.Parameter,
        gradient: Tensor,
        index: int,
        group: dict[str, Any],
        corrections: Corrections,
    ) -> None:
        wide = parameter.shape[0] < parameter.shape[1]  # otherwise transposed, so that M is the smaller side
        g_MN = gradient if wide else gradient.T
        p_RM = self._projection(parameter, index, group, small=g_MN.shape[0])
        r_RN = p_RM @ g_MN
        adam_RN = self._adam(parameter, r_RN, group, corrections)
        scaled_MN = g_MN * _scaling_factors(adam_RN, r_RN, tensorwise=group["tensorwise"])
        scaled_MN = self._limit_norm_growth(parameter, scaled_MN)
        alpha = group["scale"] if group["scale"] is not None else (p_RM.shape[1] / p_RM.shape[0]) ** 0.5
        # In float32, rounded once: bfloat16 loses a weight decay of about 1e-5.
        decayed = parameter.float() * self._decay_factor(group)
        scaled_MN = self._unless_skipped(scaled_MN)
        update = redistribute_like(parameter, scaled_MN if wide else scaled_MN.T)
        rate = group["lr"] * alpha
        if isinstance(rate, Tensor):  # as `alpha` it would be read back and become a constant of the graph
            decayed.sub_(update * rate)
        else:
            decayed.add_(update, alpha=-rate)
        if self._rounding:
            self._rounding.copy_([local_tensor(parameter.detach())], local_tensor(decayed).contiguous())
        else:
            parameter.copy_(decayed)

    def init_state(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        """Create the state of a parameter, as its first step would."""
        small, large = sorted(parameter.shape)
        size, device = (min(group["rank"], small), large), parameter.device
        self.state[parameter] = {
            "exp_avg": torch.zeros(size, dtype=torch.float32, device=device),
            "exp_avg_sq": torch.zeros(size, dtype=torch.float32, device=device),
            "scaled_norm": to_device(torch.zeros((), dtype=torch.float32), device),
        }

    def _adam(
        self, parameter: nn.Parameter, r_RN: Tensor, group: dict[str, Any], corrections: Corrections
    ) -> Tensor:
        """Return AdamW's normalised update of the projected gradient, [R, N]."""
        if not self.state[parameter]:
            self.init_state(parameter, group)
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        state["exp_avg"].lerp_(r_RN, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(r_RN, r_RN, value=1 - beta2)
        mean_RN = state["exp_avg"] / corrections[0]
        root_RN = (state["exp_avg_sq"] / corrections[1]).sqrt_()
        normalised_RN: Tensor = mean_RN.div_(root_RN.add_(group["eps"]))
        return normalised_RN

    def _limit_norm_growth(self, parameter: nn.Parameter, scaled_MN: Tensor) -> Tensor:
        """Scale the update down to at most 1.01 times the norm of the previous one (§4.1)."""
        before = self.state[parameter]["scaled_norm"]
        norm = torch.linalg.vector_norm(scaled_MN)
        limit = torch.where(before > 0, before * MAX_NORM_GROWTH, norm)
        factor = torch.where(norm > limit, limit / norm, 1.0)
        before.copy_(norm * factor)
        return scaled_MN * factor

    def _projection(
        self, parameter: nn.Parameter, index: int, group: dict[str, Any], *, small: int
    ) -> Tensor:
        """Return the projection [R, M] of the current interval, cached until the interval is over."""
        interval = (group["step"] - 1) // group["update_interval"]
        name = f"{group['seed']}/{index}/{interval}"
        cached = self._projections.get(parameter)
        if cached is None or cached[0] != name:
            cached = (name, random_projection(min(group["rank"], small), small, name, parameter.device))
            self._projections[parameter] = cached
        return cached[1]


def _scaling_factors(adam_RN: Tensor, r_RN: Tensor, *, tensorwise: bool) -> Tensor:
    """Return AdamW's scaling of the projected gradient, [1, N] or tensorwise [1, 1]; 0 where that is 0."""
    over = (0, 1) if tensorwise else (0,)
    after = torch.linalg.vector_norm(adam_RN, dim=over, keepdim=True)
    before = torch.linalg.vector_norm(r_RN, dim=over, keepdim=True)
    return torch.where(before > 0, after / before, 0.0)


def random_projection(rank: int, small: int, name: str, device: torch.device) -> Tensor:
    """Return a float32 matrix [rank, small], normal with variance 1/rank, that `name` alone determines."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1
    generator = torch.Generator().manual_seed(seed)
    normal_RM: Tensor = torch.randn(rank, small, generator=generator) / rank**0.5
    return normal_RM.to(device)
