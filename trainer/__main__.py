"""`python -m trainer [OVERRIDES…] run_dir=DIR`: one run, its files and its exit status.

The configuration is checked before torch is imported, so a misspelt key is refused within half a second.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.api import METRICS_FILE, RESULT_FILE, Progress, check
from trainer.config import Config
from trainer.environment import before_torch
from trainer.errors import EXIT_DONE, ConfigError, DivergedError, PreemptedError, TrainerError
from trainer.preemption import StopSignal

_HELP_FLAGS = ("--help", "-h")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if any(flag in given for flag in _HELP_FLAGS):
        from trainer.usage import usage

        print(usage(), end="")
        return EXIT_DONE
    try:
        return _run(given)
    except DivergedError as error:
        return _tell(f"diverged: {error}", error)
    except PreemptedError as error:
        return _tell(str(error), error)
    except TrainerError as error:
        return _tell(f"error: {error}", error)


def _run(given: list[str]) -> int:
    if "--cfg" in given:
        from trainer.usage import composed

        print(composed(given), end="")
        return EXIT_DONE
    flags = [argument for argument in given if argument.startswith("-")]
    if flags:
        raise ConfigError(f"there is no option {flags[0]}; overrides are written key=value, see --help")
    config = check(given)
    if config.run_dir is None:
        raise ConfigError("needs a value: the folder that the result is written to", key="run_dir")
    stop = StopSignal()
    stop.install()
    _train(config, _fresh_folder(config.run_dir), stop)
    return EXIT_DONE


def _fresh_folder(name: str) -> Path:
    """The run's folder, without the result of an earlier run: a failure must not leave a success behind."""
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RESULT_FILE).unlink(missing_ok=True)
        (folder / METRICS_FILE).touch()
    except OSError as error:
        raise TrainerError(f"cannot write to run_dir {name!r}: {error.strerror}") from error
    return folder


def _train(config: Config, folder: Path, stop: StopSignal) -> None:
    before_torch()
    from trainer import pipeline, result
    from trainer.telemetry import Telemetry
    from trainer.wandb_run import open_wandb

    wandb = open_wandb(config, folder)
    with Telemetry(folder / METRICS_FILE, every=config.log_every, wandb=wandb) as telemetry:
        outcome = pipeline.run(config, telemetry=telemetry, stop=stop, progress=_print_progress())
        stop.ignore()
        result.write(outcome.result, folder / RESULT_FILE)
        telemetry.finish(outcome.result)


def _print_progress() -> Progress:
    """A line per tenth of whatever is being prepared."""
    told: set[tuple[str, int]] = set()

    def progress(message: str, fraction: float | None) -> None:
        tenth = (message, int((fraction or 0.0) * 10))
        if fraction is not None and tenth not in told:
            told.add(tenth)
            print(f"preparing {message}: {tenth[1] * 10} %", flush=True)

    return progress


def _tell(message: str, error: TrainerError) -> int:
    print(f"trainer: {' '.join(message.split())}", file=sys.stderr, flush=True)
    return error.exit_status


if __name__ == "__main__":
    sys.exit(main())
