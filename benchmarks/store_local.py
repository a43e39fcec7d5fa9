"""Claim-and-complete cycles a second over one local folder, compared with Optuna's storages.

Ours: trials are created before, so that no candidate is generated during the measurement; a cycle is `ask`
and the report. Optuna: `ask` (its cheapest sampler, one parameter) and `tell`, since it has no trials without
a claim. Processes are forked from a server that has imported everything, and start together.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from benchmarks.fleet import nap_space, premade
from sweeps.experiment import Experiment
from sweeps.space.definition import Lease
from sweeps.storage.local import LocalStore
from sweeps.trials.lifecycle import Complete

PRELOAD = ["benchmarks.store_local", "sweeps.worker.loop", "gcsfs.core", "optuna", "optuna.storages.journal"]


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Throughput of a store: finished cycles, seconds from the common start to the last, CPU seconds."""

    store: str
    cycles: int
    seconds: float
    cpu_s: float

    @property
    def per_second(self) -> float:
        return self.cycles / self.seconds


def compare(*, processes: int, trials: int, limit_s: float) -> Iterator[Rate]:
    """Measure ours, then Optuna's two, each for `trials` cycles or `limit_s` seconds, whichever is first."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    for name, prepare, cycle in (
        ("stagesweep, folder", _prepare_ours, _cycle_ours),
        ("Optuna JournalStorage, file", _prepare_journal, _cycle_journal),
        ("Optuna RDBStorage, SQLite", _prepare_sqlite, _cycle_sqlite),
    ):
        with tempfile.TemporaryDirectory(prefix="benchmark-store-") as folder:
            prepare(folder, trials)
            yield _race(context, name, cycle, folder, processes=processes, trials=trials, limit_s=limit_s)


def _race(
    context: ForkServerContext,
    name: str,
    make_cycle: Callable[[str], Callable[[], bool]],
    folder: str,
    *,
    processes: int,
    trials: int,
    limit_s: float,
) -> Rate:
    barrier, results = context.Barrier(processes), context.SimpleQueue()
    share = -(-trials // processes)
    runners = [
        context.Process(target=_run, args=(make_cycle, folder, share, limit_s, barrier, results))
        for _ in range(processes)
    ]
    for runner in runners:
        runner.start()
    rows = [results.get() for _ in runners]
    for runner in runners:
        runner.join()
    starts, ends, cycles, cpu_s = zip(*rows, strict=True)
    return Rate(store=name, cycles=sum(cycles), seconds=max(ends) - min(starts), cpu_s=sum(cpu_s))


def _run(
    make_cycle: Callable[[str], Callable[[], bool]],
    folder: str,
    share: int,
    limit_s: float,
    barrier: Any,
    results: Any,
) -> None:
    cycle, done = make_cycle(folder), 0
    barrier.wait()
    start, cpu = time.monotonic(), time.process_time()
    while done < share and time.monotonic() < start + limit_s and cycle():
        done += 1
    results.put((start, time.monotonic(), done, time.process_time() - cpu))


# ---- ours


def _prepare_ours(folder: str, trials: int) -> None:
    store = LocalStore(Path(folder) / "sweep")
    space = nap_space(name="benchmark", trials=trials, seconds=(0.0, 1.0), lease=Lease())
    Experiment.create(store, space)
    for index in range(trials):
        premade(store, index, (index + 0.5) / trials)


def _cycle_ours(folder: str) -> Callable[[], bool]:
    from sweeps.worker.loop import identity

    experiment, me = Experiment.open(LocalStore(Path(folder) / "sweep")), identity()
    experiment.trials()  # Optuna's load_study reads its trials, too

    def cycle() -> bool:
        record = experiment.ask(me, make=False)
        if record is None:
            return False
        experiment.apply(record.trial, Complete(worker=me, attempt=record.attempt, metrics={"loss": 1.0}))
        return True

    return cycle


# ---- Optuna's


def _journal(folder: str) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return JournalStorage(JournalFileBackend(f"{folder}/journal.log"))


def _sqlite(folder: str) -> Any:
    from optuna.storages import RDBStorage

    return RDBStorage(f"sqlite:///{folder}/optuna.db", engine_kwargs={"connect_args": {"timeout": 60}})


def _create_study(storage: Any) -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    optuna.create_study(study_name="benchmark", storage=storage)


def _prepare_journal(folder: str, trials: int) -> None:
    _create_study(_journal(folder))


def _prepare_sqlite(folder: str, trials: int) -> None:
    _create_study(_sqlite(folder))


def _cycle_journal(folder: str) -> Callable[[], bool]:
    return _cycle_optuna(_journal(folder))


def _cycle_sqlite(folder: str) -> Callable[[], bool]:
    return _cycle_optuna(_sqlite(folder))


def _cycle_optuna(storage: Any) -> Callable[[], bool]:
    import optuna
    from sqlalchemy.exc import OperationalError

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.load_study(
        study_name="benchmark", storage=storage, sampler=optuna.samplers.RandomSampler()
    )

    def cycle() -> bool:
        # SQLite under eight writers sometimes raises "database is locked".
        with suppress(OperationalError):
            asked = study.ask()
            asked.suggest_float("x", 0.0, 1.0)
            study.tell(asked, 1.0)
        return True

    return cycle
