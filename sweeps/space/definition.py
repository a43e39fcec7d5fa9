"""Validated search space of a sweep: parameters, search and program.

`space_file` reads a `Space` from YAML, `space_json` from `sweep.json`. Everything
here is frozen and independent of files, stores and Ax, so that `sweep status` can import it cheaply.
"""

from __future__ import annotations

import json
import math
import operator
import sys
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeGuard

from sweeps.space.typed import ReadOnly

_LARGEST = int(sys.float_info.max)  # integers that a float can hold


@dataclass(frozen=True)
class _As:
    """Schema for pydantic: a value that is right stays as it is, but for lists, which become tuples.

    Args:
        otherwise: what should stand there, for messages.
        common: types of which pydantic's own checks suffice, which take a tenth of the time.
        least: of the integers among them.
    """

    is_right: Callable[[Any], bool]
    otherwise: str
    common: tuple[type, ...] = ()
    least: int = -_LARGEST

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        def check(written: Any) -> Any:
            if not self.is_right(value := from_plain(written)):
                raise ValueError
            return value

        quick: dict[type, core_schema.CoreSchema] = {
            int: core_schema.int_schema(strict=True, ge=self.least, le=_LARGEST),
            float: core_schema.float_schema(strict=True, allow_inf_nan=False),
            str: core_schema.str_schema(strict=True),
        }
        rest = core_schema.no_info_plain_validator_function(check)
        either = core_schema.union_schema(
            [*(quick[kind] for kind in self.common), rest], mode="left_to_right"
        )
        return core_schema.custom_error_schema(either, "value", custom_error_message=self.otherwise)


if TYPE_CHECKING:
    Value = bool | int | float | str | None | tuple["Value", ...]
else:  # pydantic takes no recursive alias
    Value = Annotated[
        Any,
        _As(
            lambda v: is_value(v),
            "a text, true or false, null, a finite number, or a list",
            (int, float, str),
        ),
    ]
"""Value of a parameter, null and lists among them; True is not equal to 1 here.

A list is a tuple, so that it can be a key: `from_plain` and `to_plain` convert it from and to a list.
"""

Number = Annotated[float, _As(lambda v: is_number(v) and is_value(v), "a finite number", (int, float))]
"""Finite number that is an integer if it is written as one."""

Positive = Annotated[float, _As(lambda v: is_number(v) and is_value(v) and v > 0, "a finite number above 0")]
Count = Annotated[
    int, _As(lambda v: type(v) is int and is_value(v) and v >= 0, "an integer from 0", (int,), 0)
]
CountFrom1 = Annotated[int, _As(lambda v: type(v) is int and is_value(v) and v >= 1, "an integer from 1")]

Goal = Literal["minimize", "maximize"]
Method = Literal["bayes", "random", "grid"]
Reuse = Literal["auto", "none"]
Priors = Literal["stated", "defaults", "none"]
Defaults = Literal["unknown", "first", "unused"]
EarlyRule = Literal["percentile", "hyperband", "curve"]

MAX_VALUES = 1000
"""Most values of a choice that the optimizer takes."""

MAX_LISTS = 20
"""How deep lists may be nested."""


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Metric to optimise; `metric` is a key of the result's `metrics`."""

    metric: str
    goal: Goal = "minimize"

    @property
    def sign(self) -> float:
        """Return the factor that turns the metric into a loss."""
        return 1.0 if self.goal == "minimize" else -1.0


@dataclass(frozen=True, kw_only=True)
class Prior:
    """Where the best value of a parameter probably is.

    Args:
        width: standard deviation, as a share of the range on the scale that is searched, or of the way from
            the first to the last option of an ordered choice; an unordered one does without.
    """

    around: Value
    width: float


