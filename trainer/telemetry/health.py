"""Health checks of a run, from the numbers of its steps alone: no clock, no device, no IO. Used by `run`.

Three checks, each a pure function of a sequence, and `Health`, which feeds them and repeats no warning. They
never end a run. docs/reference/files.md says what each ignores.
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
_CHECK_EVERY = 100  # steps
_PIECES = 10  # of each half, whose means give the noise
_SIGNIFICANT = 2.0  # standard errors

BLOCK_STEPS, BLOCK_SECONDS = 20, 30.0  # at least; shorter blocks are noise on a shared machine
WITHIN = 0.10
_CONSECUTIVE = 3
_FEWEST_BLOCKS = 5  # before a median is compared with

GROWTH_BLOCKS = 40  # at least: quarters of ten
_GROWTH = 0.02


@dataclass(frozen=True, kw_only=True)
class HealthWarning:
    """One warning; `message` names the stage, the step and the numbers."""

    check: Literal["plateau", "throughput", "memory"]
    stage: str
    step: int
    message: str


def plateau(losses: Sequence[float]) -> tuple[float, float] | None:
    """Return the mean losses of both halves if the second is not significantly lower; None if the loss falls.

    Significant are two standard errors of their difference, from the means of ten pieces of each half.
    """
    half = len(losses) // 2
    first, second = _pieces(losses[:half]), _pieces(losses[half:])
    noise = ((statistics.variance(first) + statistics.variance(second)) / _PIECES) ** 0.5
    before, since = statistics.fmean(first), statistics.fmean(second)
    return (before, since) if before - since <= _SIGNIFICANT * noise else None


def throughput_shift(rates: Sequence[float]) -> tuple[float, float] | None:
    """Return the mean rate of the last three blocks and the median of those before, if they differ.

    They do if all three are more than a tenth above the median, or all below.
    """
    earlier, last = rates[:-_CONSECUTIVE], rates[-_CONSECUTIVE:]
    if len(earlier) < _FEWEST_BLOCKS:
        return None
    median = statistics.median(earlier)
    low, high = median * (1 - WITHIN), median * (1 + WITHIN)
    if all(rate < low for rate in last) or all(rate > high for rate in last):
        return statistics.fmean(last), median
    return None


def memory_growth(memory: Sequence[float]) -> tuple[float, float] | None:
    """Return the minima of the first and the last quarter, if memory grows steadily.

    It does if each quarter's minimum is above the one before by more than 2 % of the first, which neither
    noise nor a single jump causes.
    """
    if len(memory) < GROWTH_BLOCKS:
        return None
    quarter = len(memory) // 4
    start = len(memory) - 4 * quarter
    floors = [min(memory[start + i * quarter : start + (i + 1) * quarter]) for i in range(4)]
    grows = all(after - before > _GROWTH * floors[0] for before, after in pairwise(floors))
    return (floors[0], floors[-1]) if grows else None


class Health:
    """The checks of one stage. Each warns once, and again only after it has passed in between.

    Steps are grouped in blocks of at least 20 steps and 30 s. The first block, which compiles and warms
    caches, is ignored. The history of losses restarts whenever lambda or another setting of the stage
    changes, as losses are not comparable then.
    """

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._losses: deque[float] = deque(maxlen=PLATEAU_STEPS)
        self._settings: Mapping[str, float] = {}
        self._blocks = 0
        self._steps, self._tokens, self._seconds = 0, 0, 0.0
        self._rates: list[float] = []
        self._memory: list[float] = []
        self._warned: set[str] = set()

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
        """Return the new warnings after a step, one-based; `memory_bytes` is called at each block's end."""
        if settings != self._settings:
            self._settings = dict(settings)
            self._losses.clear()
        self._losses.append(loss)
        found = []
        if len(self._losses) == PLATEAU_STEPS and step % _CHECK_EVERY == 0:
            found += self._warn("plateau", step, self._plateau())
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
            *self._warn("throughput", step, self._throughput_shift()),
            *self._warn("memory", step, self._memory_growth()),
        ]

    def _warn(
        self, check: Literal["plateau", "throughput", "memory"], step: int, problem: str | None
    ) -> list[HealthWarning]:
        if problem is None:
            self._warned.discard(check)
            return []
        if check in self._warned:
            return []
        self._warned.add(check)
        message = f"{self._stage} step {step}: {problem}"
        return [HealthWarning(check=check, stage=self._stage, step=step, message=message)]

    def _plateau(self) -> str | None:
        found = plateau(list(self._losses))
        return found and (
            f"the loss has not fallen for {PLATEAU_STEPS:,} steps "
            f"(mean {found[0]:.4g} in their first half, {found[1]:.4g} in the second)"
        )

    def _throughput_shift(self) -> str | None:
        found = throughput_shift(self._rates)
        return found and (
            f"{found[0]:,.0f} tokens per second in the last {_CONSECUTIVE} blocks of steps, "
            f"{found[0] / found[1] - 1:+.0%} from the median of the stage so far ({found[1]:,.0f})"
        )

    def _memory_growth(self) -> str | None:
        found = memory_growth(self._memory)
        return found and (
            f"memory grows steadily, from {byte_size(found[0])} to {byte_size(found[1])} "
            f"over {len(self._memory)} blocks of steps"
        )


def _pieces(values: Sequence[float]) -> list[float]:
    size = len(values) // _PIECES
    return [statistics.fmean(values[i * size : (i + 1) * size]) for i in range(_PIECES)]
