"""Names and labels of a pool's VMs, derived from the pool's label alone.

The service refuses a second resource of one name in a zone: that alone makes a repeated creation idempotent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

POOL_LABEL = "stagesweep-pool"
WORKER_LABEL = "stagesweep-worker"


def vm_id(label: str, worker: int) -> str:
    """Return the name of a worker's queued resource and of its node."""
    return f"{label}-{worker:03d}"


def labels(label: str, worker: int) -> dict[str, str]:
    """Return the labels by which `status` and `down` find a pool's VMs among all others."""
    return {POOL_LABEL: label, WORKER_LABEL: f"{worker:03d}"}


def worker_of(label: str, id_: str, labels: Mapping[str, str]) -> int | None:
    """Return the number of the worker that a VM belongs to; None where it is not of this pool.

    Args:
        id_: the VM's name, which counts where it has no labels of ours.
    """
    if POOL_LABEL in labels:
        number = labels.get(WORKER_LABEL, "")
        return int(number) if labels[POOL_LABEL] == label and number.isdecimal() else None
    found = re.fullmatch(re.escape(label) + r"-(\d{3,})", id_)
    return int(found[1]) if found else None
