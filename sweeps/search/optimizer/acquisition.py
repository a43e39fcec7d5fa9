"""The acquisition function of the search: Ax's choice, of whole options, with a prior, open to others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from ax.generators.torch.botorch_modular.acquisition import Acquisition
from botorch.acquisition.acquisition import AcquisitionFunction
from torch import Tensor

from sweeps.search.optimizer.prior import OfRows, WithPrior
from sweeps.search.optimizer.rows import option_columns

QUICK = {"num_restarts": 4, "raw_samples": 128}
"""Options for the optimisation on a stored first stage, which has fewer free axes than the fresh one."""

ROWS = 1024
"""Points of one evaluation: memory grows with them."""


class WholeOptions(AcquisitionFunction):  # type: ignore[misc]  # BoTorch ships no types
    """Acquisition function that takes each choice for its largest option alone (arXiv 1805.03463).

    Ax searches an unordered choice as one column from 0 to 1 for each option, and rounds what it finds. The
    maximum then often lies at a mixture of options, and what that is rounded to may have next to no expected
    improvement. Here a mixture has the value of what it is rounded to, and no gradient along options: each
    start of the optimizer keeps its own.

    Args:
        acquisition: the function, which knows the pending points.
        groups: columns of each unordered choice.
    """

    def __init__(self, acquisition: AcquisitionFunction, groups: Sequence[Sequence[int]]) -> None:
        super().__init__(model=acquisition.model)
        self.acquisition, self._groups = acquisition, groups

    def forward(self, X: Tensor) -> Tensor:
        """Return the value of [b, q, d] points, [b]."""
        whole = X.clone()
        for columns in self._groups:
            largest = X[..., columns].argmax(-1)
            whole[..., columns] = torch.nn.functional.one_hot(largest, len(columns)).to(X)
        value: Tensor = self.acquisition(whole)
        return value


class OpenAcquisition(Acquisition):  # type: ignore[misc]  # Ax ships no types
    """Ax's acquisition function with the prior in it, of whole options, which remembers how it was optimised.

    With `fixed_features`, Ax's `gen` would build another one, whose incumbent is the best of the few trials
    with these features, with other Monte Carlo draws: the values of two such functions cannot be compared.

    Attributes:
        found: [n, d], the maximiser.
    """

    acqf: Any
    found: Tensor

    def __init__(self, *, search_space_digest: Any, torch_opt_config: Any, **options: Any) -> None:
        super().__init__(
            search_space_digest=search_space_digest, torch_opt_config=torch_opt_config, **options
        )
        # Here, so that whatever optimises or evaluates this function has the prior in it.
        log_prior: OfRows | None = self.options.get("log_prior")
        if log_prior is not None:
            self.acqf = WithPrior(self.acqf, log_prior, self.options["prior_weight"])
        groups = option_columns(search_space_digest.feature_names)
        if groups and not torch_opt_config.is_moo:  # with several objectives: not measured yet
            self.acqf = WholeOptions(self.acqf, groups)

    def optimize(self, n: int, search_space_digest: Any, **arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        self._digest, self._arguments = search_space_digest, arguments
        result: tuple[Tensor, Tensor, Tensor] = super().optimize(
            n=n, search_space_digest=search_space_digest, **arguments
        )
        self.found = result[0]
        return result

    def optimize_at(self, fixed: Mapping[int, float]) -> Tensor:
        """Return the maximiser, [1, d], of the same function where some columns have fixed values."""
        always = self._arguments.get("fixed_features") or {}
        arguments = {
            **self._arguments,
            "fixed_features": {**always, **fixed},
            "optimizer_options": dict(QUICK),
        }
        found: Tensor = super().optimize(n=1, search_space_digest=self._digest, **arguments)[0]
        return found

    def values(self, x_ND: Tensor) -> Tensor:
        """Return the acquisition value of each row, [N]: a logarithm, as all of Ax's choices are."""
        with torch.no_grad():
            return torch.cat([self.evaluate(X=chunk.unsqueeze(1)) for chunk in torch.split(x_ND, ROWS)])
