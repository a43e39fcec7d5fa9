"""Ternary weights: for each one of -1, 0 and 1, times a scale. Used by `ternary`, and by `trainer.export`.

Shapes: O outputs, I inputs, G groups of I / G inputs; `w_OI`. A scale is 0-d where a whole matrix shares it,
and [O, G, 1] where the weights of a row share it group by group.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

WeightScale = Literal["absmean", "absmedian"]

EPS = 1e-5  # the floor under a scale, as in the paper: weights that are all zero must not divide by zero


def ternary_weight(w_OI: Tensor, weight_scale: WeightScale, group_size: int | None) -> Tensor:
    """The quantised weights [O, I] in the unit and dtype of the input: codes times scale.

    NaN and infinity come out as NaN, in the whole group that shares a scale with them.
    """
    codes, scale = ternary_codes(w_OI, weight_scale, group_size)
    return codes.mul_(scale).view_as(w_OI)


def ternary_codes(w_OI: Tensor, weight_scale: WeightScale, group_size: int | None) -> tuple[Tensor, Tensor]:
    """-1, 0 or 1 for each weight ([O, I], or [O, G, I / G] in groups), and the scale.

    The scale is the mean of |w| (BitNet b1.58, arXiv:2402.17764 eq. 1-3) or its median (arXiv:2407.09527;
    of an even number of weights the lower of the two in the middle), but not below `EPS`.
    """
    grouped = w_OI if group_size is None else w_OI.view(w_OI.shape[0], -1, group_size)
    scale = _scale(grouped.abs(), weight_scale, whole=group_size is None).clamp_(min=EPS)
    return (grouped / scale).round_().clamp_(-1, 1), scale


def _scale(magnitudes: Tensor, kind: WeightScale, *, whole: bool) -> Tensor:
    if kind == "absmean":
        return magnitudes.mean() if whole else magnitudes.mean(dim=-1, keepdim=True)
    # A median does not notice an infinity, whose code would be 1: nought times the maximum does.
    if whole:
        return magnitudes.median() + 0 * magnitudes.amax()
    return magnitudes.median(dim=-1, keepdim=True).values + 0 * magnitudes.amax(dim=-1, keepdim=True)
