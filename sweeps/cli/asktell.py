"""Commands `sweep ask` and `tell`, for programs with their own loop, and `enqueue`, for one's own trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sweeps.cli.options import Sweep, path_option, sweep_option
from sweeps.cli.output import echo, format_option, print_csv, print_json
from sweeps.errors import EXIT_FAILED, InputError
from sweeps.experiment import Experiment
from sweeps.export.table import flat
from sweeps.operations.control import report
from sweeps.operations.limits import reached_run_cap
from sweeps.programs.result import needed_metrics
from sweeps.space.overrides import to_overrides
from sweeps.text import json_reader
from sweeps.text.counted import counted
from sweeps.text.printable import escape_controls
from sweeps.text.regular_file import MAX_BYTES


@click.command()
@sweep_option
@format_option
@click.pass_context
def ask(ctx: click.Context, sweep: Sweep, style: str) -> None:
    """Claim a trial and print its index and parameters.

    It stays yours until `sweep tell` reports it: no heartbeat is expected and no worker takes it over.
    Exit status 1 when the sweep has no trial left to hand out.
    """
    from sweeps.worker.loop import identity

    experiment = sweep.open()
    record = experiment.ask(f"ask-{identity()}", leased=False)
    if record is None:
        if style == "json":
            print_json(None)
        echo(f"sweep: {experiment.why_done() or _why_none(experiment)}", err=True)
        ctx.exit(EXIT_FAILED)
    elif style == "json":
        print_json({"trial": record.trial, "parameters": dict(record.parameters)})
    elif style == "csv":
        print_csv([flat(record)])
    else:
        click.echo(f"trial {record.trial}")
        for override in to_overrides(record.parameters):
            click.echo(escape_controls(override))


def _why_none(experiment: Experiment) -> str:
    """Return why a sweep that has not ended by itself hands out no trial, and how it goes on."""
    space, records = experiment.space, experiment.recent_trials()
    if (cap := reached_run_cap(space, records)) is not None:
        return f"the run cap of {counted(cap, 'trial')} is reached; `sweep extend --run-cap N` raises it"
    is_grid = space.search.method == "grid"
    all_of_them = "all configurations of the grid" if is_grid else f"all {counted(len(records), 'trial')}"
    return f"{all_of_them} are handed out, none is left"


@click.command("tell", context_settings={"allow_extra_args": True})
@sweep_option
@click.argument("index", type=click.IntRange(min=0))
@click.option(
    "--metric", metavar="NAME=NUMBER", multiple=True, help="A metric of its result. Repeat it for more."
)
@path_option(
    "--result",
    help='Instead, a result.json: {"status": "completed", "metrics": {…}}, or with status failed or refused '
    'an "error".',
)
@click.pass_context
def report_result(
    ctx: click.Context, sweep: Sweep, index: int, metric: tuple[str, ...], result: Path | None
) -> None:
    """Report the result of trial INDEX that `sweep ask` handed out. Repeating a report changes nothing."""
    if ctx.args:  # `sweep enqueue` takes its values so
        shown = " ".join(f"--metric {word if '=' in word else f'NAME={word}'}" for word in ctx.args)
        raise InputError(f"{' '.join(ctx.args)}: a metric is an option; write {shown}")
    if bool(metric) == (result is not None):
        raise InputError("give its result: --metric NAME=NUMBER (once or more), or --result FILE")
    experiment = sweep.open()
    where = "--metric" if result is None else str(result)
    document: Any
    if result is None:
        metrics: dict[str, float] = {}
        for pair in metric:
            key, _, value = pair.rpartition("=")
            try:
                if not key:
                    raise ValueError(pair)
                number = float(value)
            except ValueError:
                raise InputError(f"--metric {pair}: write NAME=NUMBER, such as --metric loss=0.3") from None
            if key in metrics:
                raise InputError(f"--metric {key} stands there twice; keep one")
            metrics[key] = number
        if missing := [key for key in needed_metrics(experiment.space) if key not in metrics]:
            there = ", ".join(metrics)
            raise InputError(
                f"--metric {missing[0]}=NUMBER is missing, which the sweep needs; there is {there}"
            )
        document = {"metrics": metrics}
    else:
        try:
            with result.open("rb") as file:  # also a pipe, such as `<(program)` of a shell
                document = json_reader.parse(file.read(MAX_BYTES + 1))
        except OSError as error:
            raise InputError(f"{result}: cannot be read: {error.strerror or error}") from None
        except ValueError as error:
            raise InputError(f"{result}: {error}") from None
    ended = report(experiment, index, document, where)
    click.echo(f"trial {index} is {ended.status}")


@click.command()
@sweep_option
@click.argument("values", metavar="KEY=VALUE…", nargs=-1)
@path_option(
    "--from",
    "file",
    metavar="FILE",
    help="A YAML or JSON file with a list of trials, each a mapping of keys and values.",
)
@click.option("--skip-if-exists", is_flag=True, help="Add none that has the parameters of another trial.")
def enqueue(sweep: Sweep, values: tuple[str, ...], file: Path | None, skip_if_exists: bool) -> None:
    """Add trials of your own, which workers run before the search's candidates.

    Parameters that you leave out have the value of the baseline, or the middle of their range. The trials
    count towards the run cap and the budget, and the search learns from them as from any other.
    """
    from sweeps.space import literals
    from sweeps.worker.loop import identity

    if bool(values) == (file is not None):
        raise InputError("write one trial as KEY=VALUE …, or several with --from FILE")
    experiment = sweep.open()
    if file is None:
        given = [literals.configuration_of_words(experiment.space, values, "sweep enqueue")]
    else:
        given = literals.configurations_of_file(experiment.space, file)
    before = {record.trial for record in experiment.trials()}
    for record in experiment.enqueue(given, f"enqueue-{identity()}", skip_if_exists=skip_if_exists):
        said = f"is {record.status} already" if record.trial in before else "enqueued"
        click.echo(
            escape_controls(f"trial {record.trial} {said}: {' '.join(to_overrides(record.parameters))}")
        )
