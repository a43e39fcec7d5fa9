"""Stochastic rounding of float32 values to bfloat16 weights. Used by the optimizers that `build` makes.

bfloat16 has 8 significant bits: rounded to the nearest, a weight stays where it is unless an update exceeds
1/512 of it, and a decay of 1e-5 is always lost. Rounded up with the probability of what is cut off, the
expected weight is the float32 value (arXiv:1502.02551, §3; for bfloat16 optimizers arXiv:2010.06192).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trainer.config import OptimizerConfig
from trainer.errors import ConfigError

STEP, SEED = "rounding_step", "rounding_seed"
"""Keys of a parameter group, which a checkpoint keeps: the random numbers follow from them."""


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
    noise = drawn.view(torch.int16)[: values.numel()].to(torch.int32).bitwise_and_(2**16 - 1)
    # A bfloat16 is the upper half of a float32: a carry out of the lower half is the step to the next one.
    upper = noise.add_(values.view(torch.int32)).bitwise_and_(-(2**16)).view(torch.float32)
    # CUDA's NaN has all bits set below the sign, so that a carry would make it a zero.
    return torch.where(values.isnan(), values, upper).to(torch.bfloat16)


def require_bfloat16(model: nn.Module, config: OptimizerConfig, *, key: str) -> None:
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
