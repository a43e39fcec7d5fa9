"""Overhead of asking for a candidate over Ax itself: `python -m benchmarks.ask`.

For 0, 30, 100 and 300 finished trials of Hartmann6, in seconds of CPU on one thread, the median of
`--repeats`: ours and Ax's own client, once from scratch (all records observed, one candidate generated) and
once by an optimizer that had observed all but the last trial. `share` is our time outside of Ax's fit and
generation.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from benchmarks.problems import METRIC, PROBLEMS, completed
from benchmarks.samplers import ax_client
from sweeps.search.determinism import one_thread, silence
from sweeps.search.optimizer import Optimizer
from sweeps.trials.record import Trial

PROBLEM = PROBLEMS["hartmann6"]
SOBOL = 12


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, nargs="+", default=[0, 30, 100, 300])
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    print("| trials | how | ours (s) | in Ax (s) | share | Ax's client (s) | ours / Ax |")
    print("|---|---|---|---|---|---|---|")
    for count in arguments.trials:
        records = _records(count)
        for how, known in (("rebuilt", 0), ("incremental", max(count - 1, 0))):
            runs = [_ours(records, known) for _ in range(arguments.repeats)]
            ours, inside = (statistics.median(column) for column in zip(*runs, strict=True))
            client = statistics.median(_client(records, known, seed) for seed in range(arguments.repeats))
            print(
                f"| {count} | {how} | {ours:.3f} | {inside:.3f} | {(ours - inside) / ours:.1%} "
                f"| {client:.3f} | {ours / client:.2f} |",
                flush=True,
            )


def _records(count: int) -> list[Trial]:
    candidates = Optimizer(PROBLEM.space(seed=0, sobol=count + 1)).generate(count)
    return [
        completed(i, c.parameters, c.generator, PROBLEM.function(c.parameters))
        for i, c in enumerate(candidates)
    ]


def _ours(records: list[Trial], known: int) -> tuple[float, float]:
    """Return CPU seconds to observe the records after the first `known` and ask, and those spent in Ax."""
    optimizer = Optimizer(PROBLEM.space(seed=0, sobol=SOBOL))
    optimizer.observe(records[:known])
    with _time_in_ax() as inside:
        start = time.process_time()
        optimizer.observe(records)
        optimizer.generate()
        return time.process_time() - start, sum(inside)


@contextmanager
def _time_in_ax() -> Iterator[list[float]]:
    """Collect the seconds spent in Ax's adapters: their construction, which fits, and their `gen`."""
    from ax.adapter.base import Adapter
    from ax.adapter.registry import GeneratorRegistryBase

    seconds: list[float] = []

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                seconds.append(time.process_time() - start)

        return call

    with (
        mock.patch.object(Adapter, "gen", timed(Adapter.gen)),
        mock.patch.object(GeneratorRegistryBase, "__call__", timed(GeneratorRegistryBase.__call__)),
    ):
        yield seconds


def _client(records: list[Trial], known: int, seed: int) -> float:
    client = ax_client(PROBLEM, seed, SOBOL, center=False)  # the centre needs no generation
    with one_thread(), silence("ax"):
        _report(client, records[:known])
        if known:
            client.get_next_trials(max_trials=1)  # a long-lived client has generated before
        start = time.process_time()
        _report(client, records[known:])
        client.get_next_trials(max_trials=1)
        return time.process_time() - start


def _report(client: Any, records: list[Trial]) -> None:
    for record in records:
        index = client.attach_trial(dict(record.parameters))
        client.complete_trial(index, {METRIC: record.metrics[METRIC]})


if __name__ == "__main__":
    main()
