"""Losses of each held-out sequence, as the trainer writes them into `held_out.json` of a run.

`analysis` needs them for the errors that trials have in common: all are measured on the same text. Beside the
losses `final` stands the number of each sequence's document, `final_documents`, where the file has it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from sweeps.errors import DamagedObject
from sweeps.space.definition import Space, is_number
from sweeps.storage.base import Store
from sweeps.text import json_reader
from sweeps.text.counted import counted
from sweeps.trials.record import Trial, run_prefix

log = logging.getLogger(__name__)

FILE = "held_out.json"
SCHEMA = 1

Losses = dict[str, list[float]]


def losses(store: Store, space: Space, records: Sequence[Trial]) -> dict[str, Losses]:
    """Return the losses of completed trials that have such a file, by trial: field `held_out` of an export.

    Only the trials that reported a standard error of an objective are looked up, in few round trips. Files
    that cannot be read count as missing: nothing but the size of some errors depends on them.
    """
    noisy = [
        record
        for record in records
        if record.status == "completed" and any(f"{name}_sem" in record.metrics for name in space.metrics())
    ]
    keys = [f"{run_prefix(record.trial, record.attempt)}/{FILE}" for record in noisy]
    try:
        contents = store.read_many(keys)
    except DamagedObject as error:
        log.warning("%s; the errors of all trials are taken as independent", error)
        return {}
    found, damaged = {}, []
    for record, key, content in zip(noisy, keys, contents, strict=True):
        if content is None:
            continue
        try:
            found[str(record.trial)] = _parse(content[0])
        except ValueError:
            damaged.append(key)
    if damaged:
        log.warning("%s: not the losses of sequences; %s left out", damaged[0], counted(len(damaged), "file"))
    return found


def _parse(data: bytes) -> Losses:
    """Return the losses by name. Raises `ValueError` for what the trainer does not write."""
    document = json_reader.parse(data)
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ValueError(f"not a document of schema {SCHEMA}")
    named = document.get("losses")
    if not isinstance(named, dict) or not all(
        isinstance(values, list) and all(is_number(x) and abs(x) <= sys.float_info.max for x in values)
        for values in named.values()
    ):
        raise ValueError("no lists of finite numbers")
    documents = document.get("documents", {})
    if not isinstance(documents, dict) or not all(
        isinstance(labels, list) and len(labels) == len(named.get(name, ())) and all(map(is_number, labels))
        for name, labels in documents.items()
    ):
        raise ValueError("no number of a document for each loss")
    return named | {f"{name}_documents": labels for name, labels in documents.items()}
