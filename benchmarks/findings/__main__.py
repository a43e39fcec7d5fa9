"""`python -m benchmarks.findings [OVERRIDES…]`: trains what lacks, writes `docs/explanation/findings.md`.

Overrides of the trainer hold for every run, such as `model=smollm2_135m data=fineweb`; another model than
the tiny one is trained with the research notebook's lengths.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.findings import branches, options
from benchmarks.findings.claims import Runs, findings
from benchmarks.findings.errors import errors
from benchmarks.findings.page import page
from benchmarks.findings.pictures import draw
from benchmarks.findings.runs import Run, RunFailed, run_all
from benchmarks.findings.setting import setting_for


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    parser.add_argument("--runs", type=Path, default=Path(".findings"), help="where runs are kept")
    parser.add_argument("--out", type=Path, default=Path("docs/explanation/findings.md"))
    parser.add_argument("overrides", nargs="*", help="Hydra overrides of every run")
    arguments = parser.parse_args()
    overrides = tuple(arguments.overrides) or ("device=cpu", "device.threads=1")
    setting, began = setting_for(overrides), time.monotonic()
    common = (*setting.common, *overrides)
    try:
        runs = run_all(
            setting.conditions(),
            range(arguments.seeds),
            common=common,
            early_steps=setting.early_steps,
            folder=arguments.runs,
            jobs=arguments.jobs,
        )
    except RunFailed as error:
        raise SystemExit(f"findings: {error}") from None
    pairs, rows = branches.read(), options.read()  # measured by commands of their own
    more = (*([branches.finding(pairs)] if pairs else ()), *([options.finding(rows)] if rows else ()))
    found = (*findings(setting, Runs(runs)), errors(setting, Runs(runs)), *more)
    pictures = arguments.out.with_suffix("")
    pictures.mkdir(parents=True, exist_ok=True)
    for finding in found:
        if finding.series:
            draw(finding, pictures / f"{finding.name}.svg")
    _write_table(runs, pictures / "runs.csv")
    facts = _facts(runs, common, seeds=arguments.seeds, took_s=time.monotonic() - began)
    arguments.out.write_text(page(found, facts=facts, pictures=pictures.name))
    print(f"wrote {arguments.out} and {pictures}/")


def _facts(
    runs: Sequence[Run], common: tuple[str, ...], *, seeds: int, took_s: float
) -> list[tuple[str, str]]:
    first = runs[0]
    trained = sum(run.seconds for run in runs)
    return [
        ("date", datetime.datetime.now(tz=datetime.UTC).date().isoformat()),
        ("command", f"`python -m benchmarks.findings {shlex.join(common)}`"),
        (
            "model, text",
            "the command's; by default a tiny model of a million parameters, and Python's library",
        ),
        ("device", f"{first.device}, torch {first.torch}"),
        ("runs", f"{len(runs)} ({len(runs) // seeds} conditions, {seeds} seeds)"),
        ("training time", f"{trained / 60:.0f} min in all runs; this command took {took_s / 60:.0f} min"),
    ]


def _write_table(runs: Sequence[Run], path: Path) -> None:
    """Write the runs as they were read, so that the tables can be recomputed."""
    columns = ("seed", "start", "early", "final", "sem", "text_sem", "effective_steps", "seconds")
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([*(text.partition("=")[0] for text in runs[0].condition), *columns])
        for run in sorted(runs, key=lambda run: (run.condition, run.seed)):
            settings = [text.partition("=")[2] for text in run.condition]
            writer.writerow([*settings, *(_plain(getattr(run, column)) for column in columns)])


def _plain(value: float) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
