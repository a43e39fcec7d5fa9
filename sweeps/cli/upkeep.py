"""`sweep import`, `sweep doctor`, `sweep repair`: earlier results in, what is wrong here, and mending it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sweeps.cli.output import echo, print_json, shorten
from sweeps.cli.resolve import open_sweep, storage_options
from sweeps.errors import EXIT_DONE, EXIT_FAILED
from sweeps.text.counted import counted
from sweeps.trials.redaction import redact

if TYPE_CHECKING:
    from runners.pools.runner import Health
    from sweeps.upkeep.doctor import Diagnosis
    from sweeps.upkeep.repair import Mend, Outcome

F = TypeVar("F", bound=Callable[..., Any])


def _format_option(function: F) -> F:
    """--format without csv: neither a diagnosis nor a repair is a table for programs."""
    return click.option(
        "--format",
        "style",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="For people, or for programs.",
    )(function)


@click.command("import")
@storage_options
@click.option(
    "--again", is_flag=True, help="Take rows in that the sweep has already, as repeated measurements."
)
@click.argument("table", type=click.Path(path_type=Path))
def import_(storage: str | None, name: str | None, again: bool, table: Path) -> None:
    """Make the results in TABLE completed trials: a .csv, .parquet or .json file, one row a trial.

    Columns are named as `sweep export` names them, or like the parameters and metrics. All rows are checked
    against the search space first; if one does not fit, nothing is imported. Rows that did not complete,
    and rows that the sweep has already, are left out. Imported trials do not count towards the run cap.
    """
    from sweeps.upkeep.importing import import_table
    from sweeps.worker.loop import identity

    experiment = open_sweep(storage, name)
    done = import_table(experiment, table, worker=f"import-{identity()}", again=again)
    click.echo(f"{table}: {_told_trials(done.trials)}")
    left_out = [f"{count} {status}" for status, count in done.left_out.items()]
    if done.known:
        left_out.append(f"{done.known} here already (--again takes them in a second time)")
    if left_out:
        echo(f"left out: {', '.join(left_out)}", err=True)


def _told_trials(indices: tuple[int, ...]) -> str:
    if not indices:
        return "nothing new"
    if len(indices) == 1:
        return f"imported as trial {indices[0]}"
    if indices[-1] - indices[0] == len(indices) - 1:
        return f"{len(indices)} rows imported as trials {indices[0]} to {indices[-1]}"
    return f"{len(indices)} rows imported as trials {', '.join(map(str, indices))}"


@click.command()
@storage_options
@_format_option
@click.pass_context
def doctor(ctx: click.Context, storage: str | None, name: str | None, style: str) -> None:
    """Find out what is wrong with this machine, the storage and the sweep, and how to mend it.

    A problem makes the exit status 1; notes are good to know and harm nothing. Outside of any sweep it looks
    at the machine alone. Of each engine that `sweep launch` knows it tells whether it is here.
    """
    from sweeps.upkeep.doctor import examine

    named = any((storage, name, os.environ.get("SWEEP_STORAGE"), os.environ.get("SWEEP_NAME")))
    diagnosis = examine(lambda: open_sweep(storage, name), expected=named)
    healths = _engines()
    if style == "json":
        told = [{"engine": name, **asdict(health)} for name, health in healths.items()]
        print_json(_diagnosis_document(diagnosis) | {"engines": told})
    else:
        _print_diagnosis(diagnosis, healths)
    ctx.exit(EXIT_DONE if diagnosis.clean else EXIT_FAILED)


def _engines() -> dict[str, Health]:
    """What `sweep launch` could use from here; none of it is a problem, because nobody needs them all."""
    from runners.pools.engines import ENGINES, runner

    return {name: runner(name).health() for name in ENGINES}


def _diagnosis_document(diagnosis: Diagnosis) -> dict[str, Any]:
    findings = [
        {
            "kind": f.kind,
            "level": f.level,
            "what": redact(f.what),
            "where": redact(f.where),
            "remedy": redact(f.remedy),
        }
        for f in diagnosis.findings
    ]
    facts = {fact: redact(value) for fact, value in diagnosis.facts.items()}
    return {"clean": diagnosis.clean, "facts": facts, "findings": findings}


def _print_diagnosis(diagnosis: Diagnosis, healths: Mapping[str, Health]) -> None:
    engines = {
        f"launch {name}": f"{health.state}: {health.detail}" + (f"; {health.remedy}" if health.remedy else "")
        for name, health in healths.items()
    }
    width = max(map(len, diagnosis.facts))
    for fact, value in diagnosis.facts.items():
        echo(f"{fact:<{width}}  {shorten(value)}")
    click.echo("")
    width = max(map(len, engines))
    for engine, told in engines.items():
        echo(f"{engine:<{width}}  {' '.join(told.split())}")
    for finding in diagnosis.findings:
        echo(f"\n{finding.level}: {shorten(finding.what)}")
        echo(f"  where: {finding.where}")
        if finding.remedy:
            echo(f"  mend:  {finding.remedy}")
    problems = sum(finding.level == "problem" for finding in diagnosis.findings)
    told = counted(problems, "problem") if problems else "nothing is wrong"
    click.echo(f"\n{told}")


@click.command()
@storage_options
@click.option("--yes", is_flag=True, help="Do it. Without it, only say what would be done.")
@_format_option
@click.pass_context
def repair(ctx: click.Context, storage: str | None, name: str | None, yes: bool, style: str) -> None:
    """Mend what can be mended without guessing; `sweep doctor` also names the rest.

    Torn records are moved to quarantine/, trials of silent workers handed back, records of earlier versions
    written anew, dead leases and the files of lost attempts removed. Workers may go on meanwhile. Exit
    status 1 if a step failed.
    """
    from sweeps.upkeep.inventory import survey
    from sweeps.upkeep.repair import carry_out, plan

    experiment = open_sweep(storage, name)
    found = survey(experiment.store)
    mends = plan(experiment, found)
    outcomes = [carry_out(mend) for mend in mends] if yes else []
    where = experiment.store.location
    left = {
        "foreign": [where(key) for key in found.foreign],
        "ownerless": [where(run.prefix) for run in found.ownerless_runs()],
    }
    if style == "json":
        print_json({"done": yes, "steps": _step_documents(mends, outcomes), **left})
    else:
        _print_steps(mends, outcomes)
        for kind, places in left.items():
            for place in places:
                echo(f"left alone: {_LEFT_ALONE[kind]}\n  where: {place}")
    ctx.exit(EXIT_FAILED if any(outcome.state == "failed" for outcome in outcomes) else EXIT_DONE)


def _step_documents(mends: list[Mend], outcomes: list[Outcome]) -> list[dict[str, str]]:
    """Every step; its state is `planned` as long as nothing was done."""
    steps = [{"kind": mend.kind, "what": redact(mend.what), "where": mend.where} for mend in mends]
    if not outcomes:
        return [step | {"state": "planned", "told": ""} for step in steps]
    ends = [{"state": outcome.state, "told": redact(outcome.told)} for outcome in outcomes]
    return [step | end for step, end in zip(steps, ends, strict=True)]


_LEFT_ALONE = {"foreign": "nobody here knows this object", "ownerless": "files of a trial without a record"}


def _print_steps(mends: list[Mend], outcomes: list[Outcome]) -> None:
    for step in _step_documents(mends, outcomes):
        told = f" ({shorten(step['told'])})" if step["told"] else ""
        echo(f"{step['state']}: {shorten(step['what'])}{told}\n  where: {step['where']}")
    if not mends:
        click.echo("there is nothing to mend")
    elif not outcomes:
        click.echo(f"\n{counted(len(mends), 'step')} to take: `sweep repair --yes`")
