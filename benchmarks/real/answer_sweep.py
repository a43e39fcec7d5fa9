"""The sweep for docs/explanation/answer.md, in one go or in several: `python -m benchmarks.real sweep`.

Trials are enqueued in phases, each begun when the one before it has ended: the learning rates at the middle
length of Stage 1.9 and at Stage 2 alone with its FLOPs, with one seed; the rates at all other lengths, from
the best of those on; every length with its own best rates, for all seeds; then `CHANGES`. The records are
written after each phase and at the end, and a phase leaves out the trials that they have: the next machine
needs this one file.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

import sweeps

Point = dict[str, Any]
Rates = tuple[float, float]
"""Learning rates of Stage 1.9 and Stage 2."""

RATE_1_9, RATE_2 = "stage1_9.optimizer.lr", "stage2.optimizer.lr"
STEPS_1_9, STEPS_2 = "stage1_9.max_steps", "stage2.max_steps"
LAMBDA, SALIENCY = "stage2.lambda_warmup.start", "stage1_9.saliency.enabled"
DISTANCE, CE_WEIGHT = "stage1_9.loss_type", "stage1_9.lm_loss_weight"

SETTINGS: Point = {LAMBDA: 0.75, SALIENCY: False, DISTANCE: "mse_normalized", CE_WEIGHT: 0.5}
"""The trainer's defaults, of which the last phases change one at a time."""
CHANGES: list[Point] = [
    *({LAMBDA: start} for start in (0.0, 1.0)),
    {SALIENCY: True},
    *({CE_WEIGHT: weight} for weight in (0.25, 0.75)),
    *({DISTANCE: name} for name in ("cosine", "kl")),
]
ONE_SEED: list[Point] = [{DISTANCE: "kl"}]
"""Of `CHANGES`, those trained with seed 0 alone: 2.8 times the FLOPs, and ended 0.158 higher."""

TIE = 0.01
"""Losses of two rates with one seed that differ by less count as equal: at 733 steps of Stage 2 alone three
seeds had 0.023, 0.028 and 0.046 between the same two rates."""
RATES = tuple(round(1.25e-5 * 2**power, 7) for power in range(12))
LENGTHS = (50, 100, 200, 400)
STEPS = 200
"""Steps of Stage 2 after a Stage 1.9."""
SEEDS = (0, 1, 2)


@dataclass(frozen=True, order=True)
class Lengths:
    """Steps of both stages."""

    stage1_9: int
    stage2: int


def alone(length: int) -> int:
    """Return the steps of Stage 2 alone with the FLOPs of a Stage 1.9 of this length and Stage 2.

    A step of Stage 1.9 is 4/3 of one of Stage 2: the teacher's forward pass comes on top.
    """
    return STEPS + round(length * 4 / 3)


ALONE = (STEPS, *map(alone, LENGTHS))


def equal_flops(length: int) -> tuple[Lengths, Lengths]:
    """Return a Stage 1.9 of this length before Stage 2, and Stage 2 alone with its FLOPs."""
    return Lengths(length, STEPS), Lengths(0, alone(length))


def _trunk(steps: Iterable[int]) -> list[int]:
    """Return where the learning rate of runs of these lengths begins to fall, but of the longest."""
    return [length - round(0.3 * length) for length in sorted(steps)[:-1]]


COMMON = (
    *("model=hf", "data=text", "data.files=real/text.jsonl", "data.text_key=text"),
    *("device.threads=1", "device.dtype=bfloat16", "device.compile=layers"),
    *("optimizer@stage1_9.optimizer=adamw", "optimizer@stage2.optimizer=adamw"),
    *("eval.at=[]", "samples.enabled=false", "force=true"),
)


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """What is trained on one kind of machine.

    Attributes:
        setting: overrides of all trials, without the points to branch off at.
        searches: groups of lengths whose rates are searched, one group after the other. In a group, longer
            ones come before shorter ones, which start from their trunk where they have the same rates.
        first: rates from which the search begins, by whether there is a Stage 1.9.
    """

    setting: tuple[str, ...]
    searches: tuple[tuple[Lengths, ...], ...]
    first: Mapping[bool, Rates]

    @property
    def middle(self) -> Lengths:
        """The Stage 1.9 before Stage 2 whose rates are searched first."""
        return self.searches[0][0]

    @property
    def overrides(self) -> tuple[str, ...]:
        """All overrides of its trials."""
        lengths = [each for group in self.searches for each in group]
        both = {each.stage1_9 for each in lengths if each.stage1_9}
        without = {each.stage2 for each in lengths if not each.stage1_9}
        trunks = {stage: _trunk(steps) for stage, steps in (("stage1_9", both), ("stage2", without))}
        return (*self.setting, *(f"{stage}.trunk_every={steps}" for stage, steps in trunks.items() if steps))


