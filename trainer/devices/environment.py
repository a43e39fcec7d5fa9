"""Process settings that libraries read when they are loaded. Called before torch is imported."""

from __future__ import annotations

import ctypes
import os

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of <malloc.h>
_LARGEST = 2**31 - 1


def before_torch() -> None:
    """Set environment variables that are not set; most have no effect once torch is loaded.

    - Waiting OpenMP threads sleep and do not spin. Two threads on two busy cores took 1.3 s for a step when
      spinning and 0.35 s when sleeping, and sweeps run several trainers on one machine.
    - XLA does not build 0 and 1 into its graphs as constants: lambda is both, and each would be compiled.
    - Tokenizers do not warn of forks: they are not called while training.

    One variable is overruled: the precision that oneDNN may take for float32. An inherited BF16 would round
    products on some processors only, and no record would say so.
    """
    os.environ["ONEDNN_DEFAULT_FPMATH_MODE"] = "STRICT"  # takes precedence over DNNL_DEFAULT_FPMATH_MODE
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("XLA_NO_SPECIAL_SCALARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def keep_freed_memory() -> bool:
    """Have glibc's malloc keep freed memory; return False where there is no glibc.

    A training step frees and allocates the same large blocks over and over. Returned to the kernel, they cost
    page faults: 51,000 of them and 4 to 7 % of a step at 10M parameters.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    return all([mallopt(_M_MMAP_THRESHOLD, _LARGEST), mallopt(_M_TRIM_THRESHOLD, _LARGEST)])
