"""Trains what a landscape is made of, and writes it as a table.

A landscape is a search space of the real trainer (`spaces/NAME.yaml`) and trials in it (`NAME.csv`): random
ones, each with a seed of its own, and a few configurations ten times. All of them are trials of ordinary
sweeps, so that a recording that was stopped goes on: in its storage, or elsewhere from the table.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

import sweeps

HERE = Path(__file__).parent
SPACES = HERE / "spaces"
METRIC = "final_loss"  # NaN where a trial failed
SEED = "seed"
# Ranks of the random trials that are repeated, as shares of all: the best one, a good one and a middling one.
REPEATED = {"best": 0.0, "good": 0.1, "middling": 0.4}
# The CSV's columns beside the space's parameters and the held-out losses on the way, such as `stage2@0.25`.
COLUMNS = ("kind", SEED, METRIC, "final_loss_sem", "stage2_start_loss", "cost_nominal", "train_seconds")

Row = dict[str, Any]


def load_space(name: str) -> dict[str, Any]:
    """Return a landscape's search space, as searchers get it."""
    space: dict[str, Any] = yaml.safe_load((SPACES / f"{name}.yaml").read_text(encoding="utf-8"))
    return space


def record(name: str, storage: Path, *, trials: int, repeats: int) -> Path:
    """Train what is missing of a landscape, and write its table.

    Args:
        name: of a file in `spaces/`.
        storage: folder of the sweeps.
        trials: random ones.
        repeats: seeds of each repeated configuration.

    Returns:
        The table's path.
    """
    space = load_space(name)
    keys = list(space["parameters"])
    earlier = _written(name)
    random = _sweep(space, name, storage, earlier.get("random", []), trials)
    _work(random)
    rows = [*earlier.pop("random", []), *({"kind": "random", **row} for row in _rows(random))]
    write(name, [*rows, *(row for kind in earlier.values() for row in kind)])

    ranked = sorted((row for row in rows if row[METRIC] == row[METRIC]), key=lambda row: float(row[METRIC]))
    chosen = {"defaults": dict(space["baseline"])}
    for kind, share in REPEATED.items():
        chosen[kind] = {key: ranked[round(share * (len(ranked) - 1))][key] for key in keys}
    again = _sweep(space, f"{name}-repeats", storage, [], repeats * len(chosen))
    kinds: dict[int, str] = {}
    for number, (kind, parameters) in enumerate(chosen.items()):
        done = {int(row[SEED]) for row in earlier.get(kind, [])}
        for seed in range(1000 * (number + 1), 1000 * (number + 1) + repeats):
            kinds[seed] = kind
            if seed not in done:
                again.enqueue({**parameters, SEED: seed}, skip_if_exists=True)
    _work(again)
    rows += [row for kind in earlier.values() for row in kind]
    rows += [{"kind": kinds[int(row[SEED])], **row} for row in _rows(again)]
    return write(name, rows)


def write(name: str, rows: list[Row]) -> Path:
    """Write the table of a landscape, and return its path."""
    table = pd.DataFrame(rows)
    on_the_way = sorted(column for column in table.columns if "@" in column)
    path = HERE / f"{name}.csv"
    keys = list(load_space(name)["parameters"])
    table[["kind", *keys, *COLUMNS[1:], *on_the_way]].to_csv(path, index=False, float_format="%.6g")
    return path


def rows_so_far(name: str, storage: Path) -> list[Row]:
    """Return the random trials that a recording has by now, those of the table included."""
    sweep = sweeps.open(storage / name)
    return [*_written(name).get("random", []), *({"kind": "random", **row} for row in _rows(sweep))]


def _written(name: str) -> dict[str, list[Row]]:
    """Return the rows of the table by their kind; none if it was never written."""
    path = HERE / f"{name}.csv"
    if not path.exists():
        return {}
    table = pd.read_csv(path)
    found: dict[str, list[Row]] = {}
    for row in table.to_dict("records"):
        found.setdefault(str(row["kind"]), []).append({str(key): value for key, value in row.items()})
    return found


def _sweep(space: dict[str, Any], name: str, storage: Path, rows: list[Row], trials: int) -> sweeps.Sweep:
    """Return the sweep of a recording; a new one gets these rows as imported trials and goes on behind."""
    made = {
        **space,
        "name": name,
        "parameters": {**space["parameters"], SEED: {"min": 0, "max": 2**31 - 1}},
        "search": {"method": "random", "seed": 0, "reuse": "none"},
        "run_cap": max(trials - len(rows), 1),
    }
    is_new = not (storage / name).exists()
    sweep = sweeps.create(made, storage=storage, skip_if_exists=True)
    if is_new and rows:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rows.csv"
            columns = {key: f"param.{key}" for key in (*space["parameters"], SEED)}
            table = pd.DataFrame(rows).rename(columns=columns)
            table[table[METRIC].notna()][[*columns.values(), METRIC]].to_csv(path, index=False)
            subprocess.run(
                [sys.executable, "-m", "sweeps", "import", "--storage", sweep.url, str(path)], check=True
            )
    return sweep


def _work(sweep: sweeps.Sweep) -> None:
    """Run a sweep's trials by one worker with one thread."""
    status = subprocess.call(
        [sys.executable, "-m", "sweeps", "worker", "--storage", sweep.url, "--exit-when-idle"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    if status:
        raise SystemExit(
            f"the worker of {sweep.url} ended with status {status}; the same command goes on there"
        )


def _rows(sweep: sweeps.Sweep) -> Iterator[Row]:
    """Yield parameters, metrics and held-out losses of each trial; one that failed has no final loss."""
    table = sweep.trials()
    for row in table[table["status"].isin(["completed", "failed"])].to_dict("records"):
        if row["generator"] == "imported":
            continue
        parameters = {
            key.removeprefix("param."): value for key, value in row.items() if key.startswith("param.")
        }
        metrics = {column: row.get(column) for column in COLUMNS[2:]}
        run = Path(sweep.url) / "runs" / f"{row['trial']:06d}" / f"attempt-{row['attempt']}"
        yield {**parameters, **metrics, **_on_the_way(run / "metrics.jsonl")}


def _on_the_way(metrics: Path) -> dict[str, float]:
    """Return the held-out losses within the stages, such as {"stage2@0.25": 4.1}."""
    found = {}
    for line in metrics.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if "held_out_loss" in entry and "of" in entry:
            quarter = round(4 * entry["step"] / entry["of"]) / 4
            found[f"{entry['stage']}@{quarter:g}"] = entry["held_out_loss"]
    return found