@dataclass(frozen=True, kw_only=True)
class Range:
    """Parameter with numbers from `min` to `max`, both included.

    Args:
        max: greatest value; a whole number of steps from `min`, if there are steps.
        log: search the logarithm.
        step: distance of the values; None: 1 for integers, and any float.
        normal: mean and standard deviation, of the logarithm if `log`, of the normal distribution that the
            first candidates have and on whose shares the search models the objectives; None: uniform.
        when: conditions on the value, each with the parameters that exist only while it holds.
        prior: where its best value probably is; None: nothing is known.
    """

    name: str
    min: Number
    max: Number
    kind: Literal["int", "float"]
    log: bool = False
    step: Number | None = None
    normal: tuple[float, float] | None = None
    when: tuple[tuple[str, tuple[str, ...]], ...] = ()
    prior: Prior | None = None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Parameter with two or more `values` of one type.

    Args:
        ordered: neighbours are similar, which the surrogate model uses.
        when: values, each with the parameters that exist only if this one has that value.
        prior: which of them is probably the best; None: nothing is known.
    """

    name: str
    values: tuple[Value, ...]
    ordered: bool = False
    when: tuple[tuple[Value, tuple[str, ...]], ...] = ()
    prior: Prior | None = None


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """Parameter with one value: not searched, but recorded and passed to the program."""

    name: str
    value: Value


Parameter = Range | Choice | Fixed

RELATIONS: Mapping[str, Callable[[float, float], bool]] = MappingProxyType(
    {">=": operator.ge, "<=": operator.le, "==": operator.eq, ">": operator.gt, "<": operator.lt}
)


@dataclass(frozen=True, kw_only=True)
class Condition:
    """Condition for a parameter to exist: a parent's value, or its relation to a number.

    Args:
        value: that it has or is compared with.
        relation: a key of RELATIONS; only `==` where the value is no number.
    """

    parent: str
    value: Value
    relation: str = "=="

    def holds(self, values: Mapping[str, Value]) -> bool:
        """Return whether the parent has a value, and one that satisfies the condition."""
        if self.parent not in values:
            return False
        value = values[self.parent]
        if self.relation == "==":
            return same_value(value, self.value)
        return is_number(value) and is_number(self.value) and RELATIONS[self.relation](value, self.value)

    def __str__(self) -> str:
        """Return it as a clause: `a is b`, or `a > 0`."""
        shown = self.value if isinstance(self.value, str) else json.dumps(self.value)
        return f"{self.parent} {'is' if self.relation == '==' else self.relation} {shown}"

    @classmethod
    def on_number(cls, parent: str, text: str) -> Condition:
        """Return the condition that is written as a relation and a number, such as `> 0`.

        Raises:
            ValueError: it is not written so.
        """
        relation = next((r for r in RELATIONS if text.startswith(r)), None)
        if relation is None:
            raise ValueError(f"{text!r} is no relation to a number")
        number = float(text.removeprefix(relation))
        return cls(parent=parent, value=int(number) if number.is_integer() else number, relation=relation)


@dataclass(frozen=True, kw_only=True)
class Program:
    """Program of a trial: the trainer, a command line, or a Python function.

    Args:
        overrides: `trainer`: fixed Hydra overrides, before those of the trial's parameters.
        processes: `trainer`: number of processes of one trial on each of its hosts.
        nodes: `trainer`: number of hosts of one trial.
        command: `command`: argv. The element `${overrides}` becomes one `key=value` argument per parameter,
            `${args}` one `--key=value`, and `overrides.WORDS` has more of these; `${run_dir}`, `${trial}` and
            `${python}` (the worker's) are replaced inside elements.
        function: `function`: `package.module:name`, from a dict of parameters to a dict of metrics.
        devices: `command` and `function`: number of accelerators that one trial takes.
    """

    kind: Literal["trainer", "command", "function"]
    overrides: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    function: str = ""
    processes: Count = 1
    nodes: Count = 1
    devices: Count = 1

    @property
    def devices_per_host(self) -> int:
        """Return how many accelerators a trial takes on each of its hosts."""
        return self.processes if self.kind == "trainer" else self.devices

    @property
    def is_user_script(self) -> bool:
        """Return whether only a user's own Python script can run it, by `sweep.run(function)` or `ask`."""
        return self.kind == "function" and not self.function


@dataclass(frozen=True, kw_only=True)
class Trunk:
    """The part of a stage that runs of several lengths share: all of it before the learning rate decays.

    With a warmup-stable-decay schedule, a run of fewer steps is the first part of a longer one, and a decay.

    Args:
        length: parameter that has the stage's steps.
        decay: share of the steps that the decay takes, 0 to 1, or the parameter that has it.
        tail: further parameters that nothing reads before the decay.
        every: steps between the points at which a trial leaves a snapshot. It leaves one more where its
            decay begins.
        without: settings with each of which a trial has no trunk, as parameter and value.
    """

    length: str
    decay: float | str
    tail: tuple[str, ...] = ()
    every: Count = 0
    without: tuple[tuple[str, Value], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stage of the program.

    Args:
        name: of its folder in `snapshots/`.
        parameters: names, or patterns with `*`; a parameter belongs to the first stage that matches it.
        cost: of computing it, a linear expression in parameters such as `2*stage1_9.max_steps` or `100`; "":
            unknown, so that the seconds that trials report are modelled.
        trunk: what trials of several lengths share of it; None: nothing.
    """

    name: str
    parameters: tuple[str, ...]
    cost: str = ""
    trunk: Trunk | None = None


@dataclass(frozen=True, kw_only=True)
class Snapshots:
    """Limits on the stored ends of stages, which later trials start from.

    Args:
        keep_gib: GiB that they may take together; None: no limit.
    """

    keep: CountFrom1 = 8
    keep_gib: Positive | None = None


@dataclass(frozen=True, kw_only=True)
class Stop:
    """End of a search whose further trials are not expected to gain much.

    Args:
        expected_gain: in the unit of the objective: the search ends once further trials are expected to
            gain no more than this.
    """

    expected_gain: Positive
    trials: CountFrom1 = 12


@dataclass(frozen=True, kw_only=True)
class Search:
    """Generation of candidates: `sobol` quasi-random trials first, then BoTorch, all from one `seed`.

    `grid` generates every configuration once, without the other fields.

    Args:
        method: of the candidates after the first ones.
        sobol: trials before BoTorch takes over. None: the search's default, fewer where trials share a first
            stage.
        noise: standard deviation of the objectives between repeats of a configuration: `inferred` by the
            surrogate, `reported` by each trial (`<metric>_sem`), or a number for all objectives.
        reuse: `auto`: trials that agree up to the end of a stage share it, and the search knows what is paid
            for; `none`: every trial computes all of its stages.
        prior: which parameters get a prior when the sweep is made: those of which a user has `stated` one,
            those with known `defaults` too, or `none`. The search itself reads the parameters' own.
        stop: when the search ends by itself; None: at the run cap or the budget alone.
    """

    method: Method = "bayes"
    sobol: Count | None = None
    seed: Count = 0
    noise: Literal["inferred", "reported"] | float = "inferred"
    reuse: Reuse = "auto"
    prior: Priors = "stated"
    stop: Stop | None = None


@dataclass(frozen=True, kw_only=True)
class Lease:
    """Seconds between heartbeats, seconds without one until a takeover, lost attempts until a failure."""

    heartbeat_s: Positive = 30.0
    expire_s: Positive = 90.0
    max_attempts: Count = 3


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Limits on the costs of a sweep; None is no limit.

    Args:
        effective_steps: 2 x Stage 1.9 steps + Stage 2 steps + 2 x Stage 3 steps, summed over trials.
        device_hours: hours of running trials, times their devices, summed over all attempts of all workers.
        usd: dollars, as the trials report them (`usd`).
        wall_hours: hours since the first trial was created.
        until: no trial is begun from then on, by the store's clock, in seconds since the epoch; only
            `sweep extend` sets it.
    """

    effective_steps: Positive | None = None
    device_hours: Positive | None = None
    usd: Positive | None = None
    wall_hours: Positive | None = None
    until: Positive | None = None


BUDGET_KEYS = ("effective_steps", "device_hours", "usd", "wall_hours")
"""Limits that a user can write."""

BUDGET_HINTS = MappingProxyType(
    {
        "steps": "write effective_steps: (2 x Stage 1.9 steps + Stage 2 steps, of all trials)",
        **dict.fromkeys(("trials", "run_cap"), "write run_cap: at the top level"),
        **dict.fromkeys(
            ("hours", "gpu_hours"), "write device_hours: (of all workers together) or wall_hours:"
        ),
        **dict.fromkeys(("dollars", "cost"), "write usd:"),
    }
)
"""What to write instead of words that are no limits."""


@dataclass(frozen=True, kw_only=True)
class Brake:
    """Numbers of equal failures in a row after which the sweep pauses itself; 0 for never.

    Args:
        first: while no trial has completed.
        later: from then on.
    """

    first: Count = 3
    later: Count = 5


@dataclass(frozen=True, kw_only=True)
class EarlyTerminate:
    """Early stopping of running trials.

    Args:
        type: the strategy: Ax's percentile, successive halving, or a prediction from the curves of completed
            trials.
        percentile: `percentile` only: a trial is stopped when its intermediate loss is among the worst so
            many percent of those of other trials at the same step.
        min_trials: number of trials that must have completed, and of others that must have reached the
            step, before one is stopped.
        min_step: no trial is stopped before this step of its last stage; the first rung of `hyperband`.
        margin: `curve` only: a trial that may come so near to the best goes on, as a share of the best value.
        eta: `hyperband` only: one of so many trials goes on at each rung; the next is so many times as far.
    """

    type: EarlyRule = "percentile"
    percentile: float = 50.0
    min_trials: int = 5
    min_step: float = 10.0
    margin: float = 0.005
    eta: float = 3.0


@dataclass(frozen=True, kw_only=True)
class Result:
    """Result of an earlier sweep: the values of matched parameters, and those of the objectives.

    Args:
        value: of the first objective.
        others: of further ones, in their order.
    """

    parameters: ReadOnly[Value]
    value: float
    others: tuple[float, ...] = ()

    @property
    def values(self) -> tuple[float, ...]:
        """Return the value of each objective."""
        return self.value, *self.others


@dataclass(frozen=True, kw_only=True)
class Source:
    """Earlier sweep that the search begins from, as it was when the sweep was made.

    Args:
        url: as the search space file has it.
        sweep: SHA-256 of its `sweep.json`, which its copies share; "" until it is read.
        sha256: of `filled` and `results`.
        filled: its fixed values of parameters that are searched here.
        results: at most `MAX_RESULTS`, in the order of its trials.
    """

    url: str
    sweep: str = ""
    sha256: str = ""
    filled: ReadOnly[Value] = field(default_factory=dict)
    results: tuple[Result, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Fidelity:
    """Parameter whose last value is the one that results are wanted at; trials with others cost less.

    Args:
        cost: of a trial with each of its values, in any unit; empty: the cost of the stages.
    """

    parameter: str
    cost: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Space:
    """Sweep as its user described it.

    `parameter_constraints` and `outcome_constraints` are linear inequalities in the names of parameters
    and metrics, as written in the file. `baseline` has a value for every active parameter; with None, no
    baseline trial is run. `stages` are those of the program in order; empty if nothing can be shared.
    `defaults` says whether the baseline has the program's own defaults (`first`), or `unused`: they are not
    wanted. `transfer` has the earlier sweeps that the search begins from. The parameters in `fidelity` go up
    together, each from its first value to its last.
    """

    name: str
    objectives: tuple[Objective, ...]
    parameters: tuple[Parameter, ...]
    program: Program
    outcome_constraints: tuple[str, ...] = ()
    parameter_constraints: tuple[str, ...] = ()
    search: Search = field(default_factory=Search)
    run_cap: CountFrom1 | None = None
    baseline: ReadOnly[Value] | None = None
    lease: Lease = field(default_factory=Lease)
    budget: Budget = field(default_factory=Budget)
    early_terminate: EarlyTerminate | None = None
    brake: Brake = field(default_factory=Brake)
    stages: tuple[Stage, ...] = ()
    snapshots: Snapshots = field(default_factory=Snapshots)
    defaults: Defaults = "unknown"
    transfer: tuple[Source, ...] = ()
    fidelity: tuple[Fidelity, ...] = ()

    def parameter(self, name: str) -> Parameter:
        """Return the parameter of that name. Raises KeyError."""
        for parameter in self.parameters:
            if parameter.name == name:
                return parameter
        raise KeyError(name)

    def names(self) -> tuple[str, ...]:
        """Return the names of the parameters, in the file's order."""
        return tuple(parameter.name for parameter in self.parameters)

    def parents(self) -> Mapping[str, Condition]:
        """Return the condition under which it exists, for every conditional parameter."""
        return MappingProxyType(
            {
                child: condition
                for parameter in self.parameters
                if not isinstance(parameter, Fixed)
                for condition, children in conditions(parameter)
                for child in children
            }
        )

    def active(self, values: Mapping[str, Value]) -> tuple[str, ...]:
        """Return the names of the parameters that exist for these values, in the file's order."""
        parents = self.parents()
        return tuple(p.name for p in self.parameters if is_active(p.name, values, parents))

    def metrics(self) -> tuple[str, ...]:
        """Return the names of the objectives' metrics, in order."""
        return tuple(objective.metric for objective in self.objectives)

    def stops_by_cost(self) -> bool:
        """Return whether early stopping compares a trial only with those whose stages cost no more."""
        early = self.early_terminate
        return early is not None and early.type != "curve" and len(self.objectives) > 1


def is_active(name: str, values: Mapping[str, Value], parents: Mapping[str, Condition]) -> bool:
    """Return whether a parameter exists for these values: its condition holds, and so do its parents'."""
    while name in parents:
        if not parents[name].holds(values):
            return False
        name = parents[name].parent
    return True


def conditions(parameter: Range | Choice) -> list[tuple[Condition, tuple[str, ...]]]:
    """Return a parameter's conditions, each with the names that depend on it."""
    if isinstance(parameter, Range):
        return [(Condition.on_number(parameter.name, text), names) for text, names in parameter.when]
    return [(Condition(parent=parameter.name, value=value), names) for value, names in parameter.when]


def same_value(a: Value, b: Value) -> bool:
    """Return whether two values are equal: numbers by value, but True is not 1."""
    return isinstance(a, bool) == isinstance(b, bool) and value_key(a) == value_key(b)


def value_key(value: Value) -> Hashable:
    """Return a key that is equal for equal values, inside of lists too: Python has 1 == True."""
    if isinstance(value, tuple):
        return tuple(value_key(item) for item in value)
    return (isinstance(value, bool), value)


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether it is a number, finite or not; a boolean is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def number_of(value: Value) -> int | float:
    """Return a value that is a number. Raises TypeError for any other."""
    if not is_number(value):
        raise TypeError(f"{value!r} is not a number")
    return value


def is_value(value: object, depth: int = MAX_LISTS) -> bool:
    """Return whether it can be a parameter's value: no NaN, no mapping, at most `depth` lists deep."""
    if isinstance(value, tuple):
        return depth > 0 and all(is_value(item, depth - 1) for item in value)
    if is_number(value):
        try:
            return math.isfinite(value)
        except OverflowError:  # an integer that no float can hold
            return False
    return value is None or isinstance(value, bool | str)


def from_plain(value: Any, depth: int = MAX_LISTS) -> Any:
    """Return JSON's value with tuples for lists; `is_value` refuses what is nested deeper than `depth`."""
    return (
        tuple(from_plain(item, depth - 1) for item in value) if isinstance(value, list) and depth else value
    )


def to_plain(value: Value) -> Any:
    """Return the value with lists, as users' programs get it."""
    return [to_plain(item) for item in value] if isinstance(value, tuple) else value


def cell_of(value: Value) -> bool | int | float | str:
    """Return the value as the cell of a table: null and lists as JSON, since an empty cell is no value."""
    if value is None or isinstance(value, tuple):
        return json.dumps(value, ensure_ascii=False)
    return value
