"""Quantisation of weights to -1, 0 and 1 times a scale. Used by `ternary` and `trainer.export`.

Shapes: O outputs, I inputs, G groups of I / G inputs; `w_OI`. The scale is 0-d if the whole matrix shares it,
and [O, G, 1] if each group of a row has its own.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

WeightScale = Literal["absmean", "absmedian"]

EPS = 1e-5  # lower bound of a scale, as in the paper: weights that are all zero must not divide by zero


def ternary_weight(w_OI: Tensor, weight_scale: WeightScale, group_size: int | None) -> Tensor:
    """Return the dequantised weights, codes times scale, [O, I], in the dtype of the input.

    NaN or infinity turns the whole group that shares its scale into NaN. `ternary_codes` describes the
    arguments.
    """
    codes, scale = ternary_codes(w_OI, weight_scale, group_size)
    return codes.mul_(scale).view_as(w_OI)


def ternary_codes(w_OI: Tensor, weight_scale: WeightScale, group_size: int | None) -> tuple[Tensor, Tensor]:
    """Return the codes -1, 0 and 1, and their scale.

    Args:
        w_OI: floating point, [O, I].
        weight_scale: the mean of |w| (BitNet b1.58, arXiv:2402.17764, eq. 1-3) or its median
            (arXiv:2407.09527; the lower median of an even number of weights), never below `EPS`.
        group_size: number of inputs that share a scale, a divisor of I; None: one scale for the matrix.

    Returns:
        The codes, [O, I] or in groups [O, G, I / G], and the scale, 0-d or [O, G, 1], in the input's dtype.
    """
    grouped = w_OI if group_size is None else w_OI.view(w_OI.shape[0], -1, group_size)
    scale = _scale(grouped.abs(), weight_scale, per_matrix=group_size is None).clamp_(min=EPS)
    return (grouped / scale).round_().clamp_(-1, 1), scale


def _scale(magnitudes: Tensor, kind: WeightScale, *, per_matrix: bool) -> Tensor:
    if kind == "absmean":
        return magnitudes.mean() if per_matrix else magnitudes.mean(dim=-1, keepdim=True)
    # A median hides an infinity, whose code would be 1; 0 times the maximum turns it into NaN.
    if per_matrix:
        return magnitudes.median() + 0 * magnitudes.amax()
    return magnitudes.median(dim=-1, keepdim=True).values + 0 * magnitudes.amax(dim=-1, keepdim=True)
