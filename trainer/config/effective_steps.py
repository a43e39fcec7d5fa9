"""Effective steps of the stages, the measure of compute in the research notebook. Pure; loads no torch."""

from __future__ import annotations

from trainer.config.run import Config

ALONE, TAUGHT = 1, 2
"""Effective steps of one step: a forward pass of the teacher makes it count twice."""


def weights(config: Config) -> dict[str, int]:
    """Return the effective steps that one step of each stage counts for, in the order of the stages."""
    cached = config.stage3.teacher.kind == "cached"
    return {
        "stage1_9": TAUGHT,
        "stage2": TAUGHT if config.stage2.distill.enabled else ALONE,
        # A cache's predictions were made before the run, and for many runs; a server's are made for this one.
        "stage3": ALONE if cached else TAUGHT,
        "recovery": TAUGHT if config.recovery.distill.enabled else ALONE,
    }
