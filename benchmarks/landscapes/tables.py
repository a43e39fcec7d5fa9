"""Spaces and tables of the landscapes.

A landscape is a search space of the real trainer (`spaces/NAME.yaml`) and trials in it (`NAME.csv`): random
ones, each with a seed of its own, and a few configurations ten times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from benchmarks.json_lines import read_lines

HERE = Path(__file__).parent
SPACES = HERE / "spaces"
METRIC = "final_loss"  # NaN where a trial failed
SEED = "seed"
RANDOM, DEFAULTS = "random", "defaults"
# Ranks of the random trials that are repeated, as shares of all: the best one, a good one and a middling one.
REPEATED = {"best": 0.0, "good": 0.1, "middling": 0.4}
KINDS = (RANDOM, DEFAULTS, *REPEATED)
# Columns of a table beside kind, parameters and the held-out losses on the way, such as `stage2@0.25`.
COLUMNS = (SEED, METRIC, "final_loss_sem", "stage2_start_loss", "cost_nominal", "train_seconds")

Row = dict[str, Any]


def names() -> list[str]:
    """Return the names of all landscapes."""
    return sorted(path.stem for path in SPACES.glob("*.yaml"))


def default_names() -> list[str]:
    """Return the landscapes that are meant where none is named: not `smollm2`.

    It needs a GPU, and has too few random trials for an emulator.
    """
    return [name for name in names() if name != "smollm2"]


def load_space(name: str) -> dict[str, Any]:
    """Return a landscape's search space, as searchers get it."""
    space: dict[str, Any] = yaml.safe_load((SPACES / f"{name}.yaml").read_text(encoding="utf-8"))
    return space


def read(name: str) -> list[Row]:
    """Return the rows of a landscape's table; none if it was never written."""
    path = HERE / f"{name}.csv"
    if not path.exists():
        return []
    return [{str(key): value for key, value in row.items()} for row in pd.read_csv(path).to_dict("records")]


def read_trained(path: Path, name: str) -> list[Row]:
    """Return the rows of a landscape that `train` has written to a file so far."""
    return [row for row in read_lines(path) if row["landscape"] == name]


def merge(*sources: Iterable[Row]) -> list[Row]:
    """Return the rows of several sources, later ones in place of earlier ones of the same kind and seed."""
    found = {(row["kind"], int(row[SEED])): row for rows in sources for row in rows}
    return sorted(found.values(), key=lambda row: KINDS.index(row["kind"]))


def repeats(name: str, rows: Sequence[Row], number: int) -> list[Row]:
    """Return the trials that show the noise of seeds, once a landscape's random trials have ended.

    Args:
        name: of the landscape.
        rows: its random trials.
        number: of seeds for each configuration.

    Returns:
        kind, seed and parameters of each.
    """
    space = load_space(name)
    ranked = sorted((row for row in rows if row[METRIC] == row[METRIC]), key=lambda row: float(row[METRIC]))
    fixed = {key: each["value"] for key, each in space["parameters"].items() if "value" in each}
    chosen = {DEFAULTS: {**fixed, **space["baseline"]}}
    for kind, share in REPEATED.items():
        row = ranked[round(share * (len(ranked) - 1))]
        chosen[kind] = {key: row[key] for key in space["parameters"]}
    return [
        {"kind": kind, SEED: 1000 * position + repeat, **parameters}
        for repeat in range(number)  # so that all have equally many whenever they are cut off
        for position, (kind, parameters) in enumerate(chosen.items(), start=1)
    ]


def write(name: str, rows: Sequence[Row]) -> Path:
    """Write the table of a landscape, and return its path."""
    table = pd.DataFrame(rows)
    on_the_way = sorted(column for column in table.columns if "@" in column)
    path = HERE / f"{name}.csv"
    keys = list(load_space(name)["parameters"])
    table[["kind", *keys, *COLUMNS, *on_the_way]].to_csv(path, index=False, float_format="%.6g")
    return path
