"""Base class of our own optimizers: loading of their state, and steps that a flag can skip."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class OwnOptimizer(Optimizer):
    """An optimizer whose float32 state is loaded as it is, and whose update a flag on the device can skip.

    The flag is torch's `found_inf` (see `torch.amp.GradScaler`), 0-d and above 0 where the weights are to
    stay as they are; None: they are updated. The state of a step that is skipped may be lost.
    """

    _step_supports_amp_scaling = True
    found_inf: Tensor | None = None

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load like torch, but without a cast of the state to the dtype of the weights."""
        super().load_state_dict(state_dict)
        order = [parameter for group in self.param_groups for parameter in group["params"]]
        for index, state in state_dict["state"].items():
            parameter = order[index]
            self.state[parameter] = {
                name: t.to("cpu" if name == "step" else parameter.device, copy=True)  # a count is read there
                for name, t in state.items()
            }

    def _decay_factor(self, group: dict[str, Any]) -> Any:
        """Return the share of a weight that its decay leaves; 1 in a step that is skipped."""
        kept = 1 - group["lr"] * group["weight_decay"]
        return kept if self.found_inf is None else torch.where(self.found_inf > 0, 1.0, kept)

    def _unless_skipped(self, update: Tensor) -> Tensor:
        """Return the update, set to 0 in place in a step that is skipped."""
        return update if self.found_inf is None else update.masked_fill_(self.found_inf > 0, 0.0)
