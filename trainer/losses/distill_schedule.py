"""The weight of the distillation part over Stage 1.9. Used by `stages.layerwise`.

w goes from `initial` in the first step to `final` in the last:

    linear   w = initial + (final - initial)·x
    cosine   w = final + (initial - final)·(1 + cos πx)/2

with x the share of the stage that is behind. A cosine from 0.5 to 0 is at 0.29 after 45 % of the stage, which
is what the research notebook logged there.
"""

from __future__ import annotations

import math

from trainer.config import DistillScheduleConfig
from trainer.quant.shared import SharedScalar


class DistillWeight(SharedScalar):
    """w, as a tensor: a number would be baked into a compiled step, and each new one compile it again."""


def distill_weight_at(config: DistillScheduleConfig, step: int, steps: int) -> float:
    """w during the zero-based `step` of a stage of `steps`."""
    if config.type == "constant":
        return config.initial
    share = step / max(steps - 1, 1)
    if config.type == "cosine":
        share = (1 - math.cos(math.pi * share)) / 2
    return config.initial + (config.final - config.initial) * share
