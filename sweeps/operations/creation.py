"""Creation of a sweep: its space and its program are checked before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sweeps.errors import InputError
from sweeps.experiment import REMOTE_EXPIRE_S, Experiment
from sweeps.operations.control import user_name
from sweeps.operations.limits import differences
from sweeps.operations.opening import exists, make_default, new_store
from sweeps.operations.sources import read_sources
from sweeps.programs.kinds import program_of
from sweeps.search.allocation import draws_without_ax
from sweeps.search.stop_rule import FEWEST
from sweeps.space.definition import Fixed, Space
from sweeps.space.fidelity import Ladder
from sweeps.space.priors import first_trial_notice, with_defaults
from sweeps.space.stages import Stages
from sweeps.storage.urls import is_remote
from sweeps.trials.budget import REPORTED
from sweeps.trials.redaction import refuse_secrets


def create_sweep(
    space: Space,
    storage: str | None,
    *,
    skip_if_exists: bool,
    on_notice: Callable[[str], None],
    whose_defaults: str = "the stated",
) -> Experiment:
    """Check the space, with Ax if that searches it, and the program, then create the sweep.

    Nothing is written if a check fails.

    Args:
        skip_if_exists: return the existing sweep if it has the same space; larger limits extend it.
        on_notice: gets warnings, and what trials share.
        whose_defaults: the first trial has, if the space has one of them already; for the notice.
    """
    refuse_secrets(space)
    store = new_store(storage, space.name)
    made = not (skip_if_exists and exists(store))
    if made and is_remote(store.url) and space.lease.expire_s < REMOTE_EXPIRE_S:
        space = replace(space, lease=replace(space.lease, expire_s=REMOTE_EXPIRE_S))
        on_notice(f"lease.expire_s is {REMOTE_EXPIRE_S:g} in a bucket, the time a request may need")
    space, notice = with_defaults(space, program_of(space).defaults(), "the trainer's")
    program = program_of(space)  # once more: it checks the space that has its first trial by now
    space = program.complete()
    notice = notice or (first_trial_notice(whose_defaults) if space.defaults == "first" else "")
    if notice:
        on_notice(notice)
    if space.fidelity and made:
        on_notice(f"fidelity: {Ladder(space)}")
    if made:
        _require_known_cost(space)  # not of one that exists: earlier versions made those
        space = read_sources(space, on_notice)  # each source is read once
    if space.search.method != "grid" and not draws_without_ax(space):
        from sweeps.search import optimizer  # imports Ax, which takes seconds

        # The baseline does not count as one of the first trials, which Sobol has.
        first, cap = optimizer.require_searchable(space) + (space.baseline is not None), space.run_cap
        early = space.transfer or space.fidelity  # the surrogate of a source, or of cheap trials, comes first
        if space.search.method == "bayes" and cap is not None and cap <= first and not early:
            on_notice(
                f"warning: run_cap {cap} leaves no trial to the surrogate: Sobol has the first {first}; "
                "raise run_cap, lower search.sobol, or write method: random"
            )
    if space.search.stop is not None and space.run_cap is not None and space.run_cap <= FEWEST:
        on_notice(
            f"warning: search.stop is judged from {FEWEST} results on, and run_cap {space.run_cap} ends the "
            "search before"
        )
    for name in REPORTED:
        if getattr(space.budget, name) is not None and not program.reports(name):
            on_notice(
                f"warning: budget.{name} counts the metric `{name}` of each trial: does the program report "
                "it? If not, this budget never ends the sweep; device_hours and wall_hours need no report"
            )
    if (stages := Stages(space)).shared:
        seeds = any(each.name == "seed" and not isinstance(each, Fixed) for each in space.parameters)
        repeats = space.search.method == "grid"  # each seed, with all other values
        if seeds and stages.position("seed") == 0 and not repeats:
            on_notice(
                "`seed` is searched, and trials with different seeds share no stage; take it out: "
                "`sweep confirm` repeats the best trials with fresh seeds"
            )
        else:
            lengths = " or ".join(stage.name for stage in space.stages if stage.trunk is not None)
            end = f"agree up to the end of {stages.names[0]} compute it once"
            trunk = f"other lengths of {lengths} what comes before the decay"
            if len(stages.names) == 1:
                what = f"differ only in the length of {lengths} compute once what comes before the decay"
            else:
                what = f"{end}, and those with {trunk}" if lengths else end
            on_notice(f"trials that {what}; search: {{reuse: none}} switches that off")
    experiment = Experiment.create(store, space, skip_if_exists=skip_if_exists)
    if skip_if_exists:  # one that was there may have smaller limits
        raise_limits(experiment, space, on_notice)
    make_default(store)
    return experiment


def _require_known_cost(space: Space) -> None:
    """Raise InputError if early stopping compares costs that nothing states: it would never stop a trial.

    Space files have been checked; which stages the trainer has is known once it has composed them.
    """
    if space.stops_by_cost() and not (space.stages and all(stage.cost for stage in space.stages)):
        raise InputError(
            "early_terminate: with two objectives it compares a trial with those whose stages cost no more, "
            "and no expression in the parameters says what these stages cost; write type: curve"
        )


def raise_limits(experiment: Experiment, space: Space, on_notice: Callable[[str], None]) -> None:
    """Extend a sweep that exists by the limits of this space that are larger, and say which."""
    before = experiment.amendments.refresh()
    if (amendment := experiment.raise_limits(space, by=user_name())) is not None:
        on_notice(f"{experiment.store.url}: extended: {', '.join(differences(before, amendment))}")
