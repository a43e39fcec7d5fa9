"""`python -m trainer.teacher_cache [OVERRIDES…]`: stores a teacher's predictions for Stage 3.

    PATH/index.json                           the spec of the cache, and its shards
    PATH/rows-00000000-<digest>.safetensors   the predictions for some rows of the stage's text

A row is a sequence of the stage's training text, counted from 0 in the order that the run's seed gives, which
does not depend on the batch size. For each of a row's P = T - 1 predicted tokens the cache holds

    topk_idx, topk_logits [rows, P, K]    the teacher's K likeliest tokens, the likeliest first
    rand_idx, rand_logits [rows, P, R]    negatives, if any
    ids                   [rows, T]       the text itself

as int32, and as float32 or float16. Logits are log probabilities at temperature 1, whatever temperature
softens them later. The code is in `teachers.cached`.

The command takes the overrides of the run that the cache is for, and rejects invalid ones before torch is
imported. The same command resumes it after an interruption; with more steps, it adds rows.
"""

from __future__ import annotations

from trainer.training.preemption import StopSignal

_STOP = StopSignal()
if __name__ == "__main__":
    _STOP.leave_early("teacher_cache")  # before what takes long to import
    _STOP.install()

import sys
from collections.abc import Sequence
from pathlib import Path

from sweeps.text.counted import counted
from trainer.api import MODEL_FOLDER, check
from trainer.config.distill import cache_request
from trainer.devices.background_calls import leave
from trainer.devices.environment import before_torch
from trainer.errors import EXIT_DONE, ConfigError, PreemptedError, TrainerError
from trainer.text import Lines, byte_size, progress_lines

_OF = "--of"
_USAGE = """\
usage: python -m trainer.teacher_cache [OVERRIDE …]
       python -m trainer.teacher_cache --of RUN_DIR [OVERRIDE …]     the anchor's, of a finished run's student

Computes the teacher's predictions for the rows that Stage 3 of the run with these overrides takes, and keeps
the likeliest tokens (stage3.teacher.top_k) and some others (negatives) in stage3.teacher.path:

  python -m trainer.teacher_cache stage3.max_steps=100 stage3.attention_weight=0 \\
      stage3/teacher=cached stage3.teacher.path=DIR

With --of it keeps, in stage3.teacher.anchor, what the student of another run predicts (save_model=true).
What is there already is not computed again. Exit status: 0 finished; 2 refused before any compute; 75 stopped
by SIGTERM or SIGINT; 1 anything else.
"""


def main(arguments: Sequence[str] | None = None, stop: StopSignal | None = None) -> int:
    """Run the command line and return the exit status.

    Args:
        arguments: without the program's name; None: those of this process.
        stop: an installed signal; None: a new one.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if any(flag in arguments for flag in ("--help", "-h")):
        print(_USAGE, end="")
        return EXIT_DONE
    stop = stop or StopSignal()
    try:
        stop.install()
        with stop.unwrapped():
            _build(arguments, stop)
    except PreemptedError as error:
        return _report([f"{error}; the same command goes on"], error)
    except ConfigError as error:
        return _report([f"error: {each}" for each in error.errors], error)
    except TrainerError as error:
        return _report([f"error: {error}"], error)
    return EXIT_DONE


def _report(messages: Sequence[str], error: TrainerError) -> int:
    lines = Lines(sys.stderr)
    for message in messages:
        lines.write(f"teacher_cache: {' '.join(message.split())}")
    return error.exit_status


def _build(arguments: Sequence[str], stop: StopSignal) -> None:
    with stop.hold("loading"):
        run_dir, overrides = _parse(arguments)
        config = check(overrides)
        request = cache_request(config.stage3, anchor=run_dir is not None)
        if run_dir is not None and not (run_dir / MODEL_FOLDER).is_dir():
            raise ConfigError(
                f"there is no student in {str(run_dir)!r}; run it with save_model=true", key=_OF
            )
        before_torch()
        from trainer.data.inputs import prepare_inputs
        from trainer.devices.device import open_device
        from trainer.models.causal_lm import freeze, import_architectures, separate_documents
        from trainer.models.student_folder import load
        from trainer.stages.teacher import prepare_teacher
        from trainer.teachers.cached.build import build

        import_architectures(config.model)
        device = open_device(config.device)
    progress = progress_lines(sys.stdout)
    stop.written()
    inputs = prepare_inputs(config, progress)
    model = prepare_teacher(config, inputs, device=device, stop=stop, progress=progress)
    if run_dir is not None:
        model = freeze(load(run_dir / MODEL_FOLDER).model.to(device.torch_device))
        if config.data.document_masks:
            separate_documents(model, inputs.corpus.document_end)
    stop.begun()
    built = build(
        config,
        inputs.corpus,
        model,
        request,
        device=device,
        stop=stop,
        notify=lambda fraction: progress("the cache", fraction),
    )
    size = sum(shard.size for shard in built.index.shards)
    Lines(sys.stdout).write(
        f"{counted(built.index.rows, 'row')} in {counted(len(built.index.shards), 'file')}, "
        f"{byte_size(size)}; {built.computed} of them computed now"
    )


def _parse(arguments: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Return the value of `--of` and the overrides, or raise ConfigError."""
    words, run_dir = list(arguments), None
    if _OF in words:
        index = words.index(_OF)
        if not words[index + 1 :]:
            raise ConfigError("needs the folder of a run", key=_OF)
        run_dir = Path(words.pop(index + 1))
        words.pop(index)
    if flags := [word for word in words if word.startswith("-")]:
        raise ConfigError(f"there is no option {flags[0]}; overrides are written key=value, see --help")
    return run_dir, words


if __name__ == "__main__":
    leave(main(stop=_STOP))
