"""Apollo and Apollo-Mini (arXiv:2412.05270, Algorithm 1), written from the paper. Built by `optim.build`.

Shapes: a matrix is seen as [M, N] with M its smaller side (of a square one, its input side); R the rank;
`g_MN` a gradient, `p_RM` the random projection, `r_RN` the projected gradient.

AdamW divides each number of a gradient by its own running size. Apollo keeps AdamW's two moments only of a
random projection of the gradient to rank R, reads off how much AdamW would have scaled each channel there
(each of the N columns), and scales the channels of the full gradient by it. Apollo-Mini has rank 1 and one
factor for the whole matrix.

Two deviations. The moments are corrected for their start at zero, as AdamW's are, before the norm-growth
limiter looks at them. A channel whose projected gradient is zero is left alone, and so is the limiter after a
gradient of zero: in the paper the first divides by zero, the second would hold every later step at zero.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainer.devices.lazy_tensor import step_scalar, to_device
from trainer.distributed.tensors import full_tensor, redistribute_like

MAX_NORM_GROWTH = 1.01  # gamma of the norm-growth limiter, §4.1

Corrections = tuple[float | Tensor, float | Tensor]


class Apollo(Optimizer):
    """Matrices only. The state of a parameter is three float32 tensors; all else is numbers in its group.

    The projections are not state: they follow from `seed`, the place of the parameter and the step, by a
    generator on the CPU, and so are the same on every device and after every resumption.

    Args:
        params: 2-D parameters.
        lr: learning rate.
        betas: decays of the two moments.
        eps: added to the square root of the second moment.
        weight_decay: decoupled, times the learning rate.
        rank: R; at most M is used of it.
        tensorwise: one factor per matrix (Apollo-Mini) and not one per channel.
        scale: alpha; None takes √(M / R) for each matrix, the factor by which norms of random projections
            fall short of AdamW's (§4), so that `lr` means what it means to AdamW.
        update_interval: T, steps between two projections. The moments are kept across, as in the paper.
        seed: of the projections.
    """

    WHOLE_STATE = True
    """Processes that have parts of the parameters all have the whole state: it is small."""

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        rank: int,
        tensorwise: bool,
        scale: float | None,
        update_interval: int,
        seed: int,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "rank": rank,
            "tensorwise": tensorwise,
            "scale": scale,
            "update_interval": update_interval,
            "seed": seed,
            "step": 0,
        }
        super().__init__(params, defaults)
        self._projections: dict[nn.Parameter, tuple[str, Tensor]] = {}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override] # the loop has no closures
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            group["step"] += 1
            corrections = _corrections(group)
            for place, parameter in enumerate(group["params"]):
                if parameter.grad is not None:
                    self._update(parameter, full_tensor(parameter.grad).float(), place, group, corrections)

    def _update(
        self,
        parameter: nn.Parameter,
        gradient: Tensor,
        place: int,
        group: dict[str, Any],
        corrections: Corrections,
    ) -> None:
        wide = parameter.shape[0] < parameter.shape[1]
        g_MN = gradient if wide else gradient.T
        p_RM = self._projection(parameter, place, group, small=g_MN.shape[0])
        r_RN = p_RM @ g_MN
        adam_RN = self._adam(parameter, r_RN, group, corrections)
        scaled_MN = g_MN * _factors(adam_RN, r_RN, tensorwise=group["tensorwise"])
        scaled_MN = self._limited(parameter, scaled_MN)
        alpha = group["scale"] if group["scale"] is not None else (p_RM.shape[1] / p_RM.shape[0]) ** 0.5
        # In float32, rounded once: in bfloat16 a decay of some 1e-5 of a weight is lost.
        decayed = parameter.float() * (1 - group["lr"] * group["weight_decay"])
        update = redistribute_like(parameter, scaled_MN if wide else scaled_MN.T)
        rate = group["lr"] * alpha
        if isinstance(rate, Tensor):  # as an `alpha` it would be read, and be a constant of a graph
            parameter.copy_(decayed.sub_(update * rate))
        else:
            parameter.copy_(decayed.add_(update, alpha=-rate))

    def begin(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        """Makes the state of a parameter, as its first step would."""
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
        """AdamW's normalised update of the projected gradient, [R, N]."""
        if not self.state[parameter]:
            self.begin(parameter, group)
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        state["exp_avg"].lerp_(r_RN, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(r_RN, r_RN, value=1 - beta2)
        mean_RN = state["exp_avg"] / corrections[0]
        root_RN = (state["exp_avg_sq"] / corrections[1]).sqrt_()
        normalised_RN: Tensor = mean_RN.div_(root_RN.add_(group["eps"]))
        return normalised_RN

    def _limited(self, parameter: nn.Parameter, scaled_MN: Tensor) -> Tensor:
        """The norm-growth limiter: at most 1.01 times the norm of the step before."""
        before = self.state[parameter]["scaled_norm"]
        norm = torch.linalg.vector_norm(scaled_MN)
        limit = torch.where(before > 0, before * MAX_NORM_GROWTH, norm)
        factor = torch.where(norm > limit, limit / norm, 1.0)
        before.copy_(norm * factor)
        return scaled_MN * factor

    def _projection(
        self, parameter: nn.Parameter, place: int, group: dict[str, Any], *, small: int
    ) -> Tensor:
        """[R, M], normal with variance 1/R; kept until its interval is over."""
        interval = (group["step"] - 1) // group["update_interval"]
        name = f"{group['seed']}/{place}/{interval}"
        known = self._projections.get(parameter)
        if known is None or known[0] != name:
            known = (name, _normal(min(group["rank"], small), small, name, parameter.device))
            self._projections[parameter] = known
        return known[1]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, but the state stays float32 where torch would cast it to a parameter's bfloat16."""
        super().load_state_dict(state_dict)
        order = [parameter for group in self.param_groups for parameter in group["params"]]
        for index, state in state_dict["state"].items():
            parameter = order[index]
            self.state[parameter] = {name: t.to(parameter.device, copy=True) for name, t in state.items()}


def _corrections(group: dict[str, Any]) -> Corrections:
    """What the two moments lack of their size, as they start at zero. On a device that records its steps, two
    transfers for all matrices."""
    beta1, beta2 = group["betas"]
    first = group["params"][0]
    return step_scalar(1 - beta1 ** group["step"], first), step_scalar(1 - beta2 ** group["step"], first)


def _factors(adam_RN: Tensor, r_RN: Tensor, *, tensorwise: bool) -> Tensor:
    """How much AdamW scaled the projected gradient: [1, N], or [1, 1] for the whole; 0 where it is 0."""
    over = (0, 1) if tensorwise else (0,)
    after = torch.linalg.vector_norm(adam_RN, dim=over, keepdim=True)
    before = torch.linalg.vector_norm(r_RN, dim=over, keepdim=True)
    return torch.where(before > 0, after / before, 0.0)


def _normal(rank: int, small: int, name: str, device: torch.device) -> Tensor:
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1
    generator = torch.Generator().manual_seed(seed)
    normal_RM: Tensor = torch.randn(rank, small, generator=generator) / rank**0.5
    return normal_RM.to(device)
