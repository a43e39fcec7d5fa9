"""Command `sweep confirm`: runs the best trials again with fresh seeds, and says which one is the best."""

from __future__ import annotations

from typing import Any

import click

from sweeps.cli.options import Sweep, count_option, sweep_option
from sweeps.cli.output import echo, format_option, notify, print_csv, print_json, print_table
from sweeps.errors import EXIT_FAILED, EXIT_PREEMPTED
from sweeps.experiment import Experiment
from sweeps.operations import confirming
from sweeps.operations.confirmation import (
    document,
    finished_line,
    progress_line,
    rows,
    sentences,
    warnings,
    winner_line,
    winner_of,
)
from sweeps.operations.confirming import SEEDS, TOP
from sweeps.operations.control import user_name
from sweeps.programs.kinds import program_of
from sweeps.search.confirm.answer import answer
from sweeps.search.confirm.plan import Plan
from sweeps.search.confirm.rounds import Standing, standing
from sweeps.text.columns import metric_column
from sweeps.text.printable import escape_controls


@click.command()
@sweep_option
@count_option("--top", least=2, metavar="K", help=f"How many trials to run again. Default: {TOP}.")
@count_option("--seeds", least=2, metavar="N", help=f"Fresh seeds for each. Default: {SEEDS}.")
@count_option(
    "--budget",
    metavar="RUNS",
    help="The most runs in all. Default: K times N; fewer where a trial leaves early.",
)
@click.option("--objective", metavar="METRIC", help="Which objective to confirm. Default: the first one.")
@click.option(
    "--max",
    "bounds",
    multiple=True,
    metavar="METRIC=VALUE",
    help="Only trials with at most this, such as effective_steps=3000. May be repeated.",
)
@click.option(
    "--seed-name",
    metavar="NAME",
    help="The program's parameter that is the seed. Default: seed, which the search space must have "
    "unless the program is the trainer.",
)
@click.option("--plan", "plan_only", is_flag=True, help="Only plan it; the workers of the sweep run it.")
@click.option("--again", is_flag=True, help="Plan anew, after more of a search or with other options.")
@format_option
@click.pass_context
def confirm(
    ctx: click.Context, /, sweep: Sweep, plan_only: bool, again: bool, style: str, **options: Any
) -> None:
    """Run the best trials again with fresh seeds, and say which one is the best.

    The K best by the surrogate's posterior mean, not by their lowest number, run as trials of the same sweep,
    here and wherever a worker is. After each round those that cannot win any more leave. The answer is the
    winner with its loss on the test text, the chance that it is the best, and how much better its first
    number was than its mean. Called again, it goes on, or prints the answer.
    """
    experiment = sweep.open()
    plan = confirming.plan_confirmation(
        experiment, options, again=again, own_program=not plan_only, by=user_name(), on_notice=notify
    )
    now = standing(experiment.space, plan, experiment.trials())
    if not now.finished and not plan_only:
        from sweeps.programs.signals import Stop
        from sweeps.worker.loop import Limits, work
        from sweeps.worker.progress import watcher

        confirming.require_running(experiment)
        stop = Stop()
        stop.listen()
        with watcher(experiment) as watching:
            tally = work(experiment, stop=stop, watcher=watching, limits=Limits(confirming=True))
        if tally.preempted_by:
            echo(f"sweep: {tally.preemption}", err=True)
            ctx.exit(EXIT_PREEMPTED)
        now = standing(experiment.space, plan, experiment.trials())
    if style == "json":
        print_json(document(experiment.space, plan, now))
    elif style == "csv":
        print_csv(rows(experiment.space, plan, now))
    elif now.finished:
        _print_answer(experiment, plan, now)
    else:
        echo(f"confirm  {progress_line(experiment.space, plan, now)}")
    if not plan_only and not (now.finished and answer(experiment.space, plan, now) is not None):
        ctx.exit(EXIT_FAILED)


def _print_answer(experiment: Experiment, plan: Plan, now: Standing) -> None:
    """Print the answer of a finished confirmation for people."""
    found = answer(experiment.space, plan, now)
    if found is None:
        notify(f"the confirmation is {finished_line(experiment.space, plan, now)}")
        return
    echo(winner_line(found))
    for line in sentences(plan, found):
        echo(f"  {line}")
    click.echo()
    some_left = any(row.left for row in found.rows)
    mean = metric_column(plan.metric, ("trial", "first", "predicted", "best %", "seeds", ""))
    table = []
    for row in found.rows:
        numbers = {"first": row.finalist.first, "predicted": row.finalist.predicted, mean: row.mean}
        cells: dict[str, Any] = {"trial": row.finalist.trial}
        cells |= {name: value for name, value in numbers.items() if value is not None}
        cells |= {"best %": round(100 * row.chance), "seeds": row.seeds}
        table.append(cells | ({"": row.left} if some_left else {}))
    print_table(table)
    click.echo()
    for line in warnings(plan, now, found):
        notify(line)
    click.echo(escape_controls(program_of(experiment.space).command_line(winner_of(experiment, found))))
