"""Ax's own choice of surrogate and acquisition function, fitted to all results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from ax.api.utils.generation_strategy_dispatch import choose_generation_strategy
from ax.api.utils.structs import GenerationStrategyDispatchStruct
from ax.core.data import Data
from ax.core.data_utils import DataLoaderConfig
from ax.core.experiment import Experiment
from ax.core.optimization_config import OptimizationConfig
from ax.exceptions.core import AxError
from ax.generators.torch.botorch_modular.kernels import DefaultRBFKernel
from ax.generators.torch.botorch_modular.utils import ModelConfig, fit_botorch_model
from botorch.acquisition.multi_objective import logei
from botorch.exceptions.errors import BotorchError, ModelFittingError
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.utils.datasets import SupervisedDataset
from gpytorch.constraints import Interval  # type: ignore[import-untyped]  # ships no types
from gpytorch.kernels import RBFKernel, ScaleKernel  # type: ignore[import-untyped]  # likewise
from gpytorch.means import Mean  # type: ignore[import-untyped]  # likewise
from linear_operator.utils.errors import NotPSDError  # type: ignore[import-untyped]  # likewise
from torch import Tensor

from sweeps.search.known_cost import KnownCost
from sweeps.search.optimizer.rows import metric_scale
from sweeps.search.optimizer.transforms import TRANSFORMS

# For several objectives BoTorch would compile a kernel with the processor's own instructions, into a folder
# that all processes of a user share: a worker that is killed meanwhile leaves a lock that every later one
# waits for, without end, and where there is no compiler the same records would give other candidates.
logei._load_attempted = True

FIT_TOLERANCE = 1e-6
"""Relative change of the marginal log-likelihood per observation at which a fit ends.

SciPy's own 2e-9 takes twice as many steps, for 0.025 of it at most in eight fits (docs/log.md).
"""

EASED_ABOVE = 300
"""Results above which the tolerance grows with their number.

At 1,000 results without noise, 3e-6 ends after a third of the CPU time with length scales within 2 %.
"""

SURROGATE_FAILURES = (
    AxError,
    BotorchError,
    ModelFittingError,  # which is no BotorchError
    NotPSDError,
    ArithmeticError,
    RuntimeError,
    ValueError,
)
"""Errors of a fit or an acquisition: the candidate then comes from Sobol, and no trial is stopped early."""

LENGTH_SCALES = (0.025, 2.0)
"""Bounds as shares of the unit range. The lower one is BoTorch's; with none above, a model that takes an axis
for irrelevant after a few trials never tries it again, above all where the axis is discrete."""

DOUBT = 1e-6
"""Prior variance and noise, of a metric whose results have variance 1: exact for the search, but no zeros on
the diagonals that BoTorch factorises. A deterministic model would do without, but with one in its list
BoTorch samples all observed points anew at every evaluation."""


@fit_botorch_model.register(SingleTaskGP)  # type: ignore[untyped-decorator]  # BoTorch ships none
def _fit(model: Any, mll_class: Any, mll_options: dict[str, Any] | None = None) -> None:
    """Fit the hyperparameters as Ax does, those of a single metric no further than the tolerance.

    BoTorch fits several metrics side by side, by an optimizer of its own that fails with a tolerance.
    """
    likelihood = mll_class(likelihood=model.likelihood, model=model, **(mll_options or {}))
    tolerance = FIT_TOLERANCE * max(1.0, model.train_targets.shape[-1] / EASED_ABOVE)
    options = {"ftol": tolerance} if model.num_outputs == 1 else {}
    fit_gpytorch_mll(likelihood, optimizer_kwargs={"options": options} if options else None)


def fitted(
    experiment: Experiment,
    data: Data,
    goal: OptimizationConfig,
    *,
    batched: bool = True,
    capped: bool = False,
    exact: KnownCost | None = None,
    model: Mapping[str, Any] | None = None,
    models: Mapping[str, ModelConfig] | None = None,
    **options: Any,
) -> Any:
    """Return a new adapter of Ax's method "fast", without warm start.

    Args:
        experiment: with a trial for every result.
        batched: model metrics with the same points together, as Ax does. False: each alone, for analyses
            that leave points out: without the only trial that lacks a metric, Ax would make another kind of
            model, which cannot load the parameters of the fitted one.
        capped: with bounded length scales.
        exact: metric that is a known function of the parameters.
        model: arguments of Ax's `ModelConfig` that replace its defaults and `capped`, for benchmarks.
        models: of single metrics.

    Raises:
        one of SURROGATE_FAILURES: the fit failed.
    """
    choice = GenerationStrategyDispatchStruct(
        method="fast", initialization_budget=0, initialize_with_center=False, torch_device="cpu"
    )
    spec = choose_generation_strategy(choice).nodes_by_name["MBM"].generator_spec
    kwargs = dict(spec.generator_kwargs)
    kwargs["surrogate_spec"] = replace(kwargs["surrogate_spec"], allow_batched_models=batched)
    config = {"covar_module_class": CappedKernel, "name": "capped length scales"} if capped else {}
    if config := {**config, **(model or {})}:
        kwargs["surrogate_spec"] = replace(kwargs["surrogate_spec"], model_configs=[ModelConfig(**config)])
    by_metric = {name: [each] for name, each in (models or {}).items()}
    if exact is not None:
        by_metric[exact.metric] = [exact_config(exact)]
    if by_metric:
        kwargs["surrogate_spec"] = replace(kwargs["surrogate_spec"], metric_to_model_configs=by_metric)
    try:
        return spec.generator_enum(
            experiment=experiment,
            data=data,
            optimization_config=goal,
            # This makes data of every trial count. Abandoned ones have none, failed ones only their survival.
            data_loader_config=DataLoaderConfig(fit_abandoned=True),
            **kwargs,
            **{"transforms": TRANSFORMS, **options},
        )
    except StopIteration:
        # Ax's, of results whose standard deviation is no number. In a generator it would be another error.
        raise ArithmeticError("results are so large that their spread is no number") from None


def inferred_noise(adapter: Any) -> dict[str, float]:
    """Return the standard deviation of the noise that a fitted adapter has inferred, by metric.

    Raises:
        one of SURROGATE_FAILURES: it was given the noise of a metric.
    """
    surrogate = adapter.generator.surrogate
    models = getattr(surrogate.model, "models", [surrogate.model])
    variances = [float(v) for model in models for v in model.likelihood.noise.detach().flatten()]
    return {
        name: math.sqrt(variance) * metric_scale(adapter, name)[1]
        for name, variance in zip(surrogate.outcomes, variances, strict=True)
    }


class CappedKernel(DefaultRBFKernel):  # type: ignore[misc]  # likewise
    """RBF kernel with the dimension-scaled prior (Hvarfner et al. 2024, arXiv 2402.02229), and bounds."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        low, high = LENGTH_SCALES
        start = min(float(self.lengthscale_prior.mode.flatten()[0]), high)
        self.register_constraint("raw_lengthscale", Interval(low, high, transform=None, initial_value=start))


# ---- a metric that is a known function of the parameters: a Gaussian process without doubt


class CostMean(Mean):  # type: ignore[misc]  # likewise
    """Cost at rows of the surrogate's inputs, scaled as Ax has scaled the results.

    Args:
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
            position = x[..., column]
            if term.log:
                value = term.low * (term.high / term.low) ** position
            else:
                value = term.low + (term.high - term.low) * position
            total = total + term.factor * value
        return total


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
