"""Sweep behind `hydra/sweeper=stagesweep`: created or opened, and worked on like any other.

Trials run in processes of their own (see `app`), here as on every worker that joins with `sweep worker`; this
process is one of the workers. A second call with the same settings resumes the sweep.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import yaml
from hydra.core.config_loader import ConfigLoader
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sweeps.errors import EXIT_FAILED, EXIT_PREEMPTED, InputError, SpaceError, SweepError
from sweeps.experiment import Experiment
from sweeps.export import table
from sweeps.hydra_app import app, params
from sweeps.space.definition import Search, Space, Value, from_plain, is_value, to_plain
from sweeps.space.overrides import to_overrides
from sweeps.space.priors import with_defaults
from sweeps.text.counted import counted
from sweeps.text.shorten import one_line
from sweeps.trials import control
from sweeps.worker.progress import say, watcher

_SECTIONS = ("parameter_constraints", "outcome_constraints", "baseline", "stages")
LAUNCHER = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"


def sweep(
    settings: Mapping[str, Any], config: DictConfig, config_loader: ConfigLoader, arguments: Sequence[str]
) -> dict[str, float | None] | None:
    """Run trials until none is left, and return the metrics of the best one.

    Args:
        settings: `StageSweeperConf`, without its target.
        config: the application's, composed for the sweep.
        arguments: overrides of the command line, without those of Hydra's own configuration.

    Raises:
        SystemExit: with the status of `sweep worker`: 2 for wrong input, 75 after a stop signal, 1 if no
            trial has a result or the sweep has paused itself.
    """
    from sweeps.programs.signals import Stop
    from sweeps.worker.loop import Limits, work

    plain = OmegaConf.to_container(OmegaConf.create(dict(settings)), resolve=True)
    try:
        experiment = _create_or_open(cast("dict[str, Any]", plain), config, config_loader, arguments)
        folder = Path(config.hydra.sweep.dir)
        _write(folder / "multirun.yaml", OmegaConf.to_yaml(config))
        stop = Stop()
        stop.listen()
        with watcher(experiment) as watching:
            # The caller waits for this process: leave rather than wait for a person to resume the sweep.
            tally = work(experiment, stop=stop, watcher=watching, limits=Limits(leave_when_braked=True))
        if tally.preempted_by:
            say(tally.preemption)
            raise SystemExit(EXIT_PREEMPTED)
        best = table.best(experiment.space, experiment.trials())
        if best is None:
            say("no trial has a result; `sweep trials` says why")
            raise SystemExit(EXIT_FAILED)
        found = {
            "name": "stagesweep",
            "url": experiment.store.url,
            "trial": best.trial,
            "best_evaluated_params": {name: to_plain(value) for name, value in best.parameters.items()},
            "best_evaluated_result": dict(best.metrics),
        }
        _write(folder / "optimization_results.yaml", yaml.safe_dump(found, sort_keys=False))
        overrides = " ".join(to_overrides(best.parameters))
        say(f"best trial {best.trial}: {overrides}")
        if control.switch(experiment.store).braked:  # a script is to see that the search has not ended
            raise SystemExit(EXIT_FAILED)
        return dict(best.metrics)
    except SweepError as error:
        say(f"error: {error}")
        raise SystemExit(error.exit_status) from None


def _write(file: Path, text: str) -> None:
    """Write a file into the folder of `hydra.sweep.dir`. Raises `InputError`."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(
            f"hydra.sweep.dir: {file} cannot be written: {reason}; name another folder, and the sweep goes on"
        ) from None


