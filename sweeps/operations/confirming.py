"""Plan of a confirmation: the best trials of a sweep, to be run again with fresh seeds."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sweeps.errors import CannotStart, IllegalTransition, InputError, StoreConflict
from sweeps.experiment import Experiment
from sweeps.search.confirm.plan import Plan, store_plan, stored_plan
from sweeps.space.definition import Fixed, Space, Value
from sweeps.space.domain import Domain
from sweeps.text.columns import is_seed
from sweeps.text.counted import counted
from sweeps.trials import actions, budget, control, lifecycle
from sweeps.trials.record import Trial

TOP, SEEDS = 5, 5
_SEEDS_BELOW = 10**6
"""Short numbers, which are easy to compare in a table."""


def plan_confirmation(
    experiment: Experiment,
    options: Mapping[str, Any],
    *,
    again: bool,
    own_program: bool,
    by: str,
    on_notice: Callable[[str], None],
) -> Plan:
    """Return the plan in force: the stored one, or a new one that is stored now.

    Args:
        options: `top`, `seeds`, `budget`, `objective`, `bounds` and `seed_name`, as of `sweep confirm`; None
            or () where they are left out.
        again: plan anew, whatever is stored, and abandon pending repeats of the former plan.
        own_program: whether the caller runs the repeats, by the program that the sweep has.
        on_notice: gets what is planned, and what should be known of it.

    Raises:
        InputError: the options do not fit the stored plan, or no plan can be made; nothing was written.
        CannotStart: the caller cannot run it, as the sweep has no program; nothing was written.
    """
    stored = stored_plan(experiment.store)
    if stored is not None and not again:
        return _require_same(stored[0], options)
    if again and stored is None:
        raise InputError("--again: nothing was confirmed yet; leave it out")
    plan = _new_plan(experiment, experiment.trials(), options, on_notice)
    # Once stored, whoever calls `run` next would run the repeats.
    if own_program and experiment.space.program.is_user_script:
        raise CannotStart(
            "program: this sweep has none, so nothing was planned; call `sweep.confirm(function)` in Python, "
            "or add --plan and start your script again"
        )
    try:
        store_plan(experiment.store, plan, None if stored is None else stored[1])
    except StoreConflict:  # somebody else planned at the same time
        stored = stored_plan(experiment.store)
        if stored is None:
            raise
        return _require_same(stored[0], options)
    runs = len(plan.finalists) * len(plan.seeds)
    most = runs if plan.trials is None else min(runs, plan.trials)
    trials = [finalist.trial for finalist in plan.finalists]
    what = f"{actions.about_trials('confirm', trials)} by {plan.metric}: at most {counted(most, 'run')}"
    actions.note(experiment.store, what, by)
    on_notice(f"confirming{what.removeprefix('confirm')}")
    if again:
        _abandon_former(experiment, plan, by, on_notice)
    return plan


def _abandon_former(experiment: Experiment, plan: Plan, by: str, on_notice: Callable[[str], None]) -> None:
    """Abandon the repeats of former plans that are pending: workers would run them before this plan's."""
    records = experiment.trials()
    own = {record.trial for record in plan.repeats(records).values()}
    abandoned = 0
    for record in records:
        if record.generator == "confirm" and record.status == "pending" and record.trial not in own:
            with contextlib.suppress(IllegalTransition):  # it has ended meanwhile
                experiment.apply(record.trial, lifecycle.Abandon(by=f"{by}: planned anew"))
                abandoned += 1
    if abandoned:
        on_notice(f"abandoned {counted(abandoned, 'repeat')} of the former plan that waited for a worker")


def _require_same(plan: Plan, options: Mapping[str, Any]) -> Plan:
    """Return the plan. Raises `InputError` if an option asks for something else."""
    present = {
        "top": plan.top,
        "seeds": len(plan.seeds),
        "budget": plan.trials,
        "objective": plan.metric,
        "seed_name": plan.seed_name,
        "bounds": dict(plan.within),
    }
    asked = {name: value for name, value in options.items() if value not in (None, ())}
    if "bounds" in asked:
        asked["bounds"] = _bounds(asked["bounds"])
    for name, value in asked.items():
        if present[name] != value:
            option = "--" + {"bounds": "max"}.get(name, name).replace("_", "-")
            was = "without" if present[name] in (None, {}) else f"with {_option(present[name])}"
            raise InputError(
                f"{option} {_option(value)}: this confirmation was planned {was}; "
                "leave the option out to go on with it, or add --again to plan anew"
            )
    return plan


