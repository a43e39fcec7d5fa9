"""Landscapes of the real trainer: `python -m benchmarks.landscapes COMMAND …`, see README.md.

record NAME…    train what is missing of these landscapes, and write their tables
points NAME…    draw their random trials into --points, for a machine without Ax
train           train the trials of --points into --rows, beside what the tables have
write           add what --rows has to the tables
quality NAME…   how well their emulators predict trials that they were not fitted to
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.landscapes.tables import Row, merged, names, read, read_trained, write


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["record", "points", "train", "write", "quality"])
    parser.add_argument("names", nargs="*", choices=[*names(), []], metavar="NAME", help=", ".join(names()))
    parser.add_argument("--points", type=Path, default=Path("points.json"))
    parser.add_argument("--rows", type=Path, default=Path("rows.jsonl"), help="trials that have ended")
    parser.add_argument("--trials", type=int, default=120, help="random ones of each landscape")
    parser.add_argument("--repeats", type=int, default=10, help="seeds of each repeated configuration")
    parser.add_argument("--workers", type=int, default=1, help="trials at a time, of one thread each")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="to train for at most")
    parser.add_argument("--stdlib", type=Path, help="folder of another Python's standard library, as text")
    arguments = parser.parse_args()

    if arguments.command == "quality":
        from benchmarks.landscapes.emulator import quality

        print("| landscape | R² | R² of perfect prediction | rank correlation | sd over seeds |")
        print("|---|---|---|---|---|")
        for name in arguments.names or names():
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

        points = {name: random_points(name, arguments.trials) for name in arguments.names or names()}
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
            {name: merged(read(name), trained(arguments.rows, name)) for name in points},
            arguments.rows,
            workers=arguments.workers,
            number_of_repeats=arguments.repeats,
            seconds=arguments.seconds,
            stdlib=arguments.stdlib,
        )
    if arguments.command in ("record", "write"):
        for name in names():
            if rows := trained(arguments.rows, name):
                print(write(name, merged(read(name), rows)))
    if not complete:
        print("not all is trained: the same command goes on")


def trained(path: Path, name: str) -> list[Row]:
    """Return the rows of a landscape among those of a file."""
    return [row for row in read_trained(path) if row["landscape"] == name]


if __name__ == "__main__":
    main()
