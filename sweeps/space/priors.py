"""Priors over the best configuration: around known defaults, or around what a user has written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sweeps.space.definition import Fixed, Parameter, Prior, Space, Value

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
