"""Malformed search spaces: each is refused in one line with the file, the line, the key and the way out."""

from __future__ import annotations

import json
from dataclasses import dataclass

import golden_messages
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweeps.errors import EXIT_INPUT, SpaceError
from sweeps.space.space_file import load, loads
from sweeps.space.space_json import from_json, to_json

BASE = """\
name: good
objectives: [{metric: loss, goal: minimize}]
program: {trainer: {overrides: [model=tiny]}}
parameters:
  lr: {min: 0.001, max: 0.1, distribution: log_uniform_values}
  steps: {min: 10, max: 100}
  width: {min: 1, max: 8}
  opt: {values: [adamw, muon], when: {adamw: [beta]}}
  beta: {values: [0.9, 0.95, 0.99], ordered: true}
  seed: {value: 3}
search: {method: bayes, sobol: 4, seed: 0}
lease: {heartbeat_s: 30, expire_s: 90, max_attempts: 3}
"""

TRAINER = """\
program: {trainer: {overrides: [model=tiny]}}
parameters:
  lr: {min: 0.001, max: 0.1, distribution: log_uniform_values}
"""
FUNCTION = TRAINER.replace("{trainer: {overrides: [model=tiny]}}", "{function: 'm:f'}")


def lr_with(text: str, base: str = TRAINER) -> str:
    return base.replace("log_uniform_values", f"log_uniform_values, {text}")


NARROW_STEPS = "  steps: {min: 10, max: 100}"


@dataclass(frozen=True)
class Case:
    """`old` in BASE replaced by `new` (appended where there is no `old`) is refused at `line` and `key`."""

    id: str
    old: str
    new: str
    line: int | None
    key: str
    says: str


