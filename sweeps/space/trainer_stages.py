"""Stages of the trainer and their trunks, for the `sweep.json` of a sweep that runs it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from sweeps.space.definition import Choice, Fixed, Range, Space, Stage, Trunk, Value, number_of
from sweeps.space.overrides import split
from sweeps.space.stages import decay_start

MOST_POINTS = 16
"""Points of a trunk, up to which each listed length gets the one at which its decay begins."""

POINTS = 8
"""Points of the longest trunk otherwise."""

StageCosts = Mapping[str, tuple[int, int]]
"""Cost of a step and number of steps, by the stage's name in order."""


def trainer_stages(space: Space, costs: Sequence[StageCosts]) -> tuple[Stage, ...]:
    """Return the stages that trials of this space can have; none if there is nothing to share.

    The first of several is the one whose end can be shared: all parameters belong to it that do not name a
    later one. Of one stage alone, trials can share a trunk.
    Costs are left out, of every stage, if that of one is no expression in the parameters, such as of a
    Stage 2 in which the search may switch the teacher on and off.

    Args:
        costs: of configurations that together have each end and each choice of the space, as the trainer
            counts them.
    """
    names = list(costs[0]) if costs else []
    used = [name for name in names if any(each[name][1] for each in costs)]
    if not used or (len(used) > 1 and used[0] != names[0]):
        return ()
    if len(used) == 1:
        names = used
    parameters: dict[str, tuple[str, ...]] = dict.fromkeys(used, ())
    later = [pattern for name in names[1:] for pattern in _patterns(name)]
    pairs = map(split, space.program.overrides)
    references = [text for key, text in pairs if "${" in text and not _matches(key, later)]
    for name in names[1:]:
        # Not one that a fixed override of the first stage refers to, as `${stage2.batch_size}`.
        if not any(name in text for text in references):
            home = name if name in used else used[-1]  # what no stage reads splits no prefix
            parameters[home] += tuple(
                each for each in _patterns(name) if any(_matches(p.name, (each,)) for p in space.parameters)
            )
    later = [pattern for patterns in parameters.values() for pattern in patterns]
    parameters[names[0]] = tuple(p.name for p in space.parameters if not _matches(p.name, later))
    texts = []  # of costs: an expression in the stage's length, or a number; "" if it is neither
    for name in used:
        weights, lengths = ({each[name][which] for each in costs} for which in (0, 1))
        weight, key, text = min(weights), f"{name}.max_steps", ""
        if any(parameter.name == key for parameter in space.parameters) and key not in space.parents():
            text = key if weight == 1 else f"{weight}*{key}"
        elif len(lengths) == 1:
            text = str(weight * lengths.pop())
        texts.append(text if len(weights) == 1 else "")
    return tuple(
        Stage(name=name, parameters=parameters[name], cost=text if all(texts) else "")
        for name, text in zip(used, texts, strict=True)
    )


def _patterns(stage: str) -> tuple[str, ...]:
    """Return patterns of a stage's keys and groups, such as `optimizer@stage2.optimizer`."""
    return f"{stage}.*", f"{stage}/*", f"*@{stage}.*"


def _matches(key: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(key, pattern) for pattern in patterns)


# ---- trunks


@dataclass(frozen=True, kw_only=True)
class FoundTrunk:
    """Trunk of a stage in one configuration, as the trainer sees it.

    Args:
        until: step at which the decay begins.
        decay: share of the steps that the decay takes.
    """

    key: str
    until: int
    decay: float


Found = Callable[[Mapping[str, Value]], Mapping[str, FoundTrunk] | None]
"""Function from a trial's parameters to the trunks of its stages; None where the trainer refuses them."""


def with_trunks(
    space: Space, stages: tuple[Stage, ...], points: Sequence[Mapping[str, Value]], found: Found
) -> tuple[Stage, ...]:
    """Return the stages with the trunks that trials of different lengths can share.

    A stage has one if its length is searched and it has a trunk in every configuration, of one key for all
    lengths; but for those with an option of a choice that never has one, such as saliency.

    Args:
        points: parameters of configurations that together have each end and each choice of the space.
    """
    if space.search.reuse == "none":
        return stages
    by_name = {parameter.name: parameter for parameter in space.parameters}
    wanted: dict[str, Range | Choice] = {}  # the searched parameter that has the steps, by stage
    for stage in stages:
        length = by_name.get(f"{stage.name}.max_steps")
        if isinstance(length, Range | Choice) and length.name not in space.parents() and _lengths(length):
            every = _every_of_user(space, stage.name)
            if every is None or every > 0:  # else its user wants no points
                wanted[stage.name] = length
    if not wanted:
        return stages
    trunks = [(point, each) for point in points if (each := found(point)) is not None]
    return tuple(
        replace(stage, trunk=_trunk(space, stage.name, wanted[stage.name], trunks, found))
        if stage.name in wanted
        else stage
        for stage in stages
    )


