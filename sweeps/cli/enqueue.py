"""Command `sweep enqueue`: trials of a user's own, before those of the search."""

from __future__ import annotations

from pathlib import Path

import click

from sweeps.cli.options import storage_options
from sweeps.errors import InputError
from sweeps.operations.opening import open_sweep
from sweeps.space.overrides import to_overrides
from sweeps.text.printable import escape_controls


@click.command()
@storage_options
@click.argument("values", metavar="KEY=VALUE…", nargs=-1)
@click.option(
    "--from",
    "file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A YAML or JSON file with a list of trials, each a mapping of keys and values.",
)
@click.option("--skip-if-exists", is_flag=True, help="Add none that has the parameters of another trial.")
def enqueue(
    storage: str | None, name: str | None, values: tuple[str, ...], file: Path | None, skip_if_exists: bool
) -> None:
    """Add trials of your own, which workers run before the search's candidates.

    Parameters that you leave out have the value of the baseline, or the middle of their range. The trials
    count towards the run cap and the budget, and the search learns from them as from any other.
    """
    from sweeps.space import literals
    from sweeps.worker.loop import identity

    if bool(values) == (file is not None):
        raise InputError("write one trial as KEY=VALUE …, or several with --from FILE")
    experiment = open_sweep(storage, name)
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
