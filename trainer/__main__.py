"""`python -m trainer [OVERRIDES…] run_dir=DIR`: one run, its files and its exit status.

The configuration is checked before torch is imported, so a misspelt key is refused within half a second.
Signals are handled before anything is imported that takes long.
"""

from __future__ import annotations

from trainer.training.preemption import StopSignal, closing_device

_STOP = StopSignal()
if __name__ == "__main__":
    _STOP.leave_early("trainer")  # before what takes long to import
    _STOP.install()

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from trainer.api import StageTrunk, check, stage_keys, stage_trunks
from trainer.checkpoint import layout, run_folder
from trainer.config import Config, long_runs, sha256
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
    UnreachableError,
    joined,
)
from trainer.layout import HEARTBEAT_FILE, MEMORY_FILE, METRICS_FILE, SNAPSHOTS_FOLDER
from trainer.text import Lines, progress_lines, redact

if TYPE_CHECKING:
    from trainer.checkpoint.layout import Found
    from trainer.devices.device import Device
    from trainer.distributed.launched import Launched
    from trainer.distributed.ranks import Ranks
    from trainer.outcome import Outcome

Keys = Mapping[str, str]
Trunks = Mapping[str, StageTrunk]
NO_KEYS: Mapping[str, Any] = MappingProxyType({})

_HELP_FLAGS = ("--help", "-h")
_PREFLIGHT_FLAGS = ("--preflight", "--dry-run")
_FORCE_FLAG = "--force"


