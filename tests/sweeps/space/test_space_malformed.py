"""Malformed search spaces: each is refused in one line with the file, the line, the key and the way out."""

from __future__ import annotations

import json
from pathlib import Path

import golden_messages
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from malformed_space import Case, compare

from sweeps.errors import SpaceError
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
PARAMETERS_AND_SEARCH = BASE.partition("parameters:\n")[2].partition("\nlease")[0]

TRAINER = """\
program: {trainer: {overrides: [model=tiny]}}
parameters:
  lr: {min: 0.001, max: 0.1, distribution: log_uniform_values}
"""
FUNCTION = TRAINER.replace("{trainer: {overrides: [model=tiny]}}", "{function: 'm:f'}")


def lr_with(text: str, base: str = TRAINER) -> str:
    return base.replace("log_uniform_values", f"log_uniform_values, {text}")


TWO_OBJECTIVES = "[{metric: a}, {metric: b, goal: maximize}]"
NARROW_STEPS = "  steps: {min: 10, max: 100}"


# fmt: off
CASES = [
    # YAML itself
    Case("tab", "  lr: {", "\tlr: {", 5, ""),
    Case("unclosed_brace", "max: 100}", "max: 100", 7, ""),
    Case("unclosed_quote", "name: good", "name: 'good", 1, ""),
    Case("bad_indent", "  steps:", " steps:", 6, ""),
    Case("tag", "value: 3", "value: !!python/object:os.system 3", 10, ""),
    Case("local_tag", "value: 3", "value: !env HOME", 10, ""),
    Case("stray_text", "name: good", "name: good: bad", 1, ""),
    Case("anchor", "value: 3", "value: &three 3", 10, ""),
    Case("alias", "value: 3", "value: *three", 10, ""),
    Case("billion_laughs", "", "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", 13, ""),
    Case("merge_key", "  seed: {value: 3}", "  seed: {<<: {value: 3}}", 10, "parameters.seed.<<"),
    Case("second_document", "", "---\nname: other\n", 13, ""),
    Case("too_deep", "value: 3", "value: " + "[" * 30 + "]" * 30, 10, ""),
    Case("control_character", "name: good", "name: go\x07od", 1, ""),
    Case("duplicate_key", "", "name: again\n", 13, "name"),
    Case("duplicate_parameter", "  seed:", "  lr:", 10, "parameters.lr"),
    Case("complex_key", "  seed: {value: 3}", "  ? [a, b]\n  : {value: 3}", 10, "parameters"),
    Case("key_of_two_lines", "", '"a\\nb": 1\n', 13, "a b"),
    Case("huge_key", "", '"' + "k" * 400 + '": 1\n', 13, "k" * 117 + "..."),
    Case("child_of_two_lines", "[beta]", '["x\\ny"]', 8, "parameters.opt.when.adamw[0]"),
    Case("half_surrogate", "name: good", 'name: "\\ud800"', 1, "name"),
    # the top level
    Case("unknown_key", "", "run_caps: 3\n", 13, "run_caps"),
    Case("unknown_key_no_near", "", "zzz: 3\n", 13, "zzz"),
    Case("wandb_metric", "", "metric: {name: loss}\n", 13, "metric"),
    Case("wandb_method", "", "method: bayes\n", 13, "method"),
    Case("missing_name", "name: good\n", "", 1, "name"),
    Case("missing_program", "program: {trainer: {overrides: [model=tiny]}}\n", "", 1, "program"),
    Case("name_empty", "name: good", "name:", 1, "name"),
    Case("name_with_slash", "name: good", "name: a/b", 1, "name"),
    Case("name_with_dots", "name: good", "name: ..", 1, "name"),
    Case("name_too_long", "name: good", "name: " + "x" * 101, 1, "name"),
    Case("name_is_list", "name: good", "name: [good]", 1, "name"),
    # objectives and outcome constraints
    Case("objectives_text", "[{metric: loss, goal: minimize}]", "loss", 2, "objectives"),
    Case("objectives_empty", "[{metric: loss, goal: minimize}]", "[]", 2, "objectives"),
    Case("objective_is_word", "{metric: loss, goal: minimize}", "loss", 2, "objectives[0]"),
    Case("goal_misspelt", "goal: minimize", "goal: minimise", 2, "objectives[0].goal"),
    Case("objective_without_metric", "metric: loss, ", "", 2, "objectives[0]"),
    Case("metric_with_space", "metric: loss", "metric: my loss", 2, "objectives[0].metric"),
    Case("objective_twice", "goal: minimize}", "goal: minimize}, {metric: loss}", 2, "objectives[1].metric"),
    Case("outcome_on_objective", "", 'outcome_constraints:\n  - "time <= 3"\n  - "loss <= 3"\n', 15, "outcome_constraints[1]"),
    Case("outcome_relative", "", 'outcome_constraints: ["t <= 0.9 * baseline"]\n', 13, "outcome_constraints[0]"),
    Case("outcome_strict", "", 'outcome_constraints: ["t < 3"]\n', 13, "outcome_constraints[0]"),
    Case("outcome_twice", "", 'outcome_constraints: ["t <= 3", "2*t <= 6"]\n', 13, "outcome_constraints[1]"),
    Case("outcome_text", "", 'outcome_constraints: "t <= 3"\n', 13, "outcome_constraints"),
    Case("outcome_parentheses", "", 'outcome_constraints: ["(t) <= 3"]\n', 13, "outcome_constraints[0]"),
    Case("outcome_with_a_minus", "", 'outcome_constraints: ["3 <= gpu-hours"]\n', 13, "outcome_constraints[0]"),
    Case("outcome_minus_number", "", 'outcome_constraints: ["top-1 >= 0.7"]\n', 13, "outcome_constraints[0]"),
    Case("outcome_number_minus", "", 'outcome_constraints: ["2*t + 5-shot <= 1e-3"]\n', 13, "outcome_constraints[0]"),
    Case("outcome_call", "", "outcome_constraints: [\"exit('x') <= 3\"]\n", 13, "outcome_constraints[0]"),
    # budget, brake and early stopping
    *(
        Case(f"brake_{id}", "", f"brake: {written}\n", 13, f"brake{key}")
        for id, written, key in [
            ("number", "3", ""),
            ("boolean", "false", ""),
            ("negative", "{first: -1}", ".first"),
            ("float", "{later: 2.5}", ".later"),
            ("text", "{first: never}", ".first"),
            ("misspelt", "{frist: 3}", ".frist"),
        ]
    ),
    *(
        Case(f"budget_{id}", "", f"budget: {written}\n", 13, f"budget{key}")
        for id, written, key in [
            ("nothing", "", ""),
            ("empty", "{}", ""),
            ("number", "24", ""),
            ("list", "[{usd: 24}]", ""),
            ("misspelt", "{wall_hour: 2}", ".wall_hour"),
            ("unknown", "{carbon: 2}", ".carbon"),
            ("steps", "{steps: 100}", ".steps"),
            ("trials", "{trials: 30}", ".trials"),
            ("run_cap", "{run_cap: 30}", ".run_cap"),
            ("hours", "{hours: 30}", ".hours"),
            ("dollars", "{dollars: 30}", ".dollars"),
            ("zero", "{usd: 0}", ".usd"),
            ("negative", "{usd: 4, wall_hours: -1}", ".wall_hours"),
            ("infinite", "{usd: .inf}", ".usd"),
            ("nan", "{usd: .nan}", ".usd"),
            ("overflowing", "{usd: 1e999}", ".usd"),
            ("null", "{usd: ~}", ".usd"),
            ("unit", "{usd: $24}", ".usd"),
            ("quoted", "{device_hours: '20'}", ".device_hours"),
            ("boolean", "{device_hours: true}", ".device_hours"),
            ("twice", "{usd: 1, usd: 2}", ".usd"),
        ]
    ),
    *(
        Case(f"early_{id}", "", f"early_terminate: {written}\n", 13, f"early_terminate{key}")
        for id, written, key in [
            ("nothing", "", ""),
            ("word", "percentile", ""),
            ("empty", "{}", ""),
            ("no_type", "{percentile: 50}", ""),
            ("hyperband", "{type: hyperband, min_iter: 3}", ".min_iter"),
            ("asha", "{type: asha}", ".type"),
            ("ray", "{type: hyperband, grace_period: 3}", ".grace_period"),
            ("eta", "{type: hyperband, eta: 1}", ".eta"),
            ("eta_of_percentile", "{type: median, eta: 4}", ".eta"),
            ("percentile_of_median", "{type: median, percentile: 4}", ".percentile"),
            ("type_misspelt", "{type: percentil}", ".type"),
            ("type_unknown", "{type: envelope}", ".type"),
            ("type_list", "{type: [percentile]}", ".type"),
            ("key_misspelt", "{type: percentile, min_trial: 3}", ".min_trial"),
            ("ax_key", "{type: percentile, min_curves: 3}", ".min_curves"),
            ("share", "{type: percentile, percentile: 0.0}", ".percentile"),
            ("all", "{type: percentile, percentile: 100}", ".percentile"),
            ("negative", "{type: percentile, percentile: -5}", ".percentile"),
            ("nan", "{type: percentile, percentile: .nan}", ".percentile"),
            ("infinite", "{type: percentile, min_step: .inf}", ".min_step"),
            ("no_trials", "{type: percentile, min_trials: 0}", ".min_trials"),
            ("half_trial", "{type: percentile, min_trials: 2.5}", ".min_trials"),
            ("before_0", "{type: percentile, min_step: -1}", ".min_step"),
            ("text_step", "{type: percentile, min_step: ten}", ".min_step"),
            ("capped", "{type: percentile, min_trials: 9}\nrun_cap: 9", ".min_trials"),
            ("curve_misspelt", "{type: curv}", ".type"),
            ("wilcoxon", "{type: wilcoxon}", ".type"),
            ("foreign", "{type: curve, percentile: 5}", ".percentile"),
            ("foreign_margin", "{type: percentile, margin: 0.1}", ".margin"),
            ("few_curves", "{type: curve, min_trials: 4}", ".min_trials"),
            ("margin_percent", "{type: curve, margin: 5}", ".margin"),
            ("margin_nan", "{type: curve, margin: .nan}", ".margin"),
            ("margin_below", "{type: curve, margin: -0.1}", ".margin"),
            ("capped_default", "{type: percentile}\nrun_cap: 5", ""),
        ]
    ),
    Case("early_of_three", "[{metric: loss, goal: minimize}]", "[{metric: loss}, {metric: effective_steps}, {metric: usd}]\nearly_terminate: {type: median}", 3, "early_terminate"),
    Case("early_without_a_cost", "[{metric: loss, goal: minimize}]\nprogram: {trainer: {overrides: [model=tiny]}}", "[{metric: loss}, {metric: s}]\nprogram: {command: [a, '${overrides}']}\nearly_terminate: {type: hyperband}", 4, "early_terminate"),
    Case("early_of_a_front", "[{metric: loss, goal: minimize}]", "[{metric: loss}, {metric: usd}]\nearly_terminate: {type: percentile}", 3, "early_terminate"),
    Case("early_by_another_name", "", "early_stopping: {}\n", 13, "early_stopping"),
    # the program
    Case("program_path", "{trainer: {overrides: [model=tiny]}}", "train.py", 3, "program"),
    Case("program_none", "{trainer: {overrides: [model=tiny]}}", "{}", 3, "program"),
    Case("program_two", "program: {", "program: {function: a.b:c, ", 3, "program"),
    Case("override_no_equals", "model=tiny", "model", 3, "program.trainer.overrides[0]"),
    Case("override_mapping", "model=tiny", "model: tiny", 3, "program.trainer.overrides[0]"),
    Case("override_and_parameter", "model=tiny", "lr=1", 3, "program.trainer.overrides[0]"),
    Case("processes_none", "{overrides: [model=tiny]}", "{processes: 0}", 3, "program.trainer.processes"),
    Case("devices_of_the_trainer", "program: {", "program: {devices: 8, ", 3, "program.devices"),
    Case("nodes_none", "{overrides: [model=tiny]}", "{nodes: 0}", 3, "program.trainer.nodes"),
    Case("override_twice", "model=tiny", "a=1, a=2", 3, "program.trainer.overrides[1]"),
    Case("override_run_dir", "model=tiny", "run_dir=x", 3, "program.trainer.overrides[0]"),
    Case("overrides_misspelt", "overrides:", "override:", 3, "program.trainer.override"),
    Case("command_without_overrides", "{trainer: {overrides: [model=tiny]}}", "{command: [python, train.py]}", 3, "program.command"),
    Case("command_overrides_inside", "{trainer: {overrides: [model=tiny]}}", '{command: [python, "--x=${overrides}"]}', 3, "program.command"),
    Case("command_text", "{trainer: {overrides: [model=tiny]}}", '{command: "python train.py ${overrides}"}', 3, "program.command"),
    Case("function_without_colon", "{trainer: {overrides: [model=tiny]}}", "{function: package.module.name}", 3, "program.function"),
    # one parameter
    Case("parameters_list", "  seed: {value: 3}", "  seed: [1, 2]", 10, "parameters.seed"),
    Case("parameter_number", "  seed: {value: 3}", "  seed: 3", 10, "parameters.seed"),
    Case("parameter_empty", "  seed: {value: 3}", "  seed:", 10, "parameters.seed"),
    Case("only_min", NARROW_STEPS, "  steps: {min: 10}", 6, "parameters.steps"),
    Case("values_and_min", "value: 3", "values: [1, 2], min: 3", 10, "parameters.seed"),
    Case("unknown_parameter_key", "max: 100", "maxi: 100", 6, "parameters.steps.maxi"),
    Case("optunas_log", "distribution: log_uniform_values", "log: true", 5, "parameters.lr.log"),
    Case("ax_bounds", "min: 10, max: 100", "bounds: [10, 100]", 6, "parameters.steps.bounds"),
    Case("nested", "value: 3", "parameters: {a: {value: 1}}", 10, "parameters.seed.parameters"),
    Case("not_hydra", "  seed:", "  'see d':", 10, "parameters.see d"),
    Case("hydra_trailing_dot", "  seed:", "  seed.:", 10, "parameters.seed."),
    Case("parameter_run_dir", "  seed:", "  run_dir:", 10, "parameters.run_dir"),
    Case("reversed", "min: 10, max: 100", "min: 100, max: 10", 6, "parameters.steps.max"),
    Case("equal_bounds", "max: 100", "max: 10", 6, "parameters.steps.max"),
    Case("infinite_bound", "max: 100", "max: .inf", 6, "parameters.steps.max"),
    Case("nan_bound", "min: 10", "min: .nan", 6, "parameters.steps.min"),
    Case("overflowing_bound", "max: 100", "max: 1e999", 6, "parameters.steps.max"),
    Case("far_bound", "max: 100", "max: 1e200", 6, "parameters.steps.max"),
    Case("huge_integer", "max: 100", "max: 1" + "0" * 30, 6, "parameters.steps.max"),
    Case("absurd_integer", "max: 100", "max: " + "9" * 5000, 6, "parameters.steps.max"),
    Case("text_bound", "max: 100", "max: many", 6, "parameters.steps.max"),
    Case("quoted_bound", "max: 100", "max: '100'", 6, "parameters.steps.max"),
    Case("boolean_bound", "min: 10", "min: true", 6, "parameters.steps.min"),
    Case("null_bound", "min: 10", "min: ~", 6, "parameters.steps.min"),
    Case("list_bound", "min: 10", "min: [1]", 6, "parameters.steps.min"),
    Case("octal", "min: 10", "min: 010", 6, "parameters.steps.min"),
    Case("hexadecimal", "max: 100", "max: 0x64", 6, "parameters.steps.max"),
    Case("sexagesimal", "max: 100", "max: 1:30", 6, "parameters.steps.max"),
    Case("underscore", "max: 100", "max: 1_000", 6, "parameters.steps.max"),
    Case("log_zero", "min: 0.001", "min: 0", 5, "parameters.lr.min"),
    Case("log_negative", "min: 0.001", "min: -1.0", 5, "parameters.lr.min"),
    Case("wandb_log_uniform", "log_uniform_values", "log_uniform", 5, "parameters.lr.distribution"),
    Case("wandb_q", "log_uniform_values", "q_uniform", 5, "parameters.lr.distribution"),
    Case("wandb_normal", "log_uniform_values", "normal", 5, "parameters.lr.distribution"),
    Case("normal_far_away", "log_uniform_values", "log_normal, mu: 0.001, sigma: 0.1", 5, "parameters.lr.mu"),
    Case("flat", "log_uniform_values", "normal, mu: 1, sigma: 0", 5, "parameters.lr.sigma"),
    Case("sigma_alone", "max: 100", "max: 100, sigma: 3", 6, "parameters.steps.sigma"),
    Case("step_of_log", "values}", "values, step: 0.01}", 5, "parameters.lr.step"),
    Case("step_off", "max: 100", "max: 100, step: 40", 6, "parameters.steps.max"),
    Case("step_zero", "max: 100", "max: 100, step: 0", 6, "parameters.steps.step"),
    Case("step_long", "max: 100", "max: 100, step: 91", 6, "parameters.steps.step"),
    Case("step_fine", "min: 10, max: 100", "min: 1, max: 9, step: 1.0e-9", 6, "parameters.steps.step"),
    Case("step_of_values", "seed: {value: 3}", "seed: {value: 3, step: 1}", 10, "parameters.seed.step"),
    Case("distribution_misspelt", "log_uniform_values", "int_unifrom", 5, "parameters.lr.distribution"),
    Case("int_distribution_of_floats", "max: 100", "max: 100.0, distribution: int_uniform", 6, "parameters.steps.max"),
    Case("constant_range", "max: 100", "max: 9, distribution: constant", 6, "parameters.steps.distribution"),
    Case("value_uniform", "value: 3", "value: 3, distribution: uniform", 10, "parameters.seed.distribution"),
    Case("one_value", "[0.9, 0.95, 0.99]", "[0.9]", 9, "parameters.beta.values"),
    Case("no_values", "[0.9, 0.95, 0.99]", "[]", 9, "parameters.beta.values"),
    Case("values_scalar", "[0.9, 0.95, 0.99]", "0.9", 9, "parameters.beta.values"),
    Case("value_twice", "[0.9, 0.95, 0.99]", "[0.9, 0.90]", 9, "parameters.beta.values[1]"),
    Case("value_twice_as_int", "[0.9, 0.95, 0.99]", "[1, 2, 1.0]", 9, "parameters.beta.values[2]"),
    Case("mixed_text", "[0.9, 0.95, 0.99]", "[0.9, high]", 9, "parameters.beta.values"),
    Case("mixed_boolean", "[0.9, 0.95, 0.99]", "[1, true]", 9, "parameters.beta.values"),
    Case("yes_no", "[0.9, 0.95, 0.99]", "[yes, x]", 9, "parameters.beta.values[0]"),
    Case("date", "[0.9, 0.95, 0.99]", "[2024-01-31, x]", 9, "parameters.beta.values[0]"),
    Case("null_value", "[0.9, 0.95, 0.99]", "[0.9, {a: null}]", 9, "parameters.beta.values[1]"),
    Case("nan_value", "[0.9, 0.95, 0.99]", "[0.9, nan]", 9, "parameters.beta.values[1]"),
    Case("nested_values", "[0.9, 0.95, 0.99]", "[[1], 2]", 9, "parameters.beta.values"),
    Case("unsorted", "[0.9, 0.95, 0.99]", "[0.99, 0.9]", 9, "parameters.beta.values"),
    Case("ordered_word", "ordered: true", "ordered: 1", 9, "parameters.beta.ordered"),
    Case("ordered_range", "max: 100", "max: 100, ordered: true", 6, "parameters.steps.ordered"),
    Case("too_many_values", "[0.9, 0.95, 0.99]", str(list(range(1001))), 9, "parameters.beta.values"),
    # conditions
    Case("when_on_range", "max: 100", "max: 99, when: {200: [width]}", 6, "parameters.steps.when.200"),
    Case("when_always", "max: 100", 'max: 100, when: {">= 10": [width]}', 6, "parameters.steps.when.>= 10"),
    Case("when_never", "max: 100", 'max: 100, when: {"> 100": [width]}', 6, "parameters.steps.when.> 100"),
    Case("when_no_relation", "max: 100", "max: 100, when: {true: [width]}", 6, "parameters.steps.when.true"),
    Case("when_float_equal", "values}", "values, when: {0.01: [width]}}", 5, "parameters.lr.when.0.01"),
    Case("when_fixed", "seed: {value: 3}", "seed: {value: 3, when: {3: [lr]}}", 10, "parameters.seed.when"),
    Case("when_on_fixed", "value: 3", "value: 3, when: {3: [lr]}", 10, "parameters.seed.when"),
    Case("when_not_a_value", "when: {adamw", "when: {adam", 8, "parameters.opt.when.adam"),
    Case("when_unknown_child", "[beta]", "[bta]", 8, "parameters.opt.when.adamw[0]"),
    Case("when_child_twice", "[beta]", "[beta], muon: [beta]", 8, "parameters.opt.when.muon[0]"),
    Case("when_itself", "[beta]", "[opt]", 8, "parameters.opt.when.adamw[0]"),
    Case("when_cycle", "ordered: true", "when: {0.9: [opt]}", 9, "parameters.beta.when.0.9[0]"),
    Case("when_empty", "{adamw: [beta]}", "{}", 8, "parameters.opt.when"),
    Case("when_children_word", "[beta]", "beta", 8, "parameters.opt.when.adamw"),
    Case("when_value_twice", "[beta]", "[beta], 'adamw': [lr]", 8, "parameters.opt.when.adamw"),
    # constraints on parameters
    Case("constraint_unknown", "", 'parameter_constraints: ["step <= 3"]\n', 13, "parameter_constraints[0]"),
    Case("constraint_on_choice", "", 'parameter_constraints: ["opt <= 3"]\n', 13, "parameter_constraints[0]"),
    Case("constraint_on_fixed", "", 'parameter_constraints: ["seed <= 3"]\n', 13, "parameter_constraints[0]"),
    Case("constraint_on_log", "", 'parameter_constraints: ["lr + width <= 3"]\n', 13, "parameter_constraints[0]"),
    Case("constraint_product", "", 'parameter_constraints: ["steps*width <= 3"]\n', 13, "parameter_constraints[0]"),
    Case("constraint_equality", "", 'parameter_constraints: ["steps == 3"]\n', 13, "parameter_constraints[0]"),
    Case("constraint_chained", "", 'parameter_constraints: ["1 <= steps <= 3"]\n', 13, "parameter_constraints[0]"),
    Case("constraint_nothing_left", "", 'parameter_constraints: ["steps <= 3"]\n', 13, "parameter_constraints[0]"),
    Case("constraint_one_left", "", 'parameter_constraints: ["steps <= 10"]\n', 13, "parameter_constraints[0]"),
    Case("constraint_against_when", PARAMETERS_AND_SEARCH, '  steps: {min: 0, max: 300, step: 100, when: {"> 200": [lr]}}\n  lr: {min: 0, max: 1}\nparameter_constraints: ["steps <= 200"]', 7, "parameter_constraints[0]"),
    Case("constraint_against_equal", PARAMETERS_AND_SEARCH, '  steps: {min: 0, max: 3, when: {0: [lr], 2: [b]}}\n  lr: {min: 0, max: 1}\n  b: {min: 0, max: 1}\nparameter_constraints: ["steps >= 1"]', 8, "parameter_constraints[0]"),
    Case("constraint_infeasible", "", 'parameter_constraints: ["steps + width <= 3"]\n', 13, "parameter_constraints"),
    Case("constraints_jointly_infeasible", "", 'parameter_constraints: ["steps - 10*width <= -20", "steps - 5*width >= 75"]\n', 13, "parameter_constraints"),
    # the search, the cap, the lease, the baseline
    Case("method_misspelt", "method: bayes", "method: bayesian", 11, "search.method"),
    Case("grid_of_floats", "method: bayes, sobol: 4, seed: 0", "method: grid", 11, "search"),
    Case("grid_too_big", PARAMETERS_AND_SEARCH, "  steps: {min: 1, max: 5000}\nsearch: {method: grid}", 6, "search"),
    Case("grid_with_sobol", "method: bayes, sobol: 4, seed: 0", "method: grid, sobol: 4", 11, "search.sobol"),
    Case("grid_with_seed", "method: bayes, sobol: 4, seed: 0", "method: grid, seed: 1", 11, "search.seed"),
    Case("grid_with_baseline", PARAMETERS_AND_SEARCH, "  steps: {min: 1, max: 5}\nsearch: {method: grid}\nbaseline: {}", 7, "baseline"),
    Case("sobol_zero", "sobol: 4", "sobol: 0", 11, "search.sobol"),
    Case("sobol_float", "sobol: 4", "sobol: 4.5", 11, "search.sobol"),
    Case("seed_negative", "seed: 0}", "seed: -1}", 11, "search.seed"),
    Case("seed_huge", "seed: 0}", "seed: 4294967296}", 11, "search.seed"),
    Case("noise_word", "seed: 0}", "seed: 0, noise: none}", 11, "search.noise"),
    Case("noise_zero", "seed: 0}", "seed: 0, noise: 0}", 11, "search.noise"),
    Case("noise_true", "seed: 0}", "seed: 0, noise: true}", 11, "search.noise"),
    Case("run_cap_zero", "", "run_cap: 0\n", 13, "run_cap"),
    Case("run_cap_boolean", "", "run_cap: true\n", 13, "run_cap"),
    Case("heartbeat_zero", "heartbeat_s: 30", "heartbeat_s: 0", 12, "lease.heartbeat_s"),
    Case("expire_too_soon", "expire_s: 90", "expire_s: 60", 12, "lease.expire_s"),
    Case("heartbeat_too_slow", "heartbeat_s: 30, expire_s: 90", "heartbeat_s: 45", 12, "lease.heartbeat_s"),
    Case("attempts_zero", "max_attempts: 3", "max_attempts: 0", 12, "lease.max_attempts"),
    Case("lease_unit", "expire_s", "expire", 12, "lease.expire"),
    # what is known beforehand
    Case("default_outside", TRAINER, lr_with("default: 1.0", FUNCTION), 5, "parameters.lr.default"),
    Case("default_of_trainer", TRAINER, lr_with("default: 0.01"), 5, "parameters.lr.default"),
    Case("default_of_fixed", "value: 3", "value: 3, default: 4", 10, "parameters.seed.default"),
    Case("prior_of_fixed", "value: 3", "value: 3, prior: {around: 3}", 10, "parameters.seed.prior"),
    Case("prior_number", TRAINER, lr_with("prior: 0.01"), 5, "parameters.lr.prior"),
    Case("prior_around_nothing", TRAINER, lr_with("prior: {factor: 3}"), 5, "parameters.lr.prior"),
    Case("prior_outside", TRAINER, lr_with("prior: {around: 0.2, factor: 3}"), 5, "parameters.lr.prior.around"),
    Case("prior_factor_one", TRAINER, lr_with("prior: {around: 0.01, factor: 1}"), 5, "parameters.lr.prior.factor"),
    Case("prior_width_of_log", TRAINER, lr_with("prior: {around: 0.01, width: 0.1}"), 5, "parameters.lr.prior.width"),
    Case("prior_factor_of_linear", "steps: {min: 10,", "steps: {prior: {around: 20, factor: 3}, min: 10,", 6, "parameters.steps.prior.factor"),
    Case("prior_no_option", "values: [adamw, muon],", "values: [adamw, muon], prior: {around: sgd},", 8, "parameters.opt.prior.around"),
    Case("prior_factor_of_choice", "ordered: true}", "ordered: true, prior: {around: 0.9, factor: 2}}", 9, "parameters.beta.prior.factor"),
    Case("prior_of_normal", TRAINER, lr_with("mu: -5, sigma: 1, prior: {around: 0.01}").replace("log_uniform_values", "log_normal"), 5, "parameters.lr.prior"),
    Case("search_prior", "sobol: 4", "prior: of_defaults", 11, "search.prior"),
    Case("search_prior_random", "method: bayes, sobol: 4", "method: random, prior: none", 11, "search.prior"),
    *(
        Case(f"stop_{name}", "seed: 0}", f"seed: 0, stop: {written}}}", 11, key)
        for name, written, key in (
            ("number", "0.004", "search.stop"),
            ("without_gain", "{trials: 5}", "search.stop"),
            ("zero", "{expected_gain: 0}", "search.stop.expected_gain"),
            ("infinite", "{expected_gain: .inf}", "search.stop.expected_gain"),
            ("text", "{expected_gain: little}", "search.stop.expected_gain"),
            ("trials", "{expected_gain: 0.1, trials: 0}", "search.stop.trials"),
            ("trials_many", "{expected_gain: 0.1, trials: 1000}", "search.stop.trials"),
            ("chance", "{chance: 0.9}", "search.stop.chance"),
            ("as_ax", "{improvement_bar: 0.1}", "search.stop.improvement_bar"),
            ("misspelt", "{expected_gian: 0.1}", "search.stop.expected_gian"),
        )
    ),
    Case("stop_of_random", "method: bayes, sobol: 4, seed: 0", "method: random, stop: {expected_gain: 0.1}", 11, "search.stop"),
    Case("stop_with_outcome_constraints", "seed: 0}", "seed: 0, stop: {expected_gain: 0.1}}\noutcome_constraints: [ms <= 3]", 11, "search.stop"),
    Case("top_level_stop", "", "stop: {expected_gain: 0.1}\n", 13, "stop"),
    Case("transfer_a_list", "", "transfer: [a]\n", 13, "transfer"),
    Case("transfer_from_nothing", "", "transfer: {}\n", 13, "transfer"),
    Case("transfer_from_text", "", "transfer: {from: a}\n", 13, "transfer.from"),
    Case("transfer_twice", "", "transfer: {from: [a, a]}\n", 13, "transfer.from[1]"),
    Case("transfer_ftp", "", "transfer: {from: [a, 'ftp://x']}\n", 13, "transfer.from[1]"),
    Case("transfer_no_bucket", "", "transfer: {from: ['gs://']}\n", 13, "transfer.from[0]"),
    Case("transfer_sources", "", "transfer: {sources: [a]}\n", 13, "transfer.sources"),
    Case("transfer_of_random", "method: bayes, sobol: 4, seed: 0}", "method: random}\ntransfer: {from: [a]}", 12, "transfer"),
    Case("fidelity_a_list", "", "fidelity: [steps]\n", 13, "fidelity"),
    Case("fidelity_of_nothing", "", "fidelity: {}\n", 13, "fidelity"),
    Case("fidelity_unknown", "", "fidelity: {widht: {cost: [1, 2]}}\n", 13, "fidelity.widht"),
    Case("fidelity_of_a_range", "", "fidelity: {steps: {}}\n", 13, "fidelity.steps"),
    Case("fidelity_of_a_fixed_value", "", "fidelity: {seed: {}}\n", 13, "fidelity.seed"),
    Case("fidelity_without_order", "  seed: {value: 3}", "  size: {values: [small, large]}\nfidelity: {size: {cost: [1, 2]}}", 11, "fidelity.size"),
    Case("fidelity_descends", "  seed: {value: 3}", "  size: {values: [2, 1]}\nfidelity: {size: {cost: [1, 2]}}", 11, "fidelity.size"),
    Case("fidelity_with_children", "", "fidelity: {opt: {cost: [1, 2]}}\n", 13, "fidelity.opt"),
    Case("fidelity_is_a_child", "", "fidelity: {beta: {cost: [1, 2, 3]}}\n", 13, "fidelity.beta"),
    Case("fidelity_cost_of_some", "  seed: {value: 3}", "  size: {values: [1, 2]}\nfidelity: {size: {cost: [1, 2, 3]}}", 11, "fidelity.size.cost"),
    Case("fidelity_cost_a_number", "  seed: {value: 3}", "  size: {values: [1, 2]}\nfidelity: {size: {cost: 1}}", 11, "fidelity.size.cost"),
    Case("fidelity_min_budget", "  seed: {value: 3}", "  size: {values: [1, 2]}\nfidelity: {size: {min_budget: 1}}", 11, "fidelity.size.min_budget"),
    Case("fidelity_other_target", "  seed: {value: 3}", "  size: {values: [1, 2]}\nfidelity: {size: {target: 1}}", 11, "fidelity.size.target"),
    Case("fidelity_target_outside", "  seed: {value: 3}", "  size: {values: [1, 2]}\nfidelity: {size: {target: 3}}", 11, "fidelity.size.target"),
    Case("fidelity_of_two_lengths", "  seed: {value: 3}", "  size: {values: [1, 2]}\n  depth: {values: [1, 2, 4]}\nfidelity: {size: {}, depth: {}}", 12, "fidelity.depth"),
    Case("fidelity_of_random", "method: bayes, sobol: 4, seed: 0}", "method: random}\nfidelity: {opt: {}}", 12, "fidelity"),
    Case("fidelity_and_early_stopping", "", "early_terminate: {type: hyperband}\nfidelity: {opt: {}}\n", 14, "fidelity"),
    Case("fidelity_and_transfer", "", "transfer: {from: [a]}\nfidelity: {opt: {}}\n", 14, "fidelity"),
    Case("fidelity_first_trial_below", "  seed: {value: 3}", "  size: {values: [1, 2]}\nbaseline: {size: 1}\nfidelity: {size: {cost: [1, 2]}}", 11, "baseline.size"),
    Case("fidelity_costs_unknown", BASE.partition("program")[2], ": {function: 'm:f'}\nparameters: {lr: {min: 0.1, max: 1.0}, size: {values: [1, 2]}}\nfidelity: {size: {}}\n", 5, "fidelity"),
    Case("fidelity_costs_fall", BASE.partition("program")[2], ": {function: 'm:f'}\nparameters: {lr: {min: 0.1, max: 1.0}, size: {values: [1, 2]}}\nfidelity: {size: {cost: [2, 1]}}\n", 5, "fidelity"),
    Case("top_level_from", "", "from: [a]\n", 13, "from"),
    Case("top_level_prior", "", "prior: none\n", 13, "prior"),
    Case("baseline_unknown", "", "baseline: {lrr: 0.01}\n", 13, "baseline.lrr"),
    Case("baseline_outside", "", "baseline: {lr: 1.0}\n", 13, "baseline.lr"),
    Case("baseline_float_steps", "", "baseline: {steps: 20.0}\n", 13, "baseline.steps"),
    Case("baseline_not_a_choice", "", "baseline: {opt: sgd}\n", 13, "baseline.opt"),
    Case("baseline_other_fixed", "", "baseline: {seed: 4}\n", 13, "baseline.seed"),
    Case("baseline_switched_off", "", "baseline:\n  opt: muon\n  beta: 0.9\n", 15, "baseline.beta"),
    Case("baseline_breaks_constraint", "", 'parameter_constraints: ["steps + width <= 50"]\nbaseline: {width: 4}\n', 14, "baseline"),
    # thresholds: an outcome constraint on one of two objectives
    *(
        Case(f"threshold_{id}", "[{metric: loss, goal: minimize}]", f"{TWO_OBJECTIVES}\noutcome_constraints: {written}", 3, f"outcome_constraints[{nth}]")
        for id, written, nth in [
            ("min_above", '["a >= 3"]', 0),
            ("max_below", '["b <= 3"]', 0),
            ("several", '["a + t <= 3"]', 0),
            ("twice", '["a <= 3", "a <= 2"]', 1),
        ]
    ),
]
# fmt: on