CASES = [
    # YAML itself
    Case("tab", "  lr: {", "\tlr: {", 5, "", "a tab; YAML is indented with spaces"),
    Case("unclosed_brace", "max: 100}", "max: 100", 7, "", "the bracket opens in line 6"),
    Case("unclosed_quote", "name: good", "name: 'good", 1, "", "never closed"),
    Case("bad_indent", "  steps:", " steps:", 6, "", "indentation does not fit"),
    Case("tag", "value: 3", "value: !!python/object:os.system 3", 10, "", "tags"),
    Case("local_tag", "value: 3", "value: !env HOME", 10, "", "tags"),
    Case(
        "stray_text", "name: good", "name: good: bad", 1, "", "not YAML: mapping values are not allowed here"
    ),
    Case("anchor", "value: 3", "value: &three 3", 10, "", "anchors"),
    Case("alias", "value: 3", "value: *three", 10, "", "aliases"),
    Case("billion_laughs", "", "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", 13, "", "anchors"),
    Case(
        "merge_key", "  seed: {value: 3}", "  seed: {<<: {value: 3}}", 10, "parameters.seed.<<", "unknown key"
    ),
    Case("second_document", "", "---\nname: other\n", 13, "", "second document"),
    Case("too_deep", "value: 3", "value: " + "[" * 30 + "]" * 30, 10, "", "nested more than 20"),
    Case("control_character", "name: good", "name: go\x07od", 1, "", "U+0007"),
    Case("duplicate_key", "", "name: again\n", 13, "name", "written twice, first in line 1"),
    Case("duplicate_parameter", "  seed:", "  lr:", 10, "parameters.lr", "first in line 5"),
    Case("complex_key", "  seed: {value: 3}", "  ? [a, b]\n  : {value: 3}", 10, "parameters", "plain word"),
    Case("key_of_two_lines", "", '"a\\nb": 1\n', 13, "a b", "unknown key"),
    Case("huge_key", "", '"' + "k" * 400 + '": 1\n', 13, "k" * 117 + "...", "unknown key"),
    Case(
        "child_of_two_lines", "[beta]", '["x\\ny"]', 8, "parameters.opt.when.adamw[0]", "`x y` is not among"
    ),
    Case("half_surrogate", "name: good", 'name: "\\ud800"', 1, "name", "surrogate"),
    # the top level
    Case("unknown_key", "", "run_caps: 3\n", 13, "run_caps", "did you mean `run_cap`?"),
    Case("unknown_key_no_near", "", "zzz: 3\n", 13, "zzz", "known are: name, objectives"),
    Case("wandb_metric", "", "metric: {name: loss}\n", 13, "metric", "objectives: [{metric"),
    Case("wandb_method", "", "method: bayes\n", 13, "method", "search: {method: bayes}"),
    Case("missing_name", "name: good\n", "", 1, "name", "`name:` is missing; write such as name: "),
    Case("missing_program", "program: {trainer: {overrides: [model=tiny]}}\n", "", 1, "program", "missing"),
    Case("name_empty", "name: good", "name:", 1, "name", "expected text, found nothing"),
    Case("name_with_slash", "name: good", "name: a/b", 1, "name", "becomes a folder"),
    Case("name_with_dots", "name: good", "name: ..", 1, "name", "not starting with a dot"),
    Case("name_too_long", "name: good", "name: " + "x" * 101, 1, "name", "up to 100"),
    Case("name_is_list", "name: good", "name: [good]", 1, "name", "expected text, found a list"),
    # objectives and outcome constraints
    Case("objectives_text", "[{metric: loss, goal: minimize}]", "loss", 2, "objectives", "write [...]"),
    Case("objectives_empty", "[{metric: loss, goal: minimize}]", "[]", 2, "objectives", "the list is empty"),
    Case(
        "objective_is_word",
        "{metric: loss, goal: minimize}",
        "loss",
        2,
        "objectives[0]",
        "`key: value` pairs",
    ),
    Case(
        "goal_misspelt",
        "goal: minimize",
        "goal: minimise",
        2,
        "objectives[0].goal",
        "did you mean `minimize`?",
    ),
    Case("objective_without_metric", "metric: loss, ", "", 2, "objectives[0]", "`metric:` is missing"),
    Case(
        "metric_with_space", "metric: loss", "metric: my loss", 2, "objectives[0].metric", "name of a metric"
    ),
    Case(
        "objective_twice",
        "goal: minimize}",
        "goal: minimize}, {metric: loss}",
        2,
        "objectives[1].metric",
        "objective already",
    ),
    Case(
        "outcome_on_objective",
        "",
        'outcome_constraints:\n  - "time <= 3"\n  - "loss <= 3"\n',
        15,
        "outcome_constraints[1]",
        "`loss` is an objective",
    ),
    Case(
        "outcome_strict",
        "",
        'outcome_constraints: ["t < 3"]\n',
        13,
        "outcome_constraints[0]",
        "write `<=` or `>=`",
    ),
    Case(
        "outcome_twice",
        "",
        'outcome_constraints: ["t <= 3", "2*t <= 6"]\n',
        13,
        "outcome_constraints[1]",
        "same",
    ),
    Case("outcome_text", "", 'outcome_constraints: "t <= 3"\n', 13, "outcome_constraints", "write [...]"),
    Case(
        "outcome_parentheses",
        "",
        'outcome_constraints: ["(t) <= 3"]\n',
        13,
        "outcome_constraints[0]",
        "without paren",
    ),
    Case(
        "outcome_call",
        "",
        "outcome_constraints: [\"exit('x') <= 3\"]\n",
        13,
        "outcome_constraints[0]",
        "cannot read",
    ),
    # budget, brake and early stopping
    *(
        Case(f"brake_{id}", "", f"brake: {written}\n", 13, f"brake{key}", says)
        for id, written, key, says in [
            ("number", "3", "", "write {first: 3, later: 5}; 0 switches it off"),
            ("boolean", "false", "", "write {first: 3, later: 5}; 0 switches it off"),
            ("negative", "{first: -1}", ".first", "not at least 0"),
            ("float", "{later: 2.5}", ".later", "not an integer"),
            ("text", "{first: never}", ".first", "not a number"),
            ("misspelt", "{frist: 3}", ".frist", "did you mean `first`?"),
        ]
    ),
    *(
        Case(f"budget_{id}", "", f"budget: {written}\n", 13, f"budget{key}", says)
        for id, written, key, says in [
            ("nothing", "", "", "found nothing"),
            (
                "empty",
                "{}",
                "",
                "limits nothing; write one of effective_steps, device_hours, usd, wall_hours",
            ),
            ("number", "24", "", "found `24`"),
            ("list", "[{usd: 24}]", "", "found a list"),
            ("misspelt", "{wall_hour: 2}", ".wall_hour", "did you mean `wall_hours`?"),
            ("unknown", "{carbon: 2}", ".carbon", "known are: effective_steps, device_hours"),
            ("steps", "{steps: 100}", ".steps", "write effective_steps:"),
            ("trials", "{trials: 30}", ".trials", "write run_cap:"),
            ("run_cap", "{run_cap: 30}", ".run_cap", "at the top level"),
            ("hours", "{hours: 30}", ".hours", "device_hours: (of all workers together) or wall_hours:"),
            ("dollars", "{dollars: 30}", ".dollars", "write usd:"),
            ("zero", "{usd: 0}", ".usd", "`0` is not more than 0"),
            ("negative", "{usd: 4, wall_hours: -1}", ".wall_hours", "`-1` is not more than 0"),
            ("infinite", "{usd: .inf}", ".usd", "not a finite number"),
            ("nan", "{usd: .nan}", ".usd", "not a finite number"),
            ("overflowing", "{usd: 1e999}", ".usd", "too large"),
            ("null", "{usd: ~}", ".usd", "has no value"),
            ("unit", "{usd: $24}", ".usd", "`$24` is not a number"),
            ("quoted", "{device_hours: '20'}", ".device_hours", "it is in quotes"),
            ("boolean", "{device_hours: true}", ".device_hours", "`true` is not a number"),
            ("twice", "{usd: 1, usd: 2}", ".usd", "written twice"),
        ]
    ),
    *(
        Case(f"early_{id}", "", f"early_terminate: {written}\n", 13, f"early_terminate{key}", says)
        for id, written, key, says in [
            ("nothing", "", "", "found nothing"),
            ("word", "percentile", "", "found `percentile`"),
            ("empty", "{}", "", "`type:` is missing"),
            ("no_type", "{percentile: 50}", "", "`type:` is missing"),
            ("hyperband", "{type: hyperband, min_iter: 3}", ".min_iter", "write min_step:"),
            ("asha", "{type: asha}", ".type", "write hyperband"),
            ("ray", "{type: hyperband, grace_period: 3}", ".grace_period", "write min_step:"),
            ("eta", "{type: hyperband, eta: 1}", ".eta", "is not above 1"),
            ("eta_of_percentile", "{type: median, eta: 4}", ".eta", "type: hyperband only"),
            ("percentile_of_median", "{type: median, percentile: 4}", ".percentile", "type: percentile only"),
            ("type_misspelt", "{type: percentil}", ".type", "did you mean `percentile`?"),
            ("type_unknown", "{type: envelope}", ".type", "known are: percentile, median, hyperband, curve"),
            ("type_list", "{type: [percentile]}", ".type", "expected text, found"),
            ("key_misspelt", "{type: percentile, min_trial: 3}", ".min_trial", "did you mean `min_trials`?"),
            ("ax_key", "{type: percentile, min_curves: 3}", ".min_curves", "write min_trials:"),
            ("share", "{type: percentile, percentile: 0.0}", ".percentile", "50 means the worse half"),
            ("all", "{type: percentile, percentile: 100}", ".percentile", "`100` is not between 0 and 100"),
            ("negative", "{type: percentile, percentile: -5}", ".percentile", "is not between"),
            ("nan", "{type: percentile, percentile: .nan}", ".percentile", "not a finite number"),
            ("infinite", "{type: percentile, min_step: .inf}", ".min_step", "not a finite number"),
            ("no_trials", "{type: percentile, min_trials: 0}", ".min_trials", "0 is not at least 1"),
            ("half_trial", "{type: percentile, min_trials: 2.5}", ".min_trials", "not an integer"),
            ("before_0", "{type: percentile, min_step: -1}", ".min_step", "at least 0"),
            ("text_step", "{type: percentile, min_step: ten}", ".min_step", "`ten` is not a number"),
            (
                "capped",
                "{type: percentile, min_trials: 9}\nrun_cap: 9",
                ".min_trials",
                "less than run_cap (9)",
            ),
            ("curve_misspelt", "{type: curv}", ".type", "did you mean `curve`?"),
            ("wilcoxon", "{type: wilcoxon}", ".type", "write curve"),
            ("foreign", "{type: curve, percentile: 5}", ".percentile", "goes with type: percentile only"),
            ("foreign_margin", "{type: percentile, margin: 0.1}", ".margin", "goes with type: curve only"),
            ("few_curves", "{type: curve, min_trials: 4}", ".min_trials", "4 is not at least 5"),
            ("margin_percent", "{type: curve, margin: 5}", ".margin", "0.005 means half a percent"),
            ("margin_nan", "{type: curve, margin: .nan}", ".margin", "not a finite number"),
            ("margin_below", "{type: curve, margin: -0.1}", ".margin", "is no share of the best value"),
            ("capped_default", "{type: percentile}\nrun_cap: 5", "", "min_trials (5) must be less than"),
        ]
    ),
    Case(
        "early_of_three",
        "[{metric: loss, goal: minimize}]",
        "[{metric: loss}, {metric: effective_steps}, {metric: usd}]\nearly_terminate: {type: median}",
        3,
        "early_terminate",
        "goes with two objectives at most",
    ),
    Case(
        "early_without_a_cost",
        "[{metric: loss, goal: minimize}]\nprogram: {trainer: {overrides: [model=tiny]}}",
        "[{metric: loss}, {metric: s}]\nprogram: {command: [a, '${overrides}']}\nearly_terminate: {type: hyperband}",
        4,
        "early_terminate",
        "and stages: with their cost: say none; write type: curve",
    ),
    Case(
        "early_of_a_front",
        "[{metric: loss, goal: minimize}]",
        "[{metric: loss}, {metric: usd}]\nearly_terminate: {type: percentile}",
        3,
        "early_terminate",
        "must be effective_steps, the cost of the stages; write type: curve",
    ),
    Case("early_by_another_name", "", "early_stopping: {}\n", 13, "early_stopping", "write early_terminate:"),
    # the program
    Case(
        "program_path",
        "{trainer: {overrides: [model=tiny]}}",
        "train.py",
        3,
        "program",
        '{command: ["python"',
    ),
    Case("program_none", "{trainer: {overrides: [model=tiny]}}", "{}", 3, "program", "exactly one of"),
    Case("program_two", "program: {", "program: {function: a.b:c, ", 3, "program", "exactly one of"),
    Case("override_no_equals", "model=tiny", "model", 3, "program.trainer.overrides[0]", "write key=value"),
    Case("override_mapping", "model=tiny", "model: tiny", 3, "program.trainer.overrides[0]", "expected text"),
    Case(
        "override_and_parameter",
        "model=tiny",
        "lr=1",
        3,
        "program.trainer.overrides[0]",
        "`lr` is a parameter too",
    ),
    Case(
        "processes_none",
        "{overrides: [model=tiny]}",
        "{processes: 0}",
        3,
        "program.trainer.processes",
        "at least 1",
    ),
    Case("override_twice", "model=tiny", "a=1, a=2", 3, "program.trainer.overrides[1]", "overridden twice"),
    Case(
        "override_run_dir", "model=tiny", "run_dir=x", 3, "program.trainer.overrides[0]", "set by the worker"
    ),
    Case(
        "overrides_misspelt",
        "overrides:",
        "override:",
        3,
        "program.trainer.override",
        "did you mean `overrides`?",
    ),
    Case(
        "command_without_overrides",
        "{trainer: {overrides: [model=tiny]}}",
        "{command: [python, train.py]}",
        3,
        "program.command",
        "${overrides}",
    ),
    Case(
        "command_overrides_inside",
        "{trainer: {overrides: [model=tiny]}}",
        '{command: [python, "--x=${overrides}"]}',
        3,
        "program.command",
        "of its own",
    ),
    Case(
        "command_text",
        "{trainer: {overrides: [model=tiny]}}",
        '{command: "python train.py ${overrides}"}',
        3,
        "program.command",
        "write [...]",
    ),
    Case(
        "function_without_colon",
        "{trainer: {overrides: [model=tiny]}}",
        "{function: package.module.name}",
        3,
        "program.function",
        "with a colon",
    ),
    # one parameter
    Case(
        "parameters_list",
        "  seed: {value: 3}",
        "  seed: [1, 2]",
        10,
        "parameters.seed",
        "write {values: [...]}",
    ),
    Case("parameter_number", "  seed: {value: 3}", "  seed: 3", 10, "parameters.seed", "write {value: 3}"),
    Case(
        "parameter_empty", "  seed: {value: 3}", "  seed:", 10, "parameters.seed", "neither bounds nor values"
    ),
    Case("only_min", NARROW_STEPS, "  steps: {min: 10}", 6, "parameters.steps", "has min:"),
    Case(
        "values_and_min", "value: 3", "values: [1, 2], min: 3", 10, "parameters.seed", "has values: and min:"
    ),
    Case("unknown_parameter_key", "max: 100", "maxi: 100", 6, "parameters.steps.maxi", "did you mean `max`?"),
    Case(
        "ax_bounds",
        "min: 10, max: 100",
        "bounds: [10, 100]",
        6,
        "parameters.steps.bounds",
        "write min: and max:",
    ),
    Case(
        "nested",
        "value: 3",
        "parameters: {a: {value: 1}}",
        10,
        "parameters.seed.parameters",
        "dotted Hydra key",
    ),
    Case("not_hydra", "  seed:", "  'see d':", 10, "parameters.see d", "not a Hydra key"),
    Case("hydra_trailing_dot", "  seed:", "  seed.:", 10, "parameters.seed.", "not a Hydra key"),
    Case("parameter_run_dir", "  seed:", "  run_dir:", 10, "parameters.run_dir", "set by the worker"),
    Case(
        "reversed", "min: 10, max: 100", "min: 100, max: 10", 6, "parameters.steps.max", "swap `100` and `10`"
    ),
    Case("equal_bounds", "max: 100", "max: 10", 6, "parameters.steps.max", "write {value: 10}"),
    Case("infinite_bound", "max: 100", "max: .inf", 6, "parameters.steps.max", "not a finite number"),
    Case("nan_bound", "min: 10", "min: .nan", 6, "parameters.steps.min", "not a finite number"),
    Case("overflowing_bound", "max: 100", "max: 1e999", 6, "parameters.steps.max", "too large"),
    Case("far_bound", "max: 100", "max: 1e200", 6, "parameters.steps.max", "beyond 1e+100"),
    Case("huge_integer", "max: 100", "max: 1" + "0" * 30, 6, "parameters.steps.max", "2**53"),
    Case("absurd_integer", "max: 100", "max: " + "9" * 5000, 6, "parameters.steps.max", "2**53"),
    Case("text_bound", "max: 100", "max: many", 6, "parameters.steps.max", "`many` is not a number"),
    Case("quoted_bound", "max: 100", "max: '100'", 6, "parameters.steps.max", "it is in quotes"),
    Case("boolean_bound", "min: 10", "min: true", 6, "parameters.steps.min", "`true` is not a number"),
    Case("null_bound", "min: 10", "min: ~", 6, "parameters.steps.min", "has no value"),
    Case("list_bound", "min: 10", "min: [1]", 6, "parameters.steps.min", "boolean, found a list"),
    Case("octal", "min: 10", "min: 010", 6, "parameters.steps.min", "leading zero"),
    Case("hexadecimal", "max: 100", "max: 0x64", 6, "parameters.steps.max", "the decimal number"),
    Case("sexagesimal", "max: 100", "max: 1:30", 6, "parameters.steps.max", "base-60"),
    Case("underscore", "max: 100", "max: 1_000", 6, "parameters.steps.max", "has a `_`"),
    Case("log_zero", "min: 0.001", "min: 0", 5, "parameters.lr.min", "must stay above zero"),
    Case("log_negative", "min: 0.001", "min: -1.0", 5, "parameters.lr.min", "must stay above zero"),
    Case(
        "wandb_log_uniform",
        "log_uniform_values",
        "log_uniform",
        5,
        "parameters.lr.distribution",
        "log_uniform_values",
    ),
    Case("wandb_q", "log_uniform_values", "q_uniform", 5, "parameters.lr.distribution", "with step: for q:"),
    Case("wandb_normal", "log_uniform_values", "normal", 5, "parameters.lr.distribution", "needs mu: and"),
    Case(
        "normal_far_away",
        "log_uniform_values",
        "log_normal, mu: 0.001, sigma: 0.1",
        5,
        "parameters.lr.mu",
        "0.0% of this distribution lies between min: and max:; move them, or mu:; mu: is a natural logarithm",
    ),
    Case("flat", "log_uniform_values", "normal, mu: 1, sigma: 0", 5, "parameters.lr.sigma", "is above 0"),
    Case(
        "sigma_alone", "max: 100", "max: 100, sigma: 3", 6, "parameters.steps.sigma", "distribution: normal"
    ),
    Case("step_of_log", "values}", "values, step: 0.01}", 5, "parameters.lr.step", "linear ranges"),
    Case("step_off", "max: 100", "max: 100, step: 40", 6, "parameters.steps.max", "write 90 or 130"),
    Case("step_zero", "max: 100", "max: 100, step: 0", 6, "parameters.steps.step", "least 1"),
    Case(
        "step_long",
        "max: 100",
        "max: 100, step: 91",
        6,
        "parameters.steps.step",
        "is no step from min to max",
    ),
    Case(
        "step_fine", "min: 10, max: 100", "min: 1, max: 9, step: 1.0e-9", 6, "parameters.steps.step", "steps"
    ),
    Case(
        "step_of_values", "seed: {value: 3}", "seed: {value: 3, step: 1}", 10, "parameters.seed.step", "only"
    ),
    Case(
        "distribution_misspelt",
        "log_uniform_values",
        "int_unifrom",
        5,
        "parameters.lr.distribution",
        "did you mean",
    ),
    Case(
        "int_distribution_of_floats",
        "max: 100",
        "max: 100.0, distribution: int_uniform",
        6,
        "parameters.steps.max",
        "`100.0` is not an integer; write 100",
    ),
    Case(
        "constant_range",
        "max: 100",
        "max: 9, distribution: constant",
        6,
        "parameters.steps.distribution",
        "value:",
    ),
    Case(
        "value_uniform",
        "value: 3",
        "value: 3, distribution: uniform",
        10,
        "parameters.seed.distribution",
        "take it out",
    ),
    Case("one_value", "[0.9, 0.95, 0.99]", "[0.9]", 9, "parameters.beta.values", "write value: 0.9"),
    Case("no_values", "[0.9, 0.95, 0.99]", "[]", 9, "parameters.beta.values", "empty"),
    Case("values_scalar", "[0.9, 0.95, 0.99]", "0.9", 9, "parameters.beta.values", "write [...]"),
    Case("value_twice", "[0.9, 0.95, 0.99]", "[0.9, 0.90]", 9, "parameters.beta.values[1]", "listed twice"),
    Case(
        "value_twice_as_int",
        "[0.9, 0.95, 0.99]",
        "[1, 2, 1.0]",
        9,
        "parameters.beta.values[2]",
        "listed twice",
    ),
    Case(
        "mixed_text",
        "[0.9, 0.95, 0.99]",
        "[0.9, high]",
        9,
        "parameters.beta.values",
        "mixes numbers and text",
    ),
    Case(
        "mixed_boolean",
        "[0.9, 0.95, 0.99]",
        "[1, true]",
        9,
        "parameters.beta.values",
        "mixes booleans and numbers",
    ),
    Case("yes_no", "[0.9, 0.95, 0.99]", "[yes, x]", 9, "parameters.beta.values[0]", "write true or false"),
    Case("date", "[0.9, 0.95, 0.99]", "[2024-01-31, x]", 9, "parameters.beta.values[0]", "is a date to some"),
    Case(
        "null_value",
        "[0.9, 0.95, 0.99]",
        "[0.9, {a: null}]",
        9,
        "parameters.beta.values[1]",
        "a mapping is no value",
    ),
    Case(
        "nan_value", "[0.9, 0.95, 0.99]", "[0.9, nan]", 9, "parameters.beta.values[1]", "not a finite number"
    ),
    Case(
        "nested_values",
        "[0.9, 0.95, 0.99]",
        "[[1], 2]",
        9,
        "parameters.beta.values",
        "mixes lists and numbers",
    ),
    Case("unsorted", "[0.9, 0.95, 0.99]", "[0.99, 0.9]", 9, "parameters.beta.values", "ascending"),
    Case("ordered_word", "ordered: true", "ordered: 1", 9, "parameters.beta.ordered", "not a boolean"),
    Case(
        "ordered_range",
        "max: 100",
        "max: 100, ordered: true",
        6,
        "parameters.steps.ordered",
        "only with values:",
    ),
    Case(
        "too_many_values",
        "[0.9, 0.95, 0.99]",
        str(list(range(1001))),
        9,
        "parameters.beta.values",
        "1000 at most",
    ),
    # conditions
    Case(
        "when_on_range",
        "max: 100",
        "max: 99, when: {200: [width]}",
        6,
        "parameters.steps.when.200",
        "200 is none of its values, 10 to 99",
    ),
    Case(
        "when_always",
        "max: 100",
        'max: 100, when: {">= 10": [width]}',
        6,
        "parameters.steps.when.>= 10",
        "always holds",
    ),
    Case(
        "when_never",
        "max: 100",
        'max: 100, when: {"> 100": [width]}',
        6,
        "parameters.steps.when.> 100",
        "never holds: the values are 10 to 100",
    ),
    Case(
        "when_no_relation",
        "max: 100",
        "max: 100, when: {true: [width]}",
        6,
        "parameters.steps.when.true",
        "no condition on a number",
    ),
    Case(
        "when_float_equal",
        "values}",
        "values, when: {0.01: [width]}}",
        5,
        "parameters.lr.when.0.01",
        "write >, >=, < or <=",
    ),
    Case(
        "when_fixed",
        "seed: {value: 3}",
        "seed: {value: 3, when: {3: [lr]}}",
        10,
        "parameters.seed.when",
        "with min",
    ),
    Case(
        "when_on_fixed",
        "value: 3",
        "value: 3, when: {3: [lr]}",
        10,
        "parameters.seed.when",
        "only with values:",
    ),
    Case(
        "when_not_a_value",
        "when: {adamw",
        "when: {adam",
        8,
        "parameters.opt.when.adam",
        "not one of the values (adamw, muon)",
    ),
    Case("when_unknown_child", "[beta]", "[bta]", 8, "parameters.opt.when.adamw[0]", "did you mean `beta`?"),
    Case(
        "when_child_twice",
        "[beta]",
        "[beta], muon: [beta]",
        8,
        "parameters.opt.when.muon[0]",
        "depends on `opt`",
    ),
    Case("when_itself", "[beta]", "[opt]", 8, "parameters.opt.when.adamw[0]", "opt -> opt"),
    Case(
        "when_cycle",
        "ordered: true",
        "when: {0.9: [opt]}",
        9,
        "parameters.beta.when.0.9[0]",
        "opt -> beta -> opt",
    ),
    Case("when_empty", "{adamw: [beta]}", "{}", 8, "parameters.opt.when", "is empty"),
    Case("when_children_word", "[beta]", "beta", 8, "parameters.opt.when.adamw", "write [...]"),
    Case(
        "when_value_twice", "[beta]", "[beta], 'adamw': [lr]", 8, "parameters.opt.when.adamw", "written twice"
    ),
    # constraints on parameters
    Case(
        "constraint_unknown",
        "",
        'parameter_constraints: ["step <= 3"]\n',
        13,
        "parameter_constraints[0]",
        "did you mean `steps`?",
    ),
    Case(
        "constraint_on_choice",
        "",
        'parameter_constraints: ["opt <= 3"]\n',
        13,
        "parameter_constraints[0]",
        "is a choice",
    ),
    Case(
        "constraint_on_fixed",
        "",
        'parameter_constraints: ["seed <= 3"]\n',
        13,
        "parameter_constraints[0]",
        "fixed value",
    ),
    Case(
        "constraint_on_log",
        "",
        'parameter_constraints: ["lr + width <= 3"]\n',
        13,
        "parameter_constraints[0]",
        "`lr` is logarithmic",
    ),
    Case(
        "constraint_product",
        "",
        'parameter_constraints: ["steps*width <= 3"]\n',
        13,
        "parameter_constraints[0]",
        "not linear",
    ),
    Case(
        "constraint_equality",
        "",
        'parameter_constraints: ["steps == 3"]\n',
        13,
        "parameter_constraints[0]",
        "equalities",
    ),
    Case(
        "constraint_chained",
        "",
        'parameter_constraints: ["1 <= steps <= 3"]\n',
        13,
        "parameter_constraints[0]",
        "of its own",
    ),
    Case(
        "constraint_nothing_left",
        "",
        'parameter_constraints: ["steps <= 3"]\n',
        13,
        "parameter_constraints[0]",
        "leaves nothing",
    ),
    Case(
        "constraint_one_left",
        "",
        'parameter_constraints: ["steps <= 10"]\n',
        13,
        "parameter_constraints[0]",
        "leaves only 10",
    ),
    Case(
        "constraint_infeasible",
        "",
        'parameter_constraints: ["steps + width <= 3"]\n',
        13,
        "parameter_constraints",
        "no values",
    ),
    Case(
        "constraints_jointly_infeasible",
        "",
        'parameter_constraints: ["steps - 10*width <= -20", "steps - 5*width >= 75"]\n',
        13,
        "parameter_constraints",
        "no values",
    ),
    # the search, the cap, the lease, the baseline
    Case(
        "method_misspelt", "method: bayes", "method: bayesian", 11, "search.method", "did you mean `bayes`?"
    ),
    Case(
        "grid_of_floats",
        "method: bayes, sobol: 4, seed: 0",
        "method: grid",
        11,
        "search",
        "`lr` is a range of floats",
    ),
    Case(
        "grid_too_big",
        *(
            "  lr: {min: 0.001, max: 0.1, distribution: log_uniform_values}\n  steps: {min: 10, max: 100}\n  width: {min: 1, max: 8}\n  opt: {values: [adamw, muon], when: {adamw: [beta]}}\n  beta: {values: [0.9, 0.95, 0.99], ordered: true}\n  seed: {value: 3}\nsearch: {method: bayes, sobol: 4, seed: 0}",
            "  steps: {min: 1, max: 5000}\nsearch: {method: grid}",
        ),
        6,
        "search",
        "5000 configurations, more than 4096",
    ),
    Case(
        "grid_with_sobol",
        "method: bayes, sobol: 4, seed: 0",
        "method: grid, sobol: 4",
        11,
        "search.sobol",
        "no effect on a grid",
    ),
    Case(
        "grid_with_seed",
        "method: bayes, sobol: 4, seed: 0",
        "method: grid, seed: 1",
        11,
        "search.seed",
        "no effect on a grid",
    ),
    Case(
        "grid_with_baseline",
        "  lr: {min: 0.001, max: 0.1, distribution: log_uniform_values}\n  steps: {min: 10, max: 100}\n  width: {min: 1, max: 8}\n  opt: {values: [adamw, muon], when: {adamw: [beta]}}\n  beta: {values: [0.9, 0.95, 0.99], ordered: true}\n  seed: {value: 3}\nsearch: {method: bayes, sobol: 4, seed: 0}",
        "  steps: {min: 1, max: 5}\nsearch: {method: grid}\nbaseline: {}",
        7,
        "baseline",
        "every configuration already",
    ),
    Case("sobol_zero", "sobol: 4", "sobol: 0", 11, "search.sobol", "0 is not at least 1"),
    Case("sobol_float", "sobol: 4", "sobol: 4.5", 11, "search.sobol", "not an integer"),
    Case("seed_negative", "seed: 0}", "seed: -1}", 11, "search.seed", "not at least 0"),
    Case("seed_huge", "seed: 0}", "seed: 4294967296}", 11, "search.seed", "not at most"),
    Case(
        "noise_word",
        "seed: 0}",
        "seed: 0, noise: none}",
        11,
        "search.noise",
        "'none' is no noise; write inferred",
    ),
    Case("noise_zero", "seed: 0}", "seed: 0, noise: 0}", 11, "search.noise", "a standard deviation above 0"),
    Case("noise_true", "seed: 0}", "seed: 0, noise: true}", 11, "search.noise", "True is no noise"),
    Case("run_cap_zero", "", "run_cap: 0\n", 13, "run_cap", "not at least 1"),
    Case("run_cap_boolean", "", "run_cap: true\n", 13, "run_cap", "not a number"),
    Case("heartbeat_zero", "heartbeat_s: 30", "heartbeat_s: 0", 12, "lease.heartbeat_s", "more than 0"),
    Case(
        "expire_too_soon",
        "expire_s: 90",
        "expire_s: 60",
        12,
        "lease.expire_s",
        "more than twice heartbeat_s (30)",
    ),
    Case(
        "heartbeat_too_slow",
        "heartbeat_s: 30, expire_s: 90",
        "heartbeat_s: 45",
        12,
        "lease.heartbeat_s",
        "more than twice",
    ),
    Case("attempts_zero", "max_attempts: 3", "max_attempts: 0", 12, "lease.max_attempts", "not at least 1"),
    Case("lease_unit", "expire_s", "expire", 12, "lease.expire", "did you mean `expire_s`?"),
    # what is known beforehand
    Case(
        "default_outside",
        TRAINER,
        lr_with("default: 1.0", FUNCTION),
        5,
        "parameters.lr.default",
        "outside of",
    ),
    Case("default_of_trainer", TRAINER, lr_with("default: 0.01"), 5, "parameters.lr.default", "has its own"),
    Case(
        "default_of_fixed",
        "value: 3",
        "value: 3, default: 4",
        10,
        "parameters.seed.default",
        "goes only with",
    ),
    Case(
        "prior_of_fixed", "value: 3", "value: 3, prior: {around: 3}", 10, "parameters.seed.prior", "goes only"
    ),
    Case("prior_number", TRAINER, lr_with("prior: 0.01"), 5, "parameters.lr.prior", "write {around: 3e-3"),
    Case("prior_around_nothing", TRAINER, lr_with("prior: {factor: 3}"), 5, "parameters.lr.prior", "missing"),
    Case(
        "prior_outside",
        TRAINER,
        lr_with("prior: {around: 0.2, factor: 3}"),
        5,
        "parameters.lr.prior.around",
        "outside of 0.001 to 0.1",
    ),
    Case(
        "prior_factor_one",
        TRAINER,
        lr_with("prior: {around: 0.01, factor: 1}"),
        5,
        "parameters.lr.prior.factor",
        "no factor above 1",
    ),
    Case(
        "prior_width_of_log",
        TRAINER,
        lr_with("prior: {around: 0.01, width: 0.1}"),
        5,
        "parameters.lr.prior.width",
        "write factor:",
    ),
    Case(
        "prior_factor_of_linear",
        "steps: {min: 10,",
        "steps: {prior: {around: 20, factor: 3}, min: 10,",
        6,
        "parameters.steps.prior.factor",
        "write width:",
    ),
    Case(
        "prior_no_option",
        "values: [adamw, muon],",
        "values: [adamw, muon], prior: {around: sgd},",
        8,
        "parameters.opt.prior.around",
        "not among its values (adamw, muon)",
    ),
    Case(
        "prior_factor_of_choice",
        "ordered: true}",
        "ordered: true, prior: {around: 0.9, factor: 2}}",
        9,
        "parameters.beta.prior.factor",
        "around: alone",
    ),
    Case(
        "prior_of_normal",
        TRAINER,
        lr_with("mu: -5, sigma: 1, prior: {around: 0.01}").replace("log_uniform_values", "log_normal"),
        5,
        "parameters.lr.prior",
        "keep one of the two",
    ),
    Case("search_prior", "sobol: 4", "prior: of_defaults", 11, "search.prior", "did you mean `defaults`?"),
    Case(
        "search_prior_random",
        "method: bayes, sobol: 4",
        "method: random, prior: none",
        11,
        "search.prior",
        "no effect",
    ),
    *(
        Case(f"stop_{name}", "seed: 0}", f"seed: 0, stop: {written}}}", 11, key, says)
        for name, written, key, says in (
            ("number", "0.004", "search.stop", "write {expected_gain: 0.004}"),
            ("without_gain", "{trials: 5}", "search.stop", "{expected_gain: 0.004}"),
            ("zero", "{expected_gain: 0}", "search.stop.expected_gain", "no gain above 0"),
            ("infinite", "{expected_gain: .inf}", "search.stop.expected_gain", ""),
            ("text", "{expected_gain: little}", "search.stop.expected_gain", "little"),
            ("trials", "{expected_gain: 0.1, trials: 0}", "search.stop.trials", "not at least 1"),
            ("trials_many", "{expected_gain: 0.1, trials: 1000}", "search.stop.trials", "not at most"),
            ("chance", "{chance: 0.9}", "search.stop.chance", "expected_gain:"),
            ("as_ax", "{improvement_bar: 0.1}", "search.stop.improvement_bar", "expected_gain:"),
            ("misspelt", "{expected_gian: 0.1}", "search.stop.expected_gian", "expected_gain"),
        )
    ),
    Case(
        "stop_of_random",
        "method: bayes, sobol: 4, seed: 0",
        "method: random, stop: {expected_gain: 0.1}",
        11,
        "search.stop",
        "method: random",
    ),
    Case(
        "stop_with_outcome_constraints",
        "seed: 0}",
        "seed: 0, stop: {expected_gain: 0.1}}\noutcome_constraints: [ms <= 3]",
        11,
        "search.stop",
        "outcome_constraints",
    ),
    Case("top_level_stop", "", "stop: {expected_gain: 0.1}\n", 13, "stop", "search: {stop:"),
    Case("top_level_prior", "", "prior: none\n", 13, "prior", "search: {prior: none}"),
    Case("baseline_unknown", "", "baseline: {lrr: 0.01}\n", 13, "baseline.lrr", "did you mean `lr`?"),
    Case("baseline_outside", "", "baseline: {lr: 1.0}\n", 13, "baseline.lr", "outside of 0.001 to 0.1"),
    Case("baseline_float_steps", "", "baseline: {steps: 20.0}\n", 13, "baseline.steps", "write 20"),
    Case(
        "baseline_not_a_choice",
        "",
        "baseline: {opt: sgd}\n",
        13,
        "baseline.opt",
        "not among its values (adamw, muon)",
    ),
    Case(
        "baseline_other_fixed", "", "baseline: {seed: 4}\n", 13, "baseline.seed", "not among its values (3)"
    ),
    Case(
        "baseline_switched_off",
        "",
        "baseline:\n  opt: muon\n  beta: 0.9\n",
        15,
        "baseline.beta",
        "switched off unless opt is adamw",
    ),
    Case(
        "baseline_breaks_constraint",
        "",
        'parameter_constraints: ["steps + width <= 50"]\nbaseline: {width: 4}\n',
        14,
        "baseline",
        "breaks `steps + width <= 50` (steps = 55, width = 4)",
    ),
]


