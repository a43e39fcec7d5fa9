"""Settings that libraries read once, when they are loaded. Called by whoever is about to import torch."""

from __future__ import annotations

import os


def before_torch() -> None:
    """Sets what is not set already; has no effect on a torch that is loaded.

    - OpenMP threads that wait must sleep, not spin. With two threads beside other busy processes on two
      cores, a step took over 1.3 s spinning and 0.35 s sleeping: the spinners keep the cores from
      whoever they wait for. Sweeps run several trainers side by side.
    - Tokenizers are not called while training; a warning about threads and forks is all they would add.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
