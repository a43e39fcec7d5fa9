"""Whether a run is well, from the numbers of its steps alone: no clock, no device, no IO. Used by `run`.

Three checks, each a pure function of a sequence, and `Health`, which feeds them and says a thing once. What
they find is a warning, never a reason to end a run. docs/telemetry.md says what each takes for noise.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from trainer.text import byte_size

PLATEAU_STEPS = 1000
_LOOK_EVERY = 100  # steps
_PIECES = 10  # of each half, whose means tell how much is noise
_CLEAR = 2.0  # standard errors

BLOCK_STEPS, BLOCK_SECONDS = 20, 30.0  # at least; what is shorter is noise on a shared machine
WITHIN = 0.10
_IN_A_ROW = 3
_KNOWN = 5  # blocks, before a median means anything

CREEP_BLOCKS = 40  # at least: quarters of ten
_RISE = 0.02


@dataclass(frozen=True, kw_only=True)
class HealthWarning:
    """What looks wrong. `message` names the stage, the step and the numbers."""

    check: Literal["plateau", "throughput", "memory"]
    stage: str
    step: int
    message: str


def plateau(losses: Sequence[float]) -> tuple[float, float] | None:
    """The means of both halves, where the second is not below the first by more than noise: two standard
    errors of their difference, from the means of ten pieces of each half. None: the loss falls."""
    half = len(losses) // 2
    first, second = _pieces(losses[:half]), _pieces(losses[half:])
    noise = ((statistics.variance(first) + statistics.variance(second)) / _PIECES) ** 0.5
    before, since = statistics.fmean(first), statistics.fmean(second)
    return (before, since) if before - since <= _CLEAR * noise else None


def off_the_median(rates: Sequence[float]) -> tuple[float, float] | None:
    """The mean rate of the last three blocks and the median of all before them, where all three are more than
    a tenth above it, or all below."""
    known, last = rates[:-_IN_A_ROW], rates[-_IN_A_ROW:]
    if len(known) < _KNOWN:
        return None
    median = statistics.median(known)
    low, high = median * (1 - WITHIN), median * (1 + WITHIN)
    if all(rate < low for rate in last) or all(rate > high for rate in last):
        return statistics.fmean(last), median
    return None


def creep(memory: Sequence[float]) -> tuple[float, float] | None:
    """The floors (least values) of the first and the last quarter, where each quarter's is above the one
    before by more than 2 % of the first: growth all along, and neither noise nor a jump."""
    if len(memory) < CREEP_BLOCKS:
        return None
    quarter = len(memory) // 4
    start = len(memory) - 4 * quarter
    floors = [min(memory[start + i * quarter : start + (i + 1) * quarter]) for i in range(4)]
    grows = all(after - before > _RISE * floors[0] for before, after in pairwise(floors))
    return (floors[0], floors[-1]) if grows else None


class Health:
    """The checks over one stage. Each warns once, and again only after it has found all well in between.

    Steps are put together to blocks of at least 20 steps and 30 s. The first block, which compiles and warms
    caches, counts for nothing. The history of losses begins anew wherever lambda, or what else the stage
    sets, moves: the loss then means something else.
    """

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._losses: deque[float] = deque(maxlen=PLATEAU_STEPS)
        self._settings: Mapping[str, float] = {}
        self._blocks = 0
        self._steps, self._tokens, self._seconds = 0, 0, 0.0
        self._rates: list[float] = []
        self._memory: list[float] = []
        self._told: set[str] = set()

    def step(
        self,
        step: int,
        *,
        loss: float,
        settings: Mapping[str, float],
        tokens: int,
        seconds: float,
        memory_bytes: Callable[[], float],
    ) -> list[HealthWarning]:
        """What there is to say after a step. `memory_bytes` is asked at the end of each block."""
        if settings != self._settings:
            self._settings = dict(settings)
            self._losses.clear()
        self._losses.append(loss)
        found = []
        if len(self._losses) == PLATEAU_STEPS and step % _LOOK_EVERY == 0:
            found += self._say("plateau", step, self._flat())
        self._steps += 1
        self._tokens += tokens
        self._seconds += seconds
        if self._steps < BLOCK_STEPS or self._seconds < BLOCK_SECONDS:
            return found
        self._blocks += 1
        if self._blocks > 1:
            self._rates.append(self._tokens / self._seconds)
            self._memory.append(memory_bytes())
        self._steps, self._tokens, self._seconds = 0, 0, 0.0
        return [
            *found,
            *self._say("throughput", step, self._unsteady()),
            *self._say("memory", step, self._growing()),
        ]

    def _say(
        self, check: Literal["plateau", "throughput", "memory"], step: int, problem: str | None
    ) -> list[HealthWarning]:
        if problem is None:
            self._told.discard(check)
            return []
        if check in self._told:
            return []
        self._told.add(check)
        message = f"{self._stage} step {step}: {problem}"
        return [HealthWarning(check=check, stage=self._stage, step=step, message=message)]

    def _flat(self) -> str | None:
        found = plateau(list(self._losses))
        return found and (
            f"the loss has not fallen for {PLATEAU_STEPS:,} steps "
            f"(mean {found[0]:.4g} in their first half, {found[1]:.4g} in the second)"
        )

    def _unsteady(self) -> str | None:
        found = off_the_median(self._rates)
        return found and (
            f"{found[0]:,.0f} tokens per second in the last {_IN_A_ROW} blocks of steps, "
            f"{found[0] / found[1] - 1:+.0%} from the median of the stage so far ({found[1]:,.0f})"
        )

    def _growing(self) -> str | None:
        found = creep(self._memory)
        return found and (
            f"memory grows all along, from {byte_size(found[0])} to {byte_size(found[1])} "
            f"over {len(self._memory)} blocks of steps"
        )


def _pieces(values: Sequence[float]) -> list[float]:
    size = len(values) // _PIECES
    return [statistics.fmean(values[i * size : (i + 1) * size]) for i in range(_PIECES)]
