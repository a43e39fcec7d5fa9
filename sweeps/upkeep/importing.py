"""Import of earlier results as completed trials, for `sweep import`.

All rows are checked before the first trial is written, and the trials are written while `ask.lock` is held,
so that workers may go on meanwhile. If the import is interrupted, a second one writes what is missing:
results that the sweep has already are recognised.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from sweeps.errors import AlreadyExists, StoreUnavailable
from sweeps.experiment import Experiment
from sweeps.search.allocation import ASK_KEY
from sweeps.space.definition import Space, Value
from sweeps.space.domain import Domain
from sweeps.text.counted import counted
from sweeps.trials import packs
from sweeps.trials import record as trial
from sweeps.trials.lease import PATIENCE_S, ObjectLease
from sweeps.trials.record import Trial, has_failed
from sweeps.trials.redaction import redact_names
from sweeps.upkeep import tables
from sweeps.upkeep.admission import Result, admit
from sweeps.upkeep.other_tools import Source
from sweeps.upkeep.runs import RUNS, run_folders

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Imported(Source):
    """Result of an import.

    Args:
        trials: indices of the new trials, in the table's order.
        known: number of rows that the sweep had already.
    """

    trials: tuple[int, ...]
    known: int


def import_table(experiment: Experiment, path: Path, *, worker: str, again: bool = False) -> Imported:
    """Write the completed rows of the table as completed trials of the sweep, and failed repeats as failed.

    Args:
        again: import rows that the sweep has already once more, as repeated measurements.

    Raises:
        TableError: something in the table does not fit; nothing was written.
        StoreUnavailable: the store failed, or others held the lease for `PATIENCE_S`.
    """
    admitted = admit(tables.read(path), experiment.space)
    names = redact_names(dict.fromkeys(name for result in admitted.results for name in result.metrics))
    results = [
        replace(result, metrics={names[name]: v for name, v in result.metrics.items() if name in names})
        for result in admitted.results
    ]
    if not admitted.results:
        there = ", ".join(f"{count} {status}" for status, count in admitted.left_out.items())
        problem = (
            f"{path}: no completed trial is in it ({there}); "
            "its rows become trials when they have all metrics"
        )
        raise tables.TableError(str(path), [problem])
    leases = experiment.space.lease
    lease = ObjectLease(experiment.store, ASK_KEY, heartbeat_s=leases.heartbeat_s, expire_s=leases.expire_s)
    then = "import again when they are done, or see `sweep doctor`"
    with lease.hold_in_turn(worker, patience_s=PATIENCE_S, then=then):
        records = experiment.trials()
        results = _with_confirmed(experiment.space, records, results)
        alone = sum(result.error is not None and not result.is_repeat for result in results)
        results = [result for result in results if result.error is None or result.is_repeat]
        new = results if again else _new_results(experiment.space, records, results)
        least = records[-1].trial + 1 if records else 0
        trials = _write_all(experiment, least, new)
    if len(trials) >= packs.EVERY:
        experiment.pack_records()
    return Imported(
        trials=tuple(trials),
        known=len(results) - len(new),
        left_out=dict(Counter(admitted.left_out) + Counter(failed=alone)),
        tool=admitted.tool,
        columns=admitted.columns,
    )


def _with_confirmed(space: Space, records: Sequence[Trial], results: Sequence[Result]) -> list[Result]:
    """Return the results, as repeats only those whose trial is in the sweep or the table.

    Of others nothing would be a result: no repeat can be the best.
    """
    domain = Domain(space)

    def configuration(parameters: Mapping[str, Value]) -> Hashable:
        return domain.identity(domain.configuration(parameters, repeat=True))

    searched = {configuration(result.parameters) for result in results if not result.is_repeat}
    searched |= {
        configuration(record.parameters)
        for record in records
        if record.status == "completed" and record.generator != "confirm"
    }
    return [
        replace(each, is_repeat=each.is_repeat and configuration(each.parameters) in searched)
        for each in results
    ]


def _new_results(space: Space, records: Sequence[Trial], results: Sequence[Result]) -> list[Result]:
    """Return the results that no trial has; each of several equal rows counts."""
    domain = Domain(space)
    names = {name for result in results for name in result.metrics}
    present = Counter(
        _identity(domain, _result_of(record), names)
        for record in records
        if record.status == "completed" or (record.generator == "confirm" and has_failed(record))
    )
    unknown = []
    for result in results:
        identity = _identity(domain, result, names)
        if present[identity] > 0:
            present[identity] -= 1
        else:
            unknown.append(result)
    return unknown


def _result_of(record: Trial) -> Result:
    error = (record.error or "") if record.status == "failed" else None
    return Result(parameters=record.parameters, metrics=record.metrics, error=error)


def _identity(domain: Domain, result: Result, names: Iterable[str]) -> Hashable:
    """Return a key that is equal for results with equal parameters and metrics (those of the table)."""
    is_failure = result.error is not None
    metrics = {} if is_failure else result.metrics
    found = frozenset((name, value) for name in names if (value := metrics.get(name)) is not None)
    return domain.identity(result.parameters), is_failure, found


def _write_all(experiment: Experiment, index: int, results: Sequence[Result]) -> list[int]:
    """Write the results as ended trials from `index` on, and return their indices.

    Indices of trials whose records are lost and whose files are left are passed over, as by `free_index`,
    which would list the files of one index after another.
    """
    store = experiment.store
    occupied = {folder.index for folder in run_folders(store.list(RUNS))}
    written: list[int] = []
    while len(written) < len(results):
        result = results[len(written)]
        while index in occupied:
            index += 1
        try:
            now = store.now()
            record = Trial(
                trial=index,
                status="completed" if result.error is None else "failed",
                parameters=MappingProxyType(dict(result.parameters)),
                generator="confirm" if result.is_repeat else "imported",
                metrics=MappingProxyType(dict(result.metrics)),
                error=result.error,
                failure=result.failure,
                created=now,
                ended=now,
            )
            store.create(trial.key(index), trial.encode(record, uuid.uuid4().hex))
        except AlreadyExists:
            log.info("trial %d was created by another worker that took the lease over", index)
        except StoreUnavailable as error:
            state = f"{len(written)} of {counted(len(results), 'row')} imported: import again for the rest"
            raise StoreUnavailable(f"{error}; {state}") from error
        else:
            written.append(index)
        index += 1
    return written