def test_the_base_of_all_cases_is_good() -> None:
    assert loads(BASE, "x.yaml").name == "good"


def test_the_case_ids_are_unique() -> None:
    assert len({case.id for case in CASES}) == len(CASES) >= 60


def test_each_is_refused_as_the_page_says() -> None:
    compare("Search spaces", BASE, CASES)


def test_another_problem_is_shown_as_well() -> None:
    shown = 0
    for case in CASES:
        with pytest.raises(SpaceError) as caught:
            loads(case.change(BASE) + "\ncolour: red\n", "x.yaml")
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
    with pytest.raises(SpaceError, match=r"x\.yaml:13: .*`width`"):
        loads(text, "x.yaml")


@pytest.mark.parametrize("section", ["lease", "search", "brake", "early_terminate"])
def test_half_a_surrogate_instead_of_a_section_is_refused(section: str) -> None:
    text = f'name: a\nobjectives: [{{metric: m}}]\nprogram: {{function: a:b}}\n{section}: "\\ud800"\n'
    text += "parameters:\n  x: {min: 0.0, max: 1.0}\n"
    with pytest.raises(SpaceError, match=rf"x\.yaml:4: {section}: "):
        loads(text, "x.yaml")


def test_space_with_nothing_to_search_is_refused() -> None:
    text = "name: a\nobjectives: [{metric: m}]\nprogram: {function: a:b}\nparameters:\n  x: {value: 1}\n"
    with pytest.raises(SpaceError, match=r"x\.yaml:5: parameters: "):
        loads(text, "x.yaml")


