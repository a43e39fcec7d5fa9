"""`python -m trainer.export RUN_DIR OUT [--format packed|dense]`: the command line of `checkpoint`.

Wrong arguments are refused before torch is imported.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic_core import from_json

from trainer.api import MODEL_FOLDER, RESULT_FILE
from trainer.devices.environment import before_torch
from trainer.errors import EXIT_DONE, ConfigError, TrainerError
from trainer.text import Lines, byte_size, counted

_DESCRIPTION = """\
Writes the student of a finished run (RUN_DIR, trained with save_model=true) as a checkpoint that
transformers' AutoModelForCausalLM.from_pretrained(OUT) loads, and compares the two before it is done.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        _check(options.run_dir, options.out)
        _export(options.run_dir, options.out, packed=options.format == "packed")
    except TrainerError as error:
        Lines(sys.stderr).write(f"export: error: {' '.join(str(error).split())}")
        return error.exit_status
    return EXIT_DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainer.export", description=_DESCRIPTION)
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="folder of a finished run")
    parser.add_argument("out", metavar="OUT", type=Path, help="folder to write; not there yet, or empty")
    parser.add_argument(
        "--format",
        choices=("packed", "dense"),
        default="packed",
        help="packed: ternary weights at two bits each; dense: as floating-point numbers (default: packed)",
    )
    return parser


def _check(run_dir: Path, out: Path) -> None:
    if not run_dir.is_dir():
        raise ConfigError(f"there is no folder {str(run_dir)!r}", key="RUN_DIR")
    if not (run_dir / RESULT_FILE).is_file():
        raise ConfigError(f"{str(run_dir)!r} holds no finished run: no {RESULT_FILE}", key="RUN_DIR")
    if not (run_dir / MODEL_FOLDER).is_dir():
        raise ConfigError(
            f"the run in {str(run_dir)!r} kept no model; run it again with save_model=true", key="RUN_DIR"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{str(out)!r} is there already; name a new folder", key="OUT")


def _export(run_dir: Path, out: Path, *, packed: bool) -> None:
    before_torch()
    from trainer.export.checkpoint import export
    from trainer.models.student_folder import load

    saved = load(run_dir / MODEL_FOLDER)
    if saved.config_sha256 != _config_sha256(run_dir / RESULT_FILE):
        raise ConfigError(
            f"the model in {str(run_dir)!r} is of another run than its result; run it again with "
            "save_model=true",
            key="RUN_DIR",
        )
    done = export(saved, out, packed=packed)
    console = Lines(sys.stdout)
    console.write(
        f"{out}: {done.class_name}, {counted(done.ternary, 'ternary matrix', 'ternary matrices')} "
        f"{'packed' if packed else 'dense'}, "
        f"{byte_size(done.weight_bytes)}"
    )
    console.write(f"read back: weights equal, logits differ by {done.difference:.1e} (root mean square)")
    extra = ", trust_remote_code=True" if done.trusts_code else ""
    console.write(f"load it with AutoModelForCausalLM.from_pretrained({str(out)!r}{extra})")


def _config_sha256(result: Path) -> object:
    try:
        return from_json(result.read_text(encoding="utf-8"))["provenance"]["config_sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainerError(f"cannot read {str(result)!r}: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
