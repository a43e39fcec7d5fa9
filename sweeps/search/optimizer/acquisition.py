"""The acquisition function of the search: Ax's choice, of whole options, with a prior, open to others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from ax.exceptions.core import SearchSpaceExhausted
from ax.generators.torch.botorch_modular.acquisition import Acquisition, determine_optimizer
from ax.generators.utils import mk_discrete_choices
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.optim.initializers import gen_batch_initial_conditions
from torch import Tensor

from sweeps.search.encoding import MARGIN
from sweeps.search.optimizer.prior import OfRows, WithPrior
from sweeps.search.optimizer.rows import option_columns

QUICK = {"num_restarts": 4, "raw_samples": 128}
"""Options for an optimisation where some columns are fixed: it has fewer free ones than the first."""

LEAST_GAIN = 1e-6
"""Increase of the acquisition value, a logarithm, that is more than rounding."""

MOST_CLIMBS = 5
"""Climbs over options, each followed by numbers for the new ones: it takes one or two."""

SHORT_WALK = {"n_burnin": 1000, "n_thinning": 4}
"""Steps of the random walk that draws points within constraints: before the first one, and for each.

BoTorch takes 10,000 and 32, anew for each combination of options: of an ask with nine integers 25 s of 36.
"""

ROWS = 1024
"""Points of one evaluation: memory grows with them."""


class WholeOptions(AcquisitionFunction):  # type: ignore[misc]  # BoTorch ships no types
    """Acquisition function that takes each choice for its largest option alone (arXiv 1805.03463).

    Ax searches an unordered choice of three options or more as one column from 0 to 1 for each option, and
    rounds what it finds. The maximum then often lies at a mixture of options, and what that is rounded to may
    have next to no expected improvement. Here a mixture has the value of what it is rounded to, and no
    gradient along options: each start of the optimizer keeps its own. For one candidate at a time.

    Args:
        acquisition: the function, which knows the pending points.
        groups: columns of each unordered choice.
    """

    def __init__(self, acquisition: AcquisitionFunction, groups: Sequence[Sequence[int]]) -> None:
        super().__init__(model=acquisition.model)
        self.acquisition, self._groups = acquisition, groups

    def forward(self, X: Tensor) -> Tensor:
        """Return the value of [b, 1, d] points, [b]."""
        whole = X.clone()
        for columns in self._groups:
            largest = X[..., columns].argmax(-1)
            whole[..., columns] = torch.nn.functional.one_hot(largest, len(columns)).to(X)
        value: Tensor = self.acquisition(whole)
        return value


def starts_within_constraints(
    *arguments: Any, options: Mapping[str, Any] | None = None, **given: Any
) -> Tensor:
    """Return BoTorch's starts for an optimisation under parameter constraints, drawn by a short walk."""
    walk = {**(options or {}), **SHORT_WALK}
    found: Tensor = gen_batch_initial_conditions(*arguments, options=walk, **given)
    return found


