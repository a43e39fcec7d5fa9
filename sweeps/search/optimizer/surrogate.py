"""Ax's own choice of surrogate and acquisition function, fitted to all results."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ax.api.utils.generation_strategy_dispatch import choose_generation_strategy
from ax.api.utils.structs import GenerationStrategyDispatchStruct
from ax.core.data import Data
from ax.core.data_utils import DataLoaderConfig
from ax.core.experiment import Experiment
from ax.core.optimization_config import OptimizationConfig
from ax.exceptions.core import AxError
from ax.generators.torch.botorch_modular.utils import ModelConfig, fit_botorch_model
from botorch.acquisition.multi_objective import logei
from botorch.exceptions.errors import BotorchError
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from linear_operator.utils.errors import NotPSDError  # type: ignore[import-untyped]  # ships no types

from sweeps.search.known_cost import KnownCost
from sweeps.search.optimizer.exact_metric import exact_config
from sweeps.search.optimizer.length_scales import CappedKernel

# For several objectives BoTorch would compile a kernel with the processor's own instructions, into a folder
# that all processes of a user share: a worker that is killed meanwhile leaves a lock that every later one
# waits for, without end, and where there is no compiler the same records would give other candidates.
logei._load_attempted = True

FIT_TOLERANCE = 1e-6
"""Relative change of the marginal log-likelihood per observation at which a fit ends.

SciPy's own 2e-9 takes twice as many steps, for 0.025 of it at most in eight fits (docs/log.md).
"""

SURROGATE_FAILURES = (AxError, BotorchError, NotPSDError, ArithmeticError, RuntimeError, ValueError)
"""Errors of a fit or an acquisition: the candidate then comes from Sobol, and no trial is stopped early."""


@fit_botorch_model.register(SingleTaskGP)  # type: ignore[untyped-decorator]  # BoTorch ships none
def _fit(model: Any, mll_class: Any, mll_options: dict[str, Any] | None = None) -> None:
    """Fit the hyperparameters as Ax does, those of a single metric no further than `FIT_TOLERANCE`.

    BoTorch fits several metrics side by side, by an optimizer of its own that fails with a tolerance.
    """
    likelihood = mll_class(likelihood=model.likelihood, model=model, **(mll_options or {}))
    options = {"ftol": FIT_TOLERANCE} if model.num_outputs == 1 else {}
    fit_gpytorch_mll(likelihood, optimizer_kwargs={"options": options} if options else None)


def fitted(
    experiment: Experiment,
    data: Data,
    goal: OptimizationConfig,
    *,
    batched: bool = True,
    capped: bool = False,
    exact: KnownCost | None = None,
    **options: Any,
) -> Any:
    """Return a new adapter of Ax's method "fast", without warm start.

    Args:
        experiment: with a trial for every result.
        data: all results.
        goal: objectives and constraints.
        batched: model metrics with the same points together, as Ax does. False: each alone, for analyses
            that leave points out: without the only trial that lacks a metric, Ax would make another kind of
            model, which cannot load the parameters of the fitted one.
        capped: with bounded length scales.
        exact: metric that is a known function of the parameters.
        options: further arguments of Ax's generator.

    Raises:
        one of SURROGATE_FAILURES: the fit failed.
    """
    choice = GenerationStrategyDispatchStruct(
        method="fast", initialization_budget=0, initialize_with_center=False, torch_device="cpu"
    )
    spec = choose_generation_strategy(choice).nodes_by_name["MBM"].generator_spec
    kwargs = dict(spec.generator_kwargs)
    kwargs["surrogate_spec"] = replace(kwargs["surrogate_spec"], allow_batched_models=batched)
    if capped:
        kwargs["surrogate_spec"] = replace(
            kwargs["surrogate_spec"],
            model_configs=[ModelConfig(covar_module_class=CappedKernel, name="capped length scales")],
        )
    if exact is not None:
        kwargs["surrogate_spec"] = replace(
            kwargs["surrogate_spec"], metric_to_model_configs={exact.metric: [exact_config(exact)]}
        )
    return spec.generator_enum(
        experiment=experiment,
        data=data,
        optimization_config=goal,
        # This makes data of every trial count. Abandoned ones have none, failed ones only their survival.
        data_loader_config=DataLoaderConfig(fit_abandoned=True),
        **kwargs,
        **options,
    )


def inferred_noise(adapter: Any) -> dict[str, float]:
    """Return the standard deviation of the noise that a fitted adapter has inferred, by metric.

    Raises:
        one of SURROGATE_FAILURES: it was given the noise of a metric.
    """
    surrogate, scales = adapter.generator.surrogate, adapter.transforms["StandardizeY"].Ystd
    models = getattr(surrogate.model, "models", [surrogate.model])
    variances = [float(v) for model in models for v in model.likelihood.noise.detach().flatten()]
    return {
        name: math.sqrt(variance) * float(scales[name])
        for name, variance in zip(surrogate.outcomes, variances, strict=True)
    }