@pytest.mark.parametrize("constraint", ["a <= 3", "b >= 3"])
def test_threshold_that_points_the_way_of_its_goal_is_taken(constraint: str) -> None:
    text = BASE.replace("[{metric: loss, goal: minimize}]", TWO_OBJECTIVES)
    space = loads(f'{text}outcome_constraints: ["{constraint}"]\n', "x.yaml")
    assert space.outcome_constraints == (constraint,)


@pytest.mark.parametrize("constraint", ["t <= 1e-3", "1.5e-3*t - .2e-1 >= t2", "a - b <= 2", "-t >= -3"])
def test_minus_of_a_number_or_between_spaces_is_taken(constraint: str) -> None:
    space = loads(f'{BASE}outcome_constraints: ["{constraint}"]\n', "x.yaml")
    assert space.outcome_constraints == (constraint,)


# What a file holds that is no mapping of text, and the line that is named.
FILES: dict[str, tuple[bytes, int | None]] = {
    "nothing": (b"", None),
    "a comment": (b"# only a comment\n\n", None),
    "null": (b"null\n", 1),
    "text": (b"just text\n", 1),
    "a list": (b"- a\n- b\n", 1),
    "Latin-1": (b"name: good\n# caf\xe9\n", 2),
    "UTF-16": ("name: good".encode("utf-16"), 1),
    "zeros": (b"\x00\x01\x02", 1),
    "300,000 characters": (b"#" * 300_000, None),
    "200,000 characters of two bytes each": ("é".encode() * 200_000, None),
    "200,000 brackets": (b"[" * 200_000, 1),
}


