"""Program of a trial: the trainer, a command line, or a Python function. Only this module imports `trainer`.

The trainer and commands run in a child process, so that a crash or an out-of-memory kill is a failed trial
with the end of its log in the record, not a dead worker.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import json
import logging
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sweeps.errors import CannotStart, EnvironmentFault, InputError, Interrupted
from sweeps.programs import live_trial, process, startable, warm_start
from sweeps.programs.environment import in_environment, variables
from sweeps.programs.progress_log import METRICS_FILE
from sweeps.programs.result import (
    OUT_OF_MEMORY,
    RESULT_FILE,
    Failed,
    NotStarted,
    Outcome,
    Preempted,
    check_metrics,
    classify_exit,
    needed_metrics,
    read_refusal,
    read_result,
    was_limited,
    was_preempted,
)
from sweeps.programs.signals import Stop
from sweeps.programs.transient import network_was_lost
from sweeps.programs.warm_start import WarmStarts
from sweeps.space.definition import Space, Value
from sweeps.space.overrides import to_overrides, with_parameters
from sweeps.space.stages import Stages
from sweeps.space.trainer_trunks import MOST_POINTS, FoundTrunk
from sweeps.space.yaml_cursor import nearest
from sweeps.stages.checkpoint import TrunkKey, end_keys, trunk_keys
from sweeps.trials import storable
from sweeps.trials.record import Failure, Trial

log = logging.getLogger(__name__)

Function = Callable[[Any], Any]
"""A Python function that computes a trial: of the trial, or of the dict of its parameters."""

LOG_FILE = "log.txt"
TRIAL_FILE = "trial.json"
"""File in the run folder with the trial's index, attempt and parameters."""
PYTHON = "${python}"
"""Placeholder in a command for the Python that the worker itself runs in."""

WRITE_SNAPSHOTS = "snapshots.write"
"""Key of the trainer's configuration: it writes the ends of its stages into `snapshots/`."""

TRUNK_EVERY = "trunk_every"
"""Key in the section of a stage: it leaves a point of its trunk after every so many steps, or after these."""

_PACKAGES = Path(__file__).parents[2]
"""Folder with the packages `sweeps` and `trainer`."""
CONFIG_FILE = "config.json"  # the trainer refuses to resume a folder whose config differs


def run(
    space: Space,
    record: Trial,
    folder: Path,
    *,
    stop: Stop,
    wants_stop: Callable[[], bool],
    snapshots: bool = False,
    points: bool = False,
    function: Function | None = None,
    warm: WarmStarts | None = None,
) -> Outcome:
    """Run one trial to its end, with its files in `folder`.

    The program is stopped when `stop` is requested (the worker has to leave) or `wants_stop()` turns true
    (another worker has the trial now, or it should stop early). A function runs in this thread: only `stop`
    interrupts it, and it may ask its trial.

    Args:
        space: of the sweep, with its program.
        record: the claimed trial.
        folder: the run folder of the attempt.
        stop: the worker's stop request.
        wants_stop: polled while the program runs.
        snapshots: whether the trainer writes the ends of its stages for other trials.
        points: whether it writes points of their trunks.
        function: to call in place of the sweep's program.
        warm: `warm_starts` of the sweep.

    Raises:
        EnvironmentFault: this machine cannot run the program.
    """

    def should_stop() -> bool:
        return stop.requested or wants_stop()

    if function is not None or space.program.kind == "function":
        called = function or _load_function(space.program.function)
        own = function is None  # threads share environment and path
        with in_environment(variables(space, record, folder) if own else {}), _folder_first(own=own):
            return _run_function(space, called, live_trial.Trial(record, folder, should_stop), stop)
    if should_stop():
        return Preempted(detail="before the program was started")
    for name in (RESULT_FILE, METRICS_FILE, CONFIG_FILE):  # left by a lost record whose index was reused
        (folder / name).unlink(missing_ok=True)
    shared = [*(to_overrides({WRITE_SNAPSHOTS: True}) if snapshots else ())]
    shared += _trunk_overrides(space, record.parameters) if points else []
    argv, env = _command(space, record, folder, shared), variables(space, record, folder)
    if problem := startable.problem(argv):
        return NotStarted(detail=problem)
    write_trial(record, folder)
    log_file = folder / LOG_FILE
    try:
        status = process.run(argv, log_file=log_file, env=env, should_stop=should_stop, warm=warm)
    except process.Unstartable as error:
        return Failed(error=str(error), failure="bad_config")
    return _outcome(space, folder, status, argv, log_file=log_file, was_stopped=should_stop())