def _lengths(parameter: Range | Choice) -> list[int]:
    """Return the listed lengths, or both ends of a range; [] if they are no integers."""
    values = (parameter.min, parameter.max) if isinstance(parameter, Range) else parameter.values
    if isinstance(parameter, Range) and parameter.kind != "int":
        return []
    numbers = [
        int(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool) and v == int(v)
    ]
    return numbers if len(numbers) == len(values) else []


def _every_of_user(space: Space, stage: str) -> int | None:
    """Return the steps between points that the user's file fixes, 1 for a list of points; None: nothing.

    0 is no trunk, and what the trainer would refuse.
    """
    key = f"{stage}.trunk_every"
    given: list[object] = [text for name, text in map(split, space.program.overrides) if name == key]
    given += [p.value if isinstance(p, Fixed) else None for p in space.parameters if p.name == key]
    if not given:
        return None
    if str(given[-1]).startswith("["):
        return 1
    try:
        return int(str(given[-1]))
    except ValueError:
        return 0


def _trunk(
    space: Space,
    stage: str,
    length: Range | Choice,
    trunks: Iterable[tuple[Mapping[str, Value], Mapping[str, FoundTrunk]]],
    found: Found,
) -> Trunk | None:
    """Return the trunk that the stage has where it has steps, but for options that have none; else None."""
    untils: list[int] = []
    decays: set[float] = set()
    trunks = [(point, each) for point, each in trunks if point[length.name] != 0]
    with_one = next((point for point, each in trunks if stage in each), None)
    if with_one is None:
        return None
    without: tuple[tuple[str, Value], ...] = ()
    if any(stage not in each for _, each in trunks):
        without = _options_without(stage, space, length, with_one, found)
    for point, each in trunks:
        if any(option in point.items() for option in without):
            continue
        if stage not in each or not _is_shared(stage, length, point, each[stage], found):
            return None
        untils.append(each[stage].until)
        decays.add(each[stage].decay)
    if not untils or not max(untils):
        return None
    names = [parameter.name for parameter in space.parameters]
    name, last = f"{stage}.schedule.decay_fraction", f"{stage}.schedule.final_lr_ratio"
    decay = name if name in names else decays.pop() if len(decays) == 1 else None
    if decay is None:
        return None
    every = _every_of_user(space, stage)
    if not every and isinstance(length, Choice) and not isinstance(decay, str):
        # A point where each listed length leaves the trunk, unless that makes many of them.
        ends = [decay_start(steps, decay) for steps in _lengths(length)]
        common = math.gcd(*ends)
        every = common if common and max(ends) // common <= MOST_POINTS else None
    every = every or max(1, math.ceil(max(untils) / POINTS))
    tail = (last,) if last in names else ()
    return Trunk(length=length.name, decay=decay, tail=tail, every=every, without=without)


def _options_without(
    stage: str, space: Space, length: Range | Choice, point: Mapping[str, Value], found: Found
) -> tuple[tuple[str, Value], ...]:
    """Return the options of choices that, each alone, take the stage's trunk from a configuration."""
    options = [
        (parameter.name, value)
        for parameter in space.parameters
        if isinstance(parameter, Choice) and parameter.name in point and parameter is not length
        for value in parameter.values
    ]
    changed = {option: found({**point, option[0]: option[1]}) for option in options}
    return tuple(option for option, each in changed.items() if each is not None and stage not in each)


def _is_shared(
    stage: str, length: Range | Choice, point: Mapping[str, Value], trunk: FoundTrunk, found: Found
) -> bool:
    """Return whether another length has the same trunk, which nothing promises: `${stage2.max_steps}`."""
    if decay_start(int(number_of(point[length.name])), trunk.decay) != trunk.until:
        return False
    other = next((n for n in _lengths(length) if n and n != point[length.name]), None)
    if other is None:
        return True
    changed = found({**point, length.name: other})
    return changed is None or (stage in changed and changed[stage].key == trunk.key)