def mutated(case: Case) -> str:
    if not case.old:
        return BASE + case.new
    assert BASE.count(case.old) == 1, f"{case.old!r} stands {BASE.count(case.old)} times in BASE"
    return BASE.replace(case.old, case.new)


def test_the_base_of_all_cases_is_good() -> None:
    assert loads(BASE, "x.yaml").name == "good"


def test_the_case_ids_are_unique() -> None:
    assert len({case.id for case in CASES}) == len(CASES) >= 60


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_it_is_refused_with_file_line_key_and_the_way_out(case: Case) -> None:
    with pytest.raises(SpaceError) as caught:
        loads(mutated(case), "x.yaml")
    error = caught.value
    assert case.says in error.problem
    assert (error.file, error.line, error.key) == ("x.yaml", case.line, case.key)
    assert str(error).startswith(f"x.yaml:{case.line}: ")
    assert "\n" not in str(error)
    assert len(str(error)) < 340  # the longest lists the keys of the file
    assert error.exit_status == EXIT_INPUT


def test_the_messages_are_those_of_the_page() -> None:
    messages = []
    for case in CASES:
        with pytest.raises(SpaceError) as caught:
            loads(mutated(case), "x.yaml")
        old, new = (text if len(text) < 200 else f"{text[:200]} …" for text in (case.old, case.new))
        given = f"{case.id}: {json.dumps(old, ensure_ascii=False)} becomes" if old else f"{case.id}: added"
        messages.append((f"{given} {json.dumps(new, ensure_ascii=False)}", str(caught.value)))
    golden_messages.compare("Search spaces", messages)


