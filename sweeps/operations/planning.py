"""`sweep plan`: from finished sweeps at two sizes or more, what to run at another size.

Each sweep's surrogate says where its optimum lies, with a standard deviation (`sweeps.export.optimum`). A
line over the logarithm of the size goes through these (`sweeps.search.size_line`), as through the losses.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from sweeps.errors import InputError, SurrogateFailed, SweepError
from sweeps.experiment import Experiment
from sweeps.export import optimum, table
from sweeps.operations.sources import progress, read_sources, trials_at_rest
from sweeps.programs.kinds import program_of
from sweeps.search.size_line import UNLIKELY, SizeLine, are_apart, through
from sweeps.search.stop_rule import FEWEST, MOST, results
from sweeps.space.definition import (
    Choice,
    Fixed,
    Parameter,
    Range,
    Search,
    Source,
    Space,
    Value,
    conditions,
    is_number,
    number_of,
    same_value,
    to_plain,
)
from sweeps.space.fidelity import at_target, is_at_target, target_values
from sweeps.space.literals import space_of
from sweeps.space.priors import with_defaults
from sweeps.space.scale import level, position
from sweeps.space.stages import Stages
from sweeps.text.columns import is_seed
from sweeps.text.counted import counted
from sweeps.text.shorten import shorten
from sweeps.trials.costs import Measure
from sweeps.trials.record import Trial

SIZE = "model_parameters"
"""The trainer's metric of the size of its model."""

LEAST = 4
"""Results that a surrogate can be fitted to."""

AT_END = 0.02
"""Share of a range at either end: an optimum there may lie beyond."""

WIDE = 0.25
"""Standard deviation of an optimum at an end, in ranges: as a prior's of which nothing is said."""

FINEST = 0.01
"""Least standard deviation of an optimum, in ranges: about the distance of the points that are compared."""

MIN_WIDTH = 0.2
"""Least width of a range of the final sweep, in ranges of the largest source."""

RUN_CAP, SOBOL = 12, 3
"""Trials of the final sweep, and how many of them are spread out."""

LIKELY = 0.05
"""Probability from which on an option is kept."""

FARTHEST = 1e6
"""Factor between a target and the largest source, in either measure, beyond which no plan is made."""

CURVE = 33
"""Points of a line that is drawn."""