def warm_starts(space: Space, function: Function | None = None) -> WarmStarts | None:
    """Return how trials start without the trainer's imports; None for programs and machines that cannot.

    Args:
        space: of the sweep, with its program.
        function: to call in place of the sweep's program.

    Raises:
        CannotStart: the environment variable that switches it has an unknown value.
    """
    if function is not None or space.program.kind != "trainer" or not warm_start.enabled():
        return None
    if space.program.processes != 1:  # a launcher starts them
        return None
    return WarmStarts("trainer", preload="trainer.preload", common=space.program.overrides)


def _outcome(
    space: Space, folder: Path, status: int, argv: Sequence[str], *, log_file: Path, was_stopped: bool
) -> Outcome:
    """Convert an exit status to an outcome. Raises EnvironmentFault."""
    if status == 0 and not (was_stopped and not (folder / RESULT_FILE).exists()):
        return read_result(space, folder / RESULT_FILE)
    if was_limited(status):
        raise EnvironmentFault(
            "the program was ended because it may not write such large files here (SIGXFSZ); lift the limit "
            "(ulimit -f) and start this worker again"
        )
    if was_stopped or was_preempted(status):
        return Preempted(detail=f"the program {process.describe_exit(status)}")
    stated = read_refusal(folder / RESULT_FILE)
    return stated or classify_exit(status, log_file, argv, is_trainer=space.program.kind == "trainer")


def write_trial(record: Trial, folder: Path) -> None:
    """Note in the run folder what it is a run of: `sweep import` of its result.json needs the parameters."""
    document = {"trial": record.trial, "attempt": record.attempt, "parameters": dict(record.parameters)}
    with suppress(OSError):  # the program cannot write here either, and will report it
        (folder / TRIAL_FILE).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def require_startable(space: Space) -> None:
    """Check, without running it, that the sweep's program can be found.

    Raises:
        CannotStart: the command's program or script is not here, the function cannot be loaded, or `trainer`
            is another module than ours.
    """
    program = space.program
    if program.kind == "trainer":
        _require_own_trainer()
    if program.kind == "function":
        _load_function(program.function)
    elif program.kind == "command":
        template = [word.replace(PYTHON, sys.executable) for word in program.command]
        if problem := startable.problem(template):
            raise cannot_start(problem)


def _require_own_trainer() -> None:
    """Raise CannotStart where `import trainer` finds a file of the user: in a script next to one."""
    try:
        found = importlib.util.find_spec("trainer")
        origin = found.origin if found is not None else None
    except ValueError:  # a module without a specification
        origin = getattr(sys.modules["trainer"], "__file__", None)
    if origin is None or Path(origin).parent != _PACKAGES / "trainer":
        raise CannotStart(
            f"program.trainer: `import trainer` finds {origin or 'nothing'} here, which is not the trainer "
            "of stagesweep; give that another name, or start this from another folder"
        )


def runs_elsewhere(space: Space) -> bool:
    """Return whether the sweep has no program: whoever asks for a trial runs it."""
    return space.program.kind == "function" and not space.program.function


def cannot_start(problem: str) -> CannotStart:
    """Return the error of a worker that cannot start the sweep's program."""
    return CannotStart(f"program: {problem}; start this in the folder and the environment of the program")


