"""`Sweep.run`: the loop of `sweep worker` in one or several threads of this process."""

from __future__ import annotations

import itertools
import logging
import operator
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

from sweeps.errors import InputError, SweepClosed
from sweeps.experiment import Experiment
from sweeps.programs.signals import Stop
from sweeps.space.overrides import to_overrides
from sweeps.text.python_words import words
from sweeps.trials import brake, control
from sweeps.trials.record import Trial
from sweeps.worker.loop import Limits, Tally, work
from sweeps.worker.trial_run import Watcher

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Shared(Limits):
    """Limit that several workers share: each trial takes one of the tickets."""

    tickets: Iterator[int]

    def reached(self, trials: int) -> bool:
        return next(self.tickets, None) is None


class _Log(Watcher):
    """Watcher that writes to the log of Python: failures as warnings, the rest for whoever wants it.

    A failure has its traceback where it is the first of its kind: the line at fault would stand in the
    record alone, and a cell of a notebook shows no more than this.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def tell(self, event: str, record: Trial | None, why: str) -> None:
        if record is None:
            if not why.endswith(brake.REMEDY):  # `run` raises that
                log.warning("%s", words(why))
        elif event == "started":
            log.info("trial %d started: %s", record.trial, " ".join(to_overrides(record.parameters)))
        elif event == "dropped":
            log.warning("trial %d: its result is dropped: %s", record.trial, why)
        elif record.error is None:
            log.info("trial %d %s: %s", record.trial, record.status, dict(record.metrics))
        else:
            kind, first_line = brake.error_pattern(record.error), record.error.partition("\n")[0]
            shown = first_line if kind in self._seen else record.error
            self._seen.add(kind)
            log.warning("trial %d %s: %s", record.trial, record.status, shown)


def run_trials(
    opened: Callable[[], Experiment],
    function: Callable[[Any], Any] | None,
    *,
    n_trials: int | None,
    workers: int,
    confirming: bool = False,
) -> dict[str, int]:
    """Run trials and return how many ended how; see `Sweep.run`.

    Args:
        opened: returns the sweep for the calling thread.
        confirming: run only the repeats of the confirmation, until it is finished.
    """
    n_trials = None if n_trials is None else whole_number("run(n_trials", n_trials)
    workers = checked_workers(opened(), function, workers)
    tickets = iter(range(n_trials)) if n_trials is not None else itertools.count()
    stops = [Stop() for _ in range(workers)]
    watcher = _Log()

    def one(stop: Stop) -> Tally:
        limits = _Shared(leave_when_braked=True, tickets=tickets, confirming=confirming)
        return work(opened(), stop=stop, watcher=watcher, limits=limits, function=function)

    if workers == 1:
        with stops[0].overhearing():
            tallies = [one(stops[0])]
        if stops[0].requested:  # by a signal that the function did not pass on
            signal.raise_signal(signal.Signals[stops[0].by])
    else:
        tallies = _in_threads(one, stops)
    store = opened().store
    switch = control.switch(store)
    if switch.braked:
        raise SweepClosed("braked", f"{store.url} has paused itself: {switch.why}; {brake.REMEDY}")
    counted: Counter[str] = Counter()
    for tally in tallies:
        counted.update(tally.ended)
    return dict(counted)


def checked_workers(experiment: Experiment, function: Callable[[Any], Any] | None, workers: Any) -> int:
    """Return how many threads are to run trials at once. Raises `InputError` where they may not."""
    count = whole_number("run(workers", workers)
    if function is not None and not callable(function):
        raise InputError(f"run: {function!r:.80} is no function")
    if count > 1 and function is None and experiment.space.program.function:
        raise InputError(
            f"workers={count}: the sweep's own function finds its run folder in the environment, which "
            f"threads share; give the function itself, as in run(function, workers={count}), or start "
            "`sweep worker` several times"
        )
    return count


def whole_number(argument: str, value: Any, least: int = 1) -> int:
    """Return a whole number of Python or NumPy. Raises `InputError` if it is less than `least`.

    Args:
        argument: call and name, such as `run(workers`.
    """
    try:
        count = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        count = least - 1
    if count < least:
        raise InputError(f"{argument}={value!r:.80}): write a whole number from {least}")
    return count


def _in_threads(one: Callable[[Stop], Tally], stops: list[Stop]) -> list[Tally]:
    """Run a worker in each of several threads; if one raises, or on Ctrl-C, the others leave, too."""
    with ThreadPoolExecutor(len(stops), thread_name_prefix="sweep-worker") as pool:
        running = [pool.submit(one, stop) for stop in stops]
        try:
            return [each.result() for each in as_completed(running)]
        except BaseException as error:
            for stop in stops:
                stop.request(type(error).__name__)
            raise
