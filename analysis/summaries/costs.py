"""Costs of trials in US dollars: as they report them, or their time at the price of a machine.

This module imports no pandas: `sweep status` has to be quick.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from analysis.errors import TableError
from analysis.statistics import stages

SCHEMA = 1
SHIPPED = Path(__file__).parent.parent / "rates.yaml"
KEYS = {"name", "on_demand", "spot", "dated"}
OPEN = ("pending", "running")
_MONTH = re.compile(r"\d{4}-\d{2}(-\d{2})?")


@dataclass(frozen=True, kw_only=True)
class Rate:
    """The price of one machine.

    Args:
        name: provider and device.
        kind: "on demand" or "spot".
        dated: the month in which the price was read.
    """

    name: str
    usd_per_hour: float
    kind: str
    dated: str

    def __str__(self) -> str:
        return f"{self.name} at ${self.usd_per_hour:.2f} an hour {self.kind} ({self.dated})"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of a sweep.

    Args:
        so_far: US dollars of all trials with a known cost, in any status.
        priced: number of trials with a known cost.
        unpriced: number of trials that ran and have none.
        expected: US dollars when all trials of `run_cap` are done, and the open ones: each at the mean of the
            completed, or what it has cost if that is more; None without a cap or a completed trial with a
            known cost.
        basis: source of the prices, for people.
    """

    so_far: float
    priced: int
    unpriced: int
    expected: float | None
    basis: str


def rate(device: str, *, spot: bool = False, file: Path | None = None) -> Rate:
    """Return the price of a machine.

    Args:
        device: its name, or a part of it that no other name has.
        spot: the price of a spot machine, else on demand.
        file: a table of rates; None for the one that ships with the package.

    Raises:
        TableError: the file is not a table of rates, or it has no such device, several, or no such price.
    """
    source = str(file or "the rates that ship with stagesweep")
    rates = _read(file or SHIPPED, source)
    if not isinstance(device, str):
        raise TableError(source, f"the device is {device!r:.80}; give its name, as a text")
    exact = [name for name in rates if name.casefold() == device.casefold()]
    found = exact or [name for name in rates if device.casefold() in name.casefold()]
    if len(found) != 1:
        problem = f"{device!r} is ambiguous: name one of" if found else f"no device {device!r}; there are"
        raise TableError(source, f"{problem} {', '.join(repr(name) for name in found or rates)}")
    kind = "spot" if spot else "on_demand"
    price = rates[found[0]].get(kind)
    if price is None:
        raise TableError(source, f"{found[0]!r} has no {kind.replace('_', ' ')} price")
    return Rate(
        name=found[0],
        usd_per_hour=float(price),
        kind=kind.replace("_", " "),
        dated=str(rates[found[0]]["dated"]),
    )


def cheapest_rate(device: str, *, spot: bool = False) -> Rate | None:
    """Return the lowest price of the machines that ship whose names have this word; None: there is none."""
    names = [name for name in _read(SHIPPED, str(SHIPPED)) if device.casefold() in name.casefold().split()]
    found: list[Rate] = []
    for name in names:
        with suppress(TableError):  # it has no price of this kind
            found.append(rate(name, spot=spot))
    return min(found, key=lambda each: each.usd_per_hour, default=None)


def usd(seconds: float | None, reported: float | None, price: Rate | None) -> float | None:
    """Return one trial's US dollars: its seconds at the price, else what it reported; None if unknown."""
    if price is None:
        return reported if reported is not None and math.isfinite(reported) else None
    return None if seconds is None or not math.isfinite(seconds) else price.usd_per_hour * seconds / 3600


def _paid_dollars(trial: Mapping[str, Any]) -> float | None:
    """Return the dollars that a trial reported, less those of stages that others computed; None if unknown.

    A trial that ended before its report has paid for the stages that it computed.
    """
    found = stages.parse(trial.get("stages"), trial.get("trial"))
    reported = _number(trial.get("metrics", {}).get("usd"))
    if reported is not None:
        return max(0.0, reported - stages.total(stage.not_paid(stage.usd) for stage in found))
    own = [stage.usd - (stage.not_paid(stage.usd) or 0.0) for stage in found if stage.usd is not None]
    return stages.total(own) if any(stage.usd is not None for stage in stages.computed(found)) else None


