"""Our search with one thing changed, to be judged beside it: `replay --searchers ours variant-NAME`.

What came of them is in docs/log.md. A name with several variants joined by `+` has all their changes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

# First, as it silences what Ax and its dependencies say when they are imported.
from sweeps.search.optimizer import Optimizer  # isort: skip

import numpy as np
import torch
from ax.adapter.data_utils import ExperimentData
from ax.adapter.transforms.base import Transform
from ax.adapter.transforms.power_transform_y import PowerTransformY
from ax.adapter.transforms.winsorize import Winsorize
from ax.core.observation import ObservationData
from ax.generators.torch.botorch_modular.kernels import DefaultRBFKernel
from botorch.acquisition import qLogExpectedImprovement
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.acquisition.analytic import LogExpectedImprovement, PosteriorMean
from botorch.acquisition.input_constructors import acqf_input_constructor
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms.input import Warp
from botorch.utils.datasets import SupervisedDataset
from gpytorch.means import Mean  # type: ignore[import-untyped]  # ships no types
from gpytorch.priors import LogNormalPrior, NormalPrior  # type: ignore[import-untyped]  # likewise
from torch import Tensor

from benchmarks.landscapes.searchers import Factory, Ours, Searcher, Task
from sweeps.search.optimizer.transforms import TRANSFORMS, Standardize
from sweeps.space.definition import Space

TREND_TRIALS = 20
"""Results up to which the surrogate has a trend: the first design and about a dozen more."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """Changes of the search that make a variant.

    Args:
        search: fields of the space's `Search`.
        reuse: whether trials share stages.
        plain_every: one in so many candidates ignores costs.
        capped: bound length scales where nothing is shared too.
        model: arguments of Ax's `ModelConfig`.
        few: the same, up to `TREND_TRIALS` results.
        transform: of the losses, before they are standardised, in place of cutting off the largest.
        acquisition: class of BoTorch's.
        known_noise: give the surrogate the landscape's standard deviation over seeds.
        lowest: choose the lowest loss, not the lowest posterior mean.
        exploit_every: one in so many candidates has the lowest posterior mean, however well it is known.
        patience: how long a free worker waits for results, as a share of a trial.
    """

    search: Mapping[str, Any] = field(default_factory=dict)
    reuse: bool = True
    plain_every: int | None = None
    capped: bool = False
    model: Mapping[str, Any] = field(default_factory=dict)
    few: Mapping[str, Any] = field(default_factory=dict)
    transform: type[Transform] | None = None
    acquisition: type[AcquisitionFunction] | None = None
    known_noise: bool = False
    lowest: bool = False
    exploit_every: int | None = None
    patience: float = 0.0

    def __or__(self, other: Change) -> Change:
        """Return both changes; the other's where they contradict."""
        default = Change()
        changed = {name: value for name, value in vars(other).items() if value != getattr(default, name)}
        for name in ("search", "model", "few"):
            changed[name] = {**getattr(self, name), **getattr(other, name)}
        return replace(self, **changed)


class ChangedOptimizer(Optimizer):
    """The optimizer of a sweep, changed."""

    def __init__(self, space: Space, *, change: Change, **options: Any) -> None:
        super().__init__(space, **options)
        self._change = change
        if change.plain_every is not None:
            self.plain_every = change.plain_every

    def _fitted(self, **options: Any) -> Any:
        change = self._change
        results = sum(not self._outcomes.missing(record) for record in self._known())
        if model := {**change.model, **(change.few if results <= TREND_TRIALS else {})}:
            options["model"] = model
        if change.capped:
            options["capped"] = True
        if change.acquisition is not None:
            options["botorch_acqf_class"] = change.acquisition
        if change.exploit_every is not None and results % change.exploit_every == 0:
            options["botorch_acqf_class"] = PosteriorMean
        if change.transform is not None:
            kept = [each for each in TRANSFORMS if not issubclass(each, Winsorize)]
            kept.insert(kept.index(Standardize), change.transform)
            options["transforms"] = kept
        return super()._fitted(**options)


