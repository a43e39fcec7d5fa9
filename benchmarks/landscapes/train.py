"""Trains the trials of landscapes side by side, a process for each, without Ax.

Only the trainer's own packages are needed, so that it runs wherever there are cores. Each trial is forked
from this process, which has imported the trainer: a trial takes seconds, and imports as many.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
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
    random_seconds: float = float("inf"),
    stdlib: Path | None = None,
    overrides: Sequence[str] = (),
) -> bool:
    """Train what is missing of landscapes, in their order: random trials, then the repeats that these decide.

    Args:
        points: random trials of each landscape.
        known: rows of trials that have ended.
        out: JSON lines; a row is appended as soon as its trial has ended.
        workers: trials at a time, each of one thread.
        number_of_repeats: seeds of each repeated configuration.
        seconds: after which nothing is begun, and what runs is ended without a row.
        random_seconds: after which no random trial is begun: what has ended by then decides the repeats.
        stdlib: folder of the text of `data=stdlib`; None: this Python's own, which makes other landscapes
            than another Python's.
        overrides: of Hydra, after those of the spaces, such as `device=cpu`.

    Returns:
        whether nothing is missing.
    """
    began = time.monotonic()
    _prepare(points, overrides, workers, stdlib)
    plan = Plan(points, known, number_of_repeats)
    end_last_line(out)
    running: dict[int, tuple[BaseProcess, str, Row, Path]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="landscapes-") as folder,
        out.open("a", encoding="utf-8") as lines,
    ):
        while (plan.waiting or running) and (passed := time.monotonic() - began) < seconds:
            if passed >= random_seconds:
                plan.end_random()
            while plan.waiting and len(running) < workers:
                name, row = plan.waiting.popleft()
                run = Path(tempfile.mkdtemp(dir=folder))
                parameters = {key: row[key] for key in row if key != "kind"}
                arguments = ([*_overrides(name, parameters), *overrides], run)
                process = _FORK.Process(target=_run, args=arguments)
                process.start()
                running[process.sentinel] = (process, name, row, run)
            for sentinel in wait(list(running), timeout=min(60.0, seconds - passed)):
                process, name, row, run = running.pop(sentinel)  # type: ignore[call-overload]  # `wait` gives back the sentinels that it got
                process.join()
                if process.exitcode != EXIT_DONE:
                    last = (run / "log").read_text(encoding="utf-8").strip().rpartition("\n")[2]
                    trial = f"{name}, {row['kind']}, seed {row[SEED]}"
                    print(f"landscapes: {trial}: status {process.exitcode}: {last}", file=sys.stderr)
                row = {**row, **_result(run, process.exitcode)}
                lines.write(json.dumps({"landscape": name, **row}) + "\n")
                lines.flush()
                shutil.rmtree(run)
                plan.take_in(name, row)
        for process, *_ in running.values():
            process.kill()
            process.join()
    return not (plan.waiting or running or plan.dropped)


class Plan:
    """Trials that wait. A landscape's repeats come once its last random trial has ended.

    Args:
        points: random trials of each landscape.
        known: rows of trials that have ended.
        number_of_repeats: seeds of each repeated configuration.

    Attributes:
        waiting: landscape and row of each trial to begin.
        dropped: number of random trials that are not begun any more.
    """

    def __init__(
        self, points: Mapping[str, Sequence[Row]], known: Mapping[str, Sequence[Row]], number_of_repeats: int
    ) -> None:
        self._rows = {name: list(known.get(name, ())) for name in points}
        self._number_of_repeats = number_of_repeats
        self.waiting = deque(
            (name, row) for name in points for row in _missing(points[name], self._rows[name])
        )
        self._left = Counter(name for name, _ in self.waiting)  # random trials that have not ended
        self.dropped = 0
        for name in points:
            if not self._left[name]:
                self._add_repeats(name)

    def take_in(self, name: str, row: Row) -> None:
        """Take the row of a trial that has ended."""
        self._rows[name].append(row)
        if row["kind"] == RANDOM:
            self._left[name] -= 1
            if not self._left[name]:
                self._add_repeats(name)

    def end_random(self) -> None:
        """Begin no more random trials."""
        dropped = Counter(name for name, row in self.waiting if row["kind"] == RANDOM)
        self.waiting = deque((name, row) for name, row in self.waiting if row["kind"] != RANDOM)
        self.dropped += dropped.total()
        for name, number in dropped.items():
            self._left[name] -= number
            if not self._left[name]:
                self._add_repeats(name)

    def _add_repeats(self, name: str) -> None:
        random = [row for row in self._rows[name] if row["kind"] == RANDOM and row[METRIC] == row[METRIC]]
        if random:  # none may have ended in time
            again = _missing(repeats(name, random, self._number_of_repeats), self._rows[name])
            self.waiting.extendleft((name, row) for row in reversed(again))


def _prepare(points: Iterable[str], overrides: Sequence[str], workers: int, stdlib: Path | None) -> None:
    """Import what trials import, and have text and teachers in the cache."""
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in points:
        if problem := preload([*_overrides(name), *overrides]):
            raise SystemExit(f"landscapes: trials cannot be forked: {problem}")
    if stdlib is not None:
        from trainer.data import memory

        memory.documents = partial(memory.documents, root=stdlib)
    for name in points:
        alone = [*_overrides(name), *overrides, f"device.threads={workers}"]  # no trial runs beside it
        preparing = _FORK.Process(target=prepare, args=(alone,))
        preparing.start()
        preparing.join()
        if preparing.exitcode:
            raise SystemExit(f"landscapes: text and teacher cannot be prepared, status {preparing.exitcode}")


def _overrides(name: str, parameters: Row | None = None) -> list[str]:
    return [*load_space(name)["program"]["trainer"]["overrides"], *to_overrides(parameters or {})]


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