def main(arguments: Sequence[str] | None = None, stop: StopSignal | None = None) -> int:
    """Run the command line and return the exit status.

    Args:
        arguments: flags and Hydra overrides; None: those of the process.
        stop: installed already; None: one is made here.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if any(flag in arguments for flag in _HELP_FLAGS):
            from trainer.config.usage import usage

            names = [each.partition("=")[0] for each in arguments if each not in _HELP_FLAGS]
            print("\n".join(map(usage, names)) or usage(), end="")
            return EXIT_DONE
        return _run(arguments, stop or StopSignal())
    except DivergedError as error:
        return _report_error([f"diverged: {error}"], error)
    except PreemptedError as error:
        return _report_error([str(error)], error)
    except MachineError as error:
        return _report_error([f"error: not on this machine: {each}" for each in error.errors], error)
    except ConfigError as error:
        return _report_error([f"error: {each}" for each in error.errors], error)
    except UnreachableError as error:
        return _report_error([f"error: {error.what}: {error}"], error)
    except TrainerError as error:
        return _report_error([f"error: {error}"], error)


def _run(arguments: list[str], stop: StopSignal) -> int:
    stop.install()
    with stop.hold("loading"):  # an import may wrap or swallow an exception
        if any(argument.partition("=")[0] == "--cfg" for argument in arguments):
            from trainer.config.usage import composed_yaml

            print(composed_yaml(arguments), end="")
            return EXIT_DONE
        overrides = [each for each in arguments if each not in (*_PREFLIGHT_FLAGS, _FORCE_FLAG)]
        if _FORCE_FLAG in arguments:
            overrides.append("force=true")
        flags = [argument for argument in overrides if argument.startswith("-")]
        wrong = [
            ConfigError(f"there is no option {flag}; overrides are written key=value, see --help")
            for flag in flags
        ]
        overrides = [each for each in overrides if each not in flags]
        is_preflight = any(flag in arguments for flag in _PREFLIGHT_FLAGS)
        if is_preflight and not wrong:
            return preflight_only(overrides)
        folder = next((each for each in overrides if each.startswith("run_dir=")), None)
        try:
            config = check(overrides)
            folder = config.run_dir
        except ConfigError as error:
            wrong.append(error)
        if folder is None and not is_preflight:
            wrong.append(
                ConfigError(
                    "needs a value: the folder that the result is written to; write run_dir=DIR",
                    key="run_dir",
                )
            )
        if wrong or folder is None:
            if (launch := launched.launched()) is not None and not launch.first:
                return EXIT_CONFIG  # all processes refuse these overrides alike, and the first one says why
            raise joined(wrong)
        if (line := run_folder.finished_message(config, Path(folder))) is not None:
            _print(line)
            return EXIT_DONE
        keys, trunks = stage_keys(overrides), stage_trunks(overrides)
    train_in(Path(folder), config, stop, keys=keys, trunks=trunks)
    return EXIT_DONE


def preflight_only(overrides: Sequence[str]) -> int:
    """Print the table of `--preflight`, without a run, and return the exit status. Raises TrainerError."""
    before_torch()
    from trainer.config.compose import compose_config
    from trainer.devices.device import open_device
    from trainer.models.causal_lm import import_architectures
    from trainer.preflight import batch_size_search
    from trainer.preflight.preflight import run_preflight, show

    config = compose_config(overrides)
    import_architectures(config.model)
    folder = None if config.run_dir is None else Path(config.run_dir)
    device = open_device(config.device)
    launch = launched.foresee(config, launched.launched())
    sharing = launch.shares(config.device.mesh)
    fitted = batch_size_search.with_micro_batches(config, device, processes=sharing, launch=launch)
    found = run_preflight(fitted, device, folder, detailed=True, processes=sharing, launch=launch)
    show(found, config)
    return EXIT_CONFIG if found.refusals and not config.force else EXIT_DONE


def train_in(
    folder: Path, config: Config, stop: StopSignal, *, keys: Keys = NO_KEYS, trunks: Trunks = NO_KEYS
) -> Outcome:
    """Start the run of a configuration in its folder, or go on with it. Raises TrainerError.

    Args:
        keys: `api.stage_keys` of the configuration; without them the run shares no stage with others.
        trunks: `api.stage_trunks` of it; without them, no part of one.
    """
    launch = launched.check(config, launched.launched())
    run_folder.refuse_another(config, folder)
    with stop.hold("loading"):
        before_torch()
        keep_freed_memory()
        # All is loaded before the folder is made: a signal meanwhile leaves nothing behind.
        from trainer import pipeline
        from trainer.checkpoint.checkpoints import Checkpoints
        from trainer.checkpoint.stage_snapshot import StageSnapshots
        from trainer.data.inputs import prepare_inputs
        from trainer.distributed.ranks import explain_lost_process, join
        from trainer.outcome import save
        from trainer.preflight import batch_size_search, oom
        from trainer.stages.teacher import prepare_all, prepare_teacher
        from trainer.telemetry.heartbeat import Heartbeat
        from trainer.telemetry.run import Telemetry, open_channels
        from trainer.training.context import StageContext, StageHooks

        device = _checked_device(config, launch)
        fitted, forced = _preflight(config, device, folder, launch)
    if launched.is_distributed(config):
        # Before the processes join: one builds while the others wait, and a library that saves a model writes
        # nothing in any but the first of joined processes.
        prepare_all(config, progress_lines(sys.stdout))
    with stop.hold("loading"):
        ranks = join(config, launch)
        device = dataclasses.replace(device, ranks=ranks)
        fitted = batch_size_search.agree(fitted, ranks)
    stop.written()
    with ranks, _open_folder(config, folder, ranks) as found, closing_device(device, stop), stop.unwrapped():
        if found and ranks.first:
            _print(f"going on after {found.manifest.where}, from checkpoint {found.path.name}")
        metrics, append = folder / METRICS_FILE, found is not None
        with stop.hold("loading"):
            heartbeat = Heartbeat(
                folder / HEARTBEAT_FILE, device=device, every_s=config.telemetry.heartbeat_seconds
            )
            telemetry = Telemetry(
                metrics if ranks.first else None,
                every=config.log_every,
                dense=config.telemetry.dense_steps,
                append=append,
                channels=open_channels(config, folder) if ranks.first else [],
                heartbeat=heartbeat if ranks.first else None,
                out=sys.stdout,
            )
            memory = None
            if config.memory_log.level and ranks.first:
                from trainer.memory_log.log import MemoryLog

                path = Path(config.memory_log.path or folder / MEMORY_FILE)
                memory = MemoryLog(path, config, device, append=append)
        checkpoints = Checkpoints(
            folder / layout.FOLDER,
            metrics=metrics,
            config=config.checkpoint,
            config_sha256=sha256(config),
            found=found,
            peak_memory=device.peak_memory_bytes,
            compile_seconds=device.compile_seconds,
            warn=_warn,
            ranks=ranks,
            during=telemetry.during,
        )
        snapshots = StageSnapshots(
            folder / SNAPSHOTS_FOLDER,
            keys,
            write=config.snapshots.write,
            trunks=trunks,
            every={name: getattr(config, name).trunk_every for name in trunks},
            checkpoints=checkpoints,
            warn=_warn,
            ranks=ranks,
        )
        hooks = StageHooks(memory=memory)
        context = StageContext(device=device, stop=stop, checkpoints=checkpoints, hooks=hooks)
        with explain_lost_process(ranks), telemetry, checkpoints, stop.unwrapped():
            with oom.explain_errors(fitted, device):
                progress = progress_lines(sys.stdout, telemetry.preparing)
                inputs = prepare_inputs(fitted, progress)
                outcome = pipeline.run(
                    fitted,
                    inputs,
                    # Not in a variable, which would hold its memory until the student is saved. Processes do
                    # not share signals yet: one trains a tiny teacher, and the others wait for the cache.
                    prepare_teacher(fitted, inputs, device=device, stop=stop, progress=progress),
                    context,
                    telemetry,
                    snapshots=snapshots,
                    forced=forced,
                    config_sha256=sha256(config),
                )
            stop.ignore()
            save(outcome, config, folder, telemetry, checkpoints, context, _warn)
    return outcome


def _checked_device(config: Config, launch: Launched) -> Device:
    """Return the opened device. Whatever this machine lacks is refused here, before a file is touched."""
    from trainer.devices.device import open_device
    from trainer.distributed.ranks import choose_device
    from trainer.evaluations import hooks
    from trainer.models.causal_lm import import_architectures
    from trainer.optim.build import require_device, require_packages
    from trainer.quant import fp8
    from trainer.telemetry.tensorboard import require_package

    import_architectures(config.model)
    choose_device(config, launch)
    device = open_device(config.device).reading_every(config.log_every)
    require_packages(config)
    require_device(config, device)
    if config.telemetry.tensorboard:
        require_package()
    fp8.require_device(config.stage2, device)
    hooks.check_hooks(config)
    return device


def _preflight(
    config: Config, device: Device, folder: Path, launch: Launched
) -> tuple[Config, tuple[str, ...]]:
    """Return the configuration with micro-batches that fit, and the refusals that `force` passes over.

    Raises:
        ConfigError: the preflight refuses the run, and `force` is not set.
    """
    from trainer.preflight import batch_size_search
    from trainer.preflight.preflight import run_preflight, summary_line

    # Before a line about memory is printed. In a bucket a listing takes seconds, and the run lists it anyway.
    if names := [name for name in getattr(config.data, "files", ()) if "://" not in name]:
        from trainer.data.files import find_files

        find_files(names, ())
    sharing = launch.shares(config.device.mesh)
    fitted = batch_size_search.with_micro_batches(config, device, processes=sharing, launch=launch)
    found = run_preflight(fitted, device, folder, processes=sharing, launch=launch)
    forced = long_runs.refuse(found.refusals, force=config.force)
    if launch.first:
        _print(summary_line(found))
        for warning in found.warnings:
            _warn(warning)
        for refusal in forced:
            _warn(f"forced: {refusal}")
    return fitted, forced


@contextmanager
def _open_folder(config: Config, folder: Path, ranks: Ranks) -> Iterator[Found | None]:
    """Open the folder in the first process, and yield in all of them the checkpoint to go on from."""
    if ranks.first:
        with run_folder.open_folder(config, folder, _warn) as found:
            ranks.broadcast(found.path.name if found else None)
            yield found
    else:
        nothing: str | None = None
        name = ranks.broadcast(nothing)
        yield None if name is None else run_folder.open_checkpoint(folder, name)


def _print(line: str) -> None:
    Lines(sys.stdout).write(line)


def _warn(problem: str) -> None:
    Lines(sys.stderr).write(redact(f"trainer: warning: {' '.join(problem.split())}"))


def _report_error(messages: Sequence[str], error: TrainerError) -> int:
    """Print a line for each reason that a run ends for, and return its exit status."""
    launch = launched.launched()
    if launch is not None and not launch.first:
        if isinstance(error, DivergedError | PreemptedError):
            return error.exit_status  # it ends all processes alike, and the first one prints it
        messages = [f"process {launch.rank}: {message}" for message in messages]
    lines = Lines(sys.stderr)
    for message in messages:
        lines.write(redact(f"trainer: {' '.join(message.split())}"))
    return error.exit_status


if __name__ == "__main__":
    leave(main(stop=_STOP), shared=launched.launched() is not None)
