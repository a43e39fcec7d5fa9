"""Landscapes of the real trainer: `python -m benchmarks.landscapes COMMAND …`, see README.md.

record NAME…    train what is missing of these landscapes, and write their tables
points NAME…    draw their random trials into --points, for a machine without Ax
train           train the trials of --points into --rows, beside what the tables have
write           add what --rows has to the tables
quality NAME…   how well their emulators predict trials that they were not fitted to
replay NAME…    searchers on them in simulated time, into --results, and the table of it
table NAME…     the table of what --results has
figures NAME…   figures of it
calibrate NAME… how right the chances and gains are that `sweep best` states, in replayed searches
stop NAME…      what `search: {stop: …}` saves and gives up, in replayed searches

The last five have options of their own: `replay --help`, `calibrate --help`, `stop --help`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from benchmarks.landscapes.tables import Row, default_names, merge, names, read, read_trained, write

RECORDING = ("record", "points", "train", "write", "quality")
REPLAYING = ("replay", "table", "figures")


def main() -> None:
    if sys.argv[1:2] and sys.argv[1] in ("calibrate", "stop"):
        judging()
        return
    if sys.argv[1:2] and sys.argv[1] in REPLAYING:
        replaying()
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=[*RECORDING, *REPLAYING])
    parser.add_argument("names", nargs="*", choices=[*names(), []], metavar="NAME", help=", ".join(names()))
    parser.add_argument("--points", type=Path, default=Path("points.json"))
    parser.add_argument("--rows", type=Path, default=Path("rows.jsonl"), help="trials that have ended")
    parser.add_argument("--trials", type=int, default=120, help="random ones of each landscape")
    parser.add_argument("--repeats", type=int, default=10, help="seeds of each repeated configuration")
    parser.add_argument("--workers", type=int, default=1, help="trials at a time, of one thread each")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="to train for at most")
    parser.add_argument(
        "--random-seconds", type=float, default=float("inf"), help="to begin random trials for"
    )
    parser.add_argument(
        "--overrides", nargs="+", default=[], help="of the trainer, after those of the spaces"
    )
    parser.add_argument("--stdlib", type=Path, help="folder of another Python's standard library, as text")
    arguments = parser.parse_args()

    if arguments.command == "quality":
        from benchmarks.landscapes.emulator import quality

        print("| landscape | R² | R² of perfect prediction | rank correlation | sd over seeds |")
        print("|---|---|---|---|---|")
        for name in arguments.names or default_names():
            found = quality(name)
            print(
                f"| `{name}` | {found['r2']:.2f} | {found['r2_bound']:.2f} | {found['rank']:.2f} "
                f"| {found['noise']:.4f} |",
                flush=True,
            )
        return
    points: dict[str, list[Row]]
    if arguments.command in ("record", "points"):
        from benchmarks.landscapes.points import random_points

        points = {name: random_points(name, arguments.trials) for name in arguments.names or default_names()}
    elif arguments.command == "train":
        points = json.loads(arguments.points.read_text(encoding="utf-8"))
    if arguments.command == "points":
        arguments.points.write_text(json.dumps(points, indent=0) + "\n", encoding="utf-8")
        return
    complete = True
    if arguments.command in ("record", "train"):
        from benchmarks.landscapes.train import train

        complete = train(
            points,
            {name: merge(read(name), read_trained(arguments.rows, name)) for name in points},
            arguments.rows,
            workers=arguments.workers,
            number_of_repeats=arguments.repeats,
            seconds=arguments.seconds,
            random_seconds=arguments.random_seconds,
            stdlib=arguments.stdlib,
            overrides=arguments.overrides,
        )
    if arguments.command in ("record", "write"):
        for name in names():
            if rows := read_trained(arguments.rows, name):
                print(write(name, merge(read(name), rows)))
    if not complete:
        print("not all is trained: the same command goes on")


def replaying() -> None:
    """Replay searchers, or tell and draw how they did."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything imports torch
    from benchmarks.landscapes import compare, replay
    from benchmarks.landscapes.searchers import EXTRA, SEARCHERS, find

    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.landscapes {sys.argv[1]}",
        description=replay.__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("command", choices=REPLAYING)
    parser.add_argument(
        "names",
        nargs="*",
        choices=[*names(), []],
        metavar="NAME",
        help="all but smollm2, unless some are named",
    )
    parser.add_argument(
        "--results", type=Path, default=Path("replay.jsonl"), help="JSON lines; what it has is not run again"
    )
    parser.add_argument(
        "--searchers",
        nargs="+",
        default=[name for name in SEARCHERS if name not in EXTRA and "prior" not in name],
        help="known ones, or package.module:Name",
    )
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=30, help="paid compute of a search, in full trials")
    parser.add_argument("--workers", type=int, nargs="+", default=[1])
    parser.add_argument("--noise", action="store_true", help="add the noise of seeds to the losses")
    parser.add_argument(
        "--defaults", action="store_true", help="give every searcher the trainer's defaults as first trial"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--choice",
        choices=["own", "lowest"],
        default="own",
        help="what counts: the searcher's choice, or the trial with the lowest loss so far",
    )
    parser.add_argument("--folder", type=Path, default=Path("figures"), help="of the figures, SVG and PNG")
    arguments = parser.parse_args()
    chosen = arguments.names or default_names()
    if arguments.command == "replay":
        for name in arguments.searchers:
            try:
                find(name)
            except ValueError as error:
                parser.error(str(error))
        seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
        options = {key: getattr(arguments, key) for key in ("noise", "defaults", "trials")}
        wanted = replay.runs(chosen, arguments.searchers, seeds, arguments.workers, **options)
        results = replay.replay(wanted, arguments.results, arguments.jobs)
    else:
        found = replay.read_results(arguments.results)
        results = {run: result for run, result in found.items() if run.landscape in chosen}
    if arguments.command == "figures":
        for path in compare.figures(results, arguments.folder, arguments.choice):
            print(path)
    else:
        print(compare.table(results, arguments.choice))


def judging() -> None:
    """Compare what the surrogate states in replayed searches with the truth."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything imports torch
    from benchmarks.landscapes import calibration, stopping

    command = sys.argv[1]
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.landscapes {command}",
        description=(calibration if command == "calibrate" else stopping).__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    which = (
        "all, unless some are named" if command == "calibrate" else "all but smollm2, unless some are named"
    )
    parser.add_argument("names", nargs="*", choices=[*names(), []], metavar="NAME", help=which)
    parser.add_argument(
        "--results",
        type=Path,
        default=Path(f"{command}.jsonl"),
        help="JSON lines of the searches; what it has is not run again",
    )
    parser.add_argument("--seeds", type=int, default=4 if command == "calibrate" else 2, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    if command == "calibrate":
        parser.add_argument("--after", type=int, nargs="+", default=[18, 24, 30], help="trials")
    else:
        parser.add_argument("--trials", type=int, default=54, help="cap of each search")
    arguments = parser.parse_args(sys.argv[2:])
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    if command == "calibrate":
        chosen = arguments.names or names()
        print(calibration.calibrate(chosen, seeds, arguments.after, arguments.results, arguments.jobs))
    else:
        chosen = arguments.names or default_names()
        print(
            stopping.table(stopping.runs(chosen, seeds, arguments.trials, arguments.results, arguments.jobs))
        )


if __name__ == "__main__":
    main()
