"""Settings of the process: those that libraries read when they are loaded, and the allocator's.

Called by whoever is about to import torch.
"""

from __future__ import annotations

import ctypes
import os

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of <malloc.h>
_LARGEST = 2**31 - 1


def before_torch() -> None:
    """Sets what is not set already; most of it has no effect on a torch that is loaded.

    - OpenMP threads that wait must sleep, not spin. With two threads beside other busy processes on two
      cores, a step took over 1.3 s spinning and 0.35 s sleeping: the spinners keep the cores from
      whoever they wait for. Sweeps run several trainers side by side.
    - XLA must not build 0 and 1 into its graphs as constants: lambda is both, and each would be compiled.
    - Tokenizers are not called while training; a warning about threads and forks is all they would add.

    One setting is overruled: what oneDNN may take for float32. An inherited BF16 would round products on some
    processors and on others none, and neither configuration nor result would say so; `device.dtype` says in
    which precision is multiplied.
    """
    os.environ["ONEDNN_DEFAULT_FPMATH_MODE"] = "STRICT"  # goes before DNNL_DEFAULT_FPMATH_MODE
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("XLA_NO_SPECIAL_SCALARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def keep_freed_memory() -> bool:
    """Tells glibc's malloc to keep what is freed for the next allocation; False where there is no glibc.

    A training step frees and allocates the same large blocks over and over. Given back to the kernel, they
    come back as pages to be zeroed one fault at a time: 51,000 faults and 4 to 7 % of a step at 10M
    parameters. For processes that train and end: what they once used stays theirs.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    return all([mallopt(_M_MMAP_THRESHOLD, _LARGEST), mallopt(_M_TRIM_THRESHOLD, _LARGEST)])
