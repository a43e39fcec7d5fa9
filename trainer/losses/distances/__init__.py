"""How far a student's hidden states are from its teacher's: one file per `stage1_9.loss_type`.

`of_layers` is the door; `stages.layerwise` goes through it. A distance takes two tensors [B, T, H] and gives
a 0-d float32 tensor, the mean over B·T tokens. Its gradient reaches the student only; the teacher's states
come without a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from trainer.losses.distances.cosine import cosine
from trainer.losses.distances.inner_product import inner_product
from trainer.losses.distances.kl import HeadKl
from trainer.losses.distances.mse import mse
from trainer.losses.distances.mse_normalized import mse_normalized
from trainer.models.causal_lm import output_head

Distance = Callable[[Tensor, Tensor], Tensor]
"""(student_BTH, teacher_BTH) → 0-d."""

WITHOUT_HEAD: dict[str, Distance] = {
    "mse_normalized": mse_normalized,
    "cosine": cosine,
    "mse": mse,
    "inner_product": inner_product,
}


def of_layers(loss_type: str, teacher: nn.Module, layers: int) -> Sequence[Distance]:
    """The distance at each of the student's layers 1..L; they differ for `kl`, where the last layer's states
    are behind the final norm already.

    Raises:
        ConfigError: `kl`, and the teacher has no head and norm that could be used so.
    """
    if loss_type != "kl":
        return [WITHOUT_HEAD[loss_type]] * layers
    head = output_head(teacher)
    return [HeadKl(head.linear, head.norm)] * (layers - 1) + [HeadKl(head.linear, None)]
