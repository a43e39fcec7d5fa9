"""Speed of training steps on a GPU, ternary beside full precision: `python -m benchmarks.gpu`.

Random weights in the shapes of real models, random tokens, nothing to download: torch, transformers,
hydra-core and pydantic are enough, without an installation. Each case is a process of its own, with a limit
on its time, and trains by the trainer's own loop, so that all that a real step does is in the figures:

    plain                 the loop that a user of transformers writes: autocast, AdamW, clipping
    full precision        Stage 2 without quantisation
    ternary               Stage 2 at lambda 1; fp8: the gradients' products in 8 bits, or the forward pass too
    stage 1.9             with its teacher

Prints a table for each shape and the targets, and writes all of it with `--out`. `--shapes cpu` is for
machines without a GPU, where host synchronisations and MFU are not known.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from trainer.devices.environment import before_torch

before_torch()

from benchmarks.gpu.cases import CASES, SHAPES
from benchmarks.gpu.observer import Result
from benchmarks.gpu.process import in_a_process
from benchmarks.gpu.tables import table, targets


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=[*SHAPES][1:], metavar="SHAPE",
                        help=f"of {', '.join(SHAPES)}; all but the first unless given")  # fmt: skip
    parser.add_argument("--cases", nargs="+", choices=[case.name for case in CASES], metavar="CASE")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of a case, its start included")
    parser.add_argument("--measure", type=float, default=8.0, help="seconds of measured steps of a case")
    parser.add_argument("--out", type=Path, help="JSON file for all results")
    parser.add_argument("overrides", nargs="*", help="Hydra overrides of the trainer, such as device=cpu")
    arguments = parser.parse_args()
    cases = [case for case in CASES if not arguments.cases or case.name in arguments.cases]
    results: list[Result] = []
    for shape in arguments.shapes:
        for case in cases:
            result = in_a_process(shape, case, arguments.overrides, arguments.measure, limit=arguments.limit)
            results.append(result)
            print(f"{shape}, {case.name}: {result.get('error') or _summary(result)}", flush=True)
            if arguments.out:
                arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    for shape in arguments.shapes:
        print("\n" + table(shape, [result for result in results if result["shape"] == shape]))
    print("\n" + targets(results))


def _summary(result: Result) -> str:
    return f"{result['ms']:.1f} ms a step, {result['seconds']:.0f} s in all"


if __name__ == "__main__":
    main()
