"""Construction of optimizers from their configuration. Called by `training.loop`.

Every type updates a hidden matrix by about the root mean square that AdamW does, so that a learning rate
means about the same for all of them and a search may share one range: Muon's orthogonalised update is scaled
to it (`match_rms_adamw`, arXiv:2502.16982 §2.2), and so is Apollo's (its `scale`, where that is null).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer

from trainer.config import OptimizerConfig
from trainer.devices.lazy_tensor import is_lazy, set_value, to_device
from trainer.distributed.ranks import ALONE, Ranks
from trainer.models.causal_lm import hidden_matrices
from trainer.optim.adamw_8bit import build_adamw_8bit
from trainer.optim.apollo import Apollo
from trainer.optim.muon import BatchedMuon, LazyMuon, muon_dtype
from trainer.optim.qk_clip import QkClip
from trainer.optim.rounded_adamw import RoundedAdamW
from trainer.optim.stochastic_rounding import StochasticRounding, require_bfloat16

EPS = 1e-8


class OptimizerSet:
    """One or two torch optimizers that are stepped together, followed by QK-clip if there is one.

    Args:
        build: builds the optimizers over the parameters that are trainable when it is called.
        clip: applied after every step.
    """

    def __init__(self, build: Callable[[], list[Optimizer]], clip: QkClip | None = None) -> None:
        self._build, self._clip = build, clip
        self.optimizers = build()
        self._remember_configured()
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                if is_lazy(first := group["params"][0]):  # a number would be a constant of the graph
                    group["lr"] = torch.tensor(float(group["lr"]), device=first.device)
                    _init_state(optimizer, group)

    def scale_lr(self, factor: float) -> None:
        """Set every learning rate to `factor` times its peak."""
        for group, peak in zip(self._groups(), self._peaks, strict=True):
            if isinstance(group["lr"], Tensor):
                set_value(group["lr"], peak * factor)
            else:
                group["lr"] = peak * factor

    def scale_weight_decay(self, factor: float) -> None:
        """Set every weight decay to `factor` times the configured one; on XLA a change recompiles."""
        for group, configured in zip(self._groups(), self._weight_decays, strict=True):
            group["weight_decay"] = configured * factor

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def _remember_configured(self) -> None:
        self._peaks = [float(group["lr"]) for group in self._groups()]
        self._weight_decays = [float(group["weight_decay"]) for group in self._groups()]

    def leave_out_frozen(self) -> None:
        """Rebuild the optimizers without parameters that were frozen since, as a resumed run would.

        The state of the other parameters is kept. Apollo draws new projections, as these depend on the
        indices of the matrices.
        """
        states = {p: state for optimizer in self.optimizers for p, state in optimizer.state.items()}
        groups = {p: group for group in self._groups() for p in group["params"]}
        # In place: the checkpoint holds a reference to this list.
        self.optimizers[:] = self._build()
        self._remember_configured()
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                before = groups[group["params"][0]]
                group.update({name: value for name, value in before.items() if name != "params"})
                for parameter in group["params"]:
                    if parameter in states:
                        optimizer.state[parameter] = states[parameter]

    @property
    def can_skip(self) -> bool:
        """Return whether `step` can skip the update by a flag on the device."""
        return all(getattr(each, "_step_supports_amp_scaling", False) for each in self.optimizers)

    def step(self, finite: Tensor | None = None) -> None:
        """Take a step that changes no weight if `finite`, a 0-d bool on the device, is False.

        The flag is passed as torch's `GradScaler` does, which `torch.optim.AdamW` knows. A skipped step may
        lose an optimizer's state.
        """
        for optimizer in self.optimizers:
            if finite is not None:
                cast(Any, optimizer).found_inf = finite.logical_not().float()
            optimizer.step()
        if self._clip:
            self._clip.clip(finite)

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def readings(self) -> dict[str, Tensor]:
        """Return metrics of the step that is about to be taken, as 0-d float32 tensors by name."""
        return self._clip.readings() if self._clip else {}

    def close(self) -> None:
        """Detach QK-clip from the model; call it when the training is over."""
        if self._clip:
            self._clip.close()


def build_optimizer(
    model: nn.Module, config: OptimizerConfig, *, key: str = "optimizer", ranks: Ranks = ALONE
) -> OptimizerSet:
    """Return the optimizer of a stage, over all trainable parameters.

    Args:
        key: of `config` in the run's configuration, for error messages.

    Raises:
        MachineError: the type needs a package that is not installed.
        ConfigError: the optimizer cannot train a model of this kind.
    """
    require_bfloat16(model, config, key=key)
    clip = QkClip(model, config.muonclip.tau, key=key, ranks=ranks) if config.type == "muonclip" else None
    return OptimizerSet(lambda: _optimizers(model, config, key, ranks), clip)


def _optimizers(model: nn.Module, config: OptimizerConfig, key: str, ranks: Ranks) -> list[Optimizer]:
    """Return the torch optimizers over the trainable parameters; none if there are no such parameters."""
    matrices = hidden_matrices(model)
    hidden_ids = {id(parameter) for parameter in matrices}
    # Embeddings, head, gains and biases, which Muon and Apollo leave to AdamW.
    rest = [p for p in model.parameters() if p.requires_grad and id(p) not in hidden_ids]
    others = _groups(rest, config, config.adamw_lr_ratio)
    match config.type:
        case "adamw":
            return [_adamw(_groups(matrices, config, 1.0) + others, config, ranks)]
        case "adamw_8bit":
            groups = _groups(matrices, config, 1.0) + others
            betas = (config.beta1, config.beta2)
            return [build_adamw_8bit(groups, betas=betas, eps=EPS, key=key)]
        case "apollo" | "apollo_mini":
            hidden: list[Optimizer] = [_apollo(matrices, config, ranks)] if matrices else []
        case "muon" | "muonclip":
            hidden = [_muon(matrices, config, ranks)] if matrices else []
    return [*hidden, _adamw(others, config, ranks)] if others else hidden


def _rounding(name: str, config: OptimizerConfig, ranks: Ranks) -> StochasticRounding | None:
    """Return the rounding of the optimizer of that name; None: to the nearest."""
    if not config.stochastic_rounding:
        return None
    shard = f" of process {ranks.rank}" if ranks.parallel == "fsdp" else ""  # others have the same weights
    return StochasticRounding(name + shard, torch.initial_seed())  # of the run: `causal_lm.seed_everything`


def _init_state(optimizer: Optimizer, group: dict[str, Any]) -> None:
    """Create the state of a group before its first step.

    Done in the first step, it would be part of the first graph only, and the second would compile again.
    """
    for parameter in group["params"]:
        with torch.no_grad():
            parameter.mul_(1.0)  # after its first change torch recreates its views, one more graph node
        if isinstance(optimizer, AdamW):
            optimizer.state[parameter] = {
                "step": to_device(torch.zeros(()), parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        elif isinstance(optimizer, Muon):
            optimizer.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}
        elif isinstance(optimizer, Apollo):
            optimizer.init_state(parameter, group)


def _groups(parameters: list[nn.Parameter], config: OptimizerConfig, lr_ratio: float) -> list[dict[str, Any]]:
    """Return parameter groups: matrices with weight decay, gains and biases (of one dimension) without."""
    lr = config.lr * lr_ratio
    matrices, others = [p for p in parameters if p.ndim >= 2], [p for p in parameters if p.ndim < 2]
    decayed = {"params": matrices, "lr": lr, "weight_decay": config.weight_decay}
    free = {"params": others, "lr": lr, "weight_decay": 0.0}
    return [group for group in (decayed, free) if group["params"]]


def _adamw(groups: list[dict[str, Any]], config: OptimizerConfig, ranks: Ranks) -> AdamW:
    betas = (config.beta1, config.beta2)
    if rounding := _rounding("adamw", config, ranks):
        return RoundedAdamW(groups, rounding=rounding, betas=betas, eps=EPS)
    if any(is_lazy(parameter) for group in groups for parameter in group["params"]):
        # `capturable` keeps the step count in a tensor, so that no number becomes a constant of the graph.
        return AdamW(groups, betas=betas, eps=EPS, capturable=True, foreach=False)
    # One fused kernel: seven times as fast as `foreach` on a CPU at 6M parameters.
    return AdamW(groups, betas=betas, eps=EPS, fused=True)


def _muon(matrices: list[nn.Parameter], config: OptimizerConfig, ranks: Ranks) -> BatchedMuon:
    kind = LazyMuon if is_lazy(matrices[0]) else BatchedMuon
    return kind(
        matrices,
        lr=config.lr,
        weight_decay=config.weight_decay,
        momentum=config.momentum,
        dtype=muon_dtype(config, matrices[0].device) or torch.float32,
        ranks=ranks,
        rounding=_rounding("muon", config, ranks),
    )


def _apollo(matrices: list[nn.Parameter], config: OptimizerConfig, ranks: Ranks) -> Apollo:
    mini = config.type == "apollo_mini"
    own = config.apollo_mini if mini else config.apollo
    return Apollo(
        matrices,
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=EPS,
        weight_decay=config.weight_decay,
        rank=1 if mini else config.apollo.rank,
        tensorwise=mini,
        scale=own.scale,
        update_interval=own.update_interval,
        seed=torch.initial_seed(),  # of the run: `causal_lm.seed_everything`
        rounding=_rounding("apollo", config, ranks),
    )
