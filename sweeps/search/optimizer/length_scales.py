"""Kernel of Ax's default surrogate with bounded length scales."""

from __future__ import annotations

from typing import Any

from ax.generators.torch.botorch_modular.kernels import DefaultRBFKernel
from gpytorch.constraints import Interval  # type: ignore[import-untyped]  # ships no types

LENGTH_SCALES = (0.025, 2.0)
"""Bounds as shares of the unit range. The lower one is BoTorch's; with none above, a model that takes an axis
for irrelevant after a few trials never tries it again, above all where the axis is discrete."""


class CappedKernel(DefaultRBFKernel):  # type: ignore[misc]  # of gpytorch, which ships no types
    """RBF kernel with the dimension-scaled prior (Hvarfner et al. 2024, arXiv 2402.02229), and bounds."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        low, high = LENGTH_SCALES
        start = min(float(self.lengthscale_prior.mode.flatten()[0]), high)
        self.register_constraint("raw_lengthscale", Interval(low, high, transform=None, initial_value=start))