CUDA = Protocol(
    setting=(
        *COMMON,
        *("model.name=real/smollm2_16k", "device=cuda"),
        *("data.sequence_length=512", "stage1_9.batch_size=32", "stage2.batch_size=32"),
        *("data.held_out_fraction=0.04", "data.held_out_tokens=131072"),
        *("data.test_fraction=0.005", "data.test_tokens=4096"),
        *("eval.batches=4", "eval.batch_size=32"),
    ),
    searches=((*equal_flops(200), Lengths(0, STEPS)),),
    first={False: (8e-4, 8e-4), True: (8e-4, 4e-4)},
)
"""For a GPU that is lent for minutes, and reaches no registry: a model that takes little, and one length, in
batches of 32 x 512 tokens."""

CPU = Protocol(
    setting=(
        *COMMON,
        *("model.name=real/model.gguf", "device=cpu"),
        *("data.sequence_length=128", "stage1_9.batch_size=8", "stage2.batch_size=8"),
        *("eval.batches=16", "eval.batch_size=8"),
    ),
    searches=(
        equal_flops(100),
        (
            *(each for length in reversed(LENGTHS) if length != 100 for each in equal_flops(length)),
            Lengths(0, STEPS),
        ),
    ),
    first={False: (8e-4, 4e-4), True: (8e-4, 4e-4)},
)
"""For a processor with quick products in bfloat16."""


def space(setting: Sequence[str], *, saliency: bool = False) -> dict[str, Any]:
    """Return the definition of the sweep of trials with or without saliency.

    They have one each: a space in which a trial may have it has no trunk of Stage 1.9.
    """
    return {
        "name": "answer-saliency" if saliency else "answer",
        "objectives": [{"metric": "final_loss"}],
        "program": {"trainer": {"overrides": [*setting, f"{SALIENCY}={str(saliency).lower()}"]}},
        "parameters": {
            STEPS_1_9: {"values": [0, *LENGTHS], "ordered": True},
            STEPS_2: {"values": list(ALONE), "ordered": True},
            RATE_1_9: {"values": list(RATES), "ordered": True},
            RATE_2: {"values": list(RATES), "ordered": True},
            LAMBDA: {"values": [0.0, 0.75, 1.0], "ordered": True},
            DISTANCE: {"values": ["mse_normalized", "cosine", "kl"]},
            CE_WEIGHT: {"values": [0.25, 0.5, 0.75], "ordered": True},
            "seed": {"values": list(SEEDS)},
        },
        "search": {"method": "random"},
        "run_cap": 1,
        "snapshots": {"keep": 40, "keep_gib": 30},
    }


def point(lengths: Lengths, rates: Rates, seed: int = 0) -> Point:
    """Return a trial."""
    return {
        **{STEPS_1_9: lengths.stage1_9, STEPS_2: lengths.stage2, RATE_1_9: rates[0], RATE_2: rates[1]},
        **SETTINGS,
        "seed": seed,
    }


def phases(trials: Callable[[], pd.DataFrame], protocol: Protocol) -> Iterator[list[Point]]:
    """Yield the trials of each phase, without those that the table has.

    Args:
        trials: returns the table of trials; asked once the trials of the phase before it have ended.
        protocol: what is trained.
    """
    first = protocol.first

    def missing(points: list[Point]) -> list[Point]:
        table = trials()
        return [each for each in points if not is_in(table, each)]

    for group in protocol.searches:
        while points := [
            point(each, rates)
            for each in group
            for rates in rates_to_try(trials(), each, first[each.stage1_9 > 0])
        ]:
            yield points
        first = middle_rates(trials(), protocol)
    table = trials()
    rates = {each: best_rates(table, each) for group in protocol.searches for each in group}
    # All in one phase: at the end of each some worker has nothing to do.
    yield missing([point(each, rates[each], seed) for each in rates for seed in SEEDS])
    best = best_length(trials())
    for saliency in (False, True):
        changes = [each for each in CHANGES if (SALIENCY in each) == saliency]
        yield missing(
            [
                point(lengths, rates[lengths], seed) | each
                for each in changes
                for lengths in lengths_of_change(each, best, protocol)
                for seed in (SEEDS[:1] if each in ONE_SEED else SEEDS)
            ]
        )


