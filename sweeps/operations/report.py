"""The export document that a report is made of."""

from __future__ import annotations

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
from sweeps.programs.kinds import program_of
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
        document.get("insight", {}).pop("optimum", None)
        found = next((record for record in records if record.trial == winner), None)
    else:  # before the confirmation is over, the best of the confirmed, if any are
        found = tables.best_confirmed(experiment.space, records)
        answer = document.get("insight", {}).get("optimum")
        if found is not None:
            document.get("insight", {}).pop("optimum", None)  # fresh runs know better
        elif answer is not None:
            found = next(record for record in records if record.trial == answer["trial"])
        else:
            found = tables.best(experiment.space, records)
    if (gained := gain(experiment.space, records, found, by_sequence)) is not None:
        document["gain"] = {**asdict(gained), "sentence": str(gained)}
    if found is not None:
        document["best_trial"] = found.trial
        document["best_command"] = program_of(experiment.space).command_line(found)
    return document
