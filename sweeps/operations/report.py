"""The export document that a report is made of."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

from sweeps.experiment import Experiment
from sweeps.export import held_out
from sweeps.export import table as tables
from sweeps.export.gain import gain
from sweeps.operations import confirmation
from sweeps.operations.limits import most_trials, reached_run_cap
from sweeps.programs.kinds import program_of
from sweeps.search.stop_rule import Standing
from sweeps.space.definition import Space
from sweeps.text.counted import counted
from sweeps.trials import budget, control
from sweeps.trials.record import Trial


def report_document(
    experiment: Experiment, records: Sequence[Trial], *, surrogate: bool = False
) -> dict[str, Any]:
    """Return the document for `analysis.report.report.render`.

    Args:
        records: its trials, without secrets.
        surrogate: also fit Ax's surrogate, for what mattered; takes seconds.

    Raises:
        StoreUnavailable: the losses of each sequence cannot be read.
    """
    by_sequence = held_out.losses(experiment.store, experiment.space, records)
    document = tables.document(experiment.space, experiment.store.url, records, by_sequence)
    document["provenance"] = {
        "stagesweep": metadata.version("stagesweep"),
        "written": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }
    if surrogate:
        from sweeps.export.insight import insight  # imports torch

        document["insight"] = insight(experiment.space, records)
    confirmed = confirmation.confirmed_answer(experiment, records)
    if confirmed is not None:
        winner = confirmed[1].winner.finalist.trial
        found = next((record for record in records if record.trial == winner), None)
    else:  # before the confirmation is over, the best of the confirmed, if any are
        found, confirming = confirmation.confirmed_so_far(experiment, records)
        if confirming:
            document["confirming"] = confirming
    is_confirmed = confirmed is not None or found is not None
    if is_confirmed:
        document.get("insight", {}).pop("optimum", None)  # fresh runs know better, and are no one run's gain
    else:
        answer = document.get("insight", {}).get("optimum")
        if answer is not None:
            found = next(record for record in records if record.trial == answer["trial"])
        else:
            found = tables.best(experiment.space, records)
        if (gained := gain(experiment.space, records, found, by_sequence)) is not None:
            document["gain"] = {**asdict(gained), "sentence": str(gained)}
    if found is not None:
        document["best_trial"] = found.trial
        document["best_command"] = program_of(experiment.space).command_line(found)
    elif experiment.space.outcome_constraints:
        document["best_trial"] = None  # and not the best of those outside of them
    standing = experiment.standing()
    document["run_cap"] = most_trials(experiment.space, records, ended=False)
    if experiment.is_full(list(records)):
        document["search_ended"] = True
    document["next"] = _next_steps(
        experiment, records, document, is_confirmed=is_confirmed, standing=standing
    )
    return document


def _next_steps(
    experiment: Experiment,
    records: Sequence[Trial],
    document: dict[str, Any],
    *,
    is_confirmed: bool,
    standing: Standing | None,
) -> list[dict[str, str]]:
    """Return what a person can do next, each `{"text", "command"}`: what is not certain yet comes first.

    Args:
        is_confirmed: whether the best trial is, by fresh runs, also before the confirmation is over.
    """
    space, at = experiment.space, f"--storage {shlex.quote(experiment.store.url)}"
    steps: list[dict[str, str]] = []
    by_script = space.program.is_user_script
    worker = "" if by_script else f" && sweep worker {at}"
    then = ", then start your Python script again:" if by_script else ":"

    def add(text: str, command: str) -> None:
        steps.append({"text": text, "command": command})

    searched = [record for record in records if record.generator not in ("confirm", "imported")]
    is_open = not experiment.is_full(list(records))
    has_result = document.get("best_trial") is not None
    if not has_result and records and not is_open:
        if space.outcome_constraints and any(record.status == "completed" for record in records):
            add(
                "No completed trial is within the outcome constraints. What they reported:",
                f"sweep trials {at}",
            )
        else:
            add("No trial has a result. What stands in their way:", f"sweep doctor {at}")
    if is_open or any(not record.finished for record in searched):
        count = budget.run_cap_count(space, [record for record in searched if record.finished])
        of = str(count) if (most := document["run_cap"]) is None else f"{count} of {most}"
        ended = f"The search is not over: {of} trials have ended"
        state = control.read(experiment.store)
        if spent := budget.reached_limit(space, records, experiment.store.now()):
            add(f"{ended}, and the budget is reached: {spent}. `sweep extend` raises it.", "")
        elif state != "running":
            add(f"{ended}, and it is {state}. Go on{then}", f"sweep resume {at}{worker}")
        elif by_script:
            add(f"{ended}. Go on by starting your Python script again.", "")
        else:
            add(f"{ended}. Go on:", f"sweep worker {at}")
    if has_result and ("confirming" in document or not is_confirmed):
        add(*_repeat(space, at, document.get("confirming", "")))
    if has_result and not is_open:
        model = document.get("insight", {}).get("optimum")
        gain = (
            ""
            if model is None
            else f" ({counted(model['more'], 'trial')}: expected gain {model['gain']:.1g})"
        )
        if standing is not None and standing.ended:
            done = f"{str(standing)[0].upper()}{str(standing)[1:]}"
            add(f"{done}. Go on{then}", f"sweep extend --expected-gain none {at}{worker}")
        elif reached_run_cap(space, records):
            add(f"Search on{gain}{then}", f"sweep extend --run-cap +{space.run_cap} {at}{worker}")
    if has_result:
        add("All trials as a table:", f"sweep export trials.csv {at}")
        best = "The parameters of the best trial:" if by_script else "Run the best trial again:"
        add(best, document["best_command"])
    return steps


def _repeat(space: Space, at: str, confirming: str) -> tuple[str, str]:
    """Return how the best trials can be repeated with fresh seeds: text and command, "" if there is none.

    `confirming` is how far a confirmation is that goes on, "" without one.
    """
    if confirming:
        left = f"The confirmation is not over: {confirming}."
        if space.program.is_user_script:
            return f"{left} `sweep.confirm(function)` in Python goes on.", ""
        return f"{left} Go on:", f"sweep confirm {at}"
    doubt = "Not certain yet: the best trial is one run, and the best of many looks better than it is."
    if space.program.is_user_script:
        return f"{doubt} `sweep.confirm(function)` in Python repeats it with fresh seeds.", ""
    if program_of(space).has_seed:
        return f"{doubt} Repeat the best with fresh seeds:", f"sweep confirm {at}"
    seeds = "repeats it with fresh seeds, if the program takes them"
    return f"{doubt} `sweep confirm --seed-name NAME` {seeds}.", ""
