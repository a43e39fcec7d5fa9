"""Spaces of whose optimum the surrogate can say something, and those whose search may end by itself. Pure."""

from __future__ import annotations

from sweeps.space.definition import Space
from sweeps.space.domain import REPEAT_KEYS, Domain


def no_answer(space: Space) -> str:
    """Return why the surrogate cannot say how good the best trial is, as one clause, or "".

    Of several objectives or with outcome constraints the best is no minimum of one metric; the best value
    of a seed means nothing.
    """
    if len(space.objectives) > 1:
        return "goes with one objective: the gain in several is no number"
    if space.outcome_constraints:
        return "does not go with outcome_constraints: whether further trials obey them is not known"
    if space.search.method == "grid":
        return "has no effect on a grid, which has an end"
    searched = Domain(space).searched
    if not searched:
        return "has no effect where no parameter is searched"
    for name in searched:
        if name in REPEAT_KEYS or name.rpartition(".")[2] == "seed":
            return f"does not go with `{name}` as a parameter: the best seed means nothing"
    return ""


def no_stop(space: Space) -> str:
    """Return why `search.stop` cannot end the search of a space, as one clause, or ""."""
    if space.search.method == "random":
        return "has no effect with method: random, whose trials are not chosen for their expected gain"
    return no_answer(space)
