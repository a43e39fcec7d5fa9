"""How far the surrogate's fit is taken."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sweeps.search.optimizer import surrogate


@pytest.mark.parametrize(
    ("results", "tolerance"), [(30, 1e-6), (300, 1e-6), (600, 2e-6), (1200, 4e-6)], ids=str
)
def test_tolerance_grows_above_300_results(
    monkeypatch: pytest.MonkeyPatch, results: int, tolerance: float
) -> None:
    # By themselves these warn while they are imported; the surrogate imports them in silence.
    from ax.generators.torch.botorch_modular.utils import fit_botorch_model
    from botorch.models import SingleTaskGP
    from gpytorch.mlls import ExactMarginalLogLikelihood

    given: list[dict[str, Any]] = []
    monkeypatch.setattr(
        surrogate, "fit_gpytorch_mll", lambda mll, optimizer_kwargs: given.append(optimizer_kwargs)
    )
    x_ND = torch.rand(results, 2, dtype=torch.double)
    fit_botorch_model(SingleTaskGP(x_ND, x_ND.sum(-1, keepdim=True)), mll_class=ExactMarginalLogLikelihood)
    assert given == [{"options": {"ftol": pytest.approx(tolerance)}}]
