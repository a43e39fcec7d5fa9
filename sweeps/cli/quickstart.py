"""Command `sweep quickstart`: the main job on the embedded default, up to a best trial and a report."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sweeps.cli.export import require_page, write_report
from sweeps.cli.options import count_option, path_option
from sweeps.cli.output import console, echo, notify, print_table
from sweeps.cli.show import live_lines, rows_for_people
from sweeps.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EnvironmentFault, InputError
from sweeps.experiment import Experiment
from sweeps.export.table import best, document
from sweeps.operations.opening import exists, make_default, new_store
from sweeps.programs.kinds import program_of
from sweeps.programs.process import describe_exit
from sweeps.text.counted import counted
from sweeps.text.printable import escape_controls
from sweeps.trials import brake, control

if TYPE_CHECKING:
    from rich.console import Group

SPACE = "quickstart.yaml"
_EVERY_S = 0.5


@click.command()
@click.option("--storage", metavar="URL", help="The folder to make it in. Default: SWEEP_STORAGE.")
@count_option("--workers", default=2, metavar="N", help="Worker processes.")
@path_option("--out", default=Path("report.html"), help="Where the report goes.")
@click.pass_context
def quickstart(ctx: click.Context, storage: str | None, workers: int, out: Path) -> None:
    """Search a tiny ternary model on this CPU: 14 trials in some minutes, no account, no download.

    Trains a small teacher on the source text of Python's standard library, searches the two-stage ternary
    trainer's hyperparameters with parallel workers, and shows the best trial and the front of loss against
    compute. Run it again to resume after Ctrl-C; it never starts over.
    """
    from sweeps.operations.creation import create_sweep
    from sweeps.space.space_file import load

    started = time.monotonic()
    require_page(out)
    for signum in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, signal.default_int_handler)  # as Ctrl-C, it also ends the workers
    with resources.as_file(resources.files("search_spaces") / SPACE) as file:
        space = load(file)
    store = new_store(storage, space.name)
    try:
        experiment = Experiment.open(store) if exists(store) else None
        if experiment is None or not _is_done(experiment):
            if experiment is not None:
                _require_running(experiment)
            # Corpus, tokenizer and teacher, with all cores. Before the sweep is created, which loads torch:
            # torch reads the trainer's settings only once.
            with _preparing() as on_progress:
                program_of(space).prepare(os.cpu_count() or 1, on_progress)
        if experiment is None:
            experiment = create_sweep(space, storage, skip_if_exists=True, on_notice=notify)
            _say(f"sweep {space.name} made in {store.url}: {counted(space.run_cap or 0, 'trial')}")
        else:
            make_default(store)
            ended = sum(record.finished for record in experiment.trials())
            _say(f"going on with {store.url}: {ended} of {experiment.space.run_cap} trials are done")
        if not _is_done(experiment):
            _work(experiment, workers)
    except KeyboardInterrupt:
        again = f"sweep worker --storage {shlex.quote(store.url)}" if exists(store) else "sweep quickstart"
        _say(f"stopped; nothing is lost. Go on with: {again}")
        ctx.exit(EXIT_INTERRUPTED)
    from analysis.table import TrialsTable, from_document
    from sweeps.cli.pareto import print_front, sweep_front

    records = experiment.trials()
    print_table(rows_for_people(experiment.space, records, {}))
    found = best(experiment.space, records)
    if found is not None:
        frame = TrialsTable.from_frame(from_document(document(experiment.space, store.url, records)))
        click.echo("\nLoss against compute (effective steps = 2 x Stage 1.9 + Stage 2):\n")
        print_front(sweep_front(experiment.space, frame, None, None, None))
        command = program_of(experiment.space).command_line(found)
        click.echo(f"\nThe best trial is {found.trial}. Run it again with:\n")
        click.echo(f"  {escape_controls(command)}\n")
    write_report(experiment, out)
    _say(f"{store.url} has the records, {out} the report ({time.monotonic() - started:.0f} s)")
    ctx.exit(EXIT_DONE if found is not None else EXIT_FAILED)


def _is_done(experiment: Experiment) -> bool:
    records = experiment.trials()
    return experiment.is_full(records) and all(record.finished for record in records)


def _work(experiment: Experiment, workers: int) -> None:
    """Run local workers until the sweep is done; they end with this process."""
    from runners.pools.pool import Pool, worker_command
    from runners.workers.processes import end, processes, start

    logs, url = experiment.store.folder("logs"), experiment.store.url
    pool = Pool(
        name=experiment.space.name,
        storage=url,
        folder=logs,
        workers=workers,
        command=worker_command(url),
        threads=1,
    )
    started = start(processes(pool))
    try:
        _watch(experiment, started)
    finally:
        if any(process.poll() is None for process in started):
            _say("stopping the workers; they hand their trials back, which takes some seconds")
        end(started)
    is_done = _is_done(experiment)
    if not is_done or control.switch(experiment.store).braked:
        _require_running(experiment)
    if not is_done:
        ends = ", ".join(describe_exit(process.returncode) for process in started)
        raise EnvironmentFault(
            f"the workers left before all trials were done ({ends}); see {logs}/worker-*.log and run it again"
        )


def _require_running(experiment: Experiment) -> None:
    """Refuse a sweep that hands out no trials: its workers would wait, or leave."""
    url, switch = experiment.store.url, control.switch(experiment.store)
    if switch.braked:
        raise EnvironmentFault(f"{url} has paused itself: {switch.why}; {brake.REMEDY}")
    if switch.state != "running":
        raise InputError(
            f"{url} is {switch.state}; open it by `sweep resume --storage {shlex.quote(url)}`, "
            "then run this again"
        )


@contextmanager
def _preparing() -> Iterator[Callable[[str, float | None], None]]:
    """Show progress of the preparation; yields a function to call with the task and its finished fraction."""
    if not sys.stdout.isatty():
        printed: set[str] = set()

        def print_line(what: str, share: float | None) -> None:
            if what not in printed:
                printed.add(what)
                _say(f"preparing: {what}")

        yield print_line
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("preparing: {task.description}", markup=False),
        BarColumn(bar_width=30),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console(), transient=True) as bar:
        task = bar.add_task("", total=None)

        def update_bar(what: str, share: float | None) -> None:
            bar.update(
                task, description=escape_controls(what), total=None if share is None else 1.0, completed=share
            )

        yield update_bar


def _watch(experiment: Experiment, processes: list[subprocess.Popen[bytes]]) -> None:
    """Show what the workers do until they have left: live on a terminal, else a line per ended trial."""
    if sys.stdout.isatty():
        from rich.live import Live

        with Live(_view(experiment), console=console(), auto_refresh=False, transient=True) as live:
            while _is_active(experiment, processes):
                time.sleep(_EVERY_S)
                live.update(_view(experiment), refresh=True)
        return
    printed: set[int] = set()
    while _is_active(experiment, processes):
        time.sleep(_EVERY_S)
        for record in experiment.trials():
            if record.finished and record.trial not in printed:
                printed.add(record.trial)
                _say(f"trial {record.trial} {record.status} ({len(printed)} of {experiment.space.run_cap})")


def _is_active(experiment: Experiment, processes: list[subprocess.Popen[bytes]]) -> bool:
    """Return whether workers are running trials: in a sweep that has paused itself they only wait."""
    if control.switch(experiment.store).braked:
        return False
    return any(process.poll() is None for process in processes)


def _view(experiment: Experiment) -> Group:
    from rich.console import Group
    from rich.text import Text

    return Group(*map(Text, live_lines(experiment, experiment.trials())))


def _say(line: str) -> None:
    echo(f"sweep: {line}")