def test_other_files_are_refused_as_the_page_says() -> None:
    messages = []
    path = Path("space.yaml")
    for held, (data, line) in FILES.items():
        path.write_bytes(data)
        with pytest.raises(SpaceError) as caught:
            load(path)
        assert (caught.value.file, caught.value.line) == ("space.yaml", line), held
        messages.append((held, str(caught.value)))
    for name in ("missing.yaml", ".", "n" * 300):
        with pytest.raises(SpaceError) as caught:
            load(Path(name))
        assert caught.value.file == name
        messages.append(
            (f"a path to nothing that can be read: `{name[:20]}`", str(caught.value).replace(name, name[:20]))
        )
    golden_messages.compare("Files of search spaces", messages)


@pytest.mark.slow
def test_a_quarter_of_a_mebibyte_of_keys_is_refused_quickly(tmp_path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text("".join(f"k{i}: 1\n" for i in range(25_000)))
    with pytest.raises(SpaceError, match="k0: unknown key"):
        load(path)


PIECES = [
    *"{}[]:,'\"|>&*!#%@`-?~\t\n ",
    *("null", "true", ".nan", "1e400", "-1", "0", "[]", "{}", "lr", "min", "when", "${overrides}", "\u2028"),
    *("<= 1e308", "1e-320*", "9" * 30, "...", "---", "\\x00", "steps >= -1e-300"),
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
