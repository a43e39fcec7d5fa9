"""Commands `sweep import`, `sweep doctor` and `sweep repair`."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sweeps.cli.options import Sweep, sweep_option
from sweeps.cli.output import document_option, echo, print_json
from sweeps.errors import EXIT_DONE, EXIT_FAILED
from sweeps.text.counted import counted
from sweeps.text.shorten import shorten
from sweeps.trials.redaction import redact

if TYPE_CHECKING:
    from sweeps.upkeep.repair import Outcome, RepairStep

_checksums_option = click.option(
    "--checksums", is_flag=True, help="Also read every stored snapshot, gigabytes, and compare its checksums."
)


@click.command("import")
@sweep_option
@click.option(
    "--again", is_flag=True, help="Also import rows that the sweep has already, as repeated measurements."
)
@click.argument("table", type=click.Path(path_type=Path))
def import_(sweep: Sweep, again: bool, table: Path) -> None:
    """Make the results in TABLE completed trials: a .csv, .tsv, .parquet or .json file, a row each.

    Columns are named as `sweep export` names them, or like the parameters and metrics; tables that Optuna,
    W&B and Ray Tune export are understood, too. All rows are checked against the search space first; if one
    does not fit, nothing is imported. Rows that did not complete, but for failed repeats of a confirmation,
    and rows that the sweep has already, are left out. Imported trials do not count towards the run cap.
    """
    from sweeps.upkeep.importing import import_table
    from sweeps.worker.loop import identity

    experiment = sweep.open()
    done = import_table(experiment, table, worker=f"import-{identity()}", again=again)
    click.echo(f"{table}: {_import_message(done.trials)}")
    left_out = [f"{count} {status}" for status, count in done.left_out.items()]
    if done.known:
        left_out.append(f"{done.known} here already (--again imports them a second time)")
    if done.columns:
        more = f" and {len(done.columns) - 8} more" if len(done.columns) > 8 else ""
        left_out.append(f"the columns {', '.join(map(shorten, done.columns[:8]))}{more}")
    of = f"a table of {done.tool}" if done.tool else ""
    words = "; ".join(filter(None, (of, f"left out: {', '.join(left_out)}" if left_out else "")))
    if words:
        echo(words, err=True)


def _import_message(indices: tuple[int, ...]) -> str:
    if not indices:
        return "nothing new"
    if len(indices) == 1:
        return f"imported as trial {indices[0]}"
    if indices[-1] - indices[0] == len(indices) - 1:
        return f"{len(indices)} rows imported as trials {indices[0]} to {indices[-1]}"
    return f"{len(indices)} rows imported as trials {', '.join(map(str, indices))}"


@click.command()
@sweep_option
@_checksums_option
@document_option
@click.pass_context
def doctor(ctx: click.Context, sweep: Sweep, checksums: bool, style: str) -> None:
    """Diagnose this machine, the storage and the sweep, and say how to fix each problem.

    A problem makes the exit status 1; notes are harmless. Outside of any sweep only the machine is checked.
    The engines of `sweep launch` are listed with their state on this machine.
    """
    from runners.pools.engines import ENGINES, runner
    from sweeps.upkeep.doctor import examine

    named = any((sweep.storage, sweep.name, os.environ.get("SWEEP_STORAGE"), os.environ.get("SWEEP_NAME")))
    diagnosis = examine(sweep.open, expected=named, checksums=checksums)
    healths = {engine: runner(engine).health() for engine in ENGINES}  # a missing one is no problem
    if style == "json":
        findings = [
            {"kind": f.kind, "level": f.level, "what": redact(f.what), "where": redact(f.where)}
            | {"remedy": redact(f.remedy)}
            for f in diagnosis.findings
        ]
        facts = {fact: redact(value) for fact, value in diagnosis.facts.items()}
        engines = [{"engine": engine, **asdict(health)} for engine, health in healths.items()]
        document = {"clean": diagnosis.clean, "facts": facts, "findings": findings, "engines": engines}
        print_json(document)
    else:
        states = {
            engine: f"{health.state}: {health.detail}" + (f"; {health.remedy}" if health.remedy else "")
            for engine, health in healths.items()
        }
        width = max(map(len, diagnosis.facts))
        for fact, value in diagnosis.facts.items():
            echo(f"{fact:<{width}}  {shorten(value)}")
        click.echo("")
        # A laptop has no Slurm, and needs none: an engine whose commands are not here is named, no more.
        here = {engine: state for engine, state in states.items() if healths[engine].state != "missing"}
        width = max(map(len, here), default=0)
        for engine, state in here.items():
            echo(f"launch {engine:<{width}}  {' '.join(state.split())}")
        if missing := [engine for engine in healths if engine not in here]:
            echo(f"not here: {', '.join(missing)}; `sweep launch ENGINE` says what each needs")
        for finding in diagnosis.findings:
            echo(f"\n{finding.level}: {shorten(finding.what)}")
            echo(f"  where: {finding.where}")
            if finding.remedy:
                echo(f"  fix:   {finding.remedy}")
        problems = sum(finding.level == "problem" for finding in diagnosis.findings)
        click.echo(f"\n{counted(problems, 'problem') if problems else 'nothing is wrong'}")
    ctx.exit(EXIT_DONE if diagnosis.clean else EXIT_FAILED)


@click.command()
@sweep_option
@click.option("--yes", is_flag=True, help="Do it. Without it, only print what would be done.")
@_checksums_option
@document_option
@click.pass_context
def repair(ctx: click.Context, sweep: Sweep, yes: bool, checksums: bool, style: str) -> None:
    """Repair what can be repaired without guessing; `sweep doctor` also names the rest.

    Torn records are moved to quarantine/, trials of silent workers handed back, records of earlier versions
    rewritten, dead leases, the files of lost attempts, and snapshots that are of no use removed. Workers may
    run meanwhile. Exit status 1 if a step failed.
    """
    from sweeps.upkeep.diagnostics import plan
    from sweeps.upkeep.inventory import survey
    from sweeps.upkeep.repair import carry_out_all

    experiment = sweep.open()
    found = survey(experiment.store, checksums=checksums)
    steps = plan(experiment, found)
    outcomes = carry_out_all(experiment, steps) if yes else []
    where = experiment.store.location
    left = {
        "foreign": [where(key) for key in found.foreign],
        "ownerless": [where(run.prefix) for run in found.ownerless_runs()],
    }
    if style == "json":
        print_json({"done": yes, "steps": _step_documents(steps, outcomes), **left})
    else:
        for document in _step_documents(steps, outcomes):
            reason = f" ({shorten(document['told'])})" if document["told"] else ""
            echo(f"{document['state']}: {shorten(document['what'])}{reason}\n  where: {document['where']}")
        if not steps:
            click.echo("there is nothing to repair")
        elif not outcomes:
            click.echo(f"\n{counted(len(steps), 'step')} to take: `sweep repair --yes`")
        for kind, locations in left.items():
            for location in locations:
                echo(f"left alone: {_LEFT_ALONE[kind]}\n  where: {location}")
    ctx.exit(EXIT_FAILED if any(outcome.state == "failed" for outcome in outcomes) else EXIT_DONE)


def _step_documents(steps: list[RepairStep], outcomes: list[Outcome]) -> list[dict[str, str]]:
    """Return every step as JSON; its state is `planned` as long as nothing was done."""
    documents = [{"kind": step.kind, "what": redact(step.what), "where": step.where} for step in steps]
    if not outcomes:
        return [document | {"state": "planned", "told": ""} for document in documents]
    results = [{"state": outcome.state, "told": redact(outcome.reason)} for outcome in outcomes]
    return [document | result for document, result in zip(documents, results, strict=True)]


_LEFT_ALONE = {"foreign": "this object is unknown", "ownerless": "files of a trial without a record"}