def test_another_problem_is_shown_as_well() -> None:
    shown = 0
    for case in CASES:
        with pytest.raises(SpaceError) as caught:
            loads(mutated(case) + "\ncolour: red\n", "x.yaml")
        keys = [each.key for each in caught.value.problems]
        if keys != [case.key]:  # else it is no YAML, or a file of another program: nothing else is read
            assert keys == [case.key, "colour"], case.id
            shown += 1
    assert shown > 200


def test_all_problems_are_shown_in_one_go() -> None:
    text = """\
name: a b
objectives: [{metric: loss, goal: up}, {metric: "a b"}]
program: {trainer: {overrides: [model, lr=3], processes: 0}}
parameters:
  lr: {min: low, max: high}
  steps: {mn: 1, max: x}
  opt: {values: [adamw, muon], when: {sgd: [beta]}}
  beta: {values: [0.9, on]}
  fine: {min: 0.0, max: 1.0}
parameter_constraints: ["fine <= 0.5", "lr <= 3", "lrr <= 3", "fine >"]
outcome_constraints: ["x <"]
search: {method: bays, sobol: 0, sed: 1}
run_cap: many
baseline: {lr: 7, fine: 2.0, other: 1, beta: 0.3}
lease: {heartbeat_s: x, expire_s: y}
budget: {usd: 0, hours: 3}
early_terminate: {type: percentile, percentile: 200, min_step: x}
colour: red
"""
    with pytest.raises(SpaceError) as caught:
        loads(text, "x.yaml")
    assert [(each.line, each.key) for each in caught.value.problems] == [
        (1, "name"),
        (2, "objectives[0].goal"),
        (2, "objectives[1].metric"),
        (3, "program.trainer.overrides[0]"),
        (3, "program.trainer.overrides[1]"),
        (3, "program.trainer.processes"),
        (5, "parameters.lr.min"),
        (5, "parameters.lr.max"),
        (6, "parameters.steps.mn"),
        (6, "parameters.steps.max"),
        (7, "parameters.opt.when.sgd"),
        (8, "parameters.beta.values[1]"),
        (10, "parameter_constraints[2]"),
        (10, "parameter_constraints[3]"),
        (11, "outcome_constraints[0]"),
        (12, "search.sed"),
        (12, "search.method"),
        (12, "search.sobol"),
        (13, "run_cap"),
        (14, "baseline.other"),
        (14, "baseline.fine"),
        (15, "lease.heartbeat_s"),
        (15, "lease.expire_s"),
        (16, "budget.hours"),
        (16, "budget.usd"),
        (17, "early_terminate.percentile"),
        (17, "early_terminate.min_step"),
        (18, "colour"),
    ]
    assert len(str(caught.value).splitlines()) == len(caught.value.problems)


