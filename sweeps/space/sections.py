"""Sections of a search space file as pydantic models.

None is the value of a key that is left out; the default that it has then stands in `definition`.

pydantic knows which keys a section has and collects what is wrong in any of them. Values are read by the
methods of `Cursor`, whose refusals say file, line and key, and what to write instead. What refers to other
sections is checked by `space_file`, `space_parameters` and `space_stages`.

Only they import this module, and only to read a file: pydantic takes 0.14 s to import.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, cast, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.functional_validators import ModelWrapValidatorHandler  # 2.9 has it here alone

from sweeps.errors import SpaceError
from sweeps.space.definition import BUDGET_HINTS, EarlyRule, Goal, Lease, Method, Priors, Reuse
from sweeps.space.overrides import WORDS, split
from sweeps.space.yaml_cursor import Cursor, Problems, nearest

S = TypeVar("S", bound="Section")
T = TypeVar("T")

FEWEST_CURVES = 5
"""Completed trials that `type: curve` needs to predict from."""

MOST_STOP_TRIALS = 100
"""Trials that `search.stop` may look ahead: the simulated searches of more take longer than a fit."""

_WORD = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*"
_METRIC = re.compile(rf"{_WORD}(?:/{_WORD})*", re.ASCII)
_IDENTIFIER = r"[A-Za-z_][A-Za-z0-9_]*"
_FUNCTION = re.compile(rf"{_IDENTIFIER}(?:\.{_IDENTIFIER})*:{_IDENTIFIER}", re.ASCII)
_PATTERN = re.compile(r"[A-Za-z0-9_.@/*-]+", re.ASCII)
_NO_PATTERN = "write the name of a parameter, or a pattern in which `*` stands for any text"


class Refusal(ValueError):
    """A SpaceError inside of a validator: pydantic collects ValueErrors and lets others through."""

    def __init__(self, error: SpaceError) -> None:
        self.error = error
        super().__init__()  # pydantic cannot encode a message with half a surrogate pair


@dataclass(frozen=True, kw_only=True)
class _Context:
    """What validators know besides their value: where to collect problems, and names that are taken."""

    problems: Problems
    taken: Mapping[str, str]


def read(cursor: Cursor, kind: type[S], taken: Mapping[str, str] = MappingProxyType({})) -> S:
    """Return a section that is written at the cursor. Raises SpaceError with all that is wrong in it.

    Args:
        taken: keys that `program.trainer.overrides` must not have, each with the reason.
    """
    problems = Problems()
    try:
        section = kind.model_validate(cursor, context=_Context(problems=problems, taken=taken))
    except ValidationError as error:
        for each in error.errors(include_url=False):
            if isinstance(refused := each.get("ctx", {}).get("error"), Refusal):
                problems.found.append(refused.error)
        problems.check()  # keys that are missing have been collected by `Cursor.table`
        raise
    problems.check()
    return section


def build(kind: Callable[..., T], section: Section) -> T:
    """Return what `kind` makes of the keys that are written; it has the defaults of the others."""
    return kind(**{name: getattr(section, name) for name in section.model_fields_set})


class Section(BaseModel):
    """A mapping with known keys."""

    model_config = ConfigDict(frozen=True)

    hints: ClassVar[Mapping[str, str]] = {}
    """What to write instead of keys that other tools have."""
    examples: ClassVar[Mapping[str, str]] = {}
    """What to write for each key that must be there."""
    instead: ClassVar[str] = ""
    """What to write instead of a value that is no mapping."""
    may_be_nothing: ClassVar[bool] = False
    """Whether the section may have no value, which is that of an empty mapping."""

    def _check(self, section: Cursor) -> None:
        """Raise SpaceError if values that are right alone do not go together."""

    @model_validator(mode="wrap")
    @classmethod
    def _read(cls, section: Cursor, validate: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        problems = cast(_Context, info.context).problems
        before = len(problems.found)
        try:
            if cls.may_be_nothing and section.kind() == "nothing":
                return validate({})
            if cls.instead and section.kind() not in ("a mapping", "nothing"):
                raise section.refusal(cls.instead)
            entries = section.table(cls.model_fields, problems, hints=cls.hints, examples=cls.examples)
            found = validate(entries)
            if len(problems.found) == before:  # else what does not go together may follow from it
                found._check(section)
        except SpaceError as error:
            raise Refusal(error) from None
        return found


def read_with(reader: Callable[[Cursor], object]) -> BeforeValidator:
    """Return the validator that reads a value from its cursor."""

    def validate(cursor: Cursor) -> object:
        try:
            return reader(cursor)
        except SpaceError as error:
            raise Refusal(error) from None

    return BeforeValidator(validate)


def number(is_right: Callable[[float], bool], otherwise: str) -> BeforeValidator:
    """Return the validator of a number; `otherwise` is the message about any other, after the value."""

    def reader(cursor: Cursor) -> float:
        value = float(cursor.number())
        if not is_right(value):
            raise cursor.refusal(f"{cursor.kind()} {otherwise}")
        return value

    return read_with(reader)


def matching(pattern: re.Pattern[str], otherwise: str) -> BeforeValidator:
    """Return the validator of a text that matches as a whole; `otherwise` is the message about any other."""

    def reader(cursor: Cursor) -> str:
        if not pattern.fullmatch(text := cursor.text()):
            raise cursor.refusal(otherwise)
        return text

    return read_with(reader)


def instead_of(*keys: str, write: str) -> dict[str, str]:
    """Return the hint at what to write for each of these keys."""
    return dict.fromkeys(keys, f"write {write}")


# None is inside of each type, since defaults are not validated: a key that is left out is None.
Text = Annotated[str | None, read_with(Cursor.text)]
Number = Annotated[int | float | None, read_with(Cursor.number)]
Count = Annotated[int | None, read_with(lambda cursor: cursor.integer(least=1))]
Limit = Annotated[float | None, number(lambda n: n > 0, "is not more than 0; no trial could run")]
Failures = Annotated[int | None, read_with(lambda c: 0 if c.kind() == "nothing" else c.integer(least=0))]
Items = read_with(Cursor.items)


class ObjectiveSection(Section):
    """One of `objectives:`."""

    examples = {"metric": "{metric: final_loss, goal: minimize}"}

    metric: Annotated[
        str, matching(_METRIC, "not the name of a metric; write letters, digits, `_`, dots and slashes")
    ]
    goal: Annotated[Goal | None, read_with(lambda c: c.one_of(get_args(Goal)))] = None


def _override(cursor: Cursor, info: ValidationInfo) -> str:
    text, taken = cursor.text(), cast(_Context, info.context).taken
    try:
        key, _ = split(text)
    except ValueError as error:
        raise Refusal(cursor.refusal(f"{error}")) from None
    if key in taken:
        raise Refusal(cursor.refusal(taken[key]))
    return text


class TrainerSection(Section):
    """`program: {trainer: ...}`."""

    may_be_nothing = True

    overrides: Annotated[tuple[Annotated[str, BeforeValidator(_override)], ...], Items] = ()
    processes: Count = None
    nodes: Count = None

    def _check(self, section: Cursor) -> None:
        keys = [split(override)[0] for override in self.overrides]
        for position, key in enumerate(keys):
            if key in keys[:position]:
                raise (
                    section.at("overrides")
                    .items()[position]
                    .refusal(f"`{key}` is overridden twice; keep one")
                )


class ProgramSection(Section):
    """`program:`."""

    instead = (
        'write {trainer: {overrides: [...]}}, {command: ["python", "train.py", "${overrides}"]} '
        'or {function: "package.module:name"}'
    )

    trainer: TrainerSection | None = None
    command: Annotated[tuple[Annotated[str, read_with(Cursor.text)], ...], Items] = ()
    function: Annotated[
        str, matching(_FUNCTION, "write package.module:function, with a colon before the function's name")
    ] = ""
    devices: Count = None

    def _check(self, section: Cursor) -> None:
        if len(self.model_fields_set - {"devices"}) != 1:
            raise section.refusal("write exactly one of trainer:, command: and function:")
        if self.trainer is not None and self.devices is not None:
            raise section.at("devices").refusal(
                "goes with command: and function:; of the trainer write processes: in its own section, one "
                "for each device"
            )
        if self.command and not any(each in WORDS for each in self.command[1:]):
            raise section.at("command").refusal(
                'has no element "${overrides}" (lr=0.1) or "${args}" (--lr=0.1) of its own; the parameters '
                "would not reach the program"
            )


def _noise(cursor: Cursor) -> str | float:
    value = cursor.value()
    if value in ("inferred", "reported"):
        return str(value)
    if isinstance(value, bool | str) or value <= 0:
        raise cursor.refusal(
            f"{value!r} is no noise; write inferred, reported, or a standard deviation above 0"
        )
    return float(value)


class StopSection(Section):
    """`stop:` of `search:`."""

    examples = {"expected_gain": "stop: {expected_gain: 0.004}, in the unit of the objective"}
    hints = {
        **instead_of("gain", "improvement", "improvement_bar", "min_delta", "delta", write="expected_gain:"),
        **instead_of("window_size", "patience", "iterations", write="trials:"),
        "chance": "write expected_gain: in the unit of the objective; `sweep best` states the chance",
        **instead_of("max_trials", "run_cap", write="run_cap: at the top level"),
    }
    instead = "write {expected_gain: 0.004}: the search ends once 12 more trials are expected to gain less"

    expected_gain: Annotated[
        float, number(lambda n: 0 < n < float("inf"), "is no gain above 0, in the unit of the objective")
    ]
    trials: Annotated[int | None, read_with(lambda c: c.integer(least=1, most=MOST_STOP_TRIALS))] = None


class SearchSection(Section):
    """`search:`."""

    method: Annotated[Method | None, read_with(lambda c: c.one_of(get_args(Method)))] = None
    sobol: Count = None
    seed: Annotated[int | None, read_with(lambda c: c.integer(least=0, most=2**31 - 1))] = None
    noise: Annotated[Literal["inferred", "reported"] | float | None, read_with(_noise)] = None
    reuse: Annotated[Reuse | None, read_with(lambda c: c.one_of(get_args(Reuse)))] = None
    prior: Annotated[Priors | None, read_with(lambda c: c.one_of(get_args(Priors)))] = None
    stop: StopSection | None = None

    def _check(self, section: Cursor) -> None:
        for key in ("sobol", "seed", "noise"):
            if self.method == "grid" and key in self.model_fields_set:
                raise section.at(key).refusal("has no effect on a grid; take it out")
        if self.method in ("grid", "random") and "prior" in self.model_fields_set:
            raise section.at("prior").refusal(f"has no effect with method: {self.method}; take it out")


class LeaseSection(Section):
    """`lease:`."""

    heartbeat_s: Annotated[float, number(lambda n: n > 0, "is not more than 0 seconds")] = Lease.heartbeat_s
    expire_s: Annotated[float, read_with(Cursor.number)] = Lease.expire_s
    max_attempts: Count = None

    def _check(self, section: Cursor) -> None:
        if self.expire_s <= 2 * self.heartbeat_s:
            key = "expire_s" if "expire_s" in self.model_fields_set else "heartbeat_s"
            raise section.at(key).refusal(
                f"expire_s ({self.expire_s:g}) must be more than twice heartbeat_s ({self.heartbeat_s:g}), "
                "or one late heartbeat loses the trial"
            )


class BudgetSection(Section):
    """`budget:`."""

    hints = BUDGET_HINTS

    effective_steps: Limit = None
    device_hours: Limit = None
    usd: Limit = None
    wall_hours: Limit = None

    def _check(self, section: Cursor) -> None:
        if not self.model_fields_set:
            known = ", ".join(type(self).model_fields)
            raise section.refusal(f"limits nothing; write one of {known}, or take it out")


class BrakeSection(Section):
    """`brake:`."""

    instead = "write {first: 3, later: 5}; 0 switches it off"

    first: Failures = None
    later: Failures = None


_RULES = ("percentile", "median", "hyperband", "curve")
_OTHER_RULES = {
    **instead_of("asha", "successive_halving", write="hyperband, which is asynchronous successive halving"),
    **instead_of("wilcoxon", write="curve, which stops what cannot come near the best any more"),
}


def _rule(cursor: Cursor) -> str:
    name = cursor.text()
    if name not in _RULES:
        hint = _OTHER_RULES.get(name.lower()) or nearest(name, _RULES)
        raise cursor.refusal(f"`{name}` is unknown; {hint}")
    return "percentile" if name == "median" else name  # the default percentile


class EarlyTerminateSection(Section):
    """`early_terminate:`."""

    examples = {"type": "{type: percentile, percentile: 50} or {type: curve}"}
    hints = {
        **instead_of("min_iter", "min_progression", "n_warmup_steps", "grace_period", write="min_step:"),
        **instead_of("min_curves", "n_startup_trials", write="min_trials:"),
        **instead_of("reduction_factor", write="eta:"),
        **instead_of("percentile_threshold", write="percentile:"),
        **instead_of("max_iter", "s", write="min_step:; rungs follow, each eta: times as far, up to the end"),
    }

    type: Annotated[EarlyRule, read_with(_rule)]
    percentile: Annotated[
        float | None,
        number(lambda n: 0 < n < 100, "is not between 0 and 100 percent; 50 means the worse half"),
    ] = None
    min_trials: Count = None
    min_step: Annotated[float | None, number(lambda n: n >= 0, "is no step; a step is at least 0")] = None
    margin: Annotated[
        float | None,
        number(lambda n: 0 <= n < 1, "is no share of the best value; 0.005 means half a percent"),
    ] = None
    eta: Annotated[
        float | None,
        number(lambda n: 1 < n <= 100, "is not above 1 and at most 100; at each rung, one of eta: goes on"),
    ] = None

    def _check(self, section: Cursor) -> None:
        written = section.at("type").text()
        for key, rule in (("percentile", "percentile"), ("margin", "curve"), ("eta", "hyperband")):
            if key in self.model_fields_set and rule != written:
                raise section.at(key).refusal(f"goes with type: {rule} only; take it out")
        if self.type == "curve" and self.min_trials is not None:
            section.at("min_trials").integer(least=FEWEST_CURVES)


class TrunkSection(Section):
    """`trunk:` of a stage."""

    examples = dict.fromkeys(("length", "decay"), "trunk: {length: align.steps, decay: 0.15}")
    hints = {
        "every": "the program itself decides after which steps it leaves a point",
        **instead_of("steps", write="length: and the parameter that has the stage's steps"),
    }

    length: Annotated[str, read_with(Cursor.text)]
    decay: Annotated[
        int | float | str, read_with(lambda c: v if isinstance(v := c.value(), str) else c.number())
    ]


class StageSection(Section):
    """One of `stages:`."""

    examples = {"name": "name: stage1", "parameters": 'parameters: ["stage1.*", seed]'}
    hints = {
        **instead_of("params", write="parameters:"),
        **instead_of("costs", write="cost:"),
        **instead_of("steps", write="cost: and an expression such as 2*stage1.steps"),
    }

    name: Annotated[str, read_with(Cursor.folder_name)]
    parameters: Annotated[
        tuple[Annotated[str, matching(_PATTERN, _NO_PATTERN)], ...],
        read_with(lambda cursor: cursor.items(may_be_empty=True)),  # empty: the same in all trials
    ]
    cost: Text = None
    trunk: TrunkSection | None = None


class SnapshotsSection(Section):
    """`snapshots:`."""

    keep: Count = None
    keep_gib: Annotated[
        float | None, number(lambda n: n > 0, "is not more than 0 GiB; search: {reuse: none} stores none")
    ] = None


def _cost(cursor: Cursor) -> tuple[float, ...]:
    return tuple(float(item.number()) for item in cursor.items())


class FidelitySection(Section):
    """One of `fidelity:`."""

    may_be_nothing = True
    hints = {
        **instead_of("costs", "fixed_cost", write="cost: [0.3, 1, 3.3], a number for each value"),
        **instead_of("min", "max", "values", "steps", write="them as values: under parameters:"),
        **instead_of("budget", "min_budget", "max_budget", write="values: of the parameter"),
    }
    instead = "write {cost: [0.3, 1, 3.3]}, what a trial with each value costs in any unit, or {}"

    target: Annotated[Any, read_with(lambda cursor: cursor)] = None
    cost: Annotated[tuple[float, ...], read_with(_cost)] = ()


class PriorSection(Section):
    """`prior:` of a parameter."""

    examples = {"around": "prior: {around: 3e-3, factor: 3}"}
    hints = {
        **instead_of("mu", "mean", "default", write="around:"),
        **instead_of("sigma", "std", "sd", write="factor: on a logarithmic range, width: on a linear one"),
    }
    instead = "write {around: 3e-3, factor: 3}; factor: is the standard deviation"

    around: Annotated[Any, read_with(lambda cursor: cursor)]
    factor: Annotated[
        float | None,
        number(
            lambda n: 1 < n < float("inf"),
            "is no factor above 1; 3 means a standard deviation of three times",
        ),
    ] = None
    width: Annotated[
        float | None, number(lambda n: 0 < n < float("inf"), "is no standard deviation above 0")
    ] = None


class ParameterSection(Section):
    """One of `parameters:`, of any kind; `space_parameters` decides which keys go together."""

    hints = {
        **instead_of("bounds", write="min: and max:"),
        **instead_of("low", write="min:"),
        **instead_of("high", write="max:"),
        **instead_of("choices", write="values:"),
        "type": "the type follows from the values: 1 is an integer, 1.0 a float, true a boolean",
        **instead_of("log", "log_scale", "scaling", write="distribution: log_uniform_values"),
        **instead_of("is_ordered", write="ordered:"),
        **instead_of("dependents", "dependent_parameters", write="when: {value: [names]}"),
        "parameters": "parameters are not nested; write the dotted Hydra key, such as optimizer.lr",
        "probabilities": "all values are equally likely before the first results",
        **instead_of("q", write="step:, and a min: from which the steps count"),
        **instead_of("mean", write="mu:"),
        **instead_of("std", write="sigma:"),
    }

    min: Number = None
    max: Number = None
    distribution: Text = None
    step: Number = None
    mu: Number = None
    sigma: Number = None
    values: Annotated[tuple[Annotated[Any, read_with(Cursor.value_or_list)], ...], Items] = ()
    ordered: Annotated[bool, read_with(Cursor.boolean)] = False
    when: Annotated[
        list[tuple[Any, tuple[Annotated[str, read_with(Cursor.text)], ...]]] | None,
        read_with(lambda c: [(key, names.items()) for key, names in c.pairs()]),
    ] = None
    value: Annotated[Any, read_with(Cursor.value_or_list)] = None
    default: Annotated[Any, read_with(lambda cursor: cursor)] = None
    prior: PriorSection | None = None
