"""`default:` and `prior:` of the parameters in a search space file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from sweeps.space.definition import Choice, Fixed, Parameter, Prior, Range, Space, Value
from sweeps.space.domain import Domain
from sweeps.space.priors import PRIOR_BY_DEFAULT, PRIOR_WIDTH, with_priors
from sweeps.space.sections import ParameterSection, PriorSection
from sweeps.space.space_checks import inside, middle
from sweeps.space.yaml_cursor import Cursor, Problems


def with_written(
    space: Space,
    sections: Mapping[str, ParameterSection],
    file: Mapping[str, Cursor],
    problems: Problems,
    *,
    has_baseline: bool,
) -> Space:
    """Return the space with the priors and defaults that a file states.

    Args:
        space: with ranges that the constraints have narrowed.
        has_baseline: whether the file has a first trial of its own, or wants none.
    """
    if not _writes_prior(file) and space.search.method == "bayes" and len(space.objectives) == 1:
        space = replace(space, search=replace(space.search, prior=PRIOR_BY_DEFAULT))
    defaults: dict[str, Value] = {}
    parameters: list[Parameter] = []
    for parameter in space.parameters:
        section = sections.get(parameter.name)
        parameters.append(parameter)
        if section is None or isinstance(parameter, Fixed):
            continue
        body = file["parameters"].at(parameter.name)
        if "prior" in section.model_fields_set:
            prior = problems.attempt(partial(_prior, body, section, parameter, space), None)
            parameters[-1] = parameter if space.search.prior == "none" else replace(parameter, prior=prior)
        if "default" in section.model_fields_set:
            value = problems.attempt(partial(_default, body, parameter, space), None)
            defaults[parameter.name] = value
    space = replace(space, parameters=tuple(parameters))
    if not defaults or problems.found:
        return space
    if space.search.prior == "defaults":
        space = with_priors(space, defaults)
    if has_baseline:
        return space
    domain = Domain(space)
    first = domain.complete(
        {name: defaults.get(name, middle(parameter)) for name, parameter in domain.searched.items()}
    )
    if not domain.allows(first):
        problems.found.append(
            file["parameter_constraints"].refusal(
                "the defaults break these; write others, or another first trial, or baseline: none"
            )
        )
        return space
    return replace(space, baseline=first, defaults="first")


def _writes_prior(file: Mapping[str, Cursor]) -> bool:
    return "search" in file and any(key.text() == "prior" for key, _ in file["search"].pairs())


def _default(body: Cursor, parameter: Parameter, space: Space) -> Value:
    at = body.at("default")
    if space.program.kind == "trainer":
        raise at.refusal("the trainer has its own; write baseline: for another first trial, or prior:")
    if space.search.method == "grid":
        raise at.refusal("a grid has every configuration already; take it out")
    return inside(at, parameter)


def _prior(body: Cursor, section: ParameterSection, parameter: Range | Choice, space: Space) -> Prior:
    at, prior = body.at("prior"), section.prior or PriorSection(around=body)
    if space.search.method != "bayes":
        raise at.refusal(f"has no effect with method: {space.search.method}; take it out")
    if isinstance(parameter, Range) and parameter.normal is not None:
        raise at.refusal("the normal distribution says already where the best value is; keep one of the two")
    around, width = inside(at.at("around"), parameter), PRIOR_WIDTH
    if isinstance(parameter, Choice):
        for key in ("factor", "width"):
            if key in prior.model_fields_set:
                raise at.at(key).refusal("goes with min: and max:; a choice has around: alone")
    elif parameter.log:
        if prior.width is not None:
            raise at.at("width").refusal("goes with linear ranges; write factor:, such as 3")
        if prior.factor is not None:
            width = math.log(prior.factor) / math.log(parameter.max / parameter.min)
    else:
        if prior.factor is not None:
            raise at.at("factor").refusal(
                "goes with logarithmic ranges; write width:, the standard deviation in the parameter's unit"
            )
        if prior.width is not None:
            width = prior.width / (parameter.max - parameter.min)
    return Prior(around=around, width=width)
