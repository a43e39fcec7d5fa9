"""Model of a metric that is a known function of the parameters: a Gaussian process without doubt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from ax.generators.torch.botorch_modular.utils import ModelConfig, fit_botorch_model
from botorch.models import SingleTaskGP
from botorch.utils.datasets import SupervisedDataset
from gpytorch.kernels import RBFKernel, ScaleKernel  # type: ignore[import-untyped]  # ships no types
from gpytorch.means import Mean  # type: ignore[import-untyped]  # likewise
from torch import Tensor

from sweeps.search.known_cost import KnownCost, Term

DOUBT = 1e-6
"""Prior variance and noise, of a metric whose results have variance 1: exact for the search, but no zeros on
the diagonals that BoTorch factorises. A deterministic model would do without, but with one in its list
BoTorch samples all observed points anew at every evaluation."""


class CostMean(Mean):  # type: ignore[misc]  # likewise
    """Cost at rows of the surrogate's inputs, scaled as Ax has scaled the results.

    Args:
        cost: the function.
        names: of the columns.
        x_ND: rows with results.
        y_N1: the results, which are the costs but for the scale; Ax may have cut off the largest.
    """

    def __init__(self, cost: KnownCost, names: Sequence[str], x_ND: Tensor, y_N1: Tensor) -> None:
        super().__init__()
        self._constant = cost.constant
        self._terms = [(names.index(term.axis), term) for term in cost.terms]
        exact_N, scaled_N = self._cost(x_ND), y_N1.squeeze(-1)
        steps_NN = exact_N - exact_N.unsqueeze(-1)
        slopes_NN = (scaled_N - scaled_N.unsqueeze(-1)) / steps_NN
        slope = slopes_NN[steps_NN.abs() > 1e-9 * exact_N.abs().max()].median()  # Theil and Sen's
        self.register_buffer("slope", slope)
        self.register_buffer("offset", (scaled_N - slope * exact_N).median())

    def forward(self, x: Tensor) -> Tensor:
        scaled: Tensor = self.offset + self.slope * self._cost(x)
        return scaled

    def _cost(self, x: Tensor) -> Tensor:
        total = torch.full_like(x[..., 0], self._constant)
        for column, term in self._terms:
            total = total + term.factor * _value(term, x[..., column])
        return total


def _value(term: Term, position: Tensor) -> Tensor:
    if term.log:
        return term.low * (term.high / term.low) ** position
    return term.low + (term.high - term.low) * position


class ExactMetric(SingleTaskGP):  # type: ignore[misc]  # likewise
    """Gaussian process whose mean is the metric itself, with hardly any variance: nothing is fitted."""

    def __init__(self, train_X: Tensor, train_Y: Tensor, cost: KnownCost, names: Sequence[str]) -> None:
        mean = CostMean(cost, names, train_X, train_Y)
        exact = mean(train_X).unsqueeze(-1)
        kernel = ScaleKernel(RBFKernel())
        kernel.outputscale = DOUBT
        super().__init__(
            train_X,
            exact,
            train_Yvar=torch.full_like(exact, DOUBT),
            covar_module=kernel,
            mean_module=mean,
            outcome_transform=None,
        )
        self.requires_grad_(False)

    @classmethod
    def construct_inputs(cls, training_data: SupervisedDataset, *, cost: KnownCost) -> dict[str, Any]:
        return {
            "train_X": training_data.X,
            "train_Y": training_data.Y,
            "cost": cost,
            "names": training_data.feature_names,
        }


@fit_botorch_model.register(ExactMetric)  # type: ignore[untyped-decorator]  # BoTorch ships none
def _fit_nothing(model: ExactMetric, **options: Any) -> None:
    model.eval()


def exact_config(cost: KnownCost) -> ModelConfig:
    """Return Ax's configuration of the model."""
    return ModelConfig(
        botorch_model_class=ExactMetric,
        model_options={"cost": cost},
        input_transform_classes=None,
        name="exact cost",
    )
