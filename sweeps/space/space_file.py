"""Search space files: YAML in, a validated `Space` out, or one line that says what to write instead.

The reference is docs/search-space.md. The parts: `yaml_cursor` (safe YAML with line numbers),
`space_parameters` (parameters, conditions), `space_limits` (budget, brake and early stopping), `space_stages`
(stages and their snapshots), `space_checks` (constraints and the baseline, which refer to other sections).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
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
    Snapshots,
    Space,
)
from sweeps.space.domain import ENUMERABLE
from sweeps.space.overrides import WORDS, split
from sweeps.space.scale import levels
from sweeps.space.yaml_cursor import Cursor, D, Problems, T
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
    problems = Problems()
    entries = root.table(KEYS, _HINTS, problems)
    advice = " ".join(problem.problem for problem in problems.found)
    for key, example in _REQUIRED.items():
        if key not in entries and f"`{key}`" not in advice and f"write {key}:" not in advice:
            problem = f"`{key}:` is missing; write such as {example}"
            problems.found.append(SpaceError(problem, file=file, line=root.line, key=key))

    def section(key: str, part: Callable[[Cursor], T], default: D) -> T | D:
        """Return a section, or the default without one, and where it is wrong, which is collected."""
        return problems.attempt(lambda: part(entries[key]), default) if key in entries else default

    def is_right(*keys: str) -> bool:
        """Return whether nothing was found in these sections, on which others depend."""
        return not any(
            problem.key.partition(".")[0].partition("[")[0] in keys
            for found in problems.found
            for problem in found.problems
        )

    objectives = section("objectives", lambda each: _objectives(each, problems), ())
    nothing: tuple[tuple[Parameter, ...], frozenset[str]] = ((), frozenset())
    parameters, wrong = section("parameters", lambda each: space_parameters.read(each, problems), nothing)
    constraints: tuple[str, ...] = ()
    unchanged = (parameters, constraints)
    if is_right("parameters") or wrong:  # else no name is known
        parameters, constraints = section(
            "parameter_constraints",
            lambda each: space_checks.parameter_constraints(each, parameters, wrong, problems),
            unchanged,
        )
    goals = objectives if is_right("objectives") else ()
    space = Space(
        name=section("name", lambda each: each.folder_name(), ""),
        objectives=objectives,
        parameters=parameters,
        program=section(
            "program", lambda each: _program(each, parameters, problems), Program(kind="function")
        ),
        outcome_constraints=section(
            "outcome_constraints", lambda each: space_checks.outcome_constraints(each, goals, problems), ()
        ),
        parameter_constraints=constraints,
        search=section("search", lambda each: _search(each, parameters, problems), Search()),
        run_cap=section("run_cap", lambda each: each.integer(least=1), None),
        lease=section("lease", lambda each: _lease(each, problems), Lease()),
        budget=section("budget", lambda each: space_limits.budget(each, problems), Budget()),
        brake=section("brake", lambda each: space_limits.brake(each, problems), Brake()),
    )
    early = section("early_terminate", lambda each: space_limits.early_terminate(each, space, problems), None)
    space = replace(space, early_terminate=early)
    if "baseline" in entries and space.search.method == "grid":
        problem = "a grid has every configuration already; take it out"
        problems.found.append(entries["baseline"].refusal(problem))
    elif is_right("parameters") or wrong:
        baseline = section("baseline", lambda each: space_checks.baseline(each, space, wrong=wrong), None)
        space = replace(space, baseline=baseline)
    if is_right("parameters", "program"):
        space = replace(space, stages=section("stages", lambda each: space_stages.stages(each, space), ()))
    if is_right("parameters", "program", "objectives", "stages", "early_terminate"):
        section("early_terminate", lambda each: space_limits.check_rivals(each, space), None)
    if is_right("parameters", "program", "stages"):
        limits = section("snapshots", lambda each: space_stages.snapshots(each, space), Snapshots())
        space = replace(space, snapshots=limits)
    problems.check()
    return space


def _objectives(section: Cursor, problems: Problems) -> tuple[Objective, ...]:
    objectives: list[Objective] = []

    def add(item: Cursor) -> None:
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

    for item in section.items():
        problems.attempt(lambda: add(item), None)  # noqa: B023 - called at once
    return tuple(objectives)


def _program(section: Cursor, parameters: tuple[Parameter, ...], problems: Problems) -> Program:
    if section.kind() not in ("a mapping", "nothing"):
        raise section.refusal(
            'write {trainer: {overrides: [...]}}, {command: ["python", "train.py", "${overrides}"]} '
            'or {function: "package.module:name"}'
        )
    entries = section.table(PROGRAM_KEYS)
    if len(entries) != 1:
        raise section.refusal("write exactly one of trainer:, command: and function:")
    if "trainer" in entries:
        return _trainer(entries["trainer"], parameters, problems)
    if "command" in entries:
        return Program(kind="command", command=_command(entries["command"]))
    return Program(kind="function", function=_function(entries["function"]))


def _trainer(section: Cursor, parameters: tuple[Parameter, ...], problems: Problems) -> Program:
    if section.kind() == "nothing":
        return Program(kind="trainer")
    entries, program = section.table(("overrides", "processes"), None, problems), Program(kind="trainer")
    if "overrides" in entries:
        program = problems.attempt(
            lambda: replace(program, overrides=_overrides(entries["overrides"], parameters, problems)),
            program,
        )
    if "processes" in entries:
        program = problems.attempt(
            lambda: replace(program, processes=entries["processes"].integer(least=1)), program
        )
    return program


def _overrides(section: Cursor, parameters: tuple[Parameter, ...], problems: Problems) -> tuple[str, ...]:
    names = {parameter.name for parameter in parameters} | {"run_dir"}
    overrides: list[str] = []

    def add(item: Cursor) -> None:
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

    for item in section.items():
        problems.attempt(lambda: add(item), None)  # noqa: B023 - called at once
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


def _search(section: Cursor, parameters: tuple[Parameter, ...], problems: Problems) -> Search:
    entries, found = section.table(SEARCH_KEYS, None, problems), Search()

    def given(key: str, part: Callable[[Cursor], T], default: D) -> T | D:
        return problems.attempt(lambda: part(entries[key]), default) if key in entries else default

    found = replace(
        found,
        sobol=given("sobol", lambda each: each.integer(least=1), None),
        seed=given("seed", lambda each: each.integer(least=0, most=2**31 - 1), found.seed),
        noise=given("noise", _noise, found.noise),
    )
    if given("reuse", lambda each: each.one_of(("auto", "none")), "auto") == "none":
        found = replace(found, reuse="none")
    match given("method", lambda each: each.one_of(("bayes", "random", "grid")), "bayes"):
        case "random":
            found = replace(found, method="random")
        case "grid":
            found = replace(found, method="grid")
            problems.attempt(lambda: _check_grid(section, entries, parameters), None)
    return found


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


def _lease(section: Cursor, problems: Problems) -> Lease:
    entries, lease, wrong = section.table(LEASE_KEYS, None, problems), Lease(), Problems()
    for key in entries:
        wrong.attempt(entries[key].number, 0)
    wrong.check()
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
