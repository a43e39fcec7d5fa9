"""Early stopping on simulated learning curves that cross: `python -m benchmarks.early_stopping`.

The runs of each seed start one after another, and every rule sees the same ones. A rule is asked after each
logged loss, with what it has let run to the end so far. Reported: the share of Stage 2's steps that were
saved; how many near-best runs were killed, of how many: within 0.5 % of the best final loss of the seed; what
that cost in final loss; and how the predictions of `curve` fit what the killed runs would have come to.

Ax's percentile compares at the same step, as `early_terminate: {type: percentile}` does; Optuna's pruners get
the position of a loss as its step, so that they compare at the same share of a run, which suits them better.
`curve, 2 objectives` minimises compute too; there a run is near-best unless another leaves it behind: better
in one by 0.5 %, and not worse in the other by more than that.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from benchmarks import learning_curves
from benchmarks.learning_curves import METRIC, Run, record
from sweeps.search import curve_rule
from sweeps.space.definition import EarlyTerminate
from sweeps.trials.record import Trial

NEAR = 0.005
"""Share of the best final loss within which a run is near-best, more than one standard deviation of noise."""

MIN_TRIALS = 5
CASES = {"8 held-out losses": (8, 0.01), "3 held-out losses": (3, 0.01), "48 training losses": (48, 0.05)}


@dataclass
class Tally:
    """Result of one rule in one sweep."""

    steps: float = 0.0
    saved: float = 0.0
    killed: set[int] = field(default_factory=set)
    near: set[int] = field(default_factory=set)
    regret: float = 0.0
    errors: list[float] = field(default_factory=list)
    seconds: float = 0.0


Judge = Callable[[int, Run, int], bool]
"""Returns whether a rule stops the run of this index after so many losses."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=50, help="how many")
    parser.add_argument("--first-seed", type=int, default=10_000)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=list(RULES))
    parser.add_argument("--cases", nargs="+", default=list(CASES)[:2], choices=list(CASES))
    arguments = parser.parse_args()
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
        jobs = {
            (case, rule): [pool.submit(sweep, rule, case, seed, arguments.trials) for seed in seeds]
            for case in arguments.cases
            for rule in arguments.rules
        }
        print("| losses | rule | steps saved | near-best killed | killed | regret, mean | error / sd | CPU |")
        print("|---|---|---|---|---|---|---|---|", flush=True)
        for (case, rule), waiting in jobs.items():
            print(row(case, rule, [each.result() for each in waiting]), flush=True)


def sweep(rule: str, case: str, seed: int, trials: int) -> Tally:
    """Run one sweep under a rule."""
    points, spread = CASES[case]
    runs = learning_curves.runs(seed, trials, points=points, spread=spread)
    tally, completed = Tally(), []
    start = time.process_time()
    judge, complete = RULES[rule](completed, tally, seed)
    for index, run in enumerate(runs):
        tally.steps += run.length
        stop = next((k for k in range(1, points + 1) if judge(index, run, k)), None)
        if stop is None:
            completed.append(run)
            complete(index, run)
        else:
            tally.killed.add(index)
            tally.saved += run.length - run.curve[stop - 1][0]
    tally.seconds = time.process_time() - start
    tally.near = near_front(runs) if "objectives" in rule else near_best(runs)
    tally.regret = min(run.final for run in completed) - min(run.final for run in runs)
    return tally


def near_best(runs: list[Run]) -> set[int]:
    best = min(run.final for run in runs)
    return {index for index, run in enumerate(runs) if run.final <= best + NEAR * abs(best)}


def near_front(runs: list[Run]) -> set[int]:
    """Return the runs that no other one leaves behind: no worse in either, and better in one by the share."""

    def leaves_behind(other: Run, run: Run) -> bool:
        pairs = ((other.final, run.final), (other.compute, run.compute))
        return all(a * (1 - NEAR) <= b for a, b in pairs) and any(a * (1 + NEAR) <= b for a, b in pairs)

    return {i for i, run in enumerate(runs) if not any(leaves_behind(other, run) for other in runs)}