def ended_trials(table: pd.DataFrame) -> pd.DataFrame:
    """Return the trials that have a result or have failed, each point once.

    Records may lack a parameter of `SETTINGS` that was added after them: they have its value there.
    """
    if table.empty:
        return table
    for name, value in SETTINGS.items():
        column = f"param.{name}"
        table = table.assign(**{column: table[column].fillna(value) if column in table else value})
    parameters = [name for name in table if name.startswith("param.")]
    return table[table["status"].isin(["completed", "failed"])].drop_duplicates(parameters)


def is_in(table: pd.DataFrame, wanted: Point) -> bool:
    """Return whether the table has a trial of this point."""
    return not table.empty and bool(like(table, wanted).any())


def like(table: pd.DataFrame, wanted: Point) -> pd.Series:
    """Return by row whether the trial has these values."""
    found = pd.Series(True, index=table.index)
    for name, value in wanted.items():
        found &= table[f"param.{name}"] == value
    return found


def _beside(rates: Rates, *, second_only: bool = False) -> list[Rates]:
    """Return the next lower and higher rates of Stage 2, and of Stage 1.9 with Stage 2's as it is."""

    def near(rate: float) -> list[float]:
        at = RATES.index(rate)
        return [*RATES[max(at - 1, 0) : at], *RATES[at + 1 : at + 2]]

    first = [] if second_only else [(each, rates[1]) for each in near(rates[0])]
    return [(rates[0], each) for each in near(rates[1])] + first


def rates_to_try(table: pd.DataFrame, lengths: Lengths, first: Rates) -> list[Rates]:
    """Return what is not known beside the best rates of seed 0; nothing once they are the best of all beside.

    Steps are of a factor of 2. Without a Stage 1.9 its rate stays at what the search begins with.

    Args:
        table: trials.
        lengths: of the trials whose rates are searched.
        first: rates from which the search begins.
    """
    best = first if rate_trials(table, lengths).empty else best_rates(table, lengths)
    near = [best, *_beside(best, second_only=not lengths.stage1_9)]
    return [rates for rates in near if not is_in(table, point(lengths, rates))]


def rate_trials(table: pd.DataFrame, lengths: Lengths) -> pd.DataFrame:
    """Return the completed trials of seed 0 of these lengths, at all rates, the best first.

    Losses within `TIE` of the lowest count as equal: of these rates, those with more seeds come first.
    """
    if table.empty:
        return table
    wanted = {STEPS_1_9: lengths.stage1_9, STEPS_2: lengths.stage2, **SETTINGS}
    completed = table[like(table, wanted) & (table["status"] == "completed")]
    seeds = completed.groupby([f"param.{RATE_1_9}", f"param.{RATE_2}"])["param.seed"].transform("nunique")
    own, seeds = (each[completed["param.seed"] == 0] for each in (completed, seeds))
    losses = own["final_loss"]
    ties = losses <= losses.min() + TIE
    return own.iloc[np.lexsort((losses, -seeds.where(ties, 0), ~ties))]


def best_rates(table: pd.DataFrame, lengths: Lengths) -> Rates:
    """Return the best rates of seed 0 at these lengths, as `rate_trials` has them.

    Raises:
        SystemExit: no such trial completed.
    """
    own = rate_trials(table, lengths)
    if own.empty:
        raise SystemExit(
            f"no trial of {lengths.stage1_9} and {lengths.stage2} steps completed: see `sweep trials`"
        )
    best = own.iloc[0]
    return float(best[f"param.{RATE_1_9}"]), float(best[f"param.{RATE_2}"])


def middle_rates(table: pd.DataFrame, protocol: Protocol) -> dict[bool, Rates]:
    """Return the best rates of the middle length and its FLOPs, by whether there is a Stage 1.9."""
    middle_and_its_flops = protocol.searches[0][:2]
    return {each.stage1_9 > 0: best_rates(table, each) for each in middle_and_its_flops}


