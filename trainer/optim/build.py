"""Construction of optimizers from their configuration, and checks of all of a run's before any is built.

Every type updates a hidden matrix by about the root mean square that AdamW does, so that a learning rate
means about the same for all of them and a search may share one range: Muon's orthogonalised update is scaled
to it (`match_rms_adamw`, arXiv:2502.16982 §2.2), and so is Apollo's (its `scale`, where that is null).

Called by `training.loop`, and for the checks by `__main__` and `pipeline`: building raises the same errors,
but only when its stage begins.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer

from sweeps.text.counted import counted
from sweeps.text.installation import install_command
from trainer.config import Config, OptimizerConfig, ScaleRuleConfig
from trainer.devices.device import Device
from trainer.devices.lazy_tensor import is_lazy, set_value, to_device
from trainer.distributed.ranks import ALONE, Ranks
from trainer.errors import ConfigError, MachineError
from trainer.models.adapters import require_package as require_peft
from trainer.models.causal_lm import hidden_matrices
from trainer.models.scale_rule import rate_factors
from trainer.optim.apollo import Apollo
from trainer.optim.muon import BatchedMuon, LazyMuon, muon_dtype
from trainer.optim.qk_clip import QkClip, clippable_attentions
from trainer.optim.stochastic_rounding import RoundedAdamW, StochasticRounding

EPS = 1e-8

Factors = Mapping[nn.Parameter, float]
"""Of learning rates; 1 where there is none."""


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
    model: nn.Module,
    config: OptimizerConfig,
    *,
    scale_rule: ScaleRuleConfig | None = None,
    key: str = "optimizer",
    ranks: Ranks = ALONE,
) -> OptimizerSet:
    """Return the optimizer of a stage, over all trainable parameters.

    Args:
        scale_rule: by which learning rates follow the size of the model; None: they do not.
        key: of `config` in the run's configuration, for error messages.

    Raises:
        MachineError: the type needs a package that is not installed.
        ConfigError: the optimizer cannot train a model of this kind.
    """
    _require_bfloat16(model, config, key=key)
    clip = QkClip(model, config.muonclip.tau, key=key, ranks=ranks) if config.type == "muonclip" else None
    spectral = config.type in ("muon", "muonclip")
    factors = rate_factors(model, scale_rule, spectral=spectral) if scale_rule else {}
    return OptimizerSet(lambda: _optimizers(model, config, factors, key, ranks), clip)


def _optimizers(
    model: nn.Module, config: OptimizerConfig, factors: Factors, key: str, ranks: Ranks
) -> list[Optimizer]:
    """Return the torch optimizers over the trainable parameters; none if there are no such parameters."""
    found = hidden_matrices(model)
    hidden_ids = {id(parameter) for parameter in found}
    # Embeddings, head, gains and biases, which Muon and Apollo leave to AdamW.
    rest = [p for p in model.parameters() if p.requires_grad and id(p) not in hidden_ids]
    matrices = _groups(found, config, 1.0, factors)
    others = _groups(rest, config, config.adamw_lr_ratio, factors)
    match config.type:
        case "adamw":
            return [_adamw(matrices + others, config, ranks)]
        case "adamw_8bit":
            betas = (config.beta1, config.beta2)
            return [build_adamw_8bit(matrices + others, betas=betas, eps=EPS, key=key)]
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
    return StochasticRounding(name + shard, torch.initial_seed())  # of the run


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


def _groups(
    parameters: list[nn.Parameter], config: OptimizerConfig, lr_ratio: float, factors: Factors
) -> list[dict[str, Any]]:
    """Return parameter groups: matrices with weight decay, gains and biases (of one dimension) without.

    Each has one factor of its learning rate. What decays in a step is the rate times the decay, and stays.
    """
    alike: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for parameter in sorted(parameters, key=lambda p: p.ndim < 2):
        alike.setdefault((parameter.ndim >= 2, factors.get(parameter, 1.0)), []).append(parameter)
    return [
        {
            "params": group,
            "lr": config.lr * lr_ratio * factor,
            "weight_decay": config.weight_decay / factor if decayed else 0.0,
        }
        for (decayed, factor), group in alike.items()
    ]


def _adamw(groups: list[dict[str, Any]], config: OptimizerConfig, ranks: Ranks) -> AdamW:
    betas = (config.beta1, config.beta2)
    if rounding := _rounding("adamw", config, ranks):
        return RoundedAdamW(groups, rounding=rounding, betas=betas, eps=EPS)
    if any(is_lazy(parameter) for group in groups for parameter in group["params"]):
        # `capturable` keeps the step count in a tensor, so that no number becomes a constant of the graph.
        return AdamW(groups, betas=betas, eps=EPS, capturable=True, foreach=False)
    # One fused kernel: seven times as fast as `foreach` on a CPU at 6M parameters.
    return AdamW(groups, betas=betas, eps=EPS, fused=True)


def build_adamw_8bit(
    groups: list[dict[str, Any]], *, betas: tuple[float, float], eps: float, key: str
) -> Optimizer:
    """Return AdamW with its moments in 8 bits, over groups that have their own `lr` and `weight_decay`.

    By bitsandbytes 0.50.2 and not torchao 0.18: it runs with every torch from 2.9 on, while torchao fails on
    2.9; its first step takes milliseconds, while torchao compiles for 23 s (on a CPU) and needs a C++
    compiler; and its state is plain tensors, where torchao's is a subclass that safetensors cannot store. It
    weighs 125 MB, mostly GPU kernels, so it is an optional extra of the package.

    It quantises block by block (256 numbers share a scale, arXiv:2110.02861), and only tensors of at least
    4,096 elements: smaller ones keep their moments in float32.

    Raises:
        MachineError: bitsandbytes is not installed.
    """
    _require_bitsandbytes(key)
    from bitsandbytes import optim  # takes 4 s to import

    optimizer: Optimizer = optim.AdamW8bit(groups, betas=betas, eps=eps)
    return optimizer


def _muon(groups: list[dict[str, Any]], config: OptimizerConfig, ranks: Ranks) -> BatchedMuon:
    first = groups[0]["params"][0]
    kind = LazyMuon if is_lazy(first) else BatchedMuon
    return kind(
        groups,
        momentum=config.momentum,
        dtype=muon_dtype(config, first.device) or torch.float32,
        ranks=ranks,
        rounding=_rounding("muon", config, ranks),
    )


def _apollo(groups: list[dict[str, Any]], config: OptimizerConfig, ranks: Ranks) -> Apollo:
    mini = config.type == "apollo_mini"
    own = config.apollo_mini if mini else config.apollo
    return Apollo(
        groups,
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=EPS,
        weight_decay=config.weight_decay,
        rank=1 if mini else config.apollo.rank,
        tensorwise=mini,
        scale=own.scale,
        update_interval=own.update_interval,
        seed=torch.initial_seed(),  # of the run
        rounding=_rounding("apollo", config, ranks),
    )


def require_packages(config: Config) -> None:
    """Raise MachineError if an optimizer, or the adapters, need a package that is not installed."""
    if config.recovery.max_steps:
        require_peft("recovery.max_steps")
    for key, optimizer in optimizers(config):
        if optimizer.type == "adamw_8bit":
            _require_bitsandbytes(key)


def require_device(config: Config, device: Device) -> None:
    """Raise ConfigError if the device does not support what the configuration enables in a stage."""
    for key, optimizer in optimizers(config.model):
        if optimizer.stochastic_rounding:
            raise ConfigError(
                "a tiny teacher's weights are float32, and only bfloat16 is rounded; write false",
                key=f"model.{key}.stochastic_rounding",
            )
    if device.kind != "xla":
        return
    for key, optimizer in optimizers(config):
        if optimizer.type == "adamw_8bit":
            raise ConfigError("adamw_8bit has no kernels for XLA; write adamw or apollo", key=f"{key}.type")
        if optimizer.stochastic_rounding:
            raise ConfigError(
                "the random numbers of each step would be compiled into XLA's graph; write false, or train "
                "float32 weights",
                key=f"{key}.stochastic_rounding",
            )
    if device.recompute and config.stage3.max_steps and config.stage3.attention_weight:
        raise ConfigError(
            "recomputation on XLA hides from Stage 3 what its layers project; write false, or "
            "stage3.attention_weight=0",
            key="device.recompute",
        )
    if device.recompute and config.recovery.max_steps:
        raise ConfigError(
            "recomputation on XLA gives adapters on frozen weights no gradients; write false, or "
            "recovery.max_steps=0",
            key="device.recompute",
        )
    for name in ("stage1_9", "stage2", "stage3", "recovery"):
        stage = getattr(config, name)
        size = stage.micro_batch_size or stage.batch_size
        if stage.max_steps and size % device.data_chips:
            which = "micro_batch_size" if stage.micro_batch_size else "batch_size"
            raise ConfigError(
                f"{counted(size, 'sequence')} cannot be shared out evenly among {device.data_chips} chips; "
                f"write a multiple of {device.data_chips}, or fewer chips in device.num_chips",
                key=f"{name}.{which}",
            )


def require_model(config: Config, model: nn.Module) -> None:
    """Raise ConfigError if an optimizer cannot train a model of this kind."""
    for key, optimizer in optimizers(config):
        if optimizer.type == "muonclip":
            clippable_attentions(model, key=key)


def require_student(config: Config, student: nn.Module) -> None:
    """Raise ConfigError if the optimizer of a stage cannot update weights of the student's dtype."""
    for key, optimizer in optimizers(config):
        if key != "model.teacher.optimizer":
            _require_bfloat16(student, optimizer, key=key)