def row(case: str, rule: str, tallies: list[Tally]) -> str:
    """Return a rule's line of the table."""
    saved = sum(tally.saved for tally in tallies) / sum(tally.steps for tally in tallies)
    dead, near = (sum(len(found) for found in each) for each in zip(*map(_near_killed, tallies), strict=True))
    errors = np.array([error for tally in tallies for error in tally.errors])
    fit = f"{errors.mean():.2f} ± {errors.std():.2f}" if len(errors) else ""
    return (
        f"| {case} | {rule} | {saved:.1%} | {dead} of {near} | {sum(len(t.killed) for t in tallies)} "
        f"| {np.mean([t.regret for t in tallies]):.4f} | {fit} | {sum(t.seconds for t in tallies):.0f} s |"
    )


def _near_killed(tally: Tally) -> tuple[set[int], set[int]]:
    return tally.near & tally.killed, tally.near


def _nothing(index: int, run: Run) -> None:
    pass


def none(completed: list[Run], tally: Tally, seed: int) -> tuple[Judge, Callable[[int, Run], None]]:
    return lambda index, run, upto: False, _nothing


def curve(
    completed: list[Run], tally: Tally, seed: int, *, objectives: int = 1
) -> tuple[Judge, Callable[[int, Run], None]]:
    early = EarlyTerminate(type="curve", min_trials=MIN_TRIALS)
    space = learning_curves.space(objectives=objectives, early=early)
    records: list[Trial] = []

    def judge(index: int, run: Run, upto: int) -> bool:
        if len(records) < MIN_TRIALS:
            return False
        running = record(index, run, upto=upto, objectives=objectives)
        stop = curve_rule.judge(space, early, running, records, records)
        if stop is not None:
            error = run.final - stop.predicted[METRIC]
            tally.errors.append(error / stop.predicted[f"{METRIC}_sem"])
        return stop is not None

    return judge, lambda index, run: records.append(record(index, run, objectives=objectives))


def curve_of_two(completed: list[Run], tally: Tally, seed: int) -> tuple[Judge, Callable[[int, Run], None]]:
    return curve(completed, tally, seed, objectives=2)


def percentile(completed: list[Run], tally: Tally, seed: int) -> tuple[Judge, Callable[[int, Run], None]]:
    from sweeps.worker.early_stopping import should_stop

    early = EarlyTerminate(type="percentile", min_trials=MIN_TRIALS)
    space = learning_curves.space(early=early)
    records: list[Trial] = []

    def judge(index: int, run: Run, upto: int) -> bool:
        # Ax takes 50 ms: it is asked at a third and at two thirds of a run only.
        points = len(run.curve)
        if len(completed) < MIN_TRIALS or upto not in (-(-points // 3), -(-2 * points // 3)):
            return False
        running = record(index, run, upto=upto)
        if should_stop(space, running, records) is None:
            return False
        records.append(replace(running, status="early_stopped", worker=None))
        return True

    return judge, lambda index, run: records.append(record(index, run))


def _optuna(pruner: str, **options: Any) -> Callable[..., tuple[Judge, Callable[[int, Run], None]]]:
    def rule(completed: list[Run], tally: Tally, seed: int) -> tuple[Judge, Callable[[int, Run], None]]:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.simplefilter("ignore")
        sampler = optuna.samplers.RandomSampler(seed=seed)
        made = getattr(optuna.pruners, pruner)(**options)
        study = optuna.create_study(sampler=sampler, pruner=made, study_name=f"seed-{seed}")
        trials: dict[int, Any] = {}

        def judge(index: int, run: Run, upto: int) -> bool:
            if index not in trials:
                trials[index] = study.ask()
            trials[index].report(run.curve[upto - 1][1], upto)
            if len(completed) < MIN_TRIALS or not trials[index].should_prune():
                return False
            study.tell(trials[index], state=optuna.trial.TrialState.PRUNED)
            return True

        return judge, lambda index, run: study.tell(trials[index], run.final)

    return rule


RULES: dict[str, Callable[..., tuple[Judge, Callable[[int, Run], None]]]] = {
    "none": none,
    "curve": curve,
    "curve, 2 objectives": curve_of_two,
    "Ax percentile 50": percentile,
    "Optuna Wilcoxon": _optuna("WilcoxonPruner"),
    "Optuna Hyperband": _optuna("HyperbandPruner"),
}

if __name__ == "__main__":
    main()
