"""`python -m trainer.export RUN_DIR OUT [--format FORMAT]`: the command line of `checkpoint` and `gguf_file`.

Wrong arguments are refused before torch is imported.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic_core import from_json

from sweeps.text.counted import counted
from sweeps.text.regular_file import read_regular
from trainer.api import MODEL_FOLDER, RESULT_FILE
from trainer.devices.environment import before_torch
from trainer.errors import EXIT_DONE, ConfigError, TrainerError
from trainer.text import Lines, byte_size

if TYPE_CHECKING:
    from trainer.export.tensors import Form
    from trainer.models.student_folder import SavedStudent

_DESCRIPTION = """\
Writes the student of a finished run (RUN_DIR, trained with save_model=true) as a checkpoint that
transformers' AutoModelForCausalLM.from_pretrained(OUT) loads, or as a GGUF file for llama.cpp, and compares
what it wrote with the student before it is done.
"""
_FORMATS = """\
packed (also hf): ternary weights at two bits each; dense: as floating-point numbers; master: the weights
that were trained, which are quantised when they are loaded, for bitnet.cpp's converter; gguf-tq1_0 and
gguf-tq2_0: one file for llama.cpp, at 1.7 and 2.1 bits a weight (default: packed)
"""
_I2_S = (
    "the layout of i2_s depends on the CPU and the build of the bitnet.cpp that reads it; write --format "
    "master, and convert that with bitnet.cpp's own converter on that machine"
)
_GGUF = ("gguf-tq1_0", "gguf-tq2_0")
_DONE = {"packed": "packed", "dense": "dense", "master": "as master weights"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m trainer.export", description=_DESCRIPTION)
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="folder of a finished run")
    parser.add_argument(
        "out", metavar="OUT", type=Path, help="folder (or GGUF file) to write; not there yet, or empty"
    )
    choices = ("packed", "hf", "dense", "master", *_GGUF, "i2_s")
    parser.add_argument("--format", choices=choices, default="packed", metavar="FORMAT", help=_FORMATS)
    parser.add_argument(
        "--without-adapters",
        action="store_true",
        help="leave out what the stage `recovery` trained, for the ternary student as it was before",
    )
    options = parser.parse_args(arguments)
    try:
        if options.format == "i2_s":
            raise ConfigError(_I2_S, key="--format")
        _check_paths(options.run_dir, options.out, is_file=options.format in _GGUF)
        saved = _load_student(options.run_dir)
        if options.without_adapters:
            from trainer.models.adapters import adapters_of, remove_adapters

            if adapters_of(saved.model) is None:
                raise ConfigError("this student has none", key="--without-adapters")
            remove_adapters(saved.model)
        out, console = options.out, Lines(sys.stdout)
        if options.format in _GGUF:
            from trainer.export.gguf_file import export_file

            file = export_file(saved, out, form=options.format)
            kind = options.format.removeprefix("gguf-").upper()
            console.write(
                f"{out}: {file.architecture}, {counted(file.ternary, 'ternary matrix', 'ternary matrices')} "
                f"in {kind}, {byte_size(file.weight_bytes)}"
            )
            if file.wide:
                are = counted(file.wide, "ternary matrix is", "ternary matrices are")
                console.write(f"{are} in Q8_0 or F16: {kind} needs rows that 256 divides")
            console.write("read back: ternary codes equal, scales in float16")
            return EXIT_DONE
        from trainer.export.checkpoint import export

        form: Form = "packed" if options.format == "hf" else options.format
        done = export(saved, out, form=form)
        console.write(
            f"{out}: {done.class_name}, {counted(done.ternary, 'ternary matrix', 'ternary matrices')} "
            f"{_DONE[form]}, {byte_size(done.weight_bytes)}"
        )
        console.write(f"read back: weights equal, logits differ by {done.difference:.1e} (root mean square)")
        extra = ", trust_remote_code=True" if done.trusts_code else ""
        console.write(f"load it with AutoModelForCausalLM.from_pretrained({str(out)!r}{extra})")
        if done.adapters is not None:
            console.write(
                f"{done.adapters}: adapters; read back: weights equal, logits with them differ by "
                f"{done.adapted_difference:.1e}"
            )
            console.write(
                f"put them on it with peft's PeftModel.from_pretrained(model, {str(done.adapters)!r})"
            )
    except TrainerError as error:
        Lines(sys.stderr).write(f"export: error: {' '.join(str(error).split())}")
        return error.exit_status
    return EXIT_DONE


def _check_paths(run_dir: Path, out: Path, *, is_file: bool) -> None:
    if not run_dir.is_dir():
        raise ConfigError(f"there is no folder {str(run_dir)!r}", key="RUN_DIR")
    if not (run_dir / RESULT_FILE).is_file():
        raise ConfigError(f"{str(run_dir)!r} holds no finished run: no {RESULT_FILE}", key="RUN_DIR")
    if not (run_dir / MODEL_FOLDER).is_dir():
        raise ConfigError(
            f"the run in {str(run_dir)!r} kept no model; run it again with save_model=true", key="RUN_DIR"
        )
    if out.exists() and (not out.is_dir() or is_file or any(out.iterdir())):
        kind = "file" if is_file else "folder"
        raise ConfigError(f"{str(out)!r} is there already; name a new {kind}", key="OUT")


def _load_student(run_dir: Path) -> SavedStudent:
    before_torch()
    from trainer.models.student_folder import load

    saved, result = load(run_dir / MODEL_FOLDER), run_dir / RESULT_FILE
    try:
        expected = from_json(read_regular(result))["provenance"]["config_sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainerError(f"cannot read {str(result)!r}: {error}") from error
    if saved.config_sha256 != expected:
        raise ConfigError(
            f"the model in {str(run_dir)!r} is of another run than its result; run it again with "
            "save_model=true",
            key="RUN_DIR",
        )
    return saved


if __name__ == "__main__":
    sys.exit(main())
