"""`python -m trainer [OVERRIDES…] run_dir=DIR`: one run, its files and its exit status.

The configuration is checked before torch is imported, so a misspelt key is refused within half a second.
Signals are handled before anything is imported that takes long.
"""

from __future__ import annotations

from trainer.training.preemption import StopSignal

_STOP = StopSignal()
if __name__ == "__main__":
    _STOP.install()
    _STOP.leave_early("trainer")

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.api import (
    HEARTBEAT_FILE,
    MEMORY_FILE,
    METRICS_FILE,
    MODEL_FOLDER,
    RESULT_FILE,
    Progress,
    check,
)
from trainer.checkpoint import layout, run_folder
from trainer.config import Config, long_runs, sha256
from trainer.config.redaction import redact
from trainer.devices.background_calls import leave
from trainer.devices.environment import before_torch, keep_freed_memory
from trainer.distributed import launched
from trainer.errors import (
    EXIT_CONFIG,
    EXIT_DONE,
    ConfigError,
    DivergedError,
    MachineError,
    PreemptedError,
    TrainerError,
)
from trainer.text import Lines

if TYPE_CHECKING:
    from trainer.checkpoint.checkpoints import Checkpoints
    from trainer.checkpoint.discover import Found
    from trainer.devices.device import Device
    from trainer.distributed.launched import Launched
    from trainer.distributed.ranks import Ranks
    from trainer.pipeline import Outcome
    from trainer.telemetry import Telemetry

_HELP_FLAGS = ("--help", "-h")
_PREFLIGHT_FLAGS = ("--preflight", "--dry-run")
_FORCE_FLAG = "--force"
# For what the device still hands over. A preempted machine is gone after 30 s, of which saving takes some. It
# may be told so when the run has just finished, too, and nobody has reported that yet.
_CALM_S, _HURRY_S = 20.0, 10.0


