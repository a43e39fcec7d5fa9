"""Trains the trials of landscapes side by side, a process for each, without Ax.

Only the trainer's own packages are needed, so that it runs wherever there are cores. Each trial is forked
from this process, which has imported the trainer: a trial takes seconds, and imports as many.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from benchmarks.json_lines import end_last_line
from benchmarks.landscapes.tables import COLUMNS, METRIC, RANDOM, SEED, Row, load_space, repeats
from sweeps.space.overrides import to_overrides
from trainer.api import EXIT_DONE, METRICS_FILE, RESULT_FILE, prepare
from trainer.preload import preload

_FORK = multiprocessing.get_context("fork")


def train(
    points: Mapping[str, Sequence[Row]],
    known: Mapping[str, Sequence[Row]],
    out: Path,
    *,
    workers: int,
    number_of_repeats: int,
    seconds: float = float("inf"),
    stdlib: Path | None = None,
) -> bool:
    """Train what is missing of landscapes, in their order: random trials, then the repeats that these decide.

    Args:
        points: random trials of each landscape.
        known: rows of trials that have ended.
        out: JSON lines; a row is appended as soon as its trial has ended.
        workers: trials at a time, each of one thread.
        number_of_repeats: seeds of each repeated configuration.
        seconds: after which nothing is begun, and what runs is ended without a row.
        stdlib: folder of the text of `data=stdlib`; None: this Python's own, which makes other landscapes
            than another Python's.

    Returns:
        whether nothing is missing.
    """
    ends = time.monotonic() + seconds
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in points:
        if problem := preload(_overrides(name)):
            raise SystemExit(f"landscapes: trials cannot be forked: {problem}")
    if stdlib is not None:
        from trainer.data import memory

        memory.documents = partial(memory.documents, root=stdlib)
    for name in points:
        alone = [*_overrides(name), f"device.threads={workers}"]  # no trial runs beside it
        preparing = _FORK.Process(target=prepare, args=(alone,))
        preparing.start()
        preparing.join()
        if preparing.exitcode:
            raise SystemExit(f"landscapes: text and teacher cannot be prepared, status {preparing.exitcode}")

    rows = {name: list(known.get(name, ())) for name in points}
    waiting = deque((name, row) for name in points for row in _missing(points[name], rows[name]))
    left = {name: sum(each == name for each, _ in waiting) for name in points}
    for name in points:
        if not left[name]:
            again = _missing(repeats(name, _random(rows[name]), number_of_repeats), rows[name])
            waiting.extendleft((name, row) for row in reversed(again))
    end_last_line(out)
    running: dict[int, tuple[BaseProcess, str, Row, Path]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="landscapes-") as folder,
        out.open("a", encoding="utf-8") as lines,
    ):
        while (waiting or running) and time.monotonic() < ends:
            while waiting and len(running) < workers:
                name, row = waiting.popleft()
                run = Path(tempfile.mkdtemp(dir=folder))
                arguments = (_overrides(name, {key: row[key] for key in row if key != "kind"}), run)
                process = _FORK.Process(target=_run, args=arguments)
                process.start()
                running[process.sentinel] = (process, name, row, run)
            for sentinel in wait(list(running), timeout=max(0.0, min(60.0, ends - time.monotonic()))):
                process, name, row, run = running.pop(sentinel)  # type: ignore[call-overload]  # `wait` gives back the sentinels that it got
                process.join()
                row = {**row, **_result(run, process.exitcode)}
                rows[name].append(row)
                lines.write(json.dumps({"landscape": name, **row}) + "\n")
                lines.flush()
                shutil.rmtree(run)
                left[name] -= row["kind"] == RANDOM
                if row["kind"] == RANDOM and not left[name]:
                    again = _missing(repeats(name, _random(rows[name]), number_of_repeats), rows[name])
                    waiting.extendleft((name, each) for each in reversed(again))
        for process, *_ in running.values():
            process.kill()
            process.join()
    return not (waiting or running)


def _overrides(name: str, parameters: Row | None = None) -> list[str]:
    return [*load_space(name)["program"]["trainer"]["overrides"], *to_overrides(parameters or {})]


def _random(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["kind"] == RANDOM]


def _missing(wanted: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    done = {(row["kind"], int(row[SEED])) for row in rows}
    return [row for row in wanted if (row["kind"], int(row[SEED])) not in done]


def _run(overrides: Sequence[str], folder: Path) -> None:
    """Train a trial in this process, which is forked for it."""
    from trainer.__main__ import main

    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    status = main([*overrides, f"run_dir={folder / 'run'}"])
    os._exit(status)  # taking torch apart takes longer than some trials' last steps


def _result(folder: Path, status: int | None) -> Row:
    """Return metrics and held-out losses of a trial that has ended; one that failed has no final loss."""
    row: Row = {METRIC: float("nan")}
    run = folder / "run"
    if status == EXIT_DONE:
        metrics = json.loads((run / RESULT_FILE).read_text(encoding="utf-8"))["metrics"]
        row = {column: metrics.get(column) for column in COLUMNS[1:]}
        row["cost_nominal"] = metrics["effective_steps"]
    if (run / METRICS_FILE).exists():
        for line in (run / METRICS_FILE).read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            if "held_out_loss" in entry and "of" in entry:
                quarter = round(4 * entry["step"] / entry["of"]) / 4
                row[f"{entry['stage']}@{quarter:g}"] = entry["held_out_loss"]
    return row
