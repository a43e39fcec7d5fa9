"""Known defaults as the first trial, and priors over the best configuration around them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sweeps.space.definition import (
    Choice,
    Fixed,
    Parameter,
    Prior,
    Priors,
    Range,
    Space,
    Value,
    same_value,
)
from sweeps.space.domain import Domain
from sweeps.space.fidelity import target_values

PRIOR_BY_DEFAULT: Priors = "stated"
"""`search.prior` of a space file that leaves it out and has one objective and `method: bayes`. It becomes
"defaults" if replays (benchmarks/landscapes) find priors around known defaults better, with noise as well."""

PRIOR_WIDTH = 0.25
"""Standard deviation of a prior whose width nobody states, as a share of the range on its scale."""

PRIOR_STRENGTH = 4.0
"""The acquisition function is multiplied by the prior to the power of this over the number of completed
trials (πBO, arXiv 2204.11051, equation 6)."""


def with_priors(space: Space, around: Mapping[str, Value], width: float = PRIOR_WIDTH) -> Space:
    """Return the space with priors around these values; a prior that a parameter has already is kept.

    A range with a normal distribution gets none: that says where the best value probably is.
    """

    def with_prior(parameter: Parameter) -> Parameter:
        if isinstance(parameter, Fixed) or parameter.name not in around or parameter.prior is not None:
            return parameter
        if getattr(parameter, "normal", None) is not None:
            return parameter
        return replace(parameter, prior=Prior(around=around[parameter.name], width=width))

    return replace(space, parameters=tuple(map(with_prior, space.parameters)))


def with_defaults(space: Space, known: Mapping[str, Value], whose: str) -> tuple[Space, str]:
    """Return the space whose first trial has these defaults, and a notice of that, or of why it has not.

    They are not the first trial of a grid, nor where the file has a `baseline`. With `search.prior:
    defaults`, those within their range get priors.

    Args:
        known: defaults by name; they may lie outside of their range.
        whose: the defaults, for the notice: "the trainer's".
    """
    if known:
        known = {**known, **target_values(space)}  # the first trial is one at the target
    domain = Domain(space)
    within = {}
    for name, value in known.items():
        if name in domain.searched:
            try:
                member = domain.member(name, value)
            except ValueError:
                continue
            if domain.has(name, value):
                within[name] = member
    if space.search.prior == "defaults":
        space = with_priors(space, within)
    wanted = space.search.method != "grid" and space.defaults != "unused"
    if not known or not wanted or (space.baseline is not None and space.defaults != "first"):
        return space, ""
    every: dict[str, Value] = {**domain.fixed, **known}
    active = space.active(every)
    reason = next((f"that of `{name}` is not known" for name in active if name not in every), "")
    reason = reason or domain.misfit({name: every[name] for name in active}) or ""
    first = {name: within.get(name, every.get(name)) for name in active}
    if not reason and not domain.allows(first):
        reason = "they break parameter_constraints"
    if reason:
        return space, (
            f"{whose} defaults are not the first trial: {reason}; change that, or name a first trial with "
            "baseline: {…}, or none with baseline: none"
        )
    return replace(space, baseline=first, defaults="first"), first_trial_notice(whose)


def first_trial_notice(whose: str) -> str:
    """Return the notice that the first trial has somebody's defaults."""
    return f"the first trial has {whose} defaults; baseline: none switches that off"


def without_new_defaults(space: Space, before: Space) -> Space:
    """Return the space with the first trial that a sweep has, if known defaults or none are all that differs.

    Versions before looked for no defaults, and their sweeps go on as they began, without priors of defaults.
    Defaults change with the version of a program; a first trial that is made stays, and so do the priors
    around its values.
    """
    if space.search.prior == before.search.prior == "defaults":
        space = _with_default_priors_of(space, before)
    without_first = space.defaults == "unknown" and space.baseline is None
    if before.defaults == "first" and (space.defaults == "first" or without_first):
        return replace(space, baseline=before.baseline, defaults="first")
    if before.defaults != "unknown":
        return space
    if before.baseline is None and space.defaults != "unknown":  # `baseline: none` too
        space = replace(space, baseline=None, defaults="unknown")
    if (before.search.prior, space.search.prior) == ("stated", "defaults"):
        there = {p.name: p for p in before.parameters}

        def as_there(parameter: Parameter) -> Parameter:
            other = there.get(parameter.name)
            if isinstance(parameter, Fixed) or other is None or isinstance(other, Fixed):
                return parameter
            return replace(parameter, prior=other.prior)

        parameters = tuple(map(as_there, space.parameters))
        space = replace(space, parameters=parameters, search=replace(space.search, prior="stated"))
    return space


def _with_default_priors_of(space: Space, before: Space) -> Space:
    """Return the space with the priors around defaults that `before` has, in place of its own."""
    there = {p.name: p for p in before.parameters}

    def as_there(parameter: Parameter) -> Parameter:
        name = parameter.name
        other = there.get(name)
        if isinstance(parameter, Fixed) or other is None or isinstance(other, Fixed):
            return parameter
        if not (_may_be_of_default(parameter, space) and _may_be_of_default(other, before)):
            return parameter  # a user has stated one of them
        if parameter.prior and other.prior and not (_has_default(name, space) or _has_default(name, before)):
            return parameter  # no default is known that they could be around: a user has stated both
        return replace(parameter, prior=other.prior)

    return replace(space, parameters=tuple(map(as_there, space.parameters)))


def _may_be_of_default(parameter: Range | Choice, space: Space) -> bool:
    """Return whether a parameter's prior is none, or may be one of `with_priors` around its default."""
    prior, first = parameter.prior, space.baseline
    if prior is None:
        return True
    if prior.width != PRIOR_WIDTH:
        return False
    if first is None or not _has_default(parameter.name, space):
        return True  # the default is not known
    return same_value(prior.around, first[parameter.name])


def _has_default(name: str, space: Space) -> bool:
    return space.defaults == "first" and space.baseline is not None and name in space.baseline
