"""Further names of columns: those that only the analysis knows; `sweeps.text.columns` has the others."""

from __future__ import annotations

from collections.abc import Collection

from sweeps.text.columns import METRIC, PARAMETER, RESERVED

OWN_COLUMNS = frozenset(("trial", "status", "attempt", "generator"))
"""A table with all of these was exported by a sweep; another may happen to have a column `trial`."""

SEED = "param.seed"

STEP_COLUMNS = (("stage1_9_steps", "stage2_steps"), ("param.stage1_9.max_steps", "param.stage2.max_steps"))
"""Pairs of columns that may hold the lengths of Stage 1.9 and Stage 2, in steps."""


def apart(column: str, taken: Collection[str]) -> str:
    """Return the name of a metric's column in a further table, whose other columns are `taken`."""
    return METRIC + column if column in taken else column


def label(column: str, columns: Collection[str]) -> str:
    """Return a column's name for people: a parameter's without its prefix, unless another is called so.

    Args:
        column: of a table.
        columns: all of that table.
    """
    plain = column.removeprefix(PARAMETER)
    return column if plain in RESERVED or plain in columns or plain.startswith((PARAMETER, METRIC)) else plain
