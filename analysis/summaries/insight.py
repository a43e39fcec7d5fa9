"""The surrogate's view of the parameters, and its answer, read from an export document.

The documents are those of `sweeps.export.insight` and `sweeps.export.optimum`. They come from a file:
malformed parts are ignored.
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any

from pydantic import (
    AllowInfNan,
    Field,
    OnErrorOmit,
    Strict,
    StrictBool,
    StrictInt,
    StrictStr,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic.dataclasses import dataclass

from analysis import labels

NOT_ASKED = "This page was made without the surrogate, the model that tells; `sweep report` fits it."
SKILL = 0.3
"""Below this rank correlation of predicted and observed results, the surrogate is not worth much."""

Number = Annotated[float, Strict(), AllowInfNan(False)]
Cell = StrictBool | StrictInt | Number | StrictStr


def _none_if_malformed(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    try:
        return validate(value)
    except ValidationError:
        return None


@dataclass(frozen=True, kw_only=True)
class EffectPoint:
    """A point of a curve: the parameter's value, the predicted mean and its standard deviation."""

    value: Cell
    mean: Number
    sd: Number

    @property
    def ends(self) -> tuple[float, float]:
        """Return the ends of the interval of 95 %."""
        return self.mean - 1.96 * self.sd, self.mean + 1.96 * self.sd


EffectCurve = Annotated[list[OnErrorOmit[EffectPoint]], Field(min_length=1)]


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """Shares of the variance that a parameter explains by itself, and with others."""

    first: Number
    total: Number


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """A trial as predicted by a surrogate that was fitted without it."""

    trial: int
    observed: Number
    predicted: Number
    predicted_sd: Number


@dataclass(frozen=True, kw_only=True)
class JointPoint:
    """Values of two parameters, and the predicted mean."""

    x: Cell
    y: Cell
    mean: Number


@dataclass(frozen=True, kw_only=True)
class JointEffect:
    """The predicted metric over two parameters, the names of which are `x` and `y`."""

    x: str
    y: str
    cells: Annotated[list[OnErrorOmit[JointPoint]], Field(min_length=1)]


@dataclass(frozen=True, kw_only=True)
class View:
    """The surrogate's view of one metric.

    Args:
        joint: of the two most sensitive parameters; None with one alone.
        cross_validation: each trial predicted without it.
    """

    sensitivity: dict[str, OnErrorOmit[Sensitivity]] = field(default_factory=dict)
    cross_validation: list[OnErrorOmit[HeldOut]] = field(default_factory=list)
    marginal: dict[str, OnErrorOmit[EffectCurve]] = field(default_factory=dict)
    joint: Annotated[JointEffect | None, WrapValidator(_none_if_malformed)] = None

    @property
    def ranking(self) -> list[tuple[str, Sensitivity]]:
        """Return the parameters and their shares, the largest total first."""
        return sorted(self.sensitivity.items(), key=lambda item: (-item[1].total, item[0]))

    @property
    def skill(self) -> float | None:
        """Return Spearman's rank correlation of predicted and observed; None if it is undefined."""
        from scipy.stats import spearmanr

        observed = [held.observed for held in self.cross_validation]
        predicted = [held.predicted for held in self.cross_validation]
        if len(observed) < 3 or len(set(observed)) < 2 or len(set(predicted)) < 2:
            return None
        return float(spearmanr(observed, predicted).statistic)


@dataclass(frozen=True, kw_only=True)
class OptionShare:
    """An option of an unordered choice, and the probability that it is the best configuration's."""

    value: Cell
    share: Number


@dataclass(frozen=True, kw_only=True)
class ParameterOptimum:
    """Interval of the optimum along one parameter, or the probability of each option, and its curve.

    Args:
        chosen: its value in the chosen configuration.
        low: lower end of the interval of 95 %; None for unordered choices.
        shares: empty for numbers.
        curve: the metric along it.
    """

    chosen: Cell
    curve: EffectCurve
    low: Annotated[Cell | None, WrapValidator(_none_if_malformed)] = None
    high: Annotated[Cell | None, WrapValidator(_none_if_malformed)] = None
    shares: list[OnErrorOmit[OptionShare]] = field(default_factory=list)

    @property
    def interval(self) -> tuple[Cell, Cell] | None:
        """Return the interval of 95 %; None for unordered choices."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def text(self) -> str:
        """Return the interval, such as `0.0031, 0.0019 to 0.0048`, or the likeliest options."""
        if self.interval is not None:
            # More than two digits are not known of an optimum.
            chosen, low, high = (
                labels.number(value, 2) if isinstance(value, float) else labels.cell(value)
                for value in (self.chosen, *self.interval)
            )
            return f"{chosen}, {low if low == high else f'{low} to {high}'}"
        likeliest = sorted(self.shares, key=lambda option: -option.share)[:3]
        return ", ".join(f"{labels.cell(o.value)} {labels.share(o.share)}" for o in likeliest if o.share)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The surrogate's answer; its parameters in the order of the export."""

    trial: int
    mean: Number
    metric: str = ""
    sentences: list[str] = field(default_factory=list)
    parameters: dict[str, OnErrorOmit[ParameterOptimum]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Insight:
    """The surrogate's views by metric, a note on them or why there are none, and its answer if it has one."""

    metrics: dict[str, OnErrorOmit[View]] = field(default_factory=dict)
    note: str = ""
    optimum: Annotated[Answer | None, WrapValidator(_none_if_malformed)] = None


def insight(document: object) -> Insight:
    """Read field `insight` of an export, of any type."""
    try:
        found = TypeAdapter(Insight).validate_python(document)
    except ValidationError:
        return Insight(note=NOT_ASKED)
    if found.metrics or found.note:
        return found
    return Insight(note="The surrogate's view is empty.", optimum=found.optimum)
