"""Memory of optimizers, in bytes, by their type (see `trainer.optim`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch

from trainer.config import OptimizerConfig
from trainer.optim.muon import stack_size
from trainer.optim.rounded_adamw import PIECE
from trainer.preflight.dimensions import Dimensions

_SMALL = 4096  # elements below which bitsandbytes keeps a tensor's moments in float32
_BLOCK = 256  # elements that share one of bitsandbytes' scales


@dataclass(frozen=True, kw_only=True)
class OptimizerMemory:
    """Bytes of the state between two steps, and of temporary tensors of a step."""

    state: int
    temporary: int


def optimizer_memory(
    student: Dimensions, config: OptimizerConfig, *, processes: int = 1, muon_dtype: torch.dtype | None = None
) -> OptimizerMemory:
    """Return the memory of one stage's optimizer.

    Args:
        processes: that share Muon's stacks of matrices.
        muon_dtype: of Muon's orthogonalisation; None: float32.
    """
    rounded = config.stochastic_rounding and student.weight_bytes == 2  # then all moments are in float32
    size = 4 if rounded else student.weight_bytes
    matrices = [o * i for o, i in student.matrices]
    embeddings = [o * i for o, i in student.embeddings]
    others = sum(embeddings) + student.gains
    if config.type == "adamw_8bit":
        state = 8 * student.gains
        for elements in (*matrices, *embeddings):
            scales = 4 * -(-elements // _BLOCK)
            state += 8 * elements if elements < _SMALL else 2 * (elements + scales)
        return OptimizerMemory(state=state, temporary=0)
    # Weights, gradients, moments and random numbers of a piece: about six copies in float32.
    temporary = 24 * min(PIECE, student.parameters) if rounded else 0
    if config.type == "adamw":
        return OptimizerMemory(state=2 * size * student.parameters, temporary=temporary)
    if config.type in ("muon", "muonclip"):
        state = size * sum(matrices)
        computed = (muon_dtype or torch.float32).itemsize
        temporary = max(temporary, _muon_temporary(student, processes, size, computed))
    else:
        rank = config.apollo.rank if config.type == "apollo" else 1
        state = 0
        for shape in student.matrices:
            small, large = sorted(shape)
            r = min(rank, small)
            state += 4 * (2 * r * large + r * small)  # two moments of the projected gradient; the projection
        # One matrix at a time, in about five copies in float32.
        temporary = max(temporary, 20 * max(matrices))
    return OptimizerMemory(state=state + 2 * size * others, temporary=temporary)


def _muon_temporary(student: Dimensions, processes: int, size: int, computed: int) -> int:
    """Return the bytes at the peak of `trainer.optim.muon`, which takes stack after stack.

    Args:
        processes: that share the stacks.
        size: bytes of an element of a momentum.
        computed: bytes of an element where matrices are orthogonalised.
    """
    orientations = set(student.matrices)
    alike = Counter(tuple(sorted(shape)) for shape in student.matrices)
    peak = 0
    for (small, large), count in alike.items():
        # An iteration's result beside what it came from; in bfloat16, which has no sums in place, beside
        # the stack it began with, too. The momenta are a stack of their own unless it is the same tensor.
        copies = 2 if computed == 4 else 3
        transposed = small != large and {(small, large), (large, small)} <= orientations
        stack = large * ((copies + transposed) * computed + (size if size != computed else 0))
        gram = small * computed
        peak = max(peak, small * (stack + gram) * min(count, stack_size(small * large, processes)))
    return peak