def check(space: Space, probes: Sequence[Mapping[str, Value]]) -> None:
    """Make sure that the program can start with each of the sampled parameters, before compute is spent.

    Args:
        space: of the sweep, with its program.
        probes: parameters of sampled trials.

    Raises:
        InputError: names the overrides, the command or the function that cannot work, each on a line.
    """
    if not runs_elsewhere(space):
        require_startable(space)
    if space.program.kind == "trainer":
        _check_trainer(space, probes)


def _check_trainer(space: Space, probes: Sequence[Mapping[str, Value]]) -> None:
    from trainer import api
    from trainer.errors import ConfigError
    from trainer.result import TEST_METRICS

    for metric in needed_metrics(space):
        if metric not in api.METRICS and not metric.startswith(_prefixes_of_hooks(space, probes)):
            known = f"known are: {', '.join(api.METRICS)}"
            hint = nearest(metric, api.METRICS)
            section = "objectives" if metric in space.metrics() else "outcome_constraints"
            if metric not in space.metrics() and metric.removesuffix("_sem") in space.metrics():
                section = "search.noise"
            raise InputError(
                f"{section}: the trainer reports no {metric!r}; "
                + (hint if hint == known else f"{hint} ({known})")
            )
    refused: dict[str, str] = {}  # by key: probes differ in the values that it is refused with
    for parameters in probes:
        try:
            config = api.check(trainer_overrides(space, parameters), processes=space.program.processes)
        except ConfigError as error:
            for each in error.errors:
                refused.setdefault(each.key or str(each), str(each))
            continue
        asked = [metric for metric in needed_metrics(space) if metric in TEST_METRICS]
        if asked and not config.eval.test:
            raise InputError(
                f"program.overrides: {asked[0]!r} is reported only with eval.test=true, which is for runs "
                "that confirm; select by final_loss"
            )
    if refused:
        raise InputError("the trainer refuses this space: " + "\n".join(refused.values()))


def _prefixes_of_hooks(space: Space, probes: Sequence[Mapping[str, Value]]) -> tuple[str, ...]:
    """Return what the metrics of the evaluation hooks begin with that all probes of the space have."""
    from trainer import api
    from trainer.config.evaluation import hook_name
    from trainer.errors import ConfigError

    found: set[str] | None = None
    for parameters in probes:
        try:
            config = api.check(trainer_overrides(space, parameters), processes=space.program.processes)
        except ConfigError:  # reported with its key
            return ()
        names = {f"{hook_name(hook)}_" for hook in config.hooks.names}
        found = names if found is None else found & names
    return tuple(sorted(found or ()))


def prepare(space: Space, threads: int, report: Callable[[str, float | None], None]) -> None:
    """Build what all trials share (corpus, tokenizer, teacher), unless it exists.

    Args:
        space: of the sweep, with its program.
        threads: how many threads of the CPU to use.
        report: called with the current step and its finished fraction, None if that is unknown.

    Raises:
        EnvironmentFault: it cannot be built on this machine.
    """
    if space.program.kind == "trainer":
        from trainer import api
        from trainer.errors import TrainerError

        try:
            api.prepare([*space.program.overrides, f"device.threads={threads}"], report)
        except TrainerError as error:
            raise EnvironmentFault(f"cannot prepare the trainer: {error}") from None


def stage_costs(space: Space, points: Sequence[Mapping[str, Value]]) -> list[dict[str, tuple[int, int]]]:
    """Return cost per step and steps of the trainer's stages, for each point that it accepts.

    Args:
        space: whose program is the trainer.
        points: parameters of trials.
    """
    from trainer import api
    from trainer.errors import ConfigError

    found = []
    for parameters in points:
        with suppress(ConfigError):
            found.append(api.stage_costs(trainer_overrides(space, parameters)))
    return found


