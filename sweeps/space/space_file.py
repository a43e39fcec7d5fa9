"""Search space files: YAML in, a validated `Space` out, or a line for each mistake that says what to write.

The reference is docs/reference/space-file.md. The parts: `yaml_cursor` (safe YAML with line numbers),
`sections` (keys, types and bounds of each section, as pydantic models), and what refers to other sections:
`space_parameters`, `space_stages`, `space_fidelity`, and `space_checks` (constraints and the baseline).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

from sweeps.errors import InputError, SpaceError
from sweeps.space import (
    space_checks,
    space_fidelity,
    space_parameters,
    space_stages,
    yaml_cursor,
)
from sweeps.space.definition import (
    Brake,
    Budget,
    Choice,
    EarlyTerminate,
    Fixed,
    Lease,
    Objective,
    Parameter,
    Prior,
    Program,
    Range,
    Search,
    Snapshots,
    Source,
    Space,
    Stop,
    Value,
)
from sweeps.space.domain import ENUMERABLE, Domain, no_stop
from sweeps.space.priors import PRIOR_BY_DEFAULT, PRIOR_WIDTH, with_priors
from sweeps.space.scale import levels, middle
from sweeps.space.sections import (
    BrakeSection,
    BudgetSection,
    EarlyTerminateSection,
    LeaseSection,
    ObjectiveSection,
    ParameterSection,
    PriorSection,
    ProgramSection,
    SearchSection,
    build,
    instead_of,
    read,
)
from sweeps.space.yaml_cursor import Cursor, D, Problems, T
from sweeps.storage.urls import require_url
from sweeps.text.regular_file import open_regular

KEYS = tuple(field.name for field in fields(Space) if field.name != "defaults")
_REQUIRED = {
    "name": "name: my-sweep",
    "objectives": "objectives: [{metric: final_loss, goal: minimize}]",
    "program": "program: {trainer: {overrides: [model=tiny]}}",
    "parameters": "parameters: {stage2.optimizer.lr: {min: 1.0e-3, max: 8.0e-3}}",
}
_HINTS = {
    "early_stopping": "write early_terminate: {type: percentile}",
    "method": "write search: {method: bayes}",
    "command": "write program: {command: [...]}",
    "stop": "write search: {stop: {expected_gain: 0.004}}",
    "reuse": "write search: {reuse: auto} or search: {reuse: none}",
    "prior": "write search: {prior: none}, or prior: {around: 3e-3, factor: 3} of a parameter",
    "defaults": "write default: of a parameter, or baseline:",
    "from": "write transfer: {from: [./sweep-store/small]}",
    "constraints": "write parameter_constraints: or outcome_constraints:",
    # Words of W&B and of Optuna.
    **instead_of("metric", "direction", "directions", write="objectives: [{metric: LOSS, goal: minimize}]"),
    **instead_of("params", "search_space", "distributions", write="parameters:"),
    "study_name": "write name:",
    "n_trials": "write run_cap:",
    "sampler": "write search: {method: bayes}, random or grid",
    "pruner": "write early_terminate: {type: median} or {type: hyperband}",
    "n_jobs": "leave it out; start so many workers: sweep launch local --workers N",
    "timeout": "leave it out; limit the sweep by `sweep extend --wall-hours H` once it is made",
    "storage": "leave it out; say it with the commands: --storage FOLDER",
    "load_if_exists": "leave it out; sweep init --skip-if-exists does that",
}


def load(path: str | os.PathLike[str]) -> Space:
    """Return the search space in the file. Raises SpaceError, also if the file cannot be read."""
    return loads(text_of(path), os.fspath(path))


def text_of(
    path: str | os.PathLike[str], example: str = "docs/reference/space-file.md shows what to write into one"
) -> str:
    """Return the text of a YAML file. Raises SpaceError if it cannot be read."""
    file = os.fspath(path)
    try:
        with open_regular(Path(path)) as stream:
            data = stream.read(yaml_cursor.MAX_BYTES + 1)
    except FileNotFoundError:
        raise SpaceError(f"there is no such file; {example}", file=file) from None
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


def _require_own_format(root: Cursor, file: str) -> None:
    """Raise SpaceError for a sweep file of W&B, and for the configuration of a Hydra application."""
    sections = {key.text(): value for key, value in root.pairs()}
    if {"method", "metric", "parameters"} <= sections.keys():
        problem = (
            f"a sweep file of W&B; write its translation with: sweep init --from-wandb {file} SPACE.yaml"
        )
        raise SpaceError(problem, file=file, line=root.line)
    if "hydra" in sections:
        problem = (
            "the configuration of a Hydra application; run that as it is, `python APP.py -m "
            "hydra/sweeper=stagesweep`, or copy what is under hydra.sweeper.params to parameters: here"
        )
        raise SpaceError(problem, file=file, line=sections["hydra"].line)


def loads(text: str, file: str) -> Space:
    """Return the search space in `text`; `file` is its name in errors. Raises SpaceError."""
    root = yaml_cursor.parse(text, file)
    _require_own_format(root, file)
    problems = Problems()
    entries = root.table(KEYS, problems, hints=_HINTS, examples=_REQUIRED)

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
    nothing: tuple[tuple[Parameter, ...], frozenset[str], dict[str, ParameterSection]]
    nothing = ((), frozenset(), {})
    parameters, wrong, sections = section(
        "parameters", lambda each: space_parameters.parameters(each, problems), nothing
    )
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
        program=section("program", lambda each: _program(each, parameters), Program(kind="function")),
        outcome_constraints=section(
            "outcome_constraints", lambda each: space_checks.outcome_constraints(each, goals, problems), ()
        ),
        parameter_constraints=constraints,
        search=section("search", lambda each: _search(each, parameters), Search()),
        run_cap=section("run_cap", lambda each: each.integer(least=1), None),
        lease=section("lease", lambda each: build(Lease, read(each, LeaseSection)), Lease()),
        budget=section("budget", lambda each: build(Budget, read(each, BudgetSection)), Budget()),
        brake=section(
            "brake",
            lambda each: (
                Brake(first=0, later=0)  # `brake:` alone switches it off
                if each.kind() == "nothing"
                else build(Brake, read(each, BrakeSection))
            ),
            Brake(),
        ),
    )
    early = section("early_terminate", lambda each: _early_terminate(each, space), None)
    space = replace(space, early_terminate=early)
    if "baseline" in entries and space.search.method == "grid":
        problem = "a grid has every configuration already; take it out"
        problems.found.append(entries["baseline"].refusal(problem))
    elif is_right("parameters") or wrong:
        if "baseline" in entries and entries["baseline"].kind() == "`none`":
            space = replace(space, defaults="unused")
        else:
            baseline = section("baseline", lambda each: space_checks.baseline(each, space, wrong=wrong), None)
            space = replace(space, baseline=baseline)
    if is_right("parameters", "parameter_constraints", "program", "search"):
        has_baseline = "baseline" in entries
        space = _with_priors_and_defaults(space, sections, entries, problems, has_baseline=has_baseline)
    others = ("objectives", "parameters", "outcome_constraints")
    if space.search.stop is not None and is_right(*others) and (why := no_stop(space)):
        problems.found.append(entries["search"].at("stop").refusal(f"{why}; take it out"))
    if is_right("parameters", "program"):
        space = replace(space, stages=section("stages", lambda each: space_stages.stages(each, space), ()))
    if is_right("parameters", "program", "objectives", "stages", "early_terminate"):
        section("early_terminate", lambda each: _check_cost_is_known(each, space), None)
    if is_right("parameters", "program", "stages"):
        limits = section("snapshots", lambda each: space_stages.snapshots(each, space), Snapshots())
        space = replace(space, snapshots=limits)
    if is_right("search", "objectives"):
        space = replace(
            space, transfer=section("transfer", lambda each: _transfer(each, space, problems), ())
        )
    if "fidelity" in entries and is_right(*KEYS):
        space = section("fidelity", lambda each: space_fidelity.with_fidelity(each, space, entries), space)
    problems.check()
    return space


def _transfer(section: Cursor, space: Space, problems: Problems) -> tuple[Source, ...]:
    """Return the sources, of which only the URL is known before the sweep is made."""
    example = "transfer: {from: [./sweep-store/small]}"
    if section.kind() != "a mapping":
        raise section.refusal(f"write {example}")
    if space.search.method != "bayes":
        raise section.refusal(f"has no effect with method: {space.search.method}; take it out")
    hints = dict.fromkeys(("url", "urls", "source", "sources", "sweeps"), "write from:")
    entries = section.table(("from",), problems, hints=hints, examples={"from": example})
    found: dict[str, Source] = {}
    for item in entries["from"].items() if "from" in entries else ():
        if (url := item.text()) in found:
            raise item.refusal("named twice; keep one")
        try:
            require_url(url)
        except InputError as error:
            raise item.refusal(str(error)) from None
        found[url] = Source(url=url)
    return tuple(found.values())


def _objectives(section: Cursor, problems: Problems) -> tuple[Objective, ...]:
    found: dict[str, Objective] = {}
    for item in section.items():
        try:
            objective = build(Objective, read(item, ObjectiveSection))
            if objective.metric in found:
                raise item.at("metric").refusal(f"`{objective.metric}` is an objective already")
            found[objective.metric] = objective
        except SpaceError as error:
            problems.found.append(error)
    return tuple(found.values())


def _program(section: Cursor, parameters: Sequence[Parameter]) -> Program:
    taken = {each.name: f"`{each.name}` is a parameter too; keep one" for each in parameters}
    program = read(section, ProgramSection, taken | {"run_dir": "run_dir is set by the worker"})
    if program.trainer is not None:
        return build(partial(Program, kind="trainer"), program.trainer)
    return build(partial(Program, kind="command" if program.command else "function"), program)


def _search(section: Cursor, parameters: Sequence[Parameter]) -> Search:
    written = read(section, SearchSection)
    search = build(Search, written)
    if written.stop is not None:
        search = replace(search, stop=build(Stop, written.stop))
    if search.method != "grid":
        return search
    size = 1
    for parameter in parameters:
        match parameter:
            case Range():
                if (count := levels(parameter)) is None:
                    raise section.refusal(
                        f"a grid is finite, and `{parameter.name}` is a range of floats; "
                        "give it step: or values:"
                    )
                size *= count
            case Choice(values=values):
                size *= len(values)
    if size > ENUMERABLE:
        raise section.refusal(
            f"the grid has {size} configurations, more than {ENUMERABLE}; "
            "take values out, or write method: bayes"
        )
    return search


def _early_terminate(section: Cursor, space: Space) -> EarlyTerminate:
    """Return the early stopping of trials. Raises SpaceError, also where it would never happen."""
    early = build(EarlyTerminate, read(section, EarlyTerminateSection))
    if len(space.objectives) > 2 and early.type != "curve":
        raise section.refusal(
            f"{early.type} goes with two objectives at most, a loss and a cost: among more, a trial with a "
            "high loss may be on the front; write type: curve"
        )
    if space.run_cap is not None and early.min_trials >= space.run_cap:
        raise section.at("min_trials").refusal(
            f"min_trials ({early.min_trials}) must be less than run_cap ({space.run_cap}), "
            "or no trial is ever stopped"
        )
    return early


def _check_cost_is_known(section: Cursor, space: Space) -> None:
    """Refuse rules that compare losses where no objective can say which trials cost no more.

    Args:
        space: with its stages, as far as the file names them.
    """
    if not space.stops_by_cost():
        return
    if space.program.kind == "trainer":
        if "effective_steps" not in space.metrics():
            raise section.refusal(
                "of two objectives, one must be effective_steps, the cost of the stages; write type: curve"
            )
    elif not space.stages or not all(stage.cost for stage in space.stages):
        raise section.refusal(
            "of two objectives, one must be the cost of the stages, and stages: with their cost: say none; "
            "write type: curve"
        )


def _with_priors_and_defaults(
    space: Space,
    sections: Mapping[str, ParameterSection],
    file: Mapping[str, Cursor],
    problems: Problems,
    *,
    has_baseline: bool,
) -> Space:
    """Return the space with the priors and defaults that a file states.

    Args:
        space: with ranges that the constraints have narrowed.
        has_baseline: whether the file has a first trial of its own, or wants none.
    """
    writes_prior = "search" in file and any(key.text() == "prior" for key, _ in file["search"].pairs())
    if not writes_prior and space.search.method == "bayes" and len(space.objectives) == 1:
        space = replace(space, search=replace(space.search, prior=PRIOR_BY_DEFAULT))
    defaults: dict[str, Value] = {}
    parameters: list[Parameter] = []
    for parameter in space.parameters:
        section = sections.get(parameter.name)
        parameters.append(parameter)
        if section is None or isinstance(parameter, Fixed):
            continue
        body = file["parameters"].at(parameter.name)
        if "prior" in section.model_fields_set:
            prior = problems.attempt(partial(_prior, body, section, parameter, space), None)
            parameters[-1] = parameter if space.search.prior == "none" else replace(parameter, prior=prior)
        if "default" in section.model_fields_set:
            value = problems.attempt(partial(_default, body, parameter, space), None)
            defaults[parameter.name] = value
    space = replace(space, parameters=tuple(parameters))
    if not defaults or problems.found:
        return space
    if space.search.prior == "defaults":
        space = with_priors(space, defaults)
    if has_baseline:
        return space
    domain = Domain(space)
    first = domain.complete(
        {name: defaults.get(name, middle(parameter)) for name, parameter in domain.searched.items()}
    )
    if not domain.allows(first):
        problems.found.append(
            file["parameter_constraints"].refusal(
                "the defaults break these; write others, or another first trial, or baseline: none"
            )
        )
        return space
    return replace(space, baseline=first, defaults="first")


def _default(body: Cursor, parameter: Parameter, space: Space) -> Value:
    at = body.at("default")
    if space.program.kind == "trainer":
        raise at.refusal("the trainer has its own; write baseline: for another first trial, or prior:")
    if space.search.method == "grid":
        raise at.refusal("a grid has every configuration already; take it out")
    return space_checks.inside(at, parameter)


def _prior(body: Cursor, section: ParameterSection, parameter: Range | Choice, space: Space) -> Prior:
    at, prior = body.at("prior"), section.prior or PriorSection(around=body)
    if space.search.method != "bayes":
        raise at.refusal(f"has no effect with method: {space.search.method}; take it out")
    if isinstance(parameter, Range) and parameter.normal is not None:
        raise at.refusal("the normal distribution says already where the best value is; keep one of the two")
    around, width = space_checks.inside(at.at("around"), parameter), PRIOR_WIDTH
    if isinstance(parameter, Choice):
        for key in ("factor", "width"):
            if key in prior.model_fields_set:
                raise at.at(key).refusal("goes with min: and max:; a choice has around: alone")
    elif parameter.log:
        if prior.width is not None:
            raise at.at("width").refusal("goes with linear ranges; write factor:, such as 3")
        if prior.factor is not None:
            width = math.log(prior.factor) / math.log(parameter.max / parameter.min)
    else:
        if prior.factor is not None:
            raise at.at("factor").refusal(
                "goes with logarithmic ranges; write width:, the standard deviation in the parameter's unit"
            )
        if prior.width is not None:
            width = prior.width / (parameter.max - parameter.min)
    return Prior(around=around, width=width)
