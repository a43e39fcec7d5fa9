"""Gaussian process of a metric that an earlier sweep has measured, and whose optimum may have moved since.

Let m be the source's posterior mean and C its posterior covariance. At the target the metric is taken to be

    c + a * (m(x - d) + e(x)) + noise,    d ~ N(0, DRIFT² I),    a about 1 in the metric's unit,

e being a Gaussian process with C and a share of the source's own kernel as covariance. m(x - d) is m(x) less
the gradient of m times d, plus what is quadratic in d, which is a constant where m is a quadratic bowl. So
the drift adds DRIFT² times the products of the gradients to the covariance, and there inference is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from ax.adapter.adapter_utils import extract_search_space_digest
from ax.core.search_space import SearchSpace
from ax.generators.torch.botorch_modular.surrogate import ModelConfig
from botorch.models import SingleTaskGP
from botorch.utils.datasets import SupervisedDataset
from gpytorch.constraints import GreaterThan  # type: ignore[import-untyped]  # GPyTorch ships no types
from gpytorch.kernels import Kernel  # type: ignore[import-untyped]  # likewise
from gpytorch.likelihoods import GaussianLikelihood  # type: ignore[import-untyped]  # likewise
from gpytorch.means import ConstantMean, Mean  # type: ignore[import-untyped]  # likewise
from gpytorch.priors import LogNormalPrior, NormalPrior  # type: ignore[import-untyped]  # likewise
from torch import Tensor

from sweeps.search.optimizer.rows import metric_model, metric_scale

DRIFT = 0.2
"""Standard deviation of how far the optimum moves along each axis, as a share of its range."""

SCALE_SPREAD = 0.3
"""Standard deviation of the logarithm of a."""

OWN = 0.03
"""Median of the share of the source's kernel that the target has of its own, within a factor of e."""

LEAST_NOISE = 1e-4
"""Least median of the noise's variance, of results whose variance is 1; BoTorch's own least is this."""


class Belief:
    """Posterior of one metric by a source's fitted surrogate, in standard deviations of the source's results.

    It is asked at rows of the new sweep's surrogate, whose numbers go from 0 to 1 over the sweep's ranges.

    Args:
        adapter: Ax's, fitted to the source's results alone.
        numbers: axes along which an optimum can move, those of numbers.
        space: the new sweep's axes; the adapter's own reach as far as the source's values.
    """

    def __init__(self, adapter: Any, numbers: Sequence[str], space: SearchSpace) -> None:
        (name,) = adapter.generator.surrogate.outcomes
        model = adapter.generator.surrogate.model.eval()
        self.names: Sequence[str] = list(adapter.parameters)
        _, self.unit = metric_scale(adapter, name)
        with torch.no_grad():
            # Ax widens the ranges to the source's values, and the source's surrogate has 0 to 1 over those.
            low_D, high_D = model.transform_inputs(_range_ends(adapter, space).to(model.train_inputs[0]))
            self._x_ND = (model.train_inputs[0].detach() - low_D) / (high_D - low_D)
            self._scales_D = model.covar_module.lengthscale.detach().squeeze(0) / (high_D - low_D)
            self.noise = float(model.likelihood.noise)
            covariance_NN = self.kernel(self._x_ND, self._x_ND) + self.noise * torch.eye(
                len(self._x_ND), dtype=self._x_ND.dtype
            )
            self._root_NN = torch.linalg.cholesky(covariance_NN)
            centred_N1 = (model.train_targets - model.mean_module.constant).unsqueeze(-1)
            self._weights_N = torch.cholesky_solve(centred_N1, self._root_NN).squeeze(-1)
        self._moving = torch.tensor([name in numbers for name in self.names])

    def kernel(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Return the prior covariance of rows, [..., A, B]."""
        a, b = x1 / self._scales_D, x2 / self._scales_D
        squares = (a.unsqueeze(-2) - b.unsqueeze(-3)).square().sum(-1)
        return torch.exp(-squares / 2)

    def mean(self, x: Tensor) -> Tensor:
        """Return the posterior mean, but for a constant, [..., A]."""
        return self.kernel(x, self._x_ND) @ self._weights_N

    def gradient(self, x: Tensor) -> Tensor:
        """Return the gradient of the mean along the axes that can move, [..., A, D]."""
        weighted = self.kernel(x, self._x_ND) * self._weights_N
        slopes = (weighted @ self._x_ND - x * weighted.sum(-1, keepdim=True)) / self._scales_D**2
        moving: Tensor = slopes * self._moving
        return moving

    def explained_factor(self, x: Tensor) -> Tensor:
        """Return a factor F [..., A, N] of what the results explain of the prior covariance, F F'."""
        known = self.kernel(self._x_ND, x)
        found: Tensor = torch.linalg.solve_triangular(self._root_NN, known, upper=False)
        return found.transpose(-1, -2)


def _range_ends(adapter: Any, space: SearchSpace) -> Tensor:
    """Return the ends [2, D] of the axes, in the units that the surrogate gets from Ax."""
    space = space.clone()  # which transforms change
    for transform in adapter.transforms.values():
        space = transform.transform_search_space(space)
    digest = extract_search_space_digest(space, list(adapter.parameters))
    return torch.tensor(digest.bounds, dtype=torch.float).T  # rounded as Ax does: within, nothing changes


class DriftKernel(Kernel):  # type: ignore[misc]  # likewise
    """Covariance of the model, with a and the own share as parameters."""

    has_lengthscale = False

    def __init__(self, belief: Belief, scale: float) -> None:
        super().__init__()
        self.belief = belief
        self.register_parameter(
            "log_scale", torch.nn.Parameter(torch.tensor(math.log(scale), dtype=torch.double))
        )
        self.register_parameter(
            "log_own", torch.nn.Parameter(torch.tensor(math.log(OWN), dtype=torch.double))
        )
        # By name: BoTorch draws from the priors where a fit from here fails.
        self.register_prior("scale_prior", NormalPrior(math.log(scale), SCALE_SPREAD), "log_scale")
        self.register_prior("own_prior", NormalPrior(math.log(OWN), 1.0), "log_own")

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **options: Any) -> Tensor:
        belief = self.belief
        slopes = DRIFT**2 * belief.gradient(x1) @ belief.gradient(x2).transpose(-1, -2)
        prior = belief.kernel(x1, x2) * (1.0 + self.log_own.exp())
        found: Tensor = (2 * self.log_scale).exp() * (
            slopes + prior - belief.explained_factor(x1) @ belief.explained_factor(x2).transpose(-1, -2)
        )
        return found.diagonal(dim1=-2, dim2=-1) if diag else found