def found_trunks(space: Space, parameters: Mapping[str, Value]) -> dict[str, FoundTrunk] | None:
    """Return the trunks of the trainer's stages, by the stage's name; None for parameters that it refuses."""
    from trainer import api
    from trainer.errors import ConfigError

    overrides = trainer_overrides(space, parameters)
    try:
        found, config = api.stage_trunks(overrides), api.check([*overrides, "force=true"])
    except ConfigError:
        return None
    return {
        name: FoundTrunk(
            key=trunk.key, until=trunk.until, decay=getattr(config, name).schedule.decay_fraction
        )
        for name, trunk in found.items()
    }


def tpu_misfits(*, tpu: bool) -> list[tuple[str, str, bool]]:
    """Return the installed versions that keep the trainer from computing through torch_xla.

    Args:
        tpu: whether to check for a TPU; otherwise for XLA's own CPU device.

    Returns:
        Of each: what is wrong, the command that fixes it, and whether nothing works until then.
    """
    from trainer import api

    return [(misfit.what, misfit.remedy, misfit.needed) for misfit in api.tpu_misfits(tpu=tpu)]


def trainer_overrides(space: Space, parameters: Mapping[str, Value]) -> list[str]:
    """Return the trial's overrides for the command line of `python -m trainer`."""
    return [*space.program.overrides, *to_overrides(parameters)]


def stage_keys(space: Space, parameters: Mapping[str, Value]) -> dict[str, str]:
    """Return the key of the end of each stage that trials share, by the stage's name in order.

    Equal keys, of 64 hexadecimal digits, mean equal results; there are none if the sweep shares no stages.

    Args:
        space: of the sweep, with its program.
        parameters: of one trial.
    """
    stages = Stages(space)
    if not stages.shared:
        return {}
    if space.program.kind == "trainer":
        from trainer import api
        from trainer.errors import TrainerError

        try:
            keys = api.stage_keys(trainer_overrides(space, parameters))
        except TrainerError as error:  # the program itself will report it
            log.info("the stages have no keys: %s", error)
            return {}
        return {name: keys[name] for name in stages.names if name in keys}
    return end_keys(space, stages, parameters)


def stage_trunks(space: Space, parameters: Mapping[str, Value]) -> dict[str, TrunkKey]:
    """Return the trunk of each stage that has one, and steps before its decay, by the stage's name in order.

    Args:
        space: of the sweep, with its program.
        parameters: of one trial.
    """
    stages = Stages(space)
    names = [name for position, name in enumerate(stages.names) if stages.trunk(position) is not None]
    if not names:
        return {}
    if space.program.kind == "trainer":
        from trainer import api
        from trainer.errors import TrainerError

        try:
            trunks = api.stage_trunks(trainer_overrides(space, parameters))
        except TrainerError as error:  # the program itself will report it
            log.info("the stages have no trunks: %s", error)
            return {}
        found = {name: trunks[name] for name in names if name in trunks}
        return {name: TrunkKey(key=it.key, until=it.until) for name, it in found.items() if it.until > 0}
    return trunk_keys(space, stages, parameters)


def _trunk_overrides(space: Space, parameters: Mapping[str, Value]) -> list[str]:
    """Return where the trainer leaves points, for the stages for which the user has not said it."""
    given = {override.partition("=")[0].lstrip("+~").strip() for override in space.program.overrides}
    asked = {
        f"{stage.name}.{TRUNK_EVERY}": _points(space, stage.name, stage.trunk.every)
        for stage in space.stages
        if stage.trunk is not None and stage.trunk.every
    }
    return [f"{key}={points}" for key, points in asked.items() if key not in given | parameters.keys()]


def _points(space: Space, stage: str, every: int) -> str:
    """Return the steps between points; or the points, where others serve the listed lengths better."""
    stages = Stages(space)
    ends = sorted((stages.trunk_ends(stages.names.index(stage)) or frozenset()) - {0})
    listed = len(ends) <= MOST_POINTS and any(end % every for end in ends)
    return f"[{','.join(map(str, ends))}]" if listed else str(every)


