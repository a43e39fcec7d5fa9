"""How columns and values are written for people: units in the axis titles, digits that mean something.

`figures` and `contents` call this; nothing here computes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

MISSING = "–"

TITLES: Mapping[str, str] = MappingProxyType(
    {
        "final_loss": "final loss (nats per token)",
        "perplexity": "perplexity",
        "bits_per_byte": "bits per byte",
        "stage1_9_final_loss": "combined training loss at the end of Stage 1.9",
        "stage1_9_distill_loss": "hidden-state loss at the end of Stage 1.9",
        "stage1_9_ce_loss": "cross-entropy at the end of Stage 1.9 (nats per token)",
        "stage1_9_kl_loss": "divergence from the teacher at the end of Stage 1.9 (nats per token)",
        "stage2_start_loss": "loss at the start of Stage 2 (nats per token)",
        "stage2_train_loss": "training loss of Stage 2 (nats per token)",
        "effective_steps": "effective steps",
        "train_flops": "training compute (FLOP)",
        "train_seconds": "training time (s)",
        "seconds": "time of the trial (s)",
        "tokens": "training tokens",
        "tokens_per_second": "throughput (tokens per second)",
        "peak_memory_gib": "peak memory (GiB)",
        "usd": "cost (US dollars)",
    }
)


def title(column: str) -> str:
    """A column's name with its unit, where this project knows it; else the name itself."""
    return TITLES.get(column, column)


def number(value: float | None, digits: int = 4) -> str:
    """A number to four significant digits, whole numbers in full: `0.002412`, `1,200`, `3.1e+12`."""
    if value is None or math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if float(value).is_integer() and abs(value) < 1e7:
        return f"{int(value):,}"
    return f"{value:.{digits}g}".replace("e+0", "e+").replace("e-0", "e-")


def counted(count: int, noun: str) -> str:
    """The number with its noun: `1 trial`, `3 trials`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def with_error(value: float | None, sem: float | None) -> str:
    """A number with its standard error, to the error's second digit: `3.412 ± 0.018`; "" without both."""
    if value is None or sem is None or not (math.isfinite(value) and math.isfinite(sem) and sem > 0):
        return ""
    decimals = min(9, max(0, 1 - math.floor(math.log10(sem))))
    return f"{value:.{decimals}f} ± {sem:.{decimals}f}"


def share(value: float | None) -> str:
    """A share as a percentage; "" where it is not known. Only what is certain is 0 or 100 %."""
    if value is None:
        return ""
    if 0 < value < 0.01 or 0.99 < value < 1:
        return "< 1 %" if value < 0.5 else "> 99 %"
    return f"{100 * value:.0f} %"


def cell(value: object) -> str:
    """Any value of a table: numbers as above, missing ones as a dash, the rest as it is."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return MISSING
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return number(value)
    return str(value)
