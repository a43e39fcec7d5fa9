"""torch.compile over a stage's objective, its cache, and the word when it fails. Used by `step`.

What is compiled is the function from token ids to losses, student, teacher and loss together: modules keep
their parameters and names, so checkpoints do not know of it. mode="default" is the only one: with
reduce-overhead and max-autotune the notebook's runs broke on the head.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from trainer.cache import cache_root

CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"

_log = logging.getLogger(__name__)


def compiled(objective: Callable[[Tensor], Mapping[str, Tensor]]) -> Callable[[Tensor], Mapping[str, Tensor]]:
    """The same function, compiled when it is first called, and again for each new shape of its argument.

    Kernels are kept in the trainer's cache, where the next run and other workers of the machine find them.
    """
    os.environ.setdefault(CACHE_VARIABLE, str(cache_root() / "inductor"))
    import torch._inductor.config as inductor  # slow to load, and of no use to who does not compile

    # Kernels are made for a number of threads; said here, it is part of the key that they are kept under.
    inductor.cpp.threads = torch.get_num_threads()
    return torch.compile(objective, dynamic=False)


def tell_failure(error: Exception) -> None:
    """One line: training goes on, more slowly."""
    reason = next(iter(str(error).strip().splitlines()), "")
    _log.warning(
        "torch.compile failed (%s: %s); training goes on without it; device.compile=false does not try",
        type(error).__name__,
        reason[:200],
    )