def _command(space: Space, record: Trial, folder: Path, shared: Sequence[str]) -> list[str]:
    if space.program.kind == "trainer":
        from trainer import api

        name = f"{space.name}-{record.trial:06d}"
        trial_id = hashlib.sha256(f"{name} {record.created!r}".encode()).hexdigest()[
            :16
        ]  # of all its attempts
        identity = to_overrides({"wandb.group": space.name, "wandb.name": name, "wandb.id": trial_id})
        overrides = [*trainer_overrides(space, record.parameters), *identity, *shared]
        return api.command(overrides, folder, processes=space.program.processes)
    values = {PYTHON: sys.executable, "${run_dir}": str(folder), "${trial}": str(record.trial)}
    return with_parameters(space.program.command, record.parameters, lambda word: _substitute(word, values))


def _substitute(word: str, values: Mapping[str, str]) -> str:
    """Return the word with all placeholders replaced in one pass, so that no value is expanded again."""
    return re.sub("|".join(map(re.escape, values)), lambda found: values[found[0]], word)


def _run_function(space: Space, function: Function, trial: live_trial.Trial, stop: Stop) -> Outcome:
    name = getattr(function, "__qualname__", type(function).__name__)
    try:
        with stop.interruptible():
            returned = function(trial) if _takes_trial(function) else function(dict(trial.parameters))
        if trial.stopped:
            return Preempted(detail=f"{name} ended as it was asked to")
        return check_metrics(space, returned, f"what {name} returned")
    except Interrupted as interrupted:
        return Preempted(detail=str(interrupted))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it raises fails its trial, not the worker
        return failure_of(error)


def _takes_trial(function: Function) -> bool:
    """Return whether the function's first parameter is called `trial`; otherwise it takes the parameters."""
    try:
        return next(iter(inspect.signature(function).parameters), "") == "trial"
    except (TypeError, ValueError):  # of a builtin, for example
        return False


def failure_of(error: BaseException) -> Failed:
    """Return the failure of a trial whose Python code raised this."""
    message, lines = storable.raised(error), _last_traceback_lines(error)
    failure: Failure = "out_of_memory" if OUT_OF_MEMORY.search(message) else "crashed"
    retryable = failure == "crashed" and network_was_lost(lines)
    return Failed(error=f"{message}\n{lines}", failure=failure, retryable=retryable)


def _last_traceback_lines(error: BaseException) -> str:
    """Return the end of the exception's traceback."""
    try:
        lines = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - it calls methods of the user's classes
        return "(no traceback: the exception cannot be printed)"
    return "\n".join(lines.strip().splitlines()[-process.LAST_LINES :])


@contextmanager
def _folder_first(*, own: bool = True) -> Iterator[None]:
    """Import from the working folder first, as a script in it would, while code of the user runs.

    Afterwards that folder is last, so that a `trainer.py` or `secrets.py` in it does not replace a module
    that this program imports later.

    Args:
        own: whether this process is a worker's; False changes nothing, since the process is the user's.
    """
    if not own:
        yield
        return
    if "" not in sys.path:
        sys.path.append("")
    sys.path.insert(0, "")
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove("")  # the first of them


def _load_function(spelled: str) -> Function:
    if not spelled:
        raise CannotStart(
            "program: this sweep has none; run its trials from Python, by `sweeps.open(URL).run(function)`, "
            "or with `sweep ask` and `sweep tell`"
        )
    module_name, _, name = spelled.partition(":")
    try:
        with _folder_first():
            module = importlib.import_module(module_name)
        function = getattr(module, name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's module may raise anything
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        package = module_name.partition(".")[0]
        if Path(getattr(sys.modules.get(package), "__file__", None) or "").parent == _PACKAGES / package:
            problem += f" (`{package}` is a package of stagesweep; give your module another name)"
        raise CannotStart(
            f"program.function: {spelled!r} cannot be loaded from this folder: {problem}; start this in the "
            "folder of the module, or name that in PYTHONPATH"
        ) from None
    if not callable(function):
        raise CannotStart(f"program.function: {spelled!r} is not a function")
    return function  # type: ignore[no-any-return]  # its signature cannot be checked
