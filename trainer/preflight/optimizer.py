"""What an optimizer holds, in bytes, by its type (see `trainer.optim`). Used by `preflight.memory`."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.config import OptimizerConfig
from trainer.preflight.dimensions import Dimensions

_SMALL = 4096  # elements below which bitsandbytes keeps a tensor's moments in float32
_BLOCK = 256  # elements that share one of its scales


@dataclass(frozen=True, kw_only=True)
class Held:
    """Bytes of the state between two steps, and of what a step needs beside it for a moment."""

    state: int
    passing: int


def held(student: Dimensions, config: OptimizerConfig) -> Held:
    """Of one stage's optimizer."""
    size = student.weight_bytes
    matrices = [o * i for o, i in student.matrices]
    ends = [o * i for o, i in student.ends]
    rest = sum(ends) + student.gains
    if config.type == "adamw_8bit":
        state = sum(map(_eight_bits, [*matrices, *ends])) + 8 * student.gains
        return Held(state=state, passing=0)
    if config.type == "adamw":
        return Held(state=2 * size * student.parameters, passing=0)
    if config.type in ("muon", "muonclip"):
        state = size * sum(matrices)
    else:
        rank = config.apollo.rank if config.type == "apollo" else 1
        state = sum(_projected(o, i, rank) for o, i in student.matrices)
    # One matrix at a time, in about five copies in float32.
    return Held(state=state + 2 * size * rest, passing=20 * max(matrices))


def _eight_bits(elements: int) -> int:
    return 8 * elements if elements < _SMALL else 2 * (elements + 4 * -(-elements // _BLOCK))


def _projected(outputs: int, inputs: int, rank: int) -> int:
    """Two moments of the projected gradient and the projection itself, in float32."""
    small, large = sorted((outputs, inputs))
    rank = min(rank, small)
    return 4 * (2 * rank * large + rank * small)
