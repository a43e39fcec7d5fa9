"""The surrogate's answer, read from field `insight` of an export document (see `sweeps.export.optimum`).

The data come from a file: malformed parts are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from analysis import labels
from analysis.summaries.insight import EffectPoint, effect, finite_numbers

Cell = float | str | bool


@dataclass(frozen=True, kw_only=True)
class ParameterOptimum:
    """Interval of the optimum along one parameter, or the probability of each option, and its curve.

    Args:
        chosen: its value in the chosen configuration.
        interval: ends of the interval of 95 %; None for unordered choices.
        shares: probability of each option to be the best configuration's; empty for numbers.
        curve: the metric along it.
    """

    name: str
    chosen: Cell
    interval: tuple[Cell, Cell] | None
    shares: tuple[tuple[Cell, float], ...]
    curve: tuple[EffectPoint, ...]

    @property
    def text(self) -> str:
        """Return the interval, such as `0.0031, 0.0019 to 0.0048`, or the likeliest options."""
        if self.interval is not None:
            chosen, low, high = map(_short, (self.chosen, *self.interval))
            return f"{chosen}, {low if low == high else f'{low} to {high}'}"
        likeliest = sorted(self.shares, key=lambda pair: -pair[1])[:3]
        return ", ".join(f"{labels.cell(value)} {labels.share(share)}" for value, share in likeliest if share)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The surrogate's answer.

    Args:
        parameters: in the order of the export.
    """

    trial: int
    metric: str
    sentences: tuple[str, ...]
    parameters: tuple[ParameterOptimum, ...]


def answer(insight: object) -> Answer | None:
    """Read the answer from field `insight` of an export, of any type; None if it has none."""
    document = insight.get("optimum") if isinstance(insight, Mapping) else None
    if not isinstance(document, Mapping) or not (found := finite_numbers(document, "trial", "mean")):
        return None
    sentences, parameters = document.get("sentences"), document.get("parameters")
    return Answer(
        trial=int(found[0]),
        metric=str(document.get("metric") or ""),
        sentences=tuple(str(line) for line in sentences) if isinstance(sentences, list) else (),
        parameters=tuple(
            parameter
            for name, each in (parameters.items() if isinstance(parameters, Mapping) else ())
            if (parameter := _parameter(str(name), each)) is not None
        ),
    )


def _short(value: Cell) -> str:
    """Format a number to two digits: more are not known of an optimum."""
    return labels.number(value, 2) if isinstance(value, float) else labels.cell(value)


def _parameter(name: str, document: object) -> ParameterOptimum | None:
    if not isinstance(document, Mapping):
        return None
    curve, shares = effect(document.get("curve")), document.get("shares")
    low, high = document.get("low"), document.get("high")
    chosen = document.get("chosen")
    if not curve or not isinstance(chosen, str | bool | int | float):
        return None
    return ParameterOptimum(
        name=name,
        chosen=chosen,
        interval=(low, high)
        if isinstance(low, str | bool | int | float) and isinstance(high, str | bool | int | float)
        else None,
        shares=tuple(
            (row["value"], float(numbers[0]))
            for row in (shares if isinstance(shares, list) else ())
            if (numbers := finite_numbers(row, "share"))
            and isinstance(row.get("value"), str | bool | int | float)
        ),
        curve=curve,
    )
