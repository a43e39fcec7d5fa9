"""Reused stages in words: for `sweep status`, `trials` and `best` and for a worker's lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sweeps.text.counted import counted
from sweeps.trials import costs
from sweeps.trials.record import Trial


def sweep_line(records: Sequence[Trial]) -> str:
    """Return what the sweep paid and saved so far, in one clause; "" if nothing was reused."""
    if (found := costs.compute(records)) is None:
        return ""
    unit = f" {found.unit}" if found.unit else ""
    return (
        f"{amount(found.paid)} of {amount(found.nominal)}{unit} paid; "
        f"{100 * found.saved:.0f} % saved by {counted(found.reused, 'reused stage')}"
    )


def sweep_document(records: Sequence[Trial]) -> dict[str, Any]:
    """Return `{"compute": …}` for programs; empty if nothing was reused."""
    if (found := costs.compute(records)) is None:
        return {}
    totals = {"nominal": found.nominal, "paid": found.paid, "saved": found.saved}
    return {"compute": totals | {"reused_stages": found.reused, "unit": found.unit}}


def sources(record: Trial) -> str:
    """Return the stages that a trial reused and whose they are: `stage1_9 of 3`; "" without any."""
    return ", ".join(f"{stage.name} of {stage.reused_from}" for stage in costs.reused(record))


def trial_line(record: Trial) -> str:
    """Return what a trial paid and reused, in one clause; "" if it reused nothing."""
    nominal, paid = costs.nominal(record), costs.paid(record)
    if nominal is None or paid is None or not costs.reused(record):
        return ""
    taken = ", ".join(f"{stage.name} of trial {stage.reused_from}" for stage in costs.reused(record))
    return f"paid {amount(paid)} of {amount(nominal)}, reusing {taken}"


def amount(value: float) -> str:
    """Return a cost for people: in full from 1000, else with four significant digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"
