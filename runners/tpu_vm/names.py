"""What a pool's VMs are called: from the pool's label alone, so that whoever asks later asks for the same
names.

The service refuses a second resource of one name in a zone: that alone makes a repeated creation harmless.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

POOL_LABEL = "stagesweep-pool"
WORKER_LABEL = "stagesweep-worker"


def vm_id(label: str, worker: int) -> str:
    """The name of one worker's queued resource, and of its node."""
    return f"{label}-{worker:03d}"


def labels(label: str, worker: int) -> dict[str, str]:
    """By these `status` and `down` know a pool's VMs from everybody else's."""
    return {POOL_LABEL: label, WORKER_LABEL: f"{worker:03d}"}


def worker_of(label: str, id_: str, told: Mapping[str, str]) -> int | None:
    """Whose VM this is; None where it is not of this pool. By its labels, and by its name where it has
    none."""
    if POOL_LABEL in told:
        number = told.get(WORKER_LABEL, "")
        return int(number) if told[POOL_LABEL] == label and number.isdecimal() else None
    found = re.fullmatch(re.escape(label) + r"-(\d{3,})", id_)
    return int(found[1]) if found else None
