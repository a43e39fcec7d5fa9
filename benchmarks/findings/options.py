"""`python -m benchmarks.findings.options [NAME …]`: what are options of the trainer worth?

For each question the usual run and a few that differ from it in one option, five seeds each, of which those
of one seed are pairs. A finished run is not run again, so a command that was stopped goes on where it was.
Writes `findings/options.csv` of docs/explanation with what is there, and the section of
`docs/explanation/findings.md`.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.summaries.paired import Paired, compare
from benchmarks.findings.claims import Finding
from benchmarks.findings.page import numbered
from benchmarks.findings.runs import Run, RunFailed, run_all
from benchmarks.findings.setting import TINY, Condition

PAGE = Path("docs/explanation/findings.md")
TABLE = Path("docs/explanation/findings/options.csv")
COMMON = (*TINY.common, "device=cpu", "device.threads=1", "device.dtype=float32", "eval.at=[]")
USUAL = TINY.condition(TINY.usual)
STAGE_3 = (
    *("stage3.max_steps=60", "stage3.batch_size=8", "stage3.attention_weight=0"),
    "stage3.logits_weight=1.0",
)


def _both(setting: str) -> Condition:
    return tuple(f"{stage}.optimizer.{setting}" for stage in ("stage1_9", "stage2"))


@dataclass(frozen=True, kw_only=True)
class Question:
    """An option: overrides on top of the usual run, and the choices that are compared with it."""

    text: str
    usual: str
    choices: Mapping[str, Condition]
    base: Condition = ()

    def conditions(self) -> dict[str, Condition]:
        """Return the overrides of every run by its name, the usual one first."""
        own = {name: (*USUAL, *self.base, *more) for name, more in self.choices.items()}
        return {self.usual: (*USUAL, *self.base), **own}


_WARMUP = "stage2.lambda_warmup"
_BFLOAT16 = "model.master_dtype=bfloat16"
_PRODUCTS = "device.dtype=bfloat16"  # slow on a CPU without instructions for it
QUESTIONS: Mapping[str, Question] = {
    "lambda": Question(
        text="Lambda of Stage 2 after Stage 1.9",
        usual="from 0",
        choices={
            **{f"from {start:g}": (f"{_WARMUP}.start={start}",) for start in (0.25, 0.5, 0.75)},
            "1 throughout": (f"{_WARMUP}.enabled=false",),
        },
    ),
    "lambda-alone": Question(
        text="Lambda of Stage 2 without Stage 1.9",
        usual="from 0",
        base=("stage1_9.max_steps=0",),
        choices={"from 0.75": (f"{_WARMUP}.start=0.75",), "1 throughout": (f"{_WARMUP}.enabled=false",)},
    ),
    "average": Question(
        text="Averaged weights in Stage 2",
        usual="none",
        choices={
            "EMA, decay 0.9": ("average.type=ema", "average.decay=0.9"),
            "mean of the last 20 steps": ("average.type=last", "average.steps=20"),
        },
    ),
    "decay": Question(
        text="Weight decay of Stage 2",
        usual="0.1 throughout",
        base=("stage2.optimizer.weight_decay=0.1",),
        choices={
            "0.1 in the first half": ("stage2.optimizer.weight_decay_until=0.5",),
            "0.01 throughout": ("stage2.optimizer.weight_decay=0.01",),
        },
    ),
    "documents": Question(
        text="Documents of a packed window, held-out ones too",
        usual="see each other",
        choices={"apart": ("data.document_masks=true",)},
    ),
    "masters-muon": Question(
        text="Master weights, Muon, products in bfloat16",
        usual="float32",
        base=(_PRODUCTS,),
        choices={
            "bfloat16": (_BFLOAT16,),
            "bfloat16, stochastic rounding": (_BFLOAT16, *_both("stochastic_rounding=true")),
        },
    ),
    "masters-adamw": Question(
        text="Master weights, AdamW, products in bfloat16",
        usual="float32",
        base=(_PRODUCTS, *_both("type=adamw")),
        choices={
            "bfloat16": (_BFLOAT16,),
            "bfloat16, stochastic rounding": (_BFLOAT16, *_both("stochastic_rounding=true")),
        },
    ),
    "stage3": Question(
        text="Weight of Stage 3's divergence at temperature 5, after 60 steps of it",
        usual="1",
        base=STAGE_3,
        choices={f"{weight:g}": (f"stage3.logits_weight={weight}",) for weight in (5.0, 10.0, 25.0)},
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(QUESTIONS)}; all unless given"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    parser.add_argument("--runs", type=Path, default=Path(".findings/options"), help="where runs are kept")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(QUESTIONS):
        parser.error(f"there is no question {min(unknown)!r}; write of {', '.join(QUESTIONS)}")
    rows = [row for row in read() if row.name not in (arguments.names or QUESTIONS)]
    for name in arguments.names or QUESTIONS:
        try:
            rows += measure(name, range(arguments.seeds), arguments.runs, jobs=arguments.jobs)
        except RunFailed as error:
            raise SystemExit(f"findings: {error}") from None
        rows.sort(key=lambda row: list(QUESTIONS).index(row.name))  # stable
        _write(rows)
        PAGE.write_text(numbered(PAGE.read_text(), finding(rows)))
        print(f"wrote {TABLE} and {PAGE} with {name}", flush=True)


@dataclass(frozen=True, kw_only=True)
class Row:
    """Final held-out loss of one run, in nats per token."""

    name: str
    choice: str
    seed: int
    final: float


def measure(name: str, seeds: Sequence[int], folder: Path, *, jobs: int) -> list[Row]:
    """Return the losses of a question's runs, training those that are not there. Raises RunFailed."""
    conditions = QUESTIONS[name].conditions()
    runs: list[Run] = run_all(
        list(conditions.values()),
        seeds,
        common=COMMON,
        early_steps=TINY.early_steps,
        folder=folder,
        jobs=jobs,
    )
    choices = {condition: choice for choice, condition in conditions.items()}
    found = [Row(name=name, choice=choices[r.condition], seed=r.seed, final=r.final) for r in runs]
    return sorted(found, key=lambda row: (list(conditions).index(row.choice), row.seed))


