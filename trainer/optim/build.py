"""Optimizers from their configuration. Called by `loop`.

Muon orthogonalises the update of a hidden matrix, and its update is scaled to the root mean square that
AdamW's has (`match_rms_adamw`, arXiv:2502.16982 §2.2), so one learning rate means about the same for both
parts of the model and for `type=adamw`: a search may share one range.
"""

from __future__ import annotations

from torch import nn
from torch.optim import AdamW, Muon, Optimizer

from trainer.config import OptimizerConfig
from trainer.device import multiplies_bfloat16
from trainer.model import hidden_matrices
from trainer.optim.muon import Float32Muon

ADAMW_EPS = 1e-8


class OptimizerSet:
    """One or two torch optimizers that are stepped as one."""

    def __init__(self, optimizers: list[Optimizer]) -> None:
        self.optimizers = optimizers
        self._peaks = [[float(group["lr"]) for group in optimizer.param_groups] for optimizer in optimizers]

    def scale_lr(self, factor: float) -> None:
        """Sets every learning rate to `factor` of its peak."""
        for optimizer, peaks in zip(self.optimizers, self._peaks, strict=True):
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * factor

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> OptimizerSet:
    """The optimizer of a stage, over all parameters that are trained."""
    matrices = hidden_matrices(model)
    theirs = {id(parameter) for parameter in matrices}
    rest = [p for p in model.parameters() if p.requires_grad and id(p) not in theirs]
    if config.type == "muon":
        # Where bfloat16 is emulated, torch's own takes most of a small model's step.
        kind = Muon if multiplies_bfloat16(matrices[0].device) else Float32Muon
        muon = kind(
            matrices,
            lr=config.lr,
            weight_decay=config.weight_decay,
            momentum=config.momentum,
            adjust_lr_fn="match_rms_adamw",
        )
        return OptimizerSet([muon, _adamw(_groups(rest, config, config.adamw_lr_ratio), config)])
    groups = _groups(matrices, config, 1.0) + _groups(rest, config, config.adamw_lr_ratio)
    return OptimizerSet([_adamw(groups, config)])


def _groups(
    parameters: list[nn.Parameter], config: OptimizerConfig, lr_ratio: float
) -> list[dict[str, object]]:
    """Matrices decay; gains and biases do not, as pulling a gain to zero changes what the layer computes."""
    lr = config.lr * lr_ratio
    decayed = {
        "params": [p for p in parameters if p.ndim >= 2],
        "lr": lr,
        "weight_decay": config.weight_decay,
    }
    free = {"params": [p for p in parameters if p.ndim < 2], "lr": lr, "weight_decay": 0.0}
    return [group for group in (decayed, free) if group["params"]]


def _adamw(groups: list[dict[str, object]], config: OptimizerConfig) -> AdamW:
    return AdamW(groups, betas=(config.beta1, config.beta2), eps=ADAMW_EPS, foreach=True)
