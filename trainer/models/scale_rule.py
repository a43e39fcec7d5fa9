"""Rules by which learning rates and initial sizes follow a model's width and depth. Called by `optim.build`.

m and d are width and depth over those of the base, at which every factor is 1. A learning rate is multiplied
by

| parameters | width: AdamW, Apollo | width: Muon | depth | ends a branch, `mup` alone |
| --- | --- | --- | --- | --- |
| matrices of the layers | 1/m | 1/sqrt(m) | 1/sqrt(d) | 1/sqrt(d) |
| vectors of the layers | 1 | - | 1/sqrt(d) | - |
| head, and embeddings that are tied to it | 1/m | - | 1 | - |
| embeddings, final norm | 1 | - | 1 | - |

and weight decay divided by the same, so that a step takes the same share of a weight.

Width. AdamW's update has elements of one size whatever the width, and it is aligned with the inputs: it
changes outputs by the number of inputs (muP: Yang et al., arXiv:2203.03466, Table 3, Adam). Apollo's is a
gradient of that size. Muon's has singular values of one size, which `match_rms_adamw` (arXiv:2502.16982,
equation 4) multiplies by the root of the width; the spectral norm that changes outputs by as much at every
width is sqrt(outputs / inputs) (Yang, Simon and Bernstein, arXiv:2310.17813, Condition 1), a constant here.

Depth. With branches that count 1/sqrt(layers), Adam's rate is to fall with 1/sqrt(layers) (depth-muP: Yang et
al., arXiv:2310.02244, Table 1). No forward pass is changed for it: to multiply a branch by a is to initialise
its last matrix a times as large and to train it at a times the rate, as the updates here do not depend on the
size of a gradient (arXiv:2203.03466, Lemma J.1). For the same reason there is no multiplier of the logits:
Table 3 has none. Attention is scaled by 1/sqrt(head size) and not by 1/(head size): it is one size in all
rungs of a ladder.

`mup` also sets initial sizes, where a model is trained from scratch (Table 3): standard deviations are
multiplied by 1/sqrt(m) for matrices of the layers, of those that end a branch by 1/sqrt(d) as well, and by
1/m for the head. A student is made from its teacher, and keeps the sizes that it finds.
"""

from __future__ import annotations

import re
from typing import Any, cast

import torch
from torch import nn

from trainer.config import ScaleRuleConfig
from trainer.models.causal_lm import depth

_IN_A_LAYER = re.compile(r"\.\d+\.")
_ENDS_A_BRANCH = re.compile(r"\.(o_proj|down_proj)\.")


def rate_factors(model: nn.Module, rule: ScaleRuleConfig, *, spectral: bool) -> dict[nn.Parameter, float]:
    """Return the factor of each parameter's learning rate; nothing with `none`, where all are 1.

    Args:
        spectral: whether updates of hidden matrices are orthogonalised, as Muon's are.
    """
    if rule.type == "none":
        return {}
    wider, deeper = _over_base(model, rule)
    embeddings, head = _ends(model)
    factors = {}
    for name, parameter in model.named_parameters():
        factor = 1.0
        if parameter is head:
            factor = 1 / wider
        elif parameter is not embeddings and _IN_A_LAYER.search(name):
            factor = deeper**-0.5
            if parameter.ndim == 2:
                factor *= wider ** (-0.5 if spectral else -1)
                if rule.type == "mup" and _ENDS_A_BRANCH.search(name):
                    factor *= deeper**-0.5
        factors[parameter] = factor
    return factors


@torch.no_grad()
def scale_initial(model: nn.Module, rule: ScaleRuleConfig) -> None:
    """Give fresh weights, whose standard deviation is one at every size, that of the rule, in place."""
    if rule.type != "mup":
        return
    wider, deeper = _over_base(model, rule)
    embeddings, head = _ends(model)
    for name, parameter in model.named_parameters():
        if parameter is head:
            parameter.div_(wider)
        elif parameter is not embeddings and parameter.ndim == 2:
            parameter.mul_(wider**-0.5 * (deeper**-0.5 if _ENDS_A_BRANCH.search(name) else 1.0))


def _over_base(model: nn.Module, rule: ScaleRuleConfig) -> tuple[float, float]:
    width = int(cast(Any, model).config.hidden_size)
    return width / rule.base_width, depth(model) / rule.base_depth


def _ends(model: nn.Module) -> tuple[nn.Parameter, nn.Parameter]:
    """Return the weights of embeddings and head, which may be one."""
    this = cast(Any, model)
    return this.get_input_embeddings().weight, this.get_output_embeddings().weight
