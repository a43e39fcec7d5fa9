"""Means over seeds: one row per configuration, with the standard error over seeds.

A trial's own `final_loss_sem` is the noise of the evaluation. The noise of the training is usually larger,
and only repeated seeds show it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types

from analysis.errors import AnalysisError, MissingColumn
from analysis.table import (
    RESERVED,
    SEED,
    SEM,
    TableLike,
    TrialsTable,
    apart,
    configuration_keys,
    is_confirming,
    seed_columns,
)
from sweeps.text.columns import is_seed
from sweeps.text.fresh_runs import MIN_RUNS


def over_seeds(table: TableLike, seed: str = SEED) -> pd.DataFrame:
    """Average the metrics of the completed trials of each configuration.

    Of a configuration with two fresh runs or more, confirmed or not, only these count: it was selected for
    its other values.

    Args:
        seed: the parameter that is not part of the configuration.

    Returns:
        A row per configuration, in the order of their first trials: the parameters but the seed, `seeds` (the
        number of completed trials), `trials` (their indices), and for every metric its mean, `<metric>_sem` =
        s/√n over seeds (for n = 1 the trial's own, if it reported one) and `<metric>_range`, half the 95 %
        interval of the mean (Student's t, n - 1 degrees of freedom; NaN for n = 1).

    Raises:
        MissingColumn: there is no such seed.
        AnalysisError: the table is not a sweep's own, or a configuration has the same seed twice.
    """
    table = TrialsTable.from_frame(table)
    if not table.is_sweep:
        raise AnalysisError("only a sweep's own table separates parameters from metrics; export the sweep")
    if seed not in table:
        raise MissingColumn(seed, table.columns)
    others = [name for name in seed_columns(table) if not is_seed(name)]
    keys = [name for name in table.parameters if name not in (seed, *others)]
    fresh = is_confirming(table) & table.completed
    texts = configuration_keys(table)
    runs = Counter(texts[row] for row in np.flatnonzero(fresh))
    repeated = np.array([runs[text] >= MIN_RUNS for text in texts], dtype=np.bool_)
    table = table.take(table.completed & (fresh | ~repeated))
    done = table.frame
    metrics = [
        name
        for name in table.columns
        if name not in (*RESERVED, *table.parameters)
        and not (name.endswith(SEM) and name.removesuffix(SEM) in table)
        and types.is_numeric_dtype(done[name])
        and not types.is_bool_dtype(done[name])
    ]
    taken = {"seeds", "trials", *(name + ending for name in metrics for ending in (SEM, "_range"))}
    names = {name: apart(name, taken) for name in metrics}
    rows = []
    # As text, so that missing (inactive) parameters and mixed types make groups like any other value.
    texts_of = [done[name].astype(object).map(repr).tolist() for name in keys]
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for position, configuration in enumerate(zip(*texts_of, strict=True) if keys else [()] * len(done)):
        groups[configuration].append(position)
    for members in groups.values():
        group = done.iloc[members]
        if group[seed].duplicated().any():
            trials = ", ".join(str(trial) for trial in group["trial"])
            raise AnalysisError(f"trials {trials} share all parameters, and two of them {seed!r}")
        row: dict[str, Any] = {key: group[key].iloc[0] for key in keys}
        row |= {"seeds": len(group), "trials": group["trial"].tolist()}
        for metric, name in names.items():
            values = group[metric].to_numpy("float64", na_value=np.nan)
            values = values[np.isfinite(values)]
            row[name] = values.mean() if values.size else np.nan
            row[name + SEM], row[name + "_range"] = _errors(group, metric, values)
        rows.append(row)
    columns = [*keys, "seeds", "trials"]
    columns += [name + ending for name in names.values() for ending in ("", SEM, "_range")]
    return pd.DataFrame(rows, columns=pd.Index(columns))


def _errors(group: pd.DataFrame, metric: str, values: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Return the standard error of the mean, and half its 95 % interval."""
    if values.size >= 2:
        from scipy.special import stdtrit

        sem = float(values.std(ddof=1) / np.sqrt(values.size))
        return sem, float(stdtrit(values.size - 1, 0.975) * sem)
    if values.size == 1 and metric + SEM in group.columns:
        own = group.loc[group[metric].notna(), metric + SEM]
        return float(pd.to_numeric(own, errors="coerce").iloc[0]), np.nan
    return np.nan, np.nan
