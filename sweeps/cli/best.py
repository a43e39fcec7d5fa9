"""Command `sweep best`: the confirmed winner, the surrogate's choice, or the best observed trial.

It imports torch and Ax only for the surrogate.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import click

from sweeps.cli.options import Sweep, readable, sweep_option
from sweeps.cli.output import echo, format_option, notify, print_csv, print_json
from sweeps.errors import EXIT_FAILED, SurrogateFailed
from sweeps.experiment import Experiment
from sweeps.export import held_out, optimum, table
from sweeps.export.gain import Gain, gain
from sweeps.operations import confirmation
from sweeps.operations.status import trial_result
from sweeps.search.confirm import rounds
from sweeps.search.confirm.answer import Answer
from sweeps.space.definition import Space
from sweeps.space.overrides import to_overrides
from sweeps.stages import sharing
from sweeps.text.counted import counted
from sweeps.text.printable import escape_controls
from sweeps.text.shorten import shorten
from sweeps.trials.objectives import common_means
from sweeps.trials.record import Trial
from sweeps.trials.redaction import redact_trials


@click.command()
@sweep_option
@format_option
@click.option(
    "--surrogate/--no-surrogate",
    default=True,
    show_default=True,
    help="Choose by the surrogate's posterior mean, which takes seconds; without it by the observed value.",
)
@click.pass_context
def best(ctx: click.Context, sweep: Sweep, style: str, surrogate: bool) -> None:
    """Show the best trial, and a command line that runs it again.

    After `sweep confirm` it is the confirmed winner, and while that goes on the best by the means of two
    fresh runs or more. Before, from 30 results of a search for one objective on, it is the trial with the
    best posterior mean, with the chance that nothing in the space is better by more than the noise of a run,
    and what more trials would be expected to gain. Otherwise it is the best observed value of one run; with
    several objectives by the first one, see `sweep pareto` for the trade-off.
    """
    experiment = sweep.open()
    records = readable(experiment)
    record, found = table.best(experiment.space, records), confirmation.confirmed_answer(experiment, records)
    if found is not None:
        plan, answer = found
        winner = redact_trials([confirmation.winner_of(experiment, answer)])[0]
        if style == "json":
            print_json(_best_document(experiment.space, winner, answer))
        elif style == "csv":
            print_csv([table.flat(winner)])
        else:
            echo(confirmation.winner_line(answer))
            for line in confirmation.sentences(plan, answer):
                echo(f"  {line}")
            from sweeps.programs.kinds import program_of  # `sweep status` imports this module, too

            click.echo(escape_controls(program_of(experiment.space).command_line(winner)))
            if record is not None and record.created > plan.created:
                line = best_line(experiment.space, record)
                notify(f"{line}, in one run after the confirmation; `sweep confirm --again` includes it")
        return
    so_far, confirming = confirmation.confirmed_so_far(experiment, records)
    model = None
    try:
        model = optimum.optimum(experiment.space, records) if surrogate and so_far is None else None
    except SurrogateFailed as error:
        notify(f"{error}; so the choice is by the observed values")
    record = so_far or record
    if model is not None:
        record = next(each for each in records if each.trial == model["trial"])
    if style == "json":
        gained = None if record is None else _gain(experiment, records, record)
        print_json(
            None
            if record is None
            else _best_document(
                experiment.space, record, model=model, gained=gained, confirming=confirming or None
            )
        )
    elif record is None:
        notify(nothing_yet(experiment, records))
    elif style == "csv":
        print_csv([table.flat(record)])
    else:
        _print_best(experiment, records, record, model, so_far=so_far is not None, confirming=confirming)
    if record is None:
        ctx.exit(EXIT_FAILED)


def _print_best(
    experiment: Experiment,
    records: Sequence[Trial],
    record: Trial,
    model: Mapping[str, Any] | None,
    *,
    so_far: bool,
    confirming: str,
) -> None:
    """Print the best trial before a confirmation has a winner, and how to run it again.

    Args:
        model: the surrogate's answer, if that chose it.
        so_far: whether the means of fresh runs did.
        confirming: how far the confirmation is; "" if none goes on.
    """
    if so_far:
        runs = table.fresh_runs(experiment.space, records)[record.trial]
        means = common_means([{m: run.metrics.get(m) for m in experiment.space.metrics()} for run in runs])
        mean = f"mean of {counted(len(runs), 'fresh seed')}"
        echo(f"{best_line(experiment.space, replace(record, metrics=means))}, {mean}")
    elif model is None:
        echo(best_line(experiment.space, record))
    else:
        first, *others = model["sentences"]
        echo(first)
        for line in others:
            echo(f"  {line}")
    if gained := _gain(experiment, records, record):
        echo(f"  {gained}")
    if line := sharing.trial_line(record):
        echo(f"  {line}")
    from sweeps.programs.kinds import program_of  # likewise

    program = program_of(experiment.space)
    for line in program.lines_to_rerun(record):
        click.echo(escape_controls(line))
    text = " on the text that the search has used" if program.test_overrides else ""
    by_script = experiment.space.program.is_user_script
    confirm = "`sweep.confirm(function)` in Python" if by_script else "`sweep confirm`"
    if confirming:
        notify(f"the confirmation is not over: {confirming}; {confirm} goes on")
    elif model is None and not so_far:
        seeds = "" if program.has_seed else ", if you say with --seed-name what takes them"
        notify(
            f"one run{text}, and the best of many looks better than it is; {confirm} runs it again "
            f"with fresh seeds{'' if by_script else seeds}"
        )


def _gain(experiment: Experiment, records: Sequence[Trial], best: Trial) -> Gain | None:
    """Return what the best trial has gained; None, too, once fresh runs have confirmed any."""
    planned = rounds.of_store(experiment.store, experiment.space, list(records))
    if confirmation.has_confirmed(experiment.space, planned, records):
        return None
    first = next((record for record in records if record.generator == "baseline"), None)
    by_sequence = {} if first is None else held_out.losses(experiment.store, experiment.space, [first, best])
    return gain(experiment.space, records, best, by_sequence)


def nothing_yet(experiment: Experiment, records: Sequence[Trial]) -> str:
    """Return why there is no best trial, and what to do."""
    if not records:
        url = shlex.quote(experiment.store.url)
        return f"there are no trials yet; start some with `sweep worker --storage {url}`"
    if any(record.status == "completed" for record in records) and experiment.space.outcome_constraints:
        return "no completed trial is within the outcome constraints; see `sweep trials`"
    done = [record for record in records if record.status == "failed"]
    if done and all(record.finished for record in records):
        return "no trial has completed, and none is open; `sweep trials` and `sweep doctor` say why"
    return "no trial is completed yet; see `sweep status`"


def best_line(space: Space, record: Trial) -> str:
    """Return the objectives of a trial, such as `trial 5: final_loss 3.3412 ± 0.0123`."""
    metrics = []
    for metric in space.metrics():
        sem = record.metrics.get(f"{metric}_sem")
        error = "" if sem is None else f" ± {sem:.2g}"
        metrics.append(f"{metric} {shorten(record.metrics.get(metric))}{error}")
    return f"trial {record.trial}: {', '.join(metrics)}"


def _best_document(
    space: Space,
    record: Trial,
    found: Answer | None = None,
    *,
    model: Mapping[str, Any] | None = None,
    gained: Gain | None = None,
    confirming: str | None = None,
) -> dict[str, Any]:
    confirmed = None if found is None else confirmation.winner_document(found)
    overrides = [*space.program.overrides, *to_overrides(record.parameters)]
    return {
        **trial_result(record),
        "overrides": overrides,
        "confirmed": confirmed,
        "confirming": confirming,
        "model": model,
        "gain": None if gained is None else asdict(gained),
        **table.stage_costs(record),
    }
