"""Landscapes of the real trainer: `python -m benchmarks.landscapes COMMAND …`, see README.md.

record NAME…    train what is missing of these landscapes, and write their tables: about two hours each
write NAME…     write what a recording that still runs, or was stopped, has by now
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.landscapes.record import SPACES, record, rows_so_far, write


def main() -> None:
    names = sorted(path.stem for path in SPACES.glob("*.yaml"))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["record", "write"])
    parser.add_argument("names", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--storage", type=Path, default=Path("landscapes"), help="where its sweeps are kept")
    parser.add_argument("--trials", type=int, default=120, help="random ones")
    parser.add_argument("--repeats", type=int, default=10, help="seeds of each repeated configuration")
    arguments = parser.parse_args()
    for name in arguments.names:
        if arguments.command == "record":
            path = record(name, arguments.storage, trials=arguments.trials, repeats=arguments.repeats)
        else:
            path = write(name, rows_so_far(name, arguments.storage))
        print(path)


if __name__ == "__main__":
    main()
