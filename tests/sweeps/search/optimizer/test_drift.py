"""The model of a metric whose optimum has moved since an earlier sweep."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sweeps.search.optimizer.drift import DRIFT, Belief, DriftedGP

NAMES = ["x", "option", "y"]


@pytest.fixture(scope="module")
def axes() -> Any:
    """Ax's search space of the three."""
    from ax.core.parameter import ParameterType, RangeParameter  # after ours, which silences what it warns of
    from ax.core.search_space import SearchSpace

    return SearchSpace(
        [RangeParameter(name, lower=0.0, upper=1.0, parameter_type=ParameterType.FLOAT) for name in NAMES]
    )


def around(model: Any) -> Any:
    """Return Ax's adapter, as far as it is read, around a Gaussian process."""
    return SimpleNamespace(
        generator=SimpleNamespace(surrogate=SimpleNamespace(model=model, outcomes=["loss"])),
        transforms={
            "Standardize": SimpleNamespace(
                Ymean={"loss": 0.0}, Ystd={"loss": 2.0}, transform_search_space=lambda space: space
            )
        },
        parameters=NAMES,
    )


@pytest.fixture(scope="module")
def adapter() -> Any:
    """An adapter around a Gaussian process over 12 results."""
    from botorch.models import SingleTaskGP  # after ours, which silences what it warns of

    rows = torch.rand(12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    losses = (rows - 0.4).square().sum(-1, keepdim=True)
    model = SingleTaskGP(rows, (losses - losses.mean()) / losses.std(), outcome_transform=None)
    model.likelihood.noise = 0.01
    return around(model)


@pytest.fixture(scope="module")
def points() -> torch.Tensor:
    return torch.rand(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.double)


def test_belief_is_the_posterior_of_the_sources_surrogate(adapter, axes, points):
    belief, model = Belief(adapter, ["x", "y"], axes), adapter.generator.surrogate.model
    posterior = model.posterior(points).distribution
    mean = belief.mean(points) + model.mean_module.constant
    taken = belief.explained_factor(points) @ belief.explained_factor(points).T
    assert torch.allclose(mean, posterior.mean, atol=1e-6)
    assert torch.allclose(belief.kernel(points, points) - taken, posterior.covariance_matrix, atol=1e-6)


def test_belief_is_asked_in_units_of_the_new_ranges(points):
    """Ax widens the source's ranges to its values; the rows asked go from 0 to 1 over the sweep's own."""
    from ax.core.parameter import ChoiceParameter, ParameterType, RangeParameter  # likewise
    from ax.core.search_space import SearchSpace
    from botorch.models import SingleTaskGP
    from botorch.models.transforms import Normalize

    own = SearchSpace(
        [
            RangeParameter("x", lower=0.0, upper=1.0, parameter_type=ParameterType.FLOAT),
            ChoiceParameter("option", ParameterType.INT, [0, 2, 3], is_ordered=True, sort_values=True),
            RangeParameter("y", lower=2, upper=6, parameter_type=ParameterType.INT),
        ]
    )
    low, high = torch.tensor([[0.0, 0.0, 2.0], [1.0, 3.0, 6.0]], dtype=torch.double)
    wide = torch.tensor([[-1.0, 0.0, 1.0], [2.0, 3.0, 9.0]], dtype=torch.double)
    rows = wide[0] + (wide[1] - wide[0]) * torch.rand(
        12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.double
    )
    losses = ((rows - low) / (high - low) - 0.3).square().sum(-1, keepdim=True)
    model = SingleTaskGP(
        rows,
        (losses - losses.mean()) / losses.std(),
        outcome_transform=None,
        input_transform=Normalize(d=3, bounds=wide),
    )
    belief = Belief(around(model), ["x", "y"], own)
    posterior = model.posterior(low + (high - low) * points).distribution
    mean = belief.mean(points) + model.mean_module.constant
    taken = belief.explained_factor(points) @ belief.explained_factor(points).T
    assert torch.allclose(mean, posterior.mean, atol=1e-6)
    assert torch.allclose(belief.kernel(points, points) - taken, posterior.covariance_matrix, atol=1e-6)


def test_only_numbers_can_move(adapter, axes, points):
    points = points.clone().requires_grad_()
    belief = Belief(adapter, ["x", "y"], axes)
    (slopes,) = torch.autograd.grad(belief.mean(points).sum(), points)
    found = belief.gradient(points)
    assert torch.allclose(found[:, [0, 2]], slopes[:, [0, 2]], atol=1e-9)
    assert torch.equal(found[:, 1], torch.zeros(5, dtype=torch.double))


def test_drift_doubts_the_mean_where_it_is_steep(adapter, axes, points):
    """The variance is that of the first-order effect of a shift, beside what does not depend on it."""
    belief = Belief(adapter, ["x", "y"], axes)
    y = torch.linspace(-1.0, 1.0, 5, dtype=torch.double).unsqueeze(-1)
    y = y / y.std()
    still = DriftedGP(points, y, Belief(adapter, [], axes), unit=1.0).covar_module
    moving = DriftedGP(points, y, belief, unit=1.0).covar_module
    extra = (moving(points) - still(points)).to_dense()
    scale = 2.0 / 1.0  # of the source's results, in those of the target
    slopes = belief.gradient(points)
    assert torch.allclose(extra, (scale * DRIFT) ** 2 * slopes @ slopes.T, atol=1e-9)
    assert torch.allclose(moving(points, diag=True), moving(points).to_dense().diagonal(), atol=1e-9)
    assert math.isclose(float(moving.log_scale.detach()), math.log(scale))


@pytest.mark.parametrize("unit", [1.0, 50.0, 1e4])
def test_fit_begins_within_its_bounds_and_can_begin_anew(adapter, axes, points, unit):
    """However small the source's differences are beside the target's; BoTorch's next attempts are random."""
    from botorch.optim.utils import sample_all_priors  # likewise

    y = torch.linspace(-1.0, 1.0, 5, dtype=torch.double).unsqueeze(-1)
    model = DriftedGP(points, y / y.std(), Belief(adapter, ["x", "y"], axes), unit=unit)
    assert all(torch.isfinite(each).all() for each in model.parameters())
    before = float(model.covar_module.log_own.detach())
    sample_all_priors(model)
    assert float(model.covar_module.log_own.detach()) != before
