"""AdamW with its moments in 8 bits, through bitsandbytes. Built by `optim.build`.

bitsandbytes 0.50.2 and not torchao 0.18: it runs with every torch from 2.9 on, while torchao fails on 2.9;
its first step takes milliseconds, while torchao compiles for 23 s (on a CPU) and needs a C++ compiler; and
its state is plain tensors, where torchao's is a subclass that safetensors cannot store. It weighs 125 MB,
mostly GPU kernels, so it is an optional extra of the package.

It quantises block by block (256 numbers share a scale, arXiv:2110.02861), and only tensors of at least 4,096
elements: smaller ones keep their moments in float32.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from torch.optim import Optimizer

from trainer.errors import MachineError

INSTALL = "pip install 'stagesweep[bnb]'"


def require_bitsandbytes(key: str) -> None:
    """Raise MachineError if bitsandbytes is not installed; `key` is the optimizer's in the configuration."""
    if find_spec("bitsandbytes") is None:
        raise MachineError(f"adamw_8bit needs bitsandbytes; {INSTALL}, or write adamw", key=f"{key}.type")


def build_adamw_8bit(
    groups: list[dict[str, Any]], *, betas: tuple[float, float], eps: float, key: str
) -> Optimizer:
    """Return the optimizer over parameter groups that have their own `lr` and `weight_decay`.

    Raises:
        MachineError: bitsandbytes is not installed.
    """
    require_bitsandbytes(key)
    from bitsandbytes import optim  # takes 4 s to import

    optimizer: Optimizer = optim.AdamW8bit(groups, betas=betas, eps=eps)
    return optimizer
