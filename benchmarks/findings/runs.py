"""Runs of the findings: each is a trainer's process in a folder of its own, several side by side.

A finished folder is not run again, so an interrupted `make findings` goes on where it was.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.findings.setting import Condition
from trainer.api import EXIT_DONE, METRICS_FILE, RESULT_FILE, check, command, prepare
from trainer.config import sha256
from trainer.layout import HELD_OUT_FILE

_WARM = "benchmarks.findings.warm"


@dataclass(frozen=True, kw_only=True)
class Run:
    """Numbers of one run. Losses are in nats per token.

    Args:
        start: held-out loss, fully quantised, before Stage 2.
        early: mean training loss of Stage 2's first steps, at the lambda of those steps.
        final: held-out loss, fully quantised, at the end.
        sem: standard error of the difference between `final` and the teacher's loss on the same text.
        text_sem: standard error of `final` over texts.
        by_sequence: the held-out loss of each sequence, of which `final` is the mean.
        documents: number of the document of each; empty where the tokenizer has no end of text.
    """

    condition: Condition
    seed: int
    start: float
    early: float
    final: float
    sem: float
    text_sem: float
    by_sequence: tuple[float, ...]
    documents: tuple[int, ...]
    effective_steps: int
    seconds: float
    device: str
    torch: str


class RunFailed(RuntimeError):
    """Run that did not finish; its log says why."""


def run_all(
    conditions: Iterable[Condition],
    seeds: Iterable[int],
    *,
    common: tuple[str, ...],
    early_steps: int,
    folder: Path,
    jobs: int,
) -> list[Run]:
    """Train every condition with every seed, seed by seed, so that an early stop leaves complete seeds.

    Raises:
        RunFailed: the first run that ended with another exit status than 0.
    """
    # Composed here, one after the other: Hydra keeps what it composes in a global place.
    jobs_to_do = [_job(condition, seed, common, folder) for seed in seeds for condition in conditions]
    # Corpus and teacher are made once, and not by the first runs at the same time.
    prepare([*common, "log_every=1"])

    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), expand=False
    )
    with bar, ThreadPoolExecutor(jobs) as pool:
        task = bar.add_task("training", total=len(jobs_to_do))

        def one(job: _Job) -> Run:
            _finish(job)
            bar.advance(task)
            return read_run(job.folder, job.condition, job.seed, early_steps=early_steps)

        futures = [pool.submit(one, job) for job in jobs_to_do]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@dataclass(frozen=True, kw_only=True)
class _Job:
    condition: Condition
    seed: int
    overrides: tuple[str, ...]
    digest: str
    folder: Path


def _job(condition: Condition, seed: int, common: tuple[str, ...], root: Path) -> _Job:
    overrides = (*common, *condition, f"seed={seed}", "log_every=1")
    digest = sha256(check(overrides))
    return _Job(condition=condition, seed=seed, overrides=overrides, digest=digest, folder=root / digest[:12])


def _finish(job: _Job) -> None:
    if _is_finished(job):
        return
    finish(job.overrides, job.folder)


def finish(overrides: Sequence[str], folder: Path) -> None:
    """Train a run in its folder, in a process of its own. Raises RunFailed."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log.txt"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_WARM])
    trainer = context.Process(target=_train, args=(command(overrides, folder), log))
    trainer.start()
    trainer.join()
    if trainer.exitcode != EXIT_DONE:
        raise RunFailed(f"exit status {trainer.exitcode}: see {log}")


def _train(argv: list[str], log: Path) -> None:
    """Run `python -m trainer …` with its output in a file."""
    from trainer.__main__ import main

    words = argv[argv.index("trainer") + 1 :]
    with log.open("w") as out:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(out.fileno(), stream.fileno())
    sys.exit(main(words))


def read_run(folder: Path, condition: Condition, seed: int, *, early_steps: int) -> Run:
    """Return the numbers of a finished run's folder."""
    document = json.loads((folder / RESULT_FILE).read_text())
    metrics, provenance = document["metrics"], document["provenance"]
    held_out = json.loads((folder / HELD_OUT_FILE).read_text())
    lines = [json.loads(line) for line in (folder / METRICS_FILE).read_text().splitlines()]
    trained = [line for line in lines if line["stage"] == "stage2" and "loss" in line]
    early = [line["loss"] for line in trained if line["step"] <= early_steps]
    return Run(
        condition=condition,
        seed=seed,
        start=metrics["stage2_start_loss"],
        early=statistics.fmean(early),
        final=metrics["final_loss"],
        sem=metrics["final_loss_sem"],
        text_sem=metrics["final_loss_text_sem"],
        by_sequence=tuple(held_out["losses"]["final"]),
        documents=tuple(held_out.get("documents", {}).get("final", ())),
        effective_steps=metrics["effective_steps"],
        seconds=metrics["train_seconds"],
        device=provenance["device"],
        torch=provenance["torch"],
    )


def _is_finished(job: _Job) -> bool:
    try:
        document = json.loads((job.folder / RESULT_FILE).read_text())
    except (OSError, ValueError):
        return False
    return bool(document["provenance"]["config_sha256"] == job.digest)