class DriftMean(Mean):  # type: ignore[misc]  # likewise
    """Mean of the model: a constant, and a times the source's."""

    def __init__(self, kernel: DriftKernel) -> None:
        super().__init__()
        self.constant, self.kernel = ConstantMean(), kernel

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.constant(x) + self.kernel.log_scale.exp() * self.kernel.belief.mean(x)
        return found


class DriftedGP(SingleTaskGP):  # type: ignore[misc]  # BoTorch ships no types
    """Gaussian process of a metric whose mean and covariance come from a source.

    Args:
        unit: standard deviation of the results, in the metric's unit.
    """

    def __init__(
        self, train_X: Tensor, train_Y: Tensor, belief: Belief, unit: float, input_transform: Any = None
    ) -> None:
        scale = belief.unit / unit
        kernel, noise = DriftKernel(belief, scale), max(belief.noise * scale**2, LEAST_NOISE)
        likelihood = GaussianLikelihood(
            noise_prior=LogNormalPrior(math.log(noise), 0.5),
            noise_constraint=GreaterThan(LEAST_NOISE / 100),  # a fit that begins at its bound fails
        )
        likelihood.noise = noise
        super().__init__(
            train_X,
            train_Y,
            likelihood=likelihood,
            covar_module=kernel,
            mean_module=DriftMean(kernel),
            outcome_transform=None,
            input_transform=input_transform,
        )

    @classmethod
    def construct_inputs(
        cls, training_data: SupervisedDataset, *, belief: Belief, unit: float, input_transform: Any = None
    ) -> dict[str, Any]:
        return {
            "train_X": training_data.X,
            "train_Y": training_data.Y,
            "belief": belief,
            "unit": unit,
            "input_transform": input_transform,
        }


def drifted_config(belief: Belief, unit: float) -> ModelConfig:
    """Return Ax's configuration of the model."""
    return ModelConfig(
        botorch_model_class=DriftedGP, model_options={"belief": belief, "unit": unit}, name="drifted"
    )


def evidence(adapter: Any, name: str) -> float:
    """Return the logarithm of the marginal likelihood of a metric's standardised results.

    Args:
        adapter: Ax's, fitted.
        name: Ax's name of the metric.
    """
    model = metric_model(adapter, name)
    model.train()
    with torch.no_grad():
        found = float(model.likelihood(model(*model.train_inputs)).log_prob(model.train_targets))
    model.eval()
    return found