def read() -> list[Row]:
    """Return what was measured last; nothing if there is no table."""
    if not TABLE.exists():
        return []
    with TABLE.open(newline="") as file:
        return [
            Row(name=row["name"], choice=row["choice"], seed=int(row["seed"]), final=float(row["final"]))
            for row in csv.DictReader(file)
            if row["name"] in QUESTIONS
        ]


def _write(rows: Sequence[Row]) -> None:
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["name", "choice", "seed", "final"])
        writer.writerows([row.name, row.choice, row.seed, f"{row.final:.6f}"] for row in rows)


def finding(rows: Sequence[Row]) -> Finding:
    """Return the section of the page: each choice beside the usual one of its question."""
    table: list[tuple[str, ...]] = []
    for name, question in QUESTIONS.items():
        of = {choice: {r.seed: r.final for r in rows if (r.name, r.choice) == (name, choice)}
              for choice in question.conditions()}  # fmt: skip
        for choice, losses in of.items():
            if not losses:
                continue
            mean = sum(losses.values()) / len(losses)
            pair = None if choice == question.usual else compare(losses, of[question.usual])
            text = question.text if choice == question.usual else ""  # once for all of its choices
            table.append((text, choice, f"{mean:.3f}", "" if pair is None else _difference(pair)))
    seeds = len({row.seed for row in rows})
    return Finding(
        name="options",
        claim="What are options of the trainer worth?",
        verdicts=(
            f"{TINY.usual} steps of Stage 1.9 and {TINY.stage2_steps} of Stage 2 unless said otherwise, "
            f"{seeds} seeds. A difference is that of the final held-out loss to the first choice of the "
            "option, with its 95 % interval over the seeds. All choices have the usual learning rates, and "
            "another rate may suit some of them better.",
        ),
        header=("option", "choice", "final loss", "difference"),
        rows=tuple(table),
        series=(),
        x_title="",
        y_title="",
    )


def _difference(pair: Paired) -> str:
    low, high = pair.interval
    return f"{pair.mean:+.4f} [{low:+.4f}, {high:+.4f}], {pair.verdict}"


if __name__ == "__main__":
    main()