def cost(trials: Sequence[Mapping[str, Any]], run_cap: int | None, price: Rate | None = None) -> Cost:
    """Return the cost of the trials, so far and expected.

    Args:
        trials: those of an export document, of which `status`, `attempt`, `generator`, `seconds`,
            `machine_seconds`, `metrics` and `stages` are read; imported trials do not count, and reused
            stages count once.
        run_cap: number of trials that the sweep may run; None for no limit.
        price: of the trials' time; None for the dollars that they report.
    """
    own = [trial for trial in trials if not _is_imported(trial)]
    times = [_number(trial.get("machine_seconds", trial.get("seconds"))) for trial in own]
    prices = [usd(seconds, _paid_dollars(t), price) for t, seconds in zip(own, times, strict=True)]
    known = [(trial, dollars) for trial, dollars in zip(own, prices, strict=True) if dollars is not None]
    if price is None and not any(dollars for _, dollars in known):
        known = []  # the trainer reports 0 of a CPU: that is no price
    means: dict[bool, float] = {}  # of cheap trials, below the target of fidelities, and of the others
    for is_cheap in (True, False):
        done = [d for t, d in known if t.get("status") == "completed" and _is_cheap(t) == is_cheap]
        if done:
            means[is_cheap] = math.fsum(done) / len(done)
    expected = None
    if run_cap is not None and False in means:
        mean = means[False]
        closed = math.fsum(dollars for trial, dollars in known if trial.get("status") not in OPEN)
        # An open trial costs at least what it has cost: without that, the end would cost less than "so far".
        open_ = [
            max(means.get(_is_cheap(trial), 0.0), dollars or 0.0)
            for trial, dollars in zip(own, prices, strict=True)
            if trial.get("status") in OPEN
        ]
        searched = [t for t in own if not _is_cheap(t) and t.get("generator") != "confirm"]  # under the cap
        expected = closed + math.fsum(open_) + max(0, run_cap - len(searched)) * mean
    return Cost(
        so_far=math.fsum(dollars for _, dollars in known),
        priced=len(known),
        unpriced=max(0, sum(seconds is not None for seconds in times) - len(known)),
        expected=expected,
        basis=str(price) if price else "as the trials reported it (usd)",
    )


def _is_imported(trial: Mapping[str, Any]) -> bool:
    # One below the target of fidelities has their generator, but nobody here has attempted it.
    unattempted = trial.get("status") == "completed" and trial.get("attempt") == 0
    return unattempted or trial.get("generator") == "imported"


def _is_cheap(trial: Mapping[str, Any]) -> bool:
    return trial.get("generator") == "fidelity"


@cache
def _read(file: Path, source: str) -> Mapping[str, Mapping[str, Any]]:
    import yaml

    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise TableError(source, f"cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise TableError(source, f"not a table of rates: `schema: {SCHEMA}` and `rates: [...]` are expected")
    rows = document.get("rates")
    if not isinstance(rows, list) or not rows:
        raise TableError(source, "`rates` is not a list of {name, on_demand, spot, dated}")
    found: dict[str, Mapping[str, Any]] = {}
    for position, row in enumerate(rows):
        if problem := _problem(row, found):
            raise TableError(source, f"rates[{position}]: {problem}")
        found[row["name"]] = row
    return found


def _problem(row: object, known: Mapping[str, object]) -> str:
    """Return what is wrong with a row; "" if nothing."""
    if not isinstance(row, dict):
        return "write {name: ..., on_demand: ..., dated: ...}"
    if unknown := set(row) - KEYS:
        return f"unknown key {sorted(map(str, unknown))[0]!r}; the keys are {', '.join(sorted(KEYS))}"
    if not isinstance(row.get("name"), str) or not row["name"].strip():
        return "`name` is missing"
    if row["name"] in known:
        return f"{row['name']!r} appears twice"
    if not _MONTH.fullmatch(str(row.get("dated"))):
        return f"`dated` is {row.get('dated')!r}; the month in which it was read, such as 2026-01"
    prices = {kind: row[kind] for kind in ("on_demand", "spot") if row.get(kind) is not None}
    if not prices:
        return "neither on_demand nor spot: give US dollars per hour"
    for kind, price in prices.items():
        if _number(price) is None or not 0 <= float(price) < math.inf:
            return f"{kind} is {price!r}; give US dollars per hour"
    return ""


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
