"""The surrogate's answer as data and as sentences: which trial, how sure, and what more trials would bring.

`sweep best` shows it, and `insight` adds it to the document of a report:

    {"trial", "metric", "mean", "sd", "measured": of that trial, "noise": sd of a run, "chance", "shortfall",
     "more": number of further trials, "gain": expected of them,
     "best_measured": {"trial", "measured", "mean"}, "sentences": the same in words,
     "parameters": {NAME: {"chosen", "low", "high": interval of 95 % of the optimum, or null,
                           "shares": [{"value", "share"}] of the options,
                           "curve": [{"value", "mean", "sd"}]}}}
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sweeps.errors import SurrogateFailed
from sweeps.search.stop_rule import FEWEST, MOST, applies, results
from sweeps.space.definition import Space, cell_of
from sweeps.text.counted import counted
from sweeps.text.shorten import shorten
from sweeps.trials.record import Trial

if TYPE_CHECKING:
    from sweeps.search.optimizer import Optimizer, Optimum, SurrogateView

__all__ = ["FEWEST", "MORE", "MOST", "applies", "as_document", "from_view", "optimum"]

MORE = 12
"""Further trials whose gain is told."""

NO_NOISE = 1e-3
"""Share of the results' spread, below which noise is none and nothing is within it."""


def optimum(space: Space, records: Sequence[Trial], *, curves: bool = False) -> dict[str, Any] | None:
    """Return the document above, without `parameters` unless `curves`; None where there is no answer.

    Raises:
        SurrogateFailed: there would be one.
    """
    if not applies(space, records):
        return None
    found = posterior(space, records, more=MORE, curves=curves)
    return None if found is None else as_document(space, results(space, records), found, curves=curves)


def posterior(space: Space, records: Sequence[Trial], *, more: int, curves: bool) -> Optimum | None:
    """Return what the surrogate says of the results, however few; None if all lie outside of the space.

    Raises:
        SurrogateFailed: it cannot be fitted.
    """
    from sweeps.search.optimizer import SURROGATE_FAILURES, Optimizer

    optimizer = Optimizer(space)
    try:
        optimizer.observe(records)
        return optimizer.optimum(results(space, records), more=more, curves=curves)
    except SURROGATE_FAILURES as error:
        raise SurrogateFailed(f"the surrogate failed ({type(error).__name__}: {error})") from error


def from_view(
    space: Space, records: Sequence[Trial], optimizer: Optimizer, view: SurrogateView, *, curves: bool = True
) -> dict[str, Any] | None:
    """Return the same from a fitted surrogate. Raises one of SURROGATE_FAILURES."""
    if not applies(space, records):
        return None
    measured = results(space, records)
    found = optimizer.optimum(measured, more=MORE, view=view, curves=curves)
    return None if found is None else as_document(space, measured, found, curves=curves)


def as_document(
    space: Space, measured: Mapping[int, float], found: Optimum, *, curves: bool
) -> dict[str, Any]:
    """Return the document of an answer, given the measured value of each trial that may be chosen."""
    sign = space.objectives[0].sign
    best = min(measured, key=lambda trial: (sign * measured[trial], trial))
    document: dict[str, Any] = {
        "trial": found.trial,
        "metric": found.metric,
        "mean": found.mean,
        "sd": found.sd,
        "measured": measured[found.trial],
        "noise": found.noise,
        "chance": found.chance,
        "shortfall": found.shortfall,
        "more": len(found.gains),
        "gain": found.gains[-1],
        "best_measured": {"trial": best, "measured": measured[best], "mean": found.means.get(best)},
    }
    document["sentences"] = _sentences(document, sign, spread=max(measured.values()) - min(measured.values()))
    if curves:
        document["parameters"] = {
            each.name: {
                "chosen": cell_of(each.chosen),
                "low": None if each.interval is None else cell_of(each.interval[0]),
                "high": None if each.interval is None else cell_of(each.interval[1]),
                "shares": [{"value": cell_of(value), "share": share} for value, share in each.shares],
                "curve": [{"value": cell_of(p.value), "mean": p.mean, "sd": p.sd} for p in each.curve],
            }
            for each in found.parameters
        }
    return document


def _sentences(found: Mapping[str, Any], sign: float, spread: float) -> list[str]:
    """Return the answer in lines for people."""
    noise, best = found["noise"], found["best_measured"]
    has_noise = noise > NO_NOISE * spread
    lines = [
        f"trial {found['trial']}: {found['metric']} {_round_to_noise(found['mean'], noise)} by the model "
        f"(measured {_round_to_noise(found['measured'], noise)})"
    ]
    if has_noise:
        lines.append(
            f"{_percent(found['chance'])} that it is within one run's noise ({noise:.2g}) of the best in "
            "this space"
        )
    else:
        lines.append(
            f"the best in this space is expected to be {found['shortfall']:.1g} "
            f"{'lower' if sign > 0 else 'higher'}"
        )
    least = 0.01 * noise if has_noise else NO_NOISE * 0.1 * spread
    gain = f"below {least:.1g}" if found["gain"] < least else f"{found['gain']:.1g}"
    lines.append(f"{counted(found['more'], 'more trial')}: expected gain {gain}")
    if best["trial"] != found["trial"]:
        by_model = "" if best["mean"] is None else f" ({_round_to_noise(best['mean'], noise)} by the model)"
        which = "lowest" if sign > 0 else "highest"
        lines.append(
            f"{which} measured: trial {best['trial']}, {_round_to_noise(best['measured'], noise)}{by_model}"
        )
    return lines


def _round_to_noise(value: float, noise: float) -> str:
    """Return a number to the second digit of the noise, if that has a size."""
    if not noise or not math.isfinite(noise):
        return shorten(value)
    decimals = 1 - math.floor(math.log10(noise))
    return f"{value:.{decimals}f}" if 0 <= decimals <= 9 else shorten(value)


def _percent(share: float) -> str:
    if share < 0.01 or share > 0.99:
        return "< 1 %" if share < 0.5 else "> 99 %"
    return f"{100 * share:.0f} %"
