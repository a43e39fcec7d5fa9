"""`python -m benchmarks.findings.branches`: does a branch off a trunk end where a run of that length ends?

For each case one trunk to the longest length, with points on the way; each length once as a branch off it,
and once from scratch. Writes `findings/branches.csv` of docs/explanation, and the section of
`docs/explanation/findings.md`.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from benchmarks.findings.claims import Finding
from benchmarks.findings.page import numbered
from benchmarks.findings.runs import finish
from trainer.api import RESULT_FILE, prepare
from trainer.layout import SNAPSHOTS_FOLDER

PAGE = Path("docs/explanation/findings.md")
TABLE = Path("docs/explanation/findings/branches.csv")
STAGES = ("stage1_9", "stage2")
LENGTHS = (6, 12, 18, 24)
OTHER_STEPS = 6
EVERY = 2
COMMON = (
    *("device=cpu", "device.threads=1", "eval.at=[]"),
    *("stage2.lambda_warmup.warmup_steps=4", "stage2.lambda_warmup.start=0"),
    *("stage1_9.schedule.warmup_steps=2", "stage2.schedule.warmup_steps=2"),
)


def _both(setting: str) -> tuple[str, ...]:
    return tuple(f"{stage}.{setting}" for stage in STAGES)


CASES: Mapping[str, tuple[str, ...]] = {
    "Muon, decay over 30 %, lambda warmup": (),
    **{f"decay over {share} %": _both(f"schedule.decay_fraction={share / 100}") for share in (10, 15, 20)},
    "AdamW": _both("optimizer.type=adamw"),
    "without lambda warmup": ("stage2.lambda_warmup.enabled=false",),
}


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A length as a branch and from scratch: held-out losses in nats per token, costs in effective steps."""

    case: str
    stage: str
    seed: int
    steps: int
    branched_at: int
    branch: float
    scratch: float
    paid: int
    cost: int
    trunk: int


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path(".findings/branches"), help="where runs are kept")
    arguments = parser.parse_args()
    prepare(COMMON)
    pairs = []
    for seed in range(arguments.seeds):
        for case, overrides in CASES.items():
            for stage in STAGES:
                pairs += measure(case, stage, seed, (*COMMON, *overrides, f"seed={seed}"), arguments.runs)
                print(f"{case}, {stage}, seed {seed}: {_largest(pairs[-len(LENGTHS) :]):g}", flush=True)
    with TABLE.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Pair)])
        writer.writeheader()
        writer.writerows(map(asdict, pairs))
    PAGE.write_text(numbered(PAGE.read_text(), finding(pairs)))
    print(f"wrote {TABLE} and {PAGE}")


def measure(case: str, stage: str, seed: int, common: tuple[str, ...], folder: Path) -> list[Pair]:
    """Train a trunk, and each length as a branch and from scratch."""
    other = STAGES[1 - STAGES.index(stage)]
    common = (*common, f"{other}.max_steps={OTHER_STEPS}")
    root = folder / f"{list(CASES).index(case)}-{stage}-{seed}"
    longest = (*common, f"{stage}.max_steps={max(LENGTHS)}", f"{stage}.trunk_every={EVERY}")
    trunk = _run(root / "trunk", longest, source=None)
    pairs = []
    for steps in LENGTHS:
        overrides = (*common, f"{stage}.max_steps={steps}")
        branch = _run(root / f"branch-{steps}", overrides, source=root / "trunk")
        scratch = _run(root / f"scratch-{steps}", overrides, source=None)
        (of_stage,) = (each for each in branch["stages"] if each["name"] == stage)
        paid = sum(each["cost"] - each.get("saved", 0) for each in branch["stages"] if not each["reused"])
        pairs.append(
            Pair(
                case=case,
                stage=stage,
                seed=seed,
                steps=steps,
                branched_at=of_stage["branched_at"],
                branch=branch["metrics"]["final_loss"],
                scratch=scratch["metrics"]["final_loss"],
                paid=paid,
                cost=scratch["metrics"]["effective_steps"],
                trunk=trunk["metrics"]["effective_steps"],
            )
        )
    return pairs


def _run(folder: Path, overrides: tuple[str, ...], *, source: Path | None) -> dict[str, object]:
    """Return the result of a run, which begins with the points of another one's folder if that is given."""
    result = folder / RESULT_FILE
    if not result.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if source is not None:
            shutil.copytree(source / SNAPSHOTS_FOLDER, folder / SNAPSHOTS_FOLDER)
        finish(overrides, folder)
    document: dict[str, object] = json.loads(result.read_text())
    return document


def read() -> list[Pair]:
    """Return what was measured last; nothing if there is no table."""
    if not TABLE.exists():
        return []
    kinds = {"case": str, "stage": str, "branch": float, "scratch": float}
    with TABLE.open(newline="") as file:
        return [Pair(**{k: kinds.get(k, int)(v) for k, v in row.items()}) for row in csv.DictReader(file)]


def finding(pairs: Sequence[Pair]) -> Finding:
    """Return the section of the page."""
    seeds = len({pair.seed for pair in pairs})
    different = [pair for pair in pairs if pair.branch != pair.scratch]
    if different:
        first = (
            f"In {len(different)} of {len(pairs)} pairs the losses differ, by {_largest(pairs):.2g} at most."
        )
    else:
        first = (
            f"The same loss to the last bit in all {len(pairs)} pairs, so that there is no interval to show "
            f"(seeds: {seeds}). Up to its decay a shorter run takes the very steps of a longer one: the "
            "search needs no correction for branches."
        )
    groups = {(pair.case, pair.stage): [] for pair in pairs}  # type: dict[tuple[str, str], list[Pair]]
    for pair in pairs:
        groups[pair.case, pair.stage].append(pair)
    return Finding(
        name="branches",
        claim="Does a branch off a trunk end where a run of that length ends?",
        verdicts=(
            first,
            f"Lengths of {', '.join(map(str, LENGTHS))} steps of one stage and {OTHER_STEPS} of the other; a "
            f"point every {EVERY} steps and where a decay begins; all branch off one trunk to the longest. "
            "On GPUs, and between processors, the order of sums may differ between runs: not measured here.",
            "Left out, as their steps depend on the length from the start: the saliency curriculum, and a "
            "distillation weight that changes over the stage.",
        ),
        header=("case", "stage", "largest difference", "effective steps as branches, of those from scratch"),
        rows=tuple((*group, f"{_largest(found):g}", _costs(found)) for group, found in groups.items()),
        series=(),
        x_title="",
        y_title="",
    )


def _costs(pairs: Sequence[Pair]) -> str:
    """Return the cost of all lengths with one trunk: it is the longest run, which the others branch off."""
    by_seed = {pair.seed: pair.trunk for pair in pairs}
    paid = sum(by_seed.values()) + sum(pair.paid for pair in pairs if pair.steps < max(LENGTHS))
    cost = sum(pair.cost for pair in pairs)
    return f"{paid} of {cost} ({paid / cost:.0%})"


def _largest(pairs: Iterable[Pair]) -> float:
    return max(abs(pair.branch - pair.scratch) for pair in pairs)


if __name__ == "__main__":
    main()