def test_missing_key_is_not_named_twice() -> None:
    text = BASE.replace("objectives:", "objektives:").replace("name: good\n", "")
    with pytest.raises(SpaceError) as caught:
        loads(text, "x.yaml")
    assert [each.key for each in caught.value.problems] == ["objektives", "name"]


def test_a_constraint_on_a_conditional_parameter_is_refused() -> None:
    text = BASE.replace("[beta]", "[beta, width]") + 'parameter_constraints: ["steps + width <= 50"]\n'
    with pytest.raises(SpaceError, match=r"x\.yaml:13: .*`width` depends on a condition"):
        loads(text, "x.yaml")


@pytest.mark.parametrize("section", ["lease", "search", "brake", "early_terminate"])
def test_half_a_surrogate_instead_of_a_section_is_refused(section: str) -> None:
    text = f'name: a\nobjectives: [{{metric: m}}]\nprogram: {{function: a:b}}\n{section}: "\\ud800"\n'
    text += "parameters:\n  x: {min: 0.0, max: 1.0}\n"
    with pytest.raises(SpaceError, match=rf"x\.yaml:4: {section}: "):
        loads(text, "x.yaml")


def test_space_with_nothing_to_search_is_refused() -> None:
    text = "name: a\nobjectives: [{metric: m}]\nprogram: {function: a:b}\nparameters:\n  x: {value: 1}\n"
    with pytest.raises(SpaceError, match=r"x\.yaml:5: parameters: there is nothing to search"):
        loads(text, "x.yaml")