STAGES = ("stage1_9.max_steps", "stage2.max_steps")
"""Lengths of the stages; a step of the first counts twice in effective steps."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A value with its interval of 95 %."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class SourceSweep:
    """A sweep that a plan is made from, with its best trial by the surrogate.

    Args:
        size: in the plan's measure.
        other: in its second measure; None without one.
        loss: the best in its space by the surrogate, and its interval.
        train_flops: operations of the trial; None: not reported.
        seconds: of its training; where it reports none, of all its attempts and of what other trials have
            computed of its stages.
    """

    url: str
    name: str
    size: float
    other: float | None = None
    results: int
    trial: int
    loss: Estimate
    train_flops: float | None
    seconds: float | None
    usd: float | None


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What to set one parameter to at the target.

    Args:
        interval: of 95 %; None where the best is an option, or nothing says how it moves.
        log: whether it is searched, and followed, on a logarithmic scale.
        exponent: of the power of the size that is followed; None without a line, or on a linear scale.
        optima: where it is best, by the URL of the source.
        line: (size, value, low, high) along the line that is followed; empty without one.
        options: those that are still likely.
    """

    value: Any
    interval: tuple[float, float] | None = None
    log: bool = False
    exponent: Estimate | None = None
    optima: Mapping[str, Any]
    line: tuple[tuple[float, float, float, float], ...] = ()
    options: tuple[Any, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to run at a size, as `sweep plan` shows it.

    Args:
        measure: of the size: a metric, or a parameter that is fixed in each source.
        beyond: how many times the size is the largest source's; below 1 it lies among them, or below.
        other: a second measure, such as the length of a stage, and what is planned of it; None: none differs.
        sources: by ascending size.
        settings: by parameter.
        loss: predicted of one run with these settings.
        loss_line: (size, loss, low, high).
        train_flops: of one run.
        speed: operations a second that `seconds` follow from.
        usd: of one run.
        stage1_9: its share of the effective steps.
        notes: what to know before relying on it, each a sentence.
        space: search space of a short final sweep, as `sweeps.create` takes it.
    """

    measure: str
    size: float
    beyond: float
    other: tuple[str, float] | None = None
    metric: str
    sources: tuple[SourceSweep, ...]
    settings: Mapping[str, Setting]
    loss: Estimate
    loss_line: tuple[tuple[float, float, float, float], ...]
    train_flops: float | None
    speed: float | None
    seconds: float | None
    usd: float | None
    stage1_9: Estimate | None
    notes: tuple[str, ...]
    space: Mapping[str, Any]

    def document(self) -> dict[str, Any]:
        """Return the plan for programs."""
        return asdict(self)

    def lines(self, price: str = "") -> list[str]:
        """Return the plan for people, without its settings and notes.

        Args:
            price: where the dollars come from.
        """
        low, high = self.sources[0], self.sources[-1]
        if low.size <= self.size <= high.size:
            head = "between the sources"
        else:
            times = f"{self.beyond:,.0f}" if self.beyond >= 100 else f"{self.beyond:.3g}"
            head = f"extrapolated to {times} times the largest source"
            if self.size < low.size:
                head = f"extrapolated to {self.size / low.size:.3g} of the smallest source"
            head += f"; the sources span a factor of {high.size / low.size:.3g}"
        if self.other is not None:
            measure, length = self.other
            others = sorted(each.other for each in self.sources if each.other is not None)
            head += f"; {measure} {length:.4g}, of sources with {others[0]:.4g} to {others[-1]:.4g}"
        found = [f"{self.measure} {self.size:.4g}: {head}"]
        loss = self.loss
        found.append(
            f"{self.metric} of one run: {loss.value:.4g} (95 %: {loss.low:.4g} to {loss.high:.4g}); "
            + ", ".join(f"{each.loss.value:.4g} at {each.size:.4g}" for each in self.sources)
        )
        costs = []
        if self.train_flops is not None:
            costs.append(f"{self.train_flops:.2e} operations")
        if self.seconds is not None:
            at = f" at {self.speed:.2e} operations a second" if self.speed else ""
            costs.append(f"{_duration(self.seconds)}{at}")
        if self.usd is not None:
            costs.append(f"${self.usd:,.2f}{f' ({price})' if price else ''}")
        found.append(f"one run: {', '.join(costs) or 'its cost is not known: the trials report none'}")
        if self.usd is not None:
            found.append(f"final sweep of {RUN_CAP} trials: ${RUN_CAP * self.usd:,.2f}")
        if (share := self.stage1_9) is not None:
            value, *ends = (f"{100 * each:.0f} %" for each in (share.value, share.low, share.high))
            reach = "" if share.low == share.high else f" (95 %: {ends[0]} to {ends[1]})"
            found.append(f"Stage 1.9: {value} of the effective steps{reach}")
        return found


@dataclass(frozen=True, kw_only=True)
class _Read:
    """A source as read: its sweep, its space, and the surrogate's answer.

    Args:
        away: logarithm of its second measure over the target's; None without one.
        progress: how many of its trials have ended, if not all have.
        target: value of each parameter of its `fidelity`, which the space has as fixed.
    """

    sweep: SourceSweep
    away: float | None = None
    progress: list[str]
    space: Space
    target: Mapping[str, Value]
    chosen: Trial
    noise: float
    drawn: Mapping[str, tuple[Value, ...]]
    ranges: Mapping[str, tuple[Value, Value]]


def make_plan(
    experiments: Sequence[Experiment],
    size: float,
    *,
    measure: str = SIZE,
    sizes: Sequence[float] = (),
    other: tuple[str, float] | None = None,
    speed: float | None = None,
    usd_per_hour: float | None = None,
) -> Plan:
    """Return what to run at a size, by finished sweeps at others; see `sweeps.plan`."""
    above_zero = [("size to plan for", size), *(("size of a sweep", each) for each in sizes)]
    above_zero += [(f"{other[0]} to plan for", other[1])] if other is not None else []
    above_zero += [("speed in operations a second", speed)] if speed is not None else []
    for what, number in above_zero:
        if not 0 < number < math.inf:
            raise InputError(f"the {what} is {number:g}; give a number above zero")
    if len(experiments) < 2:
        raise InputError("one sweep shows no drift; name finished sweeps of two sizes or more")
    if sizes and len(sizes) != len(experiments):
        raise InputError(
            f"{counted(len(sizes), 'size')} for {counted(len(experiments), 'sweep')}; give each its own"
        )
    checked = [_check(each, experiments[0]) for each in experiments]
    known = list(sizes) or [
        _size(e, r, measure, by_option=True) for e, r in zip(experiments, checked, strict=True)
    ]
    if not are_apart(known, None):
        raise InputError(
            f"{measure} is {', '.join(f'{each:.4g}' for each in known)} in these sweeps: too close to show a "
            "drift; name finished sweeps of sizes that are 7 % apart or more"
        )
    others: list[float | None] = [None] * len(known)
    targets = [(measure, size, known)]
    if other is not None:
        lengths = [_size(e, r, other[0], by_option=False) for e, r in zip(experiments, checked, strict=True)]
        if not are_apart(known, list(map(math.log, lengths))):
            pairs = ", ".join(f"{one:.4g} and {two:.4g}" for one, two in zip(known, lengths, strict=True))
            raise InputError(
                f"{measure} and {other[0]} are {pairs}: too little tells what each of them changes; add a "
                f"sweep with four times the {other[0]}, or a quarter, at one of these sizes"
            )
        others = list(lengths)
        targets.append((*other, lengths))
    common = _common([_space(each) for each in experiments])
    if not common:
        raise InputError("these sweeps have searched no parameter in common; name those that have")
    for name, at, found in targets:
        if not max(found) / FARTHEST <= at <= FARTHEST * max(found):
            raise InputError(
                f"{name} {at:.4g} is more than a million times away from {max(found):.4g}; no line reaches "
                "there"
            )
    ranked = sorted(zip(known, others, experiments, checked, strict=True), key=lambda each: each[:2])
    read = [_answer(experiment, records, at, length, other) for at, length, experiment, records in ranked]
    notes = _notes_on_sources(read, targets)
    largest = read[-1]
    settings: dict[str, Setting] = {}
    for parameter in largest.space.parameters:
        if isinstance(parameter, Fixed) or is_seed(parameter.name):
            continue
        settings[parameter.name] = _setting(parameter, read, size, other, common=common, notes=notes)
    loss, loss_line = _loss(read, size, notes)
    flops = _grown(read, [each.sweep.train_flops for each in read], size)
    seconds, at_speed = _seconds(read, size, flops, speed)
    usd = _usd(largest, flops, seconds, usd_per_hour)
    fixed = {measure: size} | ({other[0]: other[1]} if other is not None else {})
    space = _final_sweep(read, settings, fixed, notes)
    return Plan(
        measure=measure,
        size=float(size),
        beyond=size / largest.sweep.size,
        other=other,
        metric=largest.space.objectives[0].metric,
        sources=tuple(each.sweep for each in read),
        settings=settings,
        loss=loss,
        loss_line=loss_line,
        train_flops=flops,
        speed=at_speed,
        seconds=seconds,
        usd=usd,
        stage1_9=_stage1_9(largest, settings),
        notes=tuple(notes),
        space=space,
    )


# ---- sources


def _check(experiment: Experiment, first: Experiment) -> list[Trial]:
    """Return the trials of a sweep that can be planned from: those at its target. Raises `InputError`."""
    where, space = experiment.store.url, experiment.written
    records = trials_at_rest(experiment, where)
    if len(space.objectives) > 1 or space.outcome_constraints:
        what = "several objectives" if len(space.objectives) > 1 else "outcome constraints"
        raise InputError(f"{where}: it has {what}; a plan needs one best configuration, of one objective")
    here, there = space.objectives[0], first.written.objectives[0]
    if here != there:
        raise InputError(
            f"{where}: it is to {here.goal} {here.metric}, and {first.store.url} to {there.goal} "
            f"{there.metric}; leave one out"
        )
    records = [record for record in records if is_at_target(space, record.parameters)]
    found = results(space, records)
    count = len(found)
    if count < LEAST or len(records) > MOST:
        limit = (
            f"at least {LEAST} results are needed"
            if count < LEAST
            else f"{MOST} trials at most can be fitted"
        )
        raise InputError(f"{where}: {counted(count, 'result')} in {counted(len(records), 'trial')}; {limit}")
    if len(set(found.values())) == 1:
        raise InputError(f"{where}: all of its {count} results are equal: none is the best; leave it out")
    return records


def _size(experiment: Experiment, records: Sequence[Trial], measure: str, *, by_option: bool) -> float:
    """Return the size of a sweep by a fixed parameter or by a metric. Raises `InputError`.

    Args:
        by_option: whether it could be given, too.
    """
    where = f"{experiment.store.url}: size"
    done = [record for record in records if record.status == "completed"]
    parameters = _space(experiment).parameters
    fixed = [p.value for p in parameters if isinstance(p, Fixed) and p.name == measure]
    found = fixed or [value for record in done if (value := record.metrics.get(measure)) is not None]
    numbers = [float(value) for value in found if is_number(value)]
    if not numbers:
        fixed_numbers = (p.name for p in parameters if is_number(getattr(p, "value", None)))
        metrics = (name for name, value in done[0].metrics.items() if value)
        alike = (name for name in metrics if len({record.metrics.get(name) for record in done}) == 1)
        constants = {*fixed_numbers, *alike}
        others = ", ".join(sorted(constants - {"seed", "usd"})[:6])
        ways = ["the sizes by --size"] if by_option else []
        ways += [f"--at NAME=SIZE with one of {others}"] if others else []
        instead = f"give {', or '.join(ways) or 'each sweep a fixed parameter of that name'}"
        raise InputError(f"{where}: its trials have no {measure}; {instead}")
    if min(numbers) <= 0 or max(numbers) > 1.001 * min(numbers):
        raise InputError(
            f"{where}: {measure} is {min(numbers):.4g} to {max(numbers):.4g} in its trials; a sweep has one "
            f"size, above zero: {'give it by --size' if by_option else 'name another measure'}"
        )
    return numbers[0]


def _common(spaces: Sequence[Space]) -> set[str]:
    """Return the parameters that at least two spaces search and that can be compared. Raises `InputError`."""
    searched: dict[str, list[Parameter]] = {}
    for space in spaces:
        for parameter in space.parameters:
            if not isinstance(parameter, Fixed) and not is_seed(parameter.name):
                searched.setdefault(parameter.name, []).append(parameter)
    common = {name for name, found in searched.items() if len(found) > 1}
    for name in sorted(common):
        ranges = [each for each in searched[name] if isinstance(each, Range)]
        if len(ranges) not in (0, len(searched[name])):
            raise InputError(f"{name}: a range in one of these sweeps and a choice in another; leave one out")
        if ranges and max(each.min for each in ranges) > min(each.max for each in ranges):
            apart = " and ".join(f"{each.min:g} to {each.max:g}" for each in ranges)
            raise InputError(
                f"{name}: the ranges {apart} have no value in common, as if in another unit; "
                "leave a sweep out"
            )
    return common


def _answer(
    experiment: Experiment,
    records: list[Trial],
    size: float,
    length: float | None,
    other: tuple[str, float] | None,
) -> _Read:
    """Return the surrogate's answer about a sweep. Raises `InputError` and `SurrogateFailed`.

    Args:
        length: its second measure, and
        other: which that is, and what is planned for; None without one.
    """
    space = _space(experiment)
    try:
        found = optimum.posterior(space, records, more=1, curves=True)
    except SurrogateFailed as error:
        raise SurrogateFailed(f"{experiment.store.url}: {error}; leave it out") from None
    if found is None:
        raise InputError(f"{experiment.store.url}: all of its results lie outside of its space; leave it out")
    chosen = next(record for record in records if record.trial == found.trial)

    def metric(name: str) -> float | None:
        value = chosen.metrics.get(name)
        return float(value) if value else None

    saved = Measure(lambda record: 0.0, lambda stage: stage.seconds or 0.0).reused(chosen)
    # The best of the space, not of the trials: with few of these it lies below.
    sign = space.objectives[0].sign
    best, reach = found.mean - sign * found.shortfall, 1.96 * math.hypot(found.sd, found.shortfall)
    return _Read(
        sweep=SourceSweep(
            url=experiment.store.url,
            name=space.name,
            size=float(size),
            other=length,
            results=len(results(space, records)),
            trial=found.trial,
            loss=Estimate(value=best, low=best - reach, high=best + reach),
            train_flops=metric("train_flops"),
            # Of all attempts, as for budgets: in its last one, a resumed trial computed only the rest. What
            # was computed twice counts, too: no record says how much that is.
            seconds=metric("train_seconds") or (table.attempts_seconds(chosen) or 0.0) + saved or None,
            usd=metric("usd"),
        ),
        away=None if length is None or other is None else math.log(length / other[1]),
        progress=progress(experiment, records),
        space=space,
        target=target_values(experiment.written),
        chosen=chosen,
        noise=found.noise,
        drawn={each.name: each.drawn for each in found.parameters if each.drawn},
        ranges={each.name: each.interval for each in found.parameters if each.interval},
    )


def _space(experiment: Experiment) -> Space:
    """Return the space of a sweep's results, with listed numbers as ranges.

    Results are at the target of `fidelity`: its levels are no options. The optima of other listed numbers lie
    between them, and can be followed.
    """
    space = at_target(experiment.written)
    return replace(space, parameters=tuple(map(_as_range, space.parameters)))


def _as_range(parameter: Parameter) -> Parameter:
    """Return three or more listed numbers as the range that they span; other parameters as they are.

    It is logarithmic if the ratios of neighbours are more alike than their differences.
    """
    if not isinstance(parameter, Choice) or parameter.when or is_seed(parameter.name):
        return parameter
    if len(parameter.values) < 3 or not all(map(is_number, parameter.values)):
        return parameter
    listed = sorted(map(number_of, parameter.values))
    apart = np.diff(listed)
    log = listed[0] > 0 and np.std(np.diff(np.log(listed))) / np.log(listed[-1] / listed[0]) < np.std(
        apart
    ) / (listed[-1] - listed[0])
    kind: Literal["int", "float"] = (
        "int" if all(isinstance(each, int) for each in parameter.values) else "float"
    )
    return Range(name=parameter.name, min=listed[0], max=listed[-1], kind=kind, log=bool(log))


def _notes_on_sources(
    read: Sequence[_Read], targets: Sequence[tuple[str, float, Sequence[float]]]
) -> list[str]:
    """Return what weakens a plan from these sources.

    Args:
        targets: (measure, what is planned for, the sources' values), one or two.
    """
    notes = []
    measures = [measure for measure, *_ in targets]
    if len(targets) == 2 and len(read) == 3:
        notes.append(f"three sweeps fit any effects of {' and '.join(measures)}; a fourth would check them")
    elif len(targets) == 1 and len({each.sweep.size for each in read}) == 2:
        notes.append("two sizes make a line that nothing checks; a sweep of a third would")
    for measure, target, values in targets:
        if max(target / max(values), min(values) / target) > max(values) / min(values):
            notes.append(
                f"{measure} {target:.4g} is farther from the sources than these are apart: intervals hold "
                "only for a line"
            )
    for each in read:
        if each.sweep.results < FEWEST:
            few = counted(each.sweep.results, "result")
            notes.append(f"{each.sweep.name}: {few}; with fewer than {FEWEST} its intervals are guesses")
        notes += [f"{each.sweep.name}: {ended}" for ended in each.progress]
    fixed = [{p.name: p.value for p in each.space.parameters if isinstance(p, Fixed)} for each in read]
    for name, value in fixed[-1].items():
        given = [each[name] for each in fixed if name in each]
        if name not in measures and not is_seed(name) and any(not same_value(value, each) for each in given):
            shown = ", ".join(shorten(to_plain(each)) for each in given)
            notes.append(f"{name} is fixed at {shown}: what it changes is taken for the size's doing")
    for name, value in read[-1].target.items():
        if name not in measures:
            notes.append(
                f"{name} is {shorten(to_plain(value))}, the target of {read[-1].sweep.name}: trials below it "
                "are left out, and the space file has none"
            )
    return notes


# ---- settings, loss and costs


def _setting(
    parameter: Range | Choice,
    read: Sequence[_Read],
    size: float,
    other: tuple[str, float] | None,
    *,
    common: set[str],
    notes: list[str],
) -> Setting:
    """Return what to set a parameter to, and add what to know about it to the notes."""
    name, largest = parameter.name, read[-1]
    having = [each for each in read if name in each.drawn]
    chosen = largest.chosen.parameters.get(name)
    optima: dict[str, Any] = {}
    if isinstance(parameter, Choice):
        options = [to_plain(value) for value in parameter.values]
        likely = dict.fromkeys(range(len(options)), 0.0)
        for each in having:
            drawn = [to_plain(value) for value in each.drawn[name]]
            optima[each.sweep.url] = max(drawn, key=drawn.count)
            likely = {at: max(share, drawn.count(options[at]) / len(drawn)) for at, share in likely.items()}
        best = next((value for value in reversed(optima.values()) if value in options), options[0])
        kept = [
            value for at, value in enumerate(options) if likely[at] >= LIKELY or value == best or not having
        ]
        if any(found != best for found in optima.values()):
            notes.append(
                f"{name}: the likeliest option is not the same at all sizes; the largest source's is taken"
            )
        return Setting(value=best, optima=optima, options=tuple(kept))
    ranges = [p for each in having if isinstance(p := each.space.parameter(name), Range)]
    log = all(each.log for each in ranges)
    transform = math.log if log else float
    low, high = min(transform(each.min) for each in ranges or [parameter]), max(
        transform(each.max) for each in ranges or [parameter]
    )  # fmt: skip
    sizes, means, sds = [], [], []
    for each, own in zip(having, ranges, strict=True):
        at = np.array([transform(number_of(value)) for value in each.drawn[name]])
        start, end = transform(own.min), transform(own.max)
        sizes.append(each.sweep.size)
        means.append(float(at.mean()))
        least = max(FINEST * (end - start), 0.3 * (own.step or own.kind == "int") * (not log))
        sds.append(max(float(at.std()), least))
        # A median at an end says that the optimum is there or beyond.
        if min(np.median(at) - start, end - np.median(at)) <= AT_END * (end - start):
            sds[-1] = max(sds[-1], WIDE * (end - start))
            notes.append(
                f"{name}: best at the end of its range in {each.sweep.name}, perhaps beyond; it counts little"
            )
        ends = each.ranges.get(name, (each.drawn[name][0],) * 2)
        optima[each.sweep.url] = {
            "value": _natural(own, means[-1], log),
            "low": number_of(ends[0]),
            "high": number_of(ends[1]),
        }
    if name not in common or not _are_apart(having):
        where = "at one size only" if other is None else f"by too few to follow size and {other[0]}"
        notes.append(f"{name}: searched {where}; it is as there, and its range stays")
        value = number_of(chosen) if chosen is not None else parameter.min
        return Setting(value=value, log=log, optima=optima)
    line = _line(having, means, sds)
    if log and line.other is not None and other is not None:
        moves, away = line.other[0], line.reach * line.other[1]
        between = f"{moves - away:.2f} to {moves + away:.2f}"
        notes.append(f"{name}: its exponent in {other[0]} is {moves:.2f} (95 %: {between})")
    if line.misfit is not None and line.misfit < UNLIKELY:
        notes.append(
            f"{name}: the sizes do not lie on a line ({_chance(line.misfit)}); so its interval is wide"
        )
    # What nobody has searched is refused on a linear scale, where it may mean nothing: a share above 1.
    far = high - low if log else 0.0
    bounds = (low - far, high + far)

    def at_size(where: float) -> tuple[float, float, float]:
        middle, reach = (float(found) for found in line.at(where))
        clipped = (min(max(v, bounds[0]), bounds[1]) for v in (middle, middle - reach, middle + reach))
        value, below, above = (_natural(parameter, v, log) for v in clipped)
        return value, below, above

    steeper = line.reach * line.slope_sd
    value, below, above = at_size(size)
    middle, reach = (float(found) for found in line.at(size))
    if 2 * reach > high - low:
        value = _natural(parameter, line.mean, log)
        below, above = min(below, value), max(above, value)
        notes.append(f"{name}: the line says nothing that far; set to the sources' mean, by their certainty")
    elif not low <= middle - reach <= middle + reach <= high:
        what = "interval" if low <= middle <= high else "line"
        searched = " to ".join(shorten(_natural(parameter, end, log)) for end in (low, high))
        # Cut off on a logarithmic scale, too, the interval would no longer hold what it claims to.
        there = "nothing was tried there" if log else "it is cut off there, and the optimum may lie beyond"
        notes.append(f"{name}: the {what} leaves the ranges that were searched ({searched}); {there}")
    return Setting(
        value=value,
        interval=(below, above),
        log=log,
        exponent=Estimate(value=line.slope, low=line.slope - steeper, high=line.slope + steeper)
        if log
        else None,
        optima=optima,
        line=tuple((where, *at_size(where)) for where in _along(sizes, size)),
    )


def _natural(parameter: Range, at: float, log: bool) -> float:
    """Return a value that the parameter can have, to three digits: more are not known."""
    value = math.exp(at) if log else at
    if parameter.step is not None and not log:
        return level(parameter, round(position(parameter, value)))
    if parameter.kind == "int":
        return round(value)
    return float(f"{value:.3g}")


def _along(sizes: Sequence[float], target: float) -> list[float]:
    return [float(each) for each in np.geomspace(min(*sizes, target), max(*sizes, target), CURVE)]


def _loss(
    read: Sequence[_Read], size: float, notes: list[str]
) -> tuple[Estimate, tuple[tuple[float, float, float, float], ...]]:
    """Return the predicted loss of one run, and the line that it lies on.

    A loss that is minimised is followed in its logarithm: a power law without a floor. Where the floor lies
    cannot be seen from few sizes: beyond the largest the interval reaches up to no gain at all.
    """
    minimize = read[-1].space.objectives[0].goal == "minimize"
    log = minimize and all(each.sweep.loss.low > 0 for each in read)
    sizes = [each.sweep.size for each in read]
    values = [each.sweep.loss.value for each in read]
    sds = [(each.sweep.loss.high - each.sweep.loss.value) / 1.96 for each in read]
    least = 1e-3 * max(max(map(abs, values)), 1e-9)
    sds = [max(sd, least) for sd in sds]
    if log:
        sds = [sd / v for sd, v in zip(sds, values, strict=True)]
    line = _line(read, [math.log(v) for v in values] if log else values, sds)
    if line.misfit is not None and line.misfit < UNLIKELY:
        notes.append(f"the losses do not lie on a line ({_chance(line.misfit)}); so their interval is wide")
    noise, last = read[-1].noise, read[-1].sweep

    def at_size(where: float) -> tuple[float, float, float]:
        middle, reach = (float(found) for found in line.at(where))
        ends = (middle, middle - reach, middle + reach)
        value, low, high = (math.exp(min(v, 700.0)) if log else v for v in ends)
        low, high = (
            value - math.hypot(value - low, 1.96 * noise),
            value + math.hypot(high - value, 1.96 * noise),
        )
        if where > last.size:
            run = math.hypot(last.loss.high - last.loss.value, 1.96 * noise)
            low, high = (
                (low, max(high, last.loss.value + run))
                if minimize
                else (min(low, last.loss.value - run), high)
            )
        return value, low, high

    value, low, high = at_size(size)
    return Estimate(value=value, low=low, high=high), tuple(
        (where, *at_size(where)) for where in _along(sizes, size)
    )


def _grown(read: Sequence[_Read], costs: Sequence[float | None], size: float) -> float | None:
    """Return a cost at a size by the line through its logarithms; None if too few sources have one."""
    having = [(each, math.log(cost)) for each, cost in zip(read, costs, strict=True) if cost]
    sources = [each for each, _ in having]
    if not _are_apart(sources):
        return None
    found = float(_line(sources, [log for _, log in having], [1.0] * len(having)).at(size)[0])
    return math.exp(min(found, 700.0))  # a steep line leaves the range of a float


def _are_apart(sources: Sequence[_Read]) -> bool:
    """Return whether a line goes through these sources."""
    return bool(sources) and are_apart([each.sweep.size for each in sources], _away(sources))


def _line(sources: Sequence[_Read], values: Sequence[float], sds: Sequence[float]) -> SizeLine:
    return through([each.sweep.size for each in sources], values, sds, _away(sources))


def _away(sources: Sequence[_Read]) -> list[float] | None:
    return None if sources[0].away is None else [each.away or 0.0 for each in sources]


def _seconds(
    read: Sequence[_Read], size: float, flops: float | None, speed: float | None
) -> tuple[float | None, float | None]:
    """Return the seconds of one run, and the operations a second that they follow from."""
    last = read[-1].sweep
    if flops is not None and speed is None and last.train_flops and last.seconds:
        speed = last.train_flops / last.seconds
    if flops is not None and speed is not None:
        return flops / speed, speed
    return _grown(read, [each.sweep.seconds for each in read], size), None


def _usd(
    largest: _Read, flops: float | None, seconds: float | None, usd_per_hour: float | None
) -> float | None:
    last = largest.sweep
    if usd_per_hour is not None:  # of each host
        return None if seconds is None else largest.chosen.nodes * usd_per_hour * seconds / 3600
    if not last.usd:
        return None
    if flops is not None and last.train_flops:
        return last.usd * flops / last.train_flops
    return last.usd * seconds / last.seconds if seconds is not None and last.seconds else None


def _stage1_9(largest: _Read, settings: Mapping[str, Setting]) -> Estimate | None:
    """Return the share of Stage 1.9 in the effective steps; None where its length is not known."""
    overrides = dict(each.split("=", 1) for each in largest.space.program.overrides if "=" in each)
    lengths: list[tuple[float, float, float]] = []
    for name in STAGES:
        setting, given = settings.get(name), largest.chosen.parameters.get(name, overrides.get(name))
        if setting is not None and is_number(setting.value):
            lengths.append((setting.value, *(setting.interval or (setting.value,) * 2)))
        else:
            try:
                lengths.append((float(str(given)),) * 3)
            except ValueError:
                return None
    first, second = lengths
    model, chosen = Stages(largest.space), largest.chosen.parameters

    def share(one: float, two: float) -> float:
        # A step of a later stage counts twice where a teacher runs; the stages' costs know it.
        costs = model.costs({**chosen, STAGES[0]: one, STAGES[1]: two}) or {}
        if "stage1_9" not in costs:
            costs = {"stage1_9": 2 * one, "stage2": two}
        total = math.fsum(costs.values())
        return costs["stage1_9"] / total if total else 0.0

    return Estimate(
        value=share(first[0], second[0]), low=share(first[1], second[2]), high=share(first[2], second[1])
    )


# ---- the final sweep


def _final_sweep(
    read: Sequence[_Read], settings: Mapping[str, Setting], sizes: Mapping[str, float], notes: list[str]
) -> dict[str, Any]:
    """Return the search space around the settings, of the largest source's program.

    Args:
        sizes: planned for, by measure.

    What would make `sweep init` refuse it is added to the notes.
    """
    source = read[-1].space
    parameters: dict[str, dict[str, Any]] = {}
    baseline: dict[str, Any] = {}
    for parameter in source.parameters:
        name = parameter.name
        if isinstance(parameter, Fixed):
            at = to_plain(parameter.value)
            parameters[name] = {"value": at}
            if name in sizes:
                parameters[name] = {"value": round(sizes[name]) if isinstance(at, int) else sizes[name]}
        elif name in settings:
            section = parameters[name] = _section(parameter, settings[name])
            if "value" not in section and (
                name in read[-1].chosen.parameters or name not in source.parents()
            ):
                at = settings[name].value
                baseline[name] = min(max(at, section["min"]), section["max"]) if "min" in section else at
        else:  # a seed: the final sweep has one
            parameters[name] = {"value": to_plain(read[-1].chosen.parameters.get(name, 0))}
    for measure, size in sizes.items():
        if measure not in parameters:
            notes.append(
                f"the space file runs the model of {source.name}: set that of {measure} {size:.4g} there"
            )
    program = source.program
    document: dict[str, Any] = {
        "name": f"{source.name[:80]}-at-{'-'.join(f'{each:.3g}' for each in sizes.values())}".replace(
            "+", ""
        ),
        "objectives": [{"metric": o.metric, "goal": o.goal} for o in source.objectives],
        "program": {
            "trainer": {"overrides": list(program.overrides)}
            | ({"processes": program.processes} if program.processes != 1 else {})
            | ({"nodes": program.nodes} if program.nodes != 1 else {}),
            "function": program.function,
            "command": list(program.command),
        },
        "parameters": parameters,
        "parameter_constraints": list(source.parameter_constraints),
        "stages": _stages(source, parameters),
        "search": {"sobol": SOBOL}
        | {
            key: value
            for key in ("noise", "reuse")
            if (value := getattr(source.search, key)) != getattr(Search(), key)
        },
        "run_cap": RUN_CAP,
        "baseline": baseline,
    }
    own = document["program"][program.kind]
    devices = {"devices": program.devices} if program.devices != 1 else {}
    document["program"] = {program.kind: own} | devices if own else {}  # without: they are run from Python
    document = {key: value for key, value in document.items() if value not in ([], {})}
    try:
        space = space_of(document, "the space file")
        kept = []
        for each in read:
            try:
                read_sources(replace(space, transfer=(Source(url=each.sweep.url),)), lambda _: None)
            except InputError as error:
                why = str(error).removeprefix(f"transfer: {each.sweep.url}: ").removesuffix("; take it out")
                notes.append(f"{each.sweep.name} is not in transfer: {why}")
            else:
                kept.append(each.sweep.url)
        if kept:
            document["transfer"] = {"from": kept}
        space = space_of(document, "the space file")
        if program.kind == "trainer":  # a program of the user's is checked where it runs
            program_of(with_defaults(space, program_of(space).defaults(), "")[0]).complete()
    except SweepError as error:
        notes.append(f"`sweep init` will refuse the space file as it is: {' '.join(str(error).split())}")
    return document


def _stages(source: Space, parameters: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the source's `stages:`, with trunks where the length is still searched; [] if none is shared.

    Args:
        parameters: sections of the final sweep.
    """
    if source.program.kind == "trainer":  # it knows its own
        return []
    found = [
        {"name": each.name, "parameters": list(each.parameters)}
        | ({"cost": each.cost} if each.cost else {})
        | (
            {"trunk": {"length": each.trunk.length, "decay": each.trunk.decay}}
            if each.trunk is not None and "value" not in parameters[each.trunk.length]
            else {}
        )
        for each in source.stages
    ]
    return [] if len(found) == 1 and "trunk" not in found[0] else found


def _section(parameter: Range | Choice, setting: Setting) -> dict[str, Any]:
    """Return the section of a parameter in the file: as in its source, around the setting."""
    when = {
        (
            condition.relation + f" {condition.value}"
            if isinstance(parameter, Range)
            else json.dumps(to_plain(condition.value))
            if isinstance(condition.value, tuple)
            else to_plain(condition.value)
        ): list(children)
        for condition, children in conditions(parameter)
    }
    more = {"when": when} if when else {}
    if isinstance(parameter, Choice):
        # Without an option, what exists only with it would have to go, too.
        options = [to_plain(each) for each in parameter.values if when or to_plain(each) in setting.options]
        if len(options) == 1:
            return {"value": options[0]}
        return {"values": options, **({"ordered": True} if parameter.ordered else {}), **more}
    low, high = setting.interval or (parameter.min, parameter.max)
    log = parameter.log if setting.interval is None else setting.log
    if setting.interval is not None:
        if log:
            apart = (parameter.max / parameter.min) ** (MIN_WIDTH / 2)
            low, high = min(low, setting.value / apart), max(high, setting.value * apart)
        else:
            apart = MIN_WIDTH / 2 * (parameter.max - parameter.min)
            # On a linear scale what lies outside of the source's range may mean nothing.
            low = max(min(low, setting.value - apart), min(parameter.min, low))
            high = min(max(high, setting.value + apart), max(parameter.max, high))
    if parameter.step is not None or parameter.kind == "int":
        if not log:  # to the steps of the source, outwards
            low = level(parameter, math.floor(position(parameter, low) + 1e-6))
            high = level(parameter, math.ceil(position(parameter, high) - 1e-6))
        if parameter.kind == "int":
            low, high = max(1 if log else low, math.floor(low)), math.ceil(high)
    else:
        low, high = float(f"{low:.3g}"), float(f"{high:.3g}")
    if low == high:
        return {"value": low}
    kind = "int_" if parameter.kind == "int" else ""
    spread = ("int_log_uniform" if kind else "log_uniform_values") if log else f"{kind}uniform"
    steps = {"step": parameter.step} if parameter.step is not None and not log else {}
    return {
        "min": low,
        "max": high,
        **({"distribution": spread} if log or not steps else {}),
        **steps,
        **more,
    }


# ---- wording


def _chance(probability: float) -> str:
    return "p < 0.001" if probability < 1e-3 else f"p = {probability:.2g}"


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} seconds"
