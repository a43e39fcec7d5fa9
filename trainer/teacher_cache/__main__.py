"""`python -m trainer.teacher_cache [OVERRIDES…]`: the command line of `build`.

It takes the overrides of the run that the cache is for; what is wrong with them is refused before torch is
imported. Killed, it goes on with the same command; with more steps, it adds rows.
"""

from __future__ import annotations

from trainer.training.preemption import StopSignal

_STOP = StopSignal()
if __name__ == "__main__":
    _STOP.install()
    _STOP.leave_early("teacher_cache")  # before what takes long to import

import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.api import MODEL_FOLDER, check
from trainer.devices.background_calls import leave
from trainer.devices.environment import before_torch
from trainer.errors import EXIT_DONE, ConfigError, PreemptedError, TrainerError
from trainer.teachers.cached.request import asked_for
from trainer.text import Lines, byte_size, counted

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
        stop: installed already; None: one is made here.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if any(flag in given for flag in ("--help", "-h")):
        print(_USAGE, end="")
        return EXIT_DONE
    stop = stop or StopSignal()
    try:
        stop.install()
        with stop.unwrapped():
            _build(given, stop)
    except PreemptedError as error:
        return _tell(f"{error}; the same command goes on", error)
    except TrainerError as error:
        return _tell(f"error: {error}", error)
    return EXIT_DONE


def _tell(message: str, error: TrainerError) -> int:
    Lines(sys.stderr).write(f"teacher_cache: {' '.join(message.split())}")
    return error.exit_status


def _build(given: Sequence[str], stop: StopSignal) -> None:
    with stop.hold("loading"):
        run_dir, overrides = _split(given)
        config = check(overrides)
        asked = asked_for(config, anchor=run_dir is not None)
        if run_dir is not None and not (run_dir / MODEL_FOLDER).is_dir():
            raise ConfigError(
                f"there is no student in {str(run_dir)!r}; run it with save_model=true", key=_OF
            )
        before_torch()
        from trainer.devices.device import open_device
        from trainer.models.causal_lm import freeze, import_architectures
        from trainer.models.student_folder import load
        from trainer.teachers.cached.build import build
        from trainer.teachers.local import prepare_inputs

        import_architectures(config.model)
        device = open_device(config.device)
    people = Lines(sys.stdout)
    told = set[tuple[str, int]]()

    def progress(message: str, fraction: float | None) -> None:
        tenth = (message, int((fraction or 0.0) * 10))
        if fraction is not None and tenth not in told:
            told.add(tenth)
            people.write(f"preparing {message}: {tenth[1] * 10} %")

    stop.written()
    prepared = prepare_inputs(config, device=device, stop=stop, progress=progress)
    model = prepared.teacher
    if run_dir is not None:
        model = freeze(load(run_dir / MODEL_FOLDER).model.to(device.torch_device))
    stop.begun()
    built = build(
        config,
        prepared.corpus,
        model,
        asked,
        device=device,
        stop=stop,
        tell=lambda fraction: progress("the cache", fraction),
    )
    size = sum(shard.size for shard in built.index.shards)
    people.write(
        f"{counted(built.index.rows, 'row')} in {counted(len(built.index.shards), 'file')}, "
        f"{byte_size(size)}; {built.computed} of them computed now"
    )


def _split(given: Sequence[str]) -> tuple[Path | None, list[str]]:
    """The run whose student is meant, and the overrides. Raises ConfigError."""
    words, run_dir = list(given), None
    if _OF in words:
        place = words.index(_OF)
        if not words[place + 1 :]:
            raise ConfigError("needs the folder of a run", key=_OF)
        run_dir = Path(words.pop(place + 1))
        words.pop(place)
    if flags := [word for word in words if word.startswith("-")]:
        raise ConfigError(f"there is no option {flags[0]}; overrides are written key=value, see --help")
    return run_dir, words


if __name__ == "__main__":
    leave(main(stop=_STOP))
