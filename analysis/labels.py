"""Titles of columns and formats of values for people: units in the titles, only significant digits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from sweeps.text.counted import counted

MISSING = "–"

MOST_DECIMALS = 9
"""More of them are zeros to count: such numbers are written with a power of ten."""

TITLES: Mapping[str, str] = MappingProxyType(
    {
        "final_loss": "final loss (nats per token)",
        "test_loss": "loss on the test text (nats per token)",
        "perplexity": "perplexity",
        "bits_per_byte": "bits per byte",
        "stage1_9_final_loss": "combined training loss at the end of Stage 1.9",
        "stage1_9_distill_loss": "hidden-state loss at the end of Stage 1.9",
        "stage1_9_ce_loss": "cross-entropy at the end of Stage 1.9 (nats per token)",
        "stage1_9_kl_loss": "divergence from the teacher at the end of Stage 1.9 (nats per token)",
        "stage2_start_loss": "loss at the start of Stage 2 (nats per token)",
        "recovery_start_loss": "loss without adapters (nats per token)",
        "stage2_train_loss": "training loss of Stage 2 (nats per token)",
        "effective_steps": "effective steps",
        "train_flops": "training compute (FLOP)",
        "train_seconds": "training time (s)",
        "seconds": "time of the trial (s)",
        "machine_seconds": "time of the trial, all attempts and hosts (s)",
        "tokens": "training tokens",
        "tokens_per_second": "throughput (tokens per second)",
        "peak_memory_gib": "peak memory (GiB)",
        "usd": "cost (US dollars)",
        "cost_nominal": "compute of all stages (nominal)",
        "cost_paid": "compute paid",
    }
)


def title(column: str) -> str:
    """Return a column's title with its unit, if it is a known one; else its name."""
    return TITLES.get(column, column)


def words(column: str) -> str:
    """Return a column's title without its unit."""
    return title(column).partition(" (")[0] if column in TITLES else column


def quantity(column: str, value: float) -> str:
    """Return a value with the name and the unit of its column: `68 effective steps`, `peak_gib 3.2`."""
    name, _, unit = title(column).partition(" (") if column in TITLES else (column, "", "")
    if column == "effective_steps":
        return f"{number(value)} {name}"
    return " ".join(filter(None, (name, number(value), unit.removesuffix(")"))))


def number(value: float | None, digits: int = 4) -> str:
    """Format a number to four digits, those before the point in full: `0.002412`, `12,346`, `3e+12`."""
    if value is None or math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if (float(value).is_integer() or abs(value) >= 10 ** (digits - 1)) and abs(value) < 1e7:
        return f"{value + 0.0:,.0f}"  # of -0.0, too, it makes 0
    return f"{value:,.{digits}g}".replace("e+0", "e+").replace("e-0", "e-")


def confirmed(*seeds: int) -> str:
    """Return how often points were confirmed: `confirmed by 5 seeds`, `confirmed by 2 to 5 seeds`."""
    low, high = min(seeds), max(seeds)
    return f"confirmed by {counted(high, 'seed')}" if low == high else f"confirmed by {low} to {high} seeds"


def with_error(value: float | None, sem: float | None) -> str:
    """Format a number and its standard error to two digits of it: `3.412 ± 0.018`; "" without both."""
    if value is None or sem is None or not (math.isfinite(value) and math.isfinite(sem) and sem > 0):
        return ""
    decimals = max(0, 1 - math.floor(math.log10(sem)))
    if decimals > MOST_DECIMALS:
        digits = decimals + 1 + math.floor(math.log10(abs(value))) if value else 1
        return f"{number(value, min(max(1, digits), 15))} ± {number(sem, 2)}"
    return f"{value:.{decimals}f} ± {sem:.{decimals}f}"


def share(value: float | None) -> str:
    """Format a share as a percentage; "" if unknown. Only a share of exactly 0 or 1 is 0 or 100 %."""
    if value is None:
        return ""
    if 0 < value < 0.01 or 0.99 < value < 1:
        return "< 1 %" if value < 0.5 else "> 99 %"
    return f"{100 * value:.0f} %"


def cell(value: object) -> str:
    """Format any value of a table: numbers as `number` does, missing ones as a dash, others as they are."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return MISSING
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return number(value)
    return str(value)
