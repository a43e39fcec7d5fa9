"""torch.compile over a stage's objective, its cache, and the warning when it fails. Used by `train_step`.

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
    """Return the function, compiled when it is first called and again for each new shape of its argument.

    Kernels are kept in the trainer's cache, where the next run and other workers of the machine find them.
    """
    os.environ.setdefault(CACHE_VARIABLE, str(cache_root() / "inductor"))
    import torch._inductor.config as inductor  # slow to load, and not needed by runs that do not compile

    # Kernels are made for a number of threads; set here, it is part of their cache key.
    inductor.cpp.threads = torch.get_num_threads()
    return torch.compile(objective, dynamic=False)


def warn_of_failure(error: Exception) -> None:
    """Log in one line that the compiler failed and training goes on without it."""
    reason = next(iter(str(error).strip().splitlines()), "")
    _log.warning(
        "torch.compile failed (%s: %s); training goes on without it; device.compile=false does not try",
        type(error).__name__,
        reason[:200],
    )