class OpenAcquisition(Acquisition):  # type: ignore[misc]  # Ax ships no types
    """Ax's acquisition function, with the prior in it and evaluated at whole options, to be optimised again.

    With `fixed_features`, Ax's `gen` would build another one, whose incumbent is the best of the few trials
    with these features, with other Monte Carlo draws: the values of two such functions cannot be compared.

    Attributes:
        found: [1, d], the maximiser.
    """

    acqf: Any
    found: Tensor

    def __init__(self, *, search_space_digest: Any, torch_opt_config: Any, **options: Any) -> None:
        if torch_opt_config.linear_constraints is not None:
            # With these Ax only leaves out trials that break a constraint, and without any tolerance: also a
            # user's own that lies exactly on one, and candidates that it found at the tighter one itself.
            factors, bounds = torch_opt_config.linear_constraints
            torch_opt_config = replace(torch_opt_config, linear_constraints=(factors, bounds + 2 * MARGIN))
        super().__init__(
            search_space_digest=search_space_digest, torch_opt_config=torch_opt_config, **options
        )
        # Here, so that whatever optimises or evaluates this function has the prior in it.
        log_prior: OfRows | None = self.options.get("log_prior")
        if log_prior is not None:
            self.acqf = WithPrior(self.acqf, log_prior, self.options["prior_weight"])
        self._groups = option_columns(search_space_digest.feature_names)
        if self._groups:
            self.acqf = WholeOptions(self.acqf, self._groups)

    def optimize(self, n: int, search_space_digest: Any, **arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        self._digest, self._arguments = search_space_digest, arguments
        found, values, weights = self._optimize(n, **arguments)
        self.found = self._with_better_options(found, arguments.get("fixed_features") or {})
        return self.found, values if self.found is found else self.values(self.found), weights

    def optimize_at(self, fixed: Mapping[int, float]) -> Tensor:
        """Return the maximiser, [1, d], of the same function where some columns have fixed values."""
        fixed = {**(self._arguments.get("fixed_features") or {}), **fixed}
        return self._with_better_options(self._quickly(fixed), fixed)

    def _quickly(self, fixed: Mapping[int, float]) -> Tensor:
        arguments = {**self._arguments, "fixed_features": fixed, "optimizer_options": dict(QUICK)}
        return self._optimize(1, **arguments)[0]

    def _optimize(self, n: int, **arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        if arguments.get("inequality_constraints"):
            choices = mk_discrete_choices(self._digest, arguments.get("fixed_features"))
            # The others take no function for their starts.
            if determine_optimizer(self._digest, self.acqf, choices) in (
                "optimize_acqf",
                "optimize_acqf_mixed",
            ):
                options = arguments.get("optimizer_options") or {}
                arguments["optimizer_options"] = {**options, "ic_generator": starts_within_constraints}
        found: tuple[Tensor, Tensor, Tensor] = super().optimize(
            n=n, search_space_digest=self._digest, **arguments
        )
        return found

    def _with_better_options(self, found: Tensor, fixed: Mapping[int, float]) -> Tensor:
        """Return `found`, [1, d], or a better point that changing one option after the other leads to.

        Of the combinations of options the optimizer has tried those of its starts alone.
        """
        groups = [columns for columns in self._groups if not fixed.keys() & set(columns)]
        for _ in range(MOST_CLIMBS):
            if not groups or (changed := self._with_changed_options(found, groups)) is found:
                break
            found = changed
            options = {column: float(found[0, column]) for columns in groups for column in columns}
            if len(fixed) + len(options) < found.shape[1]:
                try:
                    tuned = self._quickly({**fixed, **options})
                except SearchSpaceExhausted:  # Ax's, where all numbers are discrete and each was tried
                    break
                before, after = self.values(torch.cat([found, tuned])).tolist()  # in one evaluation, as below
                found = tuned if after > before else found
        return found

    def _with_changed_options(self, row: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
        """Return `row`, [1, d], after the best changes of one option, as long as one is a gain."""
        for _ in range(sum(map(len, groups))):
            others = [
                self._with_option(row, columns, at)
                for columns in groups
                for at in columns
                if at != columns[int(row[0, columns].argmax())]
            ]
            # In one evaluation: at a point that was tried, without noise, that of the point alone may differ
            # by more than a gain, and a point would be better than itself without end.
            values = self.values(torch.cat([row, *others]))
            if values[1:].max() <= values[0] + LEAST_GAIN:
                break
            row = others[int(values[1:].argmax())]
        return row

    @staticmethod
    def _with_option(row: Tensor, columns: Sequence[int], at: int) -> Tensor:
        changed = row.clone()
        changed[:, columns], changed[:, at] = 0.0, 1.0
        return changed

    def values(self, x_ND: Tensor) -> Tensor:
        """Return the acquisition value of each row, [N]: a logarithm, as all of Ax's choices are."""
        with torch.no_grad():
            return torch.cat([self.evaluate(X=chunk.unsqueeze(1)) for chunk in torch.split(x_ND, ROWS)])