def _create_or_open(
    settings: Mapping[str, Any], config: DictConfig, config_loader: ConfigLoader, arguments: Sequence[str]
) -> Experiment:
    from sweeps.operations.creation import create_sweep, raise_limits
    from sweeps.operations.opening import exists, new_store
    from sweeps.space.domain import probes

    if config.hydra.launcher._target_ != LAUNCHER:
        raise InputError(
            "hydra/launcher has no effect with hydra/sweeper=stagesweep: trials are processes of workers; "
            "take it out, and start more workers with `sweep worker` or `sweep launch`"
        )
    searched, fixed = params.read(settings["params"], arguments, config_loader)
    if not searched:
        raise InputError(
            "there is nothing to search: write hydra.sweeper.params, or an override such as "
            "'lr=interval(1e-4,1e-2)'"
        )
    space = space_of(settings, searched, fixed, list(config.hydra.overrides.hydra))
    known = _defaults(searched, fixed, config, config_loader)
    space, notice = with_defaults(space, known, "the application's")
    for parameters in probes(space):  # so that a misspelt key fails before compute is spent
        overrides = [*fixed, *to_overrides(parameters)]
        try:
            config_loader.load_sweep_config(master_config=config, sweep_overrides=overrides)
        except (HydraException, OmegaConfBaseException) as error:
            problem = one_line(error)
            raise InputError(f"the application refuses {' '.join(overrides)}: {problem}") from None
    store = new_store(settings["storage"], space.name)
    if exists(store):
        experiment = Experiment.open(store)
        try:
            experiment.require_same(space)
        except InputError as error:
            raise InputError(f"{error} (hydra.sweeper.name=…)") from None
        raise_limits(experiment, space, say)
    else:
        if notice and space.defaults != "first":  # why they are not
            say(notice)
        experiment = create_sweep(
            space,
            settings["storage"],
            skip_if_exists=True,
            on_notice=say,
            whose_defaults="the application's",
        )
    url = experiment.store.url
    say(f"{url}: join with `sweep worker --storage {shlex.quote(url)}`")
    return experiment


def space_of(
    settings: Mapping[str, Any],
    searched: Mapping[str, Mapping[str, Any]],
    fixed: Sequence[str],
    hydra_overrides: Sequence[str],
) -> Space:
    """Return the search space of the settings, validated like a search space file.

    Args:
        searched: searched parameters by key, as in a search space file.

    Raises:
        InputError: they do not describe a valid space.
    """
    from sweeps.space.space_file import loads
    from sweeps.space.yaml_cursor import dump

    if settings["metric"] in (None, "", []):
        raise InputError(
            "hydra.sweeper.metric: is empty; name the task function's return value, such as loss"
        )
    metrics = _as_list(settings["metric"])
    goals = _as_list(settings["direction"])
    goals = goals * len(metrics) if len(goals) == 1 else goals
    if len(goals) != len(metrics):
        raise InputError(
            f"hydra.sweeper.direction: {len(goals)} for {counted(len(metrics), 'metric')}; give one for each"
        )
    document: dict[str, Any] = {
        "name": re.sub(r"[^A-Za-z0-9._-]", "-", str(settings["name"])),
        "objectives": [{"metric": m, "goal": g} for m, g in zip(metrics, goals, strict=True)],
        "program": {"command": app.command(metrics, fixed, hydra_overrides, sys.argv[1:])},
        "parameters": {key: dict(parameter) for key, parameter in searched.items()},
    }
    search = {
        key: settings[key] for key in (each.name for each in fields(Search)) if settings[key] is not None
    }
    sections = {key: settings[key] for key in _SECTIONS}
    for section in ("lease", "budget", "brake", "snapshots"):
        sections[section] = {key: value for key, value in settings[section].items() if value is not None}
    document |= {"search": search} if search else {}
    document |= {"run_cap": settings["n_trials"]} if settings["n_trials"] is not None else {}
    document |= {key: value for key, value in sections.items() if value}
    try:
        return loads(dump(document), "hydra.sweeper")
    except SpaceError as error:
        lines = (f"hydra.sweeper: {each.key}: {each.problem}" for each in error.problems)
        raise InputError("\n".join(lines)) from None


def _as_list(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]


def _defaults(
    searched: Mapping[str, Mapping[str, Any]],
    fixed: Sequence[str],
    config: DictConfig,
    config_loader: ConfigLoader,
) -> dict[str, Value]:
    """Return the application's value of each searched parameter, or the default that its user has stated."""
    try:
        composed = config_loader.load_sweep_config(master_config=config, sweep_overrides=list(fixed))
    except (HydraException, OmegaConfBaseException):
        return {}  # composing the trials says why
    groups = OmegaConf.select(composed, "hydra.runtime.choices") or {}
    found: dict[str, Value] = {}
    added = {override.lstrip("+").partition("=")[0] for override in fixed if override.startswith("+")}
    for key, parameter in searched.items():
        if key in added and "default" not in parameter:  # to be searched, not by the application
            continue
        try:
            node = OmegaConf.select(composed, key)
            value = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
        except OmegaConfBaseException:  # an interpolation of what is missing
            value = None
        if value is None or isinstance(value, Mapping):  # a group, such as `db`, `db/engine` or `db@backup`
            value = groups.get(key)
        value = from_plain(parameter.get("default", value))
        # None stands for `???` and for what is not there, too.
        if is_value(value) and (value is not None or None in parameter.get("values", ())):
            found[key] = value
    return found
