"""Stages of the trainer, for the `sweep.json` of a sweep that runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from sweeps.space.definition import Space, Stage
from sweeps.space.overrides import split

StageCosts = Mapping[str, tuple[int, int]]
"""Cost of a step and number of steps, by the stage's name in order."""


def trainer_stages(space: Space, costs: Sequence[StageCosts]) -> tuple[Stage, ...]:
    """Return the stages that trials of this space can have; none if there is nothing to share.

    The first is the one whose end can be shared: all parameters belong to it that do not name a later one.
    Costs are left out, of every stage, if that of one is no expression in the parameters, such as of a
    Stage 2 in which the search may switch the teacher on and off.

    Args:
        costs: of configurations that together have each end and each choice of the space, as the trainer
            counts them.
    """
    names = list(costs[0]) if costs else []
    used = [name for name in names if any(each[name][1] for each in costs)]
    if len(used) < 2 or used[0] != names[0]:
        return ()
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
