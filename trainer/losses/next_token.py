"""The loss on next-token predictions. Used by `predictions` and `stages.distill`.

Shapes: B sequences, T tokens, V vocabulary; `logits_BTV`, `ids_BT`. In nats per predicted token.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def next_token_loss(logits_BTV: Tensor, ids_BT: Tensor) -> Tensor:
    """Mean cross-entropy of tokens 2..T given what precedes them."""
    return F.cross_entropy(logits_BTV[:, :-1].flatten(0, 1).float(), ids_BT[:, 1:].flatten())