class Variant(Ours):
    """Our search with a change."""

    def __init__(self, task: Task, *, change: Change) -> None:
        fields = dict(change.search)
        if change.known_noise:
            from benchmarks.landscapes.replay import load

            fields["noise"] = float(np.std(load(task.space.name).residuals))
        search = replace(task.space.search, **fields)
        super().__init__(
            replace(task, space=replace(task.space, search=search)),
            reuse=change.reuse,
            optimizer=partial(ChangedOptimizer, change=change),
        )
        self._lowest, self.patience = change.lowest, change.patience

    def choose(self) -> int:
        return Searcher.choose(self) if self._lowest else super().choose()


# ---- losses


class LogExcess(Transform):
    """Logarithm of what a result is above a floor, a share of their range below the least."""

    requires_data_for_initialization = True
    share = 0.1

    def __init__(
        self,
        search_space: Any = None,
        experiment_data: ExperimentData | None = None,
        adapter: Any = None,
        config: Any = None,
    ) -> None:
        super().__init__(search_space, experiment_data, adapter, config)
        assert experiment_data is not None
        self._floors: dict[str, float] = {}
        for name, column in experiment_data.observation_data["mean"].items():
            known = column.dropna()
            if (spread := float(known.max() - known.min())) > 0:
                self._floors[str(name)] = float(known.min()) - self.share * spread

    def transform_experiment_data(self, experiment_data: ExperimentData) -> ExperimentData:
        table = experiment_data.observation_data
        for name, floor in self._floors.items():
            excess = table["mean", name] - floor
            table["sem", name] = table["sem", name] / excess
            table["mean", name] = np.log(excess)
        return ExperimentData(arm_data=experiment_data.arm_data, observation_data=table)

    def _transform_observation_data(self, observation_data: list[ObservationData]) -> list[ObservationData]:
        for each in observation_data:
            for at, name in enumerate(each.metric_signatures):
                if name in self._floors:
                    excess = each.means[at] - self._floors[name]
                    each.means[at], each.covariance[at, at] = (
                        np.log(excess),
                        each.covariance[at, at] / excess**2,
                    )
        return observation_data

    def _untransform_observation_data(self, observation_data: list[ObservationData]) -> list[ObservationData]:
        for each in observation_data:
            for at, name in enumerate(each.metric_signatures):
                if name in self._floors:  # the median: it has the order of the means of the logarithm
                    excess = np.exp(each.means[at])
                    each.means[at] = self._floors[name] + excess
                    each.covariance[at, at] *= excess**2
        return observation_data


class MildLogExcess(LogExcess):
    """The same with a lower floor."""

    share = 0.3


# ---- parameters


WARPED = {
    "input_transform_classes": [Warp],
    "input_transform_options": {
        "Warp": {
            "concentration0_prior": LogNormalPrior(0.0, 0.75**0.5),
            "concentration1_prior": LogNormalPrior(0.0, 0.75**0.5),
        }
    },
}
"""Kumaraswamy's distribution function of each axis, with BoTorch's usual priors."""


# ---- kernels


class DimensionScaledMatern(DefaultRBFKernel):  # type: ignore[misc]  # Ax's base classes have no types
    """Matérn 5/2 with the length scales' prior of the kernel that it replaces."""

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        scaled1, scaled2 = x1 / self.lengthscale, x2 / self.lengthscale
        distance = 5**0.5 * self.covar_dist(scaled1, scaled2, square_dist=False, diag=diag, **params)
        covariance: Tensor = (1 + distance + distance.square() / 3) * torch.exp(-distance)
        return covariance


# ---- trends