def optimizers(part: Any, key: str = "") -> Iterator[tuple[str, OptimizerConfig]]:
    """Yield the key and the optimizer of each stage below a part of the configuration that has steps."""
    if isinstance(part, OptimizerConfig):
        yield key, part
    elif dataclasses.is_dataclass(part) and getattr(part, "max_steps", None) != 0:
        for field in dataclasses.fields(part):
            yield from optimizers(getattr(part, field.name), f"{key}.{field.name}" if key else field.name)


def _require_bfloat16(model: nn.Module, config: OptimizerConfig, *, key: str) -> None:
    """Raise ConfigError for stochastic rounding of a model that has no bfloat16 weights to train.

    Args:
        key: of `config` in the run's configuration.
    """
    trained = {parameter.dtype for parameter in model.parameters() if parameter.requires_grad}
    if config.stochastic_rounding and trained and torch.bfloat16 not in trained:
        (dtype, *_) = sorted(str(each).removeprefix("torch.") for each in trained)
        raise ConfigError(
            f"the weights that are trained are {dtype}, and only bfloat16 is rounded; write false, or train "
            "bfloat16 weights",
            key=f"{key}.stochastic_rounding",
        )


def _require_bitsandbytes(key: str) -> None:
    """Raise MachineError if bitsandbytes is not installed; `key` is the optimizer's in the configuration."""
    if find_spec("bitsandbytes") is None:
        raise MachineError(
            f"adamw_8bit needs bitsandbytes; {install_command('bnb')}, or write adamw", key=f"{key}.type"
        )