def trained_lengths(table: pd.DataFrame) -> list[Lengths]:
    """Return all lengths with a completed trial of seed 0, ascending."""
    completed = table[like(table, {"seed": 0, **SETTINGS}) & (table["status"] == "completed")]
    pairs = completed[[f"param.{STEPS_1_9}", f"param.{STEPS_2}"]].drop_duplicates()
    return sorted(Lengths(int(first), int(second)) for first, second in pairs.itertuples(index=False))


def with_best_rates(
    table: pd.DataFrame, lengths: Lengths, change: Mapping[str, Any] = MappingProxyType({})
) -> pd.DataFrame:
    """Return the completed trials of these lengths at their best rates, of all seeds.

    Args:
        change: what else they differ in from `SETTINGS`, for which the rates were not searched.
    """
    wanted = point(lengths, best_rates(table, lengths)) | change
    del wanted["seed"]
    return table[like(table, wanted) & (table["status"] == "completed")]


def best_length(table: pd.DataFrame) -> Lengths:
    """Return the Stage 1.9 before Stage 2 with the lowest mean loss over seeds, each at its best rates."""
    means = {
        each: with_best_rates(table, each)["final_loss"].mean()
        for each in trained_lengths(table)
        if each.stage1_9 and each.stage2 == STEPS
    }
    return min(means, key=means.__getitem__)


def lengths_of_change(change: Point, best: Lengths, protocol: Protocol) -> list[Lengths]:
    """Return the lengths of the trials with this change.

    Lambda's start follows the best Stage 1.9, which all its trials share. Saliency lowers the loss by most:
    it is trained at all lengths. What else changes Stage 1.9 is trained at the middle length alone: at the
    longest it would take as long as all lengths do.
    """
    if LAMBDA in change:
        return [best]
    if SALIENCY in change:
        return sorted(each for group in protocol.searches for each in group if each.stage1_9)
    return [protocol.middle]


def train(storage: str, records: Path, *, minutes: float, workers: int, protocol: Protocol) -> None:
    """Train the phases with so many workers at once, for so many minutes, and write the records.

    Trials of a phase have all saliency, or none.

    What runs when the time is over is handed back; called again with the same storage, it goes on, and with
    another storage but the same records after the last trial that they have.
    """
    ends = time.monotonic() + minutes * 60
    earlier = pd.read_csv(records) if records.exists() else pd.DataFrame()
    both = {
        saliency: sweeps.create(
            space(protocol.overrides, saliency=saliency), storage=storage, skip_if_exists=True
        )
        for saliency in (True, False)
    }

    def trials() -> pd.DataFrame:
        tables = [sweep.trials().assign(**{f"param.{SALIENCY}": each}) for each, sweep in both.items()]
        return ended_trials(pd.concat([*tables, earlier], ignore_index=True))

    for points in phases(trials, protocol):
        if not points:  # earlier sessions have trained them all
            continue
        sweep = both[points[0][SALIENCY]]
        known = len(sweep.trials())
        sweep.extend(run_cap=known + len(points))
        added = {
            sweep.enqueue({k: v for k, v in each.items() if k != SALIENCY}, skip_if_exists=True)
            for each in points
        }
        sweep.extend(run_cap=max(len(sweep.trials()), 1))
        is_ended = run_workers(sweep.url, workers, ends)
        table = sweep.trials()
        table = table[table.trial.isin(added)]
        trials().drop(columns=["stages", "trunk_points"], errors="ignore").to_csv(records, index=False)
        completed = table.status == "completed"
        print(f"{completed.sum()} of {len(added)} trials of this phase completed", flush=True)
        if not is_ended:
            print(f"the {minutes:g} minutes are over; the same command goes on")
            return
        if ended_trials(table).empty:  # else it would start workers again and again
            raise SystemExit("the workers have ended, and no trial has: see what they said above")


def run_workers(url: str, workers: int, ends: float) -> bool:
    """Run workers until the sweep has no trial left, and return True; at the time `ends` stop them."""
    command = [sys.executable, "-m", "sweeps", "worker", "--storage", url]
    started = [subprocess.Popen(command) for _ in range(workers)]
    try:
        while any(each.poll() is None for each in started):
            if time.monotonic() > ends:
                return False
            time.sleep(0.5)
        return True
    finally:
        for each in started:
            each.terminate()
        for each in started:
            each.wait()