def main(arguments: Sequence[str] | None = None, stop: StopSignal | None = None) -> int:
    """Run the command line and return the exit status.

    Args:
        stop: installed already; None: one is made here.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if any(flag in given for flag in _HELP_FLAGS):
        from trainer.config.usage import usage

        print(usage(), end="")
        return EXIT_DONE
    stop = stop or StopSignal()
    try:
        return _run(given, stop)
    except DivergedError as error:
        return _tell(f"diverged: {error}", error)
    except PreemptedError as error:
        return _tell(str(error), error)
    except MachineError as error:
        return _tell(f"error: not on this machine: {error}", error)
    except TrainerError as error:
        return _tell(f"error: {error}", error)


def _run(given: list[str], stop: StopSignal) -> int:
    stop.install()
    with stop.hold("loading"):  # an exception amid imports is wrapped, or swallowed, by whoever imports
        if any(argument.partition("=")[0] == "--cfg" for argument in given):
            from trainer.config.usage import composed

            print(composed(given), end="")
            return EXIT_DONE
        looks = any(flag in given for flag in _PREFLIGHT_FLAGS)
        given = [argument for argument in given if argument not in _PREFLIGHT_FLAGS]
        if _FORCE_FLAG in given:
            given = [*(argument for argument in given if argument != _FORCE_FLAG), "force=true"]
        flags = [argument for argument in given if argument.startswith("-")]
        if flags:
            raise ConfigError(f"there is no option {flags[0]}; overrides are written key=value, see --help")
        if looks:
            return look_only(given)
        config = check(given)
        if config.run_dir is None:
            raise ConfigError("needs a value: the folder that the result is written to", key="run_dir")
    train_in(Path(config.run_dir), config, stop)
    return EXIT_DONE


def look_only(overrides: Sequence[str]) -> int:
    """What `--preflight` does: the table of what the run would take, and no run. Raises TrainerError."""
    before_torch()
    from trainer.config.compose import compose_config
    from trainer.devices.device import open_device
    from trainer.models.causal_lm import import_architectures
    from trainer.preflight import batch_size_search, report
    from trainer.preflight.preflight import look

    config = compose_config(overrides)
    import_architectures(config.model)
    folder = None if config.run_dir is None else Path(config.run_dir)
    device = open_device(config.device)
    found = look(batch_size_search.with_micro_batches(config, device), device, folder, closely=True)
    report.show(found, config)
    return EXIT_CONFIG if found.refusals and not config.force else EXIT_DONE


def train_in(folder: Path, config: Config, stop: StopSignal) -> Outcome:
    """The run of a configuration in its folder: begun there, or gone on with. Raises TrainerError."""
    place = launched.check(config, launched.launched())
    run_folder.refuse_another(config, folder)
    with stop.hold("loading"):
        before_torch()
        keep_freed_memory()
        from trainer import pipeline, result
        from trainer.checkpoint.checkpoints import Checkpoints
        from trainer.devices.device import open_device
        from trainer.distributed.ranks import choose_device, join
        from trainer.memory_log.log import MemoryLog
        from trainer.models.causal_lm import import_architectures
        from trainer.optim.validate import require_device, require_packages
        from trainer.preflight import batch_size_search, oom
        from trainer.quant import fp8
        from trainer.teachers.local import prepare_all
        from trainer.telemetry import Heartbeat, Telemetry
        from trainer.telemetry.channels import open_channels
        from trainer.telemetry.tensorboard import require_package

        import_architectures(config.model)
        # A device or a package that is not there is refused before a file is touched.
        choose_device(config, place)
        device = open_device(config.device).reading_every(config.log_every)
        require_packages(config)
        require_device(config, device)
        if config.telemetry.tensorboard:
            require_package()
        fp8.require_device(config.stage2, device)
        fitted = batch_size_search.with_micro_batches(config, device, processes=place.world)
        forced = _look_before(fitted, device, folder, place)
    if launched.among_processes(config):
        # Before the processes join: one builds while the others wait, and a library that saves a model writes
        # nothing in any but the first of joined processes.
        prepare_all(config, _print_progress())
    with stop.hold("loading"):
        ranks = join(config, place)
        device = dataclasses.replace(device, ranks=ranks)
    stop.written()
    with ranks, _opened(config, folder, ranks) as found, _closed(device, stop), stop.unmangled():
        if found and ranks.first:
            _say(f"going on after {found.document.where}, from checkpoint {found.path.name}")
        with stop.hold("loading"):
            heart = Heartbeat(
                folder / HEARTBEAT_FILE, device=device, every_s=config.telemetry.heartbeat_seconds
            )
            telemetry = Telemetry(
                folder / METRICS_FILE if ranks.first else None,
                every=config.log_every,
                dense=config.telemetry.dense_steps,
                append=found is not None,
                channels=open_channels(config, folder) if ranks.first else [],
                heart=heart if ranks.first else None,
                out=sys.stdout,
            )
            memory = None
            if config.memory_log.level and ranks.first:
                path = Path(config.memory_log.path or folder / MEMORY_FILE)
                memory = MemoryLog(path, config, device, append=found is not None)
        checkpoints = Checkpoints(
            folder / layout.FOLDER,
            metrics=folder / METRICS_FILE,
            config=config.checkpoint,
            config_sha256=sha256(config),
            found=found,
            peak_memory=device.peak_memory_bytes,
            compile_seconds=device.compile_seconds,
            warn=_warn,
            ranks=ranks,
            during=telemetry.during,
        )
        with telemetry, checkpoints, stop.unmangled():
            with oom.explained(fitted, device):
                outcome = pipeline.run(
                    fitted,
                    device=device,
                    telemetry=telemetry,
                    stop=stop,
                    progress=_print_progress(telemetry),
                    keep=checkpoints,
                    memory=memory,
                    forced=forced,
                    config_sha256=sha256(config),
                )
            stop.ignore()
            if ranks.first:
                result.write(outcome.result, folder / RESULT_FILE, resumable=checkpoints.resumable)
            kept = not config.save_model or _save_student(outcome, folder, ranks, telemetry, checkpoints)
            if ranks.first:
                if kept:
                    checkpoints.discard()
                telemetry.finish(outcome.result)
            ranks.wait()
    return outcome


def _save_student(
    outcome: Outcome, folder: Path, ranks: Ranks, telemetry: Telemetry, checkpoints: Checkpoints
) -> bool:
    """Save the student of a run whose result stands; what fails here is a warning, and the run has succeeded.

    Returns:
        Whether it was saved. The checkpoints are needed otherwise: the same command goes on from there.
    """
    from trainer.models import student_folder

    try:
        with telemetry.during("saving", "the student"):
            student_folder.save(
                outcome.student,
                folder / MODEL_FOLDER,
                tokenizer=outcome.tokenizer,
                config_sha256=outcome.result.provenance.config_sha256,
                ranks=ranks,
            )
    except Exception as error:  # noqa: BLE001 - whatever it is, the result was worth the training
        again = "goes on from its checkpoint" if checkpoints.resumable else "trains anew"
        why = f"{type(error).__name__}: {error}" if not isinstance(error, TrainerError) else error
        _warn(
            f"{RESULT_FILE} is written, but the student could not be saved ({why}); once that is mended, the "
            f"same command {again}"
        )
        return False
    return True


def _look_before(config: Config, device: Device, folder: Path, place: Launched) -> tuple[str, ...]:
    """What the preflight says against the run, where `force` passes over it. Raises ConfigError."""
    from trainer.preflight.preflight import line, look

    found = look(config, device, folder, processes=place.world)
    forced = long_runs.refuse(found.refusals, force=config.force)
    if place.first:
        _say(line(found))
        for passed_over in forced:
            _warn(f"forced: {passed_over}")
    return forced


@contextmanager
def _closed(device: Device, stop: StopSignal) -> Iterator[None]:
    """Closes the device at the end, however the run ends: in a hurry, unless it has finished."""
    within_s = _HURRY_S
    try:
        yield
        within_s = _CALM_S
    finally:
        if not stop.came:  # else a second one ends the process at once
            stop.ignore()
        device.close(within_s)


@contextmanager
def _opened(config: Config, folder: Path, ranks: Ranks) -> Iterator[Found | None]:
    """The folder, which the first process opens and all read from."""
    if ranks.first:
        with run_folder.opened(config, folder, _warn) as found:
            ranks.broadcast(found.path.name if found else None)
            yield found
    else:
        nothing: str | None = None
        name = ranks.broadcast(nothing)
        yield None if name is None else run_folder.found(folder, name)


def _print_progress(telemetry: Telemetry | None = None) -> Progress:
    """A line per tenth of whatever is being prepared."""
    told, people = set[tuple[str, int]](), Lines(sys.stdout)

    def progress(message: str, fraction: float | None) -> None:
        if telemetry:
            telemetry.preparing(message, fraction)
        tenth = (message, int((fraction or 0.0) * 10))
        if fraction is not None and tenth not in told:
            told.add(tenth)
            people.write(f"preparing {message}: {tenth[1] * 10} %")

    return progress


def _say(line: str) -> None:
    Lines(sys.stdout).write(line)


def _warn(problem: str) -> None:
    Lines(sys.stderr).write(redact(f"trainer: warning: {' '.join(problem.split())}"))


def _tell(message: str, error: TrainerError) -> int:
    place = launched.launched()
    if place is not None and not place.first:
        if isinstance(error, ConfigError | DivergedError | PreemptedError):
            return error.exit_status  # which all processes come to, and the first one tells
        message = f"process {place.rank}: {message}"
    Lines(sys.stderr).write(redact(f"trainer: {' '.join(message.split())}"))
    return error.exit_status


if __name__ == "__main__":
    leave(main(stop=_STOP))
