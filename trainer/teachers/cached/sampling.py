"""Which tokens of a position are kept: the likeliest, and negatives among the others. Pure; used by `build`.

Negatives are a stratified sample: the V - K other tokens, in the order of their ids, are cut into R strata
of equal (fractional) length, and one token is drawn from each. Each is expected R/(V-K) times, so that sums
over the others are estimated without bias (`losses.sparse`), and with R = V - K each comes exactly once. Ids
go by frequency in most vocabularies, so that the tokens of a stratum are alike, which lowers the variance.
Where the length is no whole number, neighbours may both draw the token that lies across their border.

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
    """The tokens, in the order that `teacher_cache` promises.

    Args:
        uniform_NR: chance, in [0, 1), float64; R may be 0.
    """
    logprobs_NV = logits_NV.float().log_softmax(dim=-1)
    top = logprobs_NV.topk(top_k, dim=-1)
    rand_NR = _others(top.indices, uniform_NR, vocabulary=logits_NV.shape[-1])
    return Drawn(
        topk_idx=top.indices.int(),
        topk_logits=top.values,
        rand_idx=rand_NR.int(),
        rand_logits=logprobs_NV.gather(-1, rand_NR),
    )


def chances(seed: int, row: int, positions: int, negatives: int) -> npt.NDArray[np.float64]:
    """The chance [positions, R] of a row's negatives, of the row's number and the run's seed alone."""
    return np.random.default_rng([seed, row]).random((positions, negatives))


def _others(taken_NK: Tensor, uniform_NR: Tensor, *, vocabulary: int) -> Tensor:
    """Tokens that are not among the taken, one of each stratum, [N, R] int64, ascending."""
    negatives = uniform_NR.shape[-1]
    left = vocabulary - taken_NK.shape[-1]
    if not negatives:
        return taken_NK[:, :0]
    strata_R = torch.arange(negatives, device=uniform_NR.device, dtype=uniform_NR.dtype)
    places_NR = ((strata_R + uniform_NR) * (left / negatives)).long().clamp_(max=left - 1)
    # The token in place i of the others is i and as many as there are taken ones before it.
    sorted_NK = taken_NK.sort(dim=-1).values
    before_NK = sorted_NK - torch.arange(taken_NK.shape[-1], device=taken_NK.device)
    return places_NR + torch.searchsorted(before_NK.contiguous(), places_NR, right=True)