class Trend(Mean):  # type: ignore[misc]  # gpytorch ships no types
    """A constant and, for each axis, a slope and a curvature about the middle; standardised results.

    Args:
        axes: how many.
        curvature: mean and standard deviation of its prior.
    """

    def __init__(self, axes: int, curvature: tuple[float, float]) -> None:
        super().__init__()
        self.register_parameter("constant", torch.nn.Parameter(torch.zeros(1)))
        for name, mean, deviation in (("slope", 0.0, 0.5), ("curvature", *curvature)):
            self.register_parameter(name, torch.nn.Parameter(torch.full((axes,), mean)))
            self.register_prior(f"{name}_prior", NormalPrior(mean, deviation), _reader(name))

    def forward(self, x: Tensor) -> Tensor:
        from_middle = x - 0.5
        total: Tensor = self.constant + from_middle @ self.slope + from_middle.square() @ self.curvature
        return total


def _reader(name: str) -> Callable[[Any], Tensor]:
    def read(module: Any) -> Tensor:
        value: Tensor = getattr(module, name)
        return value

    return read


class QuadraticGP(SingleTaskGP):  # type: ignore[misc]  # BoTorch ships no types
    """Gaussian process about a quadratic trend of either sign."""

    CURVATURE = (0.0, 1.0)

    @classmethod
    def construct_inputs(cls, training_data: SupervisedDataset, **options: Any) -> dict[str, Any]:
        inputs = super().construct_inputs(training_data, **options)
        return {**inputs, "mean_module": Trend(training_data.X.shape[-1], cls.CURVATURE)}


class BowlGP(QuadraticGP):
    """The same about a bowl: by its prior, losses rise towards the borders."""

    CURVATURE = (2.0, 1.0)


# ---- acquisition


class PlugInLogEI(LogExpectedImprovement):  # type: ignore[misc]  # BoTorch ships no types
    """Logarithm of the expected improvement on the best posterior mean of the trials, in closed form."""


class PlugInQLogEI(qLogExpectedImprovement):  # type: ignore[misc]  # likewise
    """The same by Monte Carlo, which takes pending points."""


@acqf_input_constructor(PlugInLogEI)
def _closed_form(model: Model, X_baseline: Tensor, posterior_transform: Any = None) -> dict[str, Any]:
    with torch.no_grad():
        best = model.posterior(X_baseline, posterior_transform=posterior_transform).mean.max()
    return {"model": model, "posterior_transform": posterior_transform, "best_f": best}


@acqf_input_constructor(PlugInQLogEI)
def _by_samples(
    model: Model, X_baseline: Tensor, posterior_transform: Any = None, X_pending: Tensor | None = None
) -> dict[str, Any]:
    return {**_closed_form(model, X_baseline, posterior_transform), "X_pending": X_pending}


CHANGES: dict[str, Change] = {
    "none": Change(),  # the candidates of `ours`
    "plain": Change(reuse=False),
    "first4": Change(search={"sobol": 4}),
    "first6": Change(search={"sobol": 6}),
    "first8": Change(search={"sobol": 8}),
    "first12": Change(search={"sobol": 12}),
    "costs2": Change(plain_every=2),
    "costs8": Change(plain_every=8),
    "costs-always": Change(plain_every=sys.maxsize),
    "capped": Change(capped=True),
    "log": Change(transform=LogExcess),
    "log-mild": Change(transform=MildLogExcess),
    "power": Change(transform=PowerTransformY),
    "warp": Change(model=WARPED),
    "ei": Change(acquisition=PlugInLogEI),
    "qei": Change(acquisition=PlugInQLogEI),
    "noise": Change(known_noise=True),
    "quadratic": Change(few={"botorch_model_class": QuadraticGP}),
    "bowl": Change(few={"botorch_model_class": BowlGP}),
    "matern": Change(model={"covar_module_class": DimensionScaledMatern, "name": "Matern"}),
    "exploit2": Change(exploit_every=2),
    "lowest": Change(lowest=True),
    "wait": Change(patience=0.05),
}


def find_variant(name: str) -> Factory:
    """Return the searcher `variant-NAME`, or `variant-NAME+NAME`.

    Raises:
        ValueError: there is none.
    """
    change = Change()
    for part in name.removeprefix("variant-").split("+"):
        if part not in CHANGES:
            raise ValueError(f"{part!r} is no variant: {', '.join(CHANGES)}")
        change |= CHANGES[part]
    return partial(Variant, change=change)