@pytest.mark.parametrize(
    ("constraint", "says"),
    [
        ("a <= 3", ""),
        ("a >= 3", "must point the same way"),
        ("b >= 3", ""),
        ("b <= 3", "must point the same way"),
        ("a + t <= 3", "`a` is an objective"),
    ],
    ids=["min_below", "min_above", "max_above", "max_below", "several"],
)
def test_threshold_points_the_way_of_its_goal(constraint: str, says: str) -> None:
    text = BASE.replace("{metric: loss, goal: minimize}", "{metric: a}, {metric: b, goal: maximize}")
    text += f'outcome_constraints: ["{constraint}"]\n'
    if not says:
        assert loads(text, "x.yaml").outcome_constraints == (constraint,)
        return
    with pytest.raises(SpaceError) as caught:
        loads(text, "x.yaml")
    assert says in caught.value.problem


def test_an_objective_has_one_threshold_at_most() -> None:
    text = BASE.replace("{metric: loss, goal: minimize}", "{metric: a}, {metric: b}")
    text += "outcome_constraints:\n  - a <= 3\n  - a <= 2\n"
    with pytest.raises(SpaceError, match=r"x\.yaml:15: .*`a` has a threshold already"):
        loads(text, "x.yaml")


@pytest.mark.parametrize(
    ("data", "line", "says"),
    [
        (b"", None, "the file is empty"),
        (b"# only a comment\n\n", None, "the file is empty"),
        (b"null\n", 1, "found nothing"),
        (b"just text\n", 1, "found `just text`"),
        (b"- a\n- b\n", 1, "found a list"),
        (b"name: good\n# caf\xe9\n", 2, "not UTF-8"),
        ("name: good".encode("utf-16"), 1, "not UTF-8"),
        (b"\x00\x01\x02", 1, "U+0000"),
        (b"#" * 300_000, None, "larger than 256 KiB"),
        ("é".encode() * 200_000, None, "larger than 256 KiB"),
        (b"[" * 200_000, 1, "nested more than"),
    ],
    ids=[
        "empty",
        "comment",
        "null",
        "text",
        "list",
        "latin1",
        "utf16",
        "binary",
        "big",
        "big_utf8",
        "brackets",
    ],
)
def test_a_file_that_is_no_mapping_of_text_is_refused(
    tmp_path, data: bytes, line: int | None, says: str
) -> None:
    path = tmp_path / "space.yaml"
    path.write_bytes(data)
    with pytest.raises(SpaceError) as caught:
        load(path)
    assert says in caught.value.problem
    assert (caught.value.file, caught.value.line) == (str(path), line)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("missing.yaml", "there is no such file; ", id="missing"),
        pytest.param(".", "a folder; name the YAML file in it", id="folder"),
        pytest.param("n" * 300, "cannot be read: File name too long", id="the system refuses it"),
    ],
)
def test_a_path_that_cannot_be_read_is_refused(tmp_path, name: str, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        load(tmp_path / name)


def test_a_quarter_of_a_mebibyte_of_keys_is_refused_quickly(tmp_path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text("".join(f"k{i}: 1\n" for i in range(25_000)))
    with pytest.raises(SpaceError, match="k0: unknown key"):
        load(path)


PIECES = [
    *"{}[]:,'\"|>&*!#%@`-?~\t\n ",
    "null",
    "true",
    ".nan",
    "1e400",
    "-1",
    "0",
    "[]",
    "{}",
    "lr",
    "min",
    "when",
]
PIECES += [
    "${overrides}",
    "\u2028",
    "<= 1e308",
    "1e-320*",
    "9" * 30,
    "...",
    "---",
    "\\x00",
    "steps >= -1e-300",
]
FRAGMENTS = st.one_of(st.sampled_from(PIECES), st.text(max_size=3))


@settings(max_examples=3 * settings.default.max_examples, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 600), st.integers(0, 12), FRAGMENTS), min_size=1, max_size=4))
def test_any_damage_is_read_or_refused_and_never_crashes(edits: list[tuple[int, int, str]]) -> None:
    text = BASE + 'parameter_constraints: ["steps + 2*width <= 80"]\nbaseline: {opt: muon}\n'
    for start, length, fragment in edits:
        text = text[:start] + fragment + text[start + length :]
    try:
        space = loads(text, "x.yaml")
    except SpaceError as error:
        refusals = str(error).splitlines()
    else:
        refusals = []
        assert from_json(json.loads(json.dumps(to_json(space), allow_nan=False))) == space
    assert all(len(refusal) < 500 for refusal in refusals)
