"""Selection of the stored tokens: the likeliest, and negatives among the others. Pure; used by `build`.

Negatives are a stratified sample: the V - K other tokens, in the order of their ids, are split into R strata
of equal (fractional) length, and one token is drawn from each. Each is expected R/(V-K) times, so that sums
over the others are estimated without bias (`losses.sparse`), and with R = V - K each is drawn exactly once.
Ids are sorted by frequency in most vocabularies, so that the tokens of a stratum are similar, which lowers
the variance. If the length is not an integer, neighbouring strata may both draw the token at their border.

Shapes: N positions, K likeliest tokens, R negatives, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Tokens [N, K] and [N, R], int32, and their log probabilities, float32."""

    topk_idx: Tensor
    topk_logits: Tensor
    rand_idx: Tensor
    rand_logits: Tensor


def draw(logits_NV: Tensor, top_k: int, uniform_NR: Tensor) -> Drawn:
    """Draw the stored tokens of each position, the likeliest first, then the negatives by id.

    Args:
        logits_NV: of the teacher, any floating dtype.
        top_k: K.
        uniform_NR: random numbers in [0, 1), float64; R may be 0.
    """
    logprobs_NV = logits_NV.float().log_softmax(dim=-1)
    top = logprobs_NV.topk(top_k, dim=-1)
    rand_NR = _negatives(top.indices, uniform_NR, vocabulary=logits_NV.shape[-1])
    return Drawn(
        topk_idx=top.indices.int(),
        topk_logits=top.values,
        rand_idx=rand_NR.int(),
        rand_logits=logprobs_NV.gather(-1, rand_NR),
    )


def uniforms(seed: int, row: int, positions: int, negatives: int) -> npt.NDArray[np.float64]:
    """Return random numbers in [0, 1), [positions, negatives], determined by seed and row number alone."""
    return np.random.default_rng([seed, row]).random((positions, negatives))


def _negatives(taken_NK: Tensor, uniform_NR: Tensor, *, vocabulary: int) -> Tensor:
    """Return one token per stratum that is not among the taken ones, [N, R] int64, ascending."""
    negatives = uniform_NR.shape[-1]
    left = vocabulary - taken_NK.shape[-1]
    if not negatives:
        return taken_NK[:, :0]
    strata_R = torch.arange(negatives, device=uniform_NR.device, dtype=uniform_NR.dtype)
    indices_NR = ((strata_R + uniform_NR) * (left / negatives)).long().clamp_(max=left - 1)
    # The id of the i-th other token is i plus the number of taken tokens before it.
    sorted_NK = taken_NK.sort(dim=-1).values
    before_NK = sorted_NK - torch.arange(taken_NK.shape[-1], device=taken_NK.device)
    return indices_NR + torch.searchsorted(before_NK.contiguous(), indices_NR, right=True)
