"""Search space files: YAML in, a validated `Space` out, or one line that says what to write instead.

The reference is docs/search-space.md. The parts: `yaml_cursor` (safe YAML with line numbers),
`space_parameters` (parameters, conditions), `space_limits` (budget, brake and early stopping), `space_stages`
(stages and their snapshots), `space_checks` (constraints and the baseline, which refer to other sections).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from sweeps.errors import SpaceError
from sweeps.space import optuna_study, space_checks, space_limits, space_parameters, space_stages, yaml_cursor
from sweeps.space.definition import (
    Brake,
    Budget,
    Choice,
    Fixed,
    Lease,
    Objective,
    Parameter,
    Program,
    Range,
    Search,
    Space,
)
from sweeps.space.domain import ENUMERABLE
from sweeps.space.overrides import WORDS, split
from sweeps.space.scale import levels
from sweeps.space.yaml_cursor import Cursor
from sweeps.text.regular_file import open_regular

KEYS = (
    "name",
    "objectives",
    "outcome_constraints",
    "program",
    "parameters",
    "parameter_constraints",
    "search",
    "run_cap",
    "baseline",
    "lease",
    "budget",
    "brake",
    "early_terminate",
    "stages",
    "snapshots",
)
PROGRAM_KEYS = ("trainer", "command", "function")
SEARCH_KEYS = ("method", "sobol", "seed", "noise", "reuse")
LEASE_KEYS = ("heartbeat_s", "expire_s", "max_attempts")
_REQUIRED = {
    "name": "name: my-sweep",
    "objectives": "objectives: [{metric: final_loss, goal: minimize}]",
    "program": "program: {trainer: {overrides: [model=tiny]}}",
    "parameters": "parameters: {stage2.optimizer.lr: {min: 1.0e-3, max: 8.0e-3}}",
}
_HINTS = {
    "early_stopping": "unknown key; write early_terminate: {type: percentile}",
    "metric": "unknown key; write objectives: [{metric: final_loss, goal: minimize}]",
    "method": "unknown key; write search: {method: bayes}",
    "command": "unknown key; write program: {command: [...]}",
    "reuse": "unknown key; write search: {reuse: auto} or search: {reuse: none}",
    "constraints": "unknown key; write parameter_constraints: or outcome_constraints:",
}
_WORD = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*"
_METRIC = re.compile(rf"{_WORD}(?:/{_WORD})*", re.ASCII)
_IDENTIFIER = r"[A-Za-z_][A-Za-z0-9_]*"
_FUNCTION = re.compile(rf"{_IDENTIFIER}(?:\.{_IDENTIFIER})*:{_IDENTIFIER}", re.ASCII)


def load(path: str | os.PathLike[str]) -> Space:
    """Return the search space in the file. Raises SpaceError, also if the file cannot be read."""
    return loads(text_of(path), os.fspath(path))


def text_of(path: str | os.PathLike[str]) -> str:
    """Return the text of a YAML file. Raises SpaceError if it cannot be read."""
    file = os.fspath(path)
    try:
        with open_regular(Path(path)) as stream:
            data = stream.read(yaml_cursor.MAX_BYTES + 1)
    except FileNotFoundError:
        problem = "there is no such file; docs/search-space.md shows what to write into one"
        raise SpaceError(problem, file=file) from None
    except IsADirectoryError:
        raise SpaceError("a folder; name the YAML file in it", file=file) from None
    except OSError as error:
        raise SpaceError(f"cannot be read: {error.strerror or error}", file=file) from None
    try:
        # A character cut by the limit is no bad encoding: the size is reported.
        return data.decode("utf-8-sig", errors="replace" if len(data) > yaml_cursor.MAX_BYTES else "strict")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SpaceError("not UTF-8 text; save the file as UTF-8", file=file, line=line) from None


def loads(text: str, file: str) -> Space:
    """Return the search space in `text`; `file` is its name in errors. Raises SpaceError."""
    root = yaml_cursor.parse(text, file)
    if {"method", "metric", "parameters"} <= {key.text() for key, _ in root.pairs()}:
        problem = (
            f"a sweep file of W&B; write its translation with: sweep init --from-wandb {file} SPACE.yaml"
        )
        raise SpaceError(problem, file=file, line=root.line)
    optuna_study.refuse(root, file)
    entries = root.table(KEYS, _HINTS)
    for key, example in _REQUIRED.items():
        if key not in entries:
            problem = f"`{key}:` is missing; write such as {example}"
            raise SpaceError(problem, file=file, line=root.line, key=key)
    objectives = _objectives(entries["objectives"])
    parameters = space_parameters.read(entries["parameters"])
    constraints: tuple[str, ...] = ()
    if "parameter_constraints" in entries:
        parameters, constraints = space_checks.parameter_constraints(
            entries["parameter_constraints"], parameters
        )
    outcomes = entries.get("outcome_constraints")
    space = Space(
        name=entries["name"].folder_name(),
        objectives=objectives,
        parameters=parameters,
        program=_program(entries["program"], parameters),
        outcome_constraints=space_checks.outcome_constraints(outcomes, objectives) if outcomes else (),
        parameter_constraints=constraints,
        search=_search(entries["search"], parameters) if "search" in entries else Search(),
        run_cap=entries["run_cap"].integer(least=1) if "run_cap" in entries else None,
        lease=_lease(entries["lease"]) if "lease" in entries else Lease(),
        budget=space_limits.budget(entries["budget"]) if "budget" in entries else Budget(),
        brake=space_limits.brake(entries["brake"]) if "brake" in entries else Brake(),
    )
    if "early_terminate" in entries:
        early = space_limits.early_terminate(entries["early_terminate"], space)
        space = replace(space, early_terminate=early)
    if "baseline" in entries and space.search.method == "grid":
        raise entries["baseline"].refusal("a grid has every configuration already; take it out")
    if "baseline" in entries:
        space = replace(space, baseline=space_checks.baseline(entries["baseline"], space))
    if "stages" in entries:
        space = replace(space, stages=space_stages.stages(entries["stages"], space))
    if "early_terminate" in entries:
        space_limits.check_rivals(entries["early_terminate"], space)
    if "snapshots" in entries:
        space = replace(space, snapshots=space_stages.snapshots(entries["snapshots"], space))
    return space


def _objectives(section: Cursor) -> tuple[Objective, ...]:
    objectives: list[Objective] = []
    for item in section.items():
        entries = item.table(("metric", "goal"))
        if "metric" not in entries:
            raise item.refusal("`metric:` is missing; write {metric: final_loss, goal: minimize}")
        metric = entries["metric"].text()
        if not _METRIC.fullmatch(metric):
            raise entries["metric"].refusal(
                "not the name of a metric; write letters, digits, `_`, dots and slashes"
            )
        if any(metric == objective.metric for objective in objectives):
            raise entries["metric"].refusal(f"`{metric}` is an objective already")
        goal: Literal["minimize", "maximize"] = "minimize"
        if "goal" in entries and entries["goal"].one_of(("minimize", "maximize")) == "maximize":
            goal = "maximize"
        objectives.append(Objective(metric=metric, goal=goal))
    return tuple(objectives)


def _program(section: Cursor, parameters: tuple[Parameter, ...]) -> Program:
    if section.kind() not in ("a mapping", "nothing"):
        raise section.refusal(
            'write {trainer: {overrides: [...]}}, {command: ["python", "train.py", "${overrides}"]} '
            'or {function: "package.module:name"}'
        )
    entries = section.table(PROGRAM_KEYS)
    if len(entries) != 1:
        raise section.refusal("write exactly one of trainer:, command: and function:")
    if "trainer" in entries:
        return _trainer(entries["trainer"], parameters)
    if "command" in entries:
        return Program(kind="command", command=_command(entries["command"]))
    return Program(kind="function", function=_function(entries["function"]))


def _trainer(section: Cursor, parameters: tuple[Parameter, ...]) -> Program:
    if section.kind() == "nothing":
        return Program(kind="trainer")
    entries = section.table(("overrides", "processes"))
    return Program(
        kind="trainer",
        overrides=_overrides(entries["overrides"], parameters) if "overrides" in entries else (),
        processes=entries["processes"].integer(least=1) if "processes" in entries else 1,
    )


def _overrides(section: Cursor, parameters: tuple[Parameter, ...]) -> tuple[str, ...]:
    names = {parameter.name for parameter in parameters} | {"run_dir"}
    overrides: list[str] = []
    for item in section.items():
        try:
            key, _ = split(item.text())
        except ValueError as error:
            raise item.refusal(f"{error}") from None
        if key in names:
            raise item.refusal(
                "run_dir is set by the worker"
                if key == "run_dir"
                else f"`{key}` is a parameter too; keep one"
            )
        if any(key == split(earlier)[0] for earlier in overrides):
            raise item.refusal(f"`{key}` is overridden twice; keep one")
        overrides.append(item.text())
    return tuple(overrides)


def _command(section: Cursor) -> tuple[str, ...]:
    arguments = tuple(item.text() for item in section.items())
    if not any(word in WORDS for word in arguments[1:]):
        raise section.refusal(
            'has no element "${overrides}" (lr=0.1) or "${args}" (--lr=0.1) of its own; the parameters would '
            "not reach the program"
        )
    return arguments


def _function(cursor: Cursor) -> str:
    function = cursor.text()
    if not _FUNCTION.fullmatch(function):
        raise cursor.refusal("write package.module:function, with a colon before the function's name")
    return function


def _search(section: Cursor, parameters: tuple[Parameter, ...]) -> Search:
    entries, search = section.table(SEARCH_KEYS), Search()
    if "method" in entries:
        match entries["method"].one_of(("bayes", "random", "grid")):
            case "random":
                search = replace(search, method="random")
            case "grid":
                _check_grid(section, entries, parameters)
                search = replace(search, method="grid")
    if "sobol" in entries:
        search = replace(search, sobol=entries["sobol"].integer(least=1))
    if "seed" in entries:
        search = replace(search, seed=entries["seed"].integer(least=0, most=2**31 - 1))
    if "noise" in entries:
        search = replace(search, noise=_noise(entries["noise"]))
    if "reuse" in entries and entries["reuse"].one_of(("auto", "none")) == "none":
        search = replace(search, reuse="none")
    return search


def _noise(cursor: Cursor) -> Literal["inferred", "reported"] | float:
    match cursor.value():
        case "inferred":
            return "inferred"
        case "reported":
            return "reported"
        case int() | float() as number if not isinstance(number, bool) and number > 0:
            return float(number)
        case other:
            raise cursor.refusal(
                f"{other!r} is no noise; write inferred, reported, or a standard deviation above 0"
            )


def _check_grid(section: Cursor, entries: Mapping[str, Cursor], parameters: tuple[Parameter, ...]) -> None:
    for key in ("sobol", "seed", "noise"):
        if key in entries:
            raise entries[key].refusal("has no effect on a grid; take it out")
    for parameter in parameters:
        if isinstance(parameter, Range) and levels(parameter) is None:
            raise section.refusal(
                f"a grid is finite, and `{parameter.name}` is a range of floats; give it step: or values:"
            )
    size = math.prod(_axis(parameter) for parameter in parameters)
    if size > ENUMERABLE:
        raise section.refusal(
            f"the grid has {size} configurations, more than {ENUMERABLE}; "
            "take values out, or write method: bayes"
        )


def _axis(parameter: Parameter) -> int:
    match parameter:
        case Fixed():
            return 1
        case Choice():
            return len(parameter.values)
        case Range():
            return levels(parameter) or 0


def _lease(section: Cursor) -> Lease:
    entries, lease = section.table(LEASE_KEYS), Lease()
    if "heartbeat_s" in entries:
        lease = replace(lease, heartbeat_s=float(entries["heartbeat_s"].number()))
    if "expire_s" in entries:
        lease = replace(lease, expire_s=float(entries["expire_s"].number()))
    if lease.heartbeat_s <= 0:
        raise entries["heartbeat_s"].refusal("must be more than 0 seconds")
    if lease.expire_s <= 2 * lease.heartbeat_s:
        at = entries.get("expire_s") or entries["heartbeat_s"]
        raise at.refusal(
            f"expire_s ({lease.expire_s:g}) must be more than twice heartbeat_s ({lease.heartbeat_s:g}), "
            "or one late heartbeat loses the trial"
        )
    if "max_attempts" in entries:
        lease = replace(lease, max_attempts=entries["max_attempts"].integer(least=1))
    return lease