def _option(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={limit:g}" for name, limit in value.items())
    return str(value)


def _new_plan(
    experiment: Experiment, records: list[Trial], options: Mapping[str, Any], on_notice: Callable[[str], None]
) -> Plan:
    """Return a plan by the options and the records. Raises `InputError`."""
    from sweeps.programs.kinds import program_of
    from sweeps.search.confirm.finalists import choose

    space, url = experiment.space, experiment.store.url
    program = program_of(space)
    metric = options["objective"] or space.metrics()[0]
    if metric not in space.metrics():
        raise InputError(f"--objective {metric}: the objectives are {', '.join(space.metrics())}")
    within = _bounds(options["bounds"])
    seed_name = options["seed_name"]
    if seed_name is None:
        if not program.has_seed:
            raise InputError(
                f"the search space {space.name} has no parameter `seed`, so a repeat would be the same run "
                "again; say which key of the program is the seed with --seed-name NAME"
            )
        seed_name = "seed"
    if not seed_name or any(character.isspace() or character == "=" for character in seed_name):
        raise InputError(f"--seed-name {seed_name!r}: this is not the name of a parameter")
    # A repeat with `layers=97880` for a seed would be another configuration, and be called the winner.
    if seed_name in Domain(space).searched and not is_seed(seed_name):
        raise InputError(
            f"--seed-name {seed_name}: this sweep searches {seed_name}, and a repeat keeps what is searched; "
            "name the program's seed"
        )
    require_running(experiment)
    if reached := budget.reached_limit(space, records, experiment.store.now()):
        raise InputError(f"{url}: its budget leaves nothing for a confirmation: {reached}")
    if not any(record.status == "completed" for record in records):
        raise InputError(
            f"{url}: no trial is completed yet, so there is nothing to confirm; see `sweep status`"
        )
    top = options["top"] or TOP
    chosen = choose(space, records, metric=metric, top=top, seed_name=seed_name, within=within)
    finalists = chosen.finalists
    if len(finalists) < 2:
        found = counted(len(finalists), "completed trial")
        limits = " within the outcome constraints and --max" if within or space.outcome_constraints else ""
        raise InputError(f"{url}: {found}{limits}: confirm compares at least two; go on searching first")
    seeds = options["seeds"] or SEEDS
    if options["budget"] is not None and options["budget"] < 2 * len(finalists):
        raise InputError(
            f"--budget {options['budget']}: the first two rounds of {len(finalists)} trials are "
            f"{2 * len(finalists)} runs; raise it, or lower --top"
        )
    if chosen.note:
        on_notice(f"chosen by observed values: {chosen.note}")
    if len(finalists) < top:
        on_notice(f"only {len(finalists)} trials can be confirmed, not {top}")
    if len(space.objectives) > 1 and not (options["objective"] or within):
        on_notice(
            f"by {metric} alone, whatever the other objectives; --max METRIC=VALUE leaves out costly trials"
        )
    plan = Plan(
        metric=metric,
        goal=next(o.goal for o in space.objectives if o.metric == metric),
        finalists=finalists,
        seed_name=seed_name,
        seeds=_fresh_seeds(space, records, seed_name, seeds),
        fixed=dict(program.test_overrides),
        top=top,
        trials=options["budget"],
        within=within,
        created=experiment.store.now(),
    )
    program.check([plan.parameters(finalist, plan.seeds[0]) for finalist in finalists])
    return plan


def _bounds(texts: Sequence[str]) -> dict[str, float]:
    """Return the greatest value of each metric in texts such as `effective_steps=3000`."""
    found: dict[str, float] = {}
    for text in texts:
        name, equals, number = text.partition("=")
        try:
            found[name.strip()] = float(number)
        except ValueError:
            equals = ""
        if not (equals and name.strip() and math.isfinite(found[name.strip()])):
            raise InputError(f"--max {text}: write METRIC=NUMBER, such as effective_steps=3000")
    return found


def require_running(experiment: Experiment) -> None:
    """Raise `InputError` if the sweep is stopped: no worker would run a repeat."""
    if control.read(experiment.store) == "stopped":
        url = experiment.store.url
        raise InputError(f"{url} is stopped, so nothing can be confirmed; `sweep resume` opens it again")


def _fresh_seeds(space: Space, records: Sequence[Trial], key: str, count: int) -> tuple[int, ...]:
    """Return seeds that no trial has run with, in ascending order; they follow from the sweep's seed."""
    from sweeps.search.determinism import stable_seed

    used: set[Value] = {record.parameters[key] for record in records if key in record.parameters}
    used |= {parameter.value for parameter in space.parameters if isinstance(parameter, Fixed)}
    found: list[int] = []
    at = 0
    while len(found) < count:
        seed = stable_seed(space.search.seed, "confirm", at) % _SEEDS_BELOW
        at += 1
        if seed not in used and seed not in found:
            found.append(seed)
    return tuple(sorted(found))
