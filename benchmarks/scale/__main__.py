"""Simulate a fleet over one sweep: `python -m benchmarks.scale --workers 1000 --trials 1500`.

Prints a table. The exit status is 1 if a trial was lost or done twice. The same arguments give the same
figures, but for the CPU time and `--search botorch`.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence

import numpy as np

from benchmarks.scale.bucket import SERVICES, USD
from benchmarks.scale.fleet import Report, Scenario, simulate


def rows(report: Report) -> list[tuple[str, str]]:
    scenario, trials = report.scenario, max(1, report.trials)
    requests = report.requests
    writes = requests["write"] + requests["list"]
    refused = ", ".join(f"{count:,} {kind}" for kind, count in report.refused.items() if count)
    return [
        (
            "simulated hours; trials made, completed",
            f"{report.hours:.2f}; {report.trials:,}, {report.completed:,}",
        ),
        (
            "start to first trial: workers, median, 90 %, last",
            f"{len(report.first_trial_s):,} of {scenario.workers:,}, {_spread(report.first_trial_s, 's')}",
        ),
        ("waits for a trial: median, 90 %, longest", _spread(report.waits_s, "s")),
        ("share of the workers' time for asking and reporting", f"{100 * report.coordination:.3f} %"),
        (
            "requests per trial: class A, of them listings; class B",
            f"{writes / trials:,.0f}, {requests['list'] / trials:,.1f}; {requests['read'] / trials:,.0f}",
        ),
        (
            "dollars per trial: class A, class B; in all",
            f"{writes * USD['write'] / trials:.5f}, {requests['read'] * USD['read'] / trials:.5f}; "
            f"{report.usd:.2f}",
        ),
        (
            "most requests in a second: writes, reads; refused",
            f"{report.peak['write']:,}, {report.peak['read']:,}; {refused or 'none'}",
        ),
        (
            "notices, kills; workers ended by the store's silence",
            f"{report.events['notice']}, {report.events['kill']}; {report.events['StoreUnavailable']}",
        ),
        ("from a notice to the next attempt: times, median, 90 %, longest", _takeovers(report, "notice")),
        ("from a kill to the next attempt: likewise", _takeovers(report, "kill")),
        (
            "trials taken from workers without bucket; late reports dropped",
            f"{report.events['taken from the living']}; {report.events['dropped']}",
        ),
        ("hours of programs run twice; all", f"{report.redone_s / 3600:.1f}, {report.running_s / 3600:,.0f}"),
        (
            "results that had ended and were not known to an ask: mean, most",
            _known(report.stale_results),
        ),
        ("trials that existed and were not known to an ask: mean, most", _known(report.unknown_trials)),
        ("most attempts of a trial that were lost", str(report.lost_most)),
        ("trials lost, doubled or otherwise wrong", str(len(report.problems))),
        ("CPU seconds of the simulation", f"{report.cpu_s:.0f}"),
    ]


def _spread(seconds: Sequence[float], unit: str) -> str:
    if not seconds:
        return "none"
    half, most = np.quantile(seconds, (0.5, 0.9))
    return f"{half:,.1f}, {most:,.1f}, {max(seconds):,.1f} {unit}"


def _takeovers(report: Report, how: str) -> str:
    found = report.takeovers[how]
    return f"{len(found)}, {_spread(found, 's')}"


def _known(counts: Sequence[int]) -> str:
    return f"{np.mean(counts):.2f}, {max(counts)}" if counts else "no ask"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--service", choices=SERVICES, default="gs")
    parser.add_argument(
        "--search",
        choices=("sobol", "modelled", "botorch"),
        default="sobol",
        help="modelled: Sobol points that take as long as the surrogate's; botorch: the surrogate itself",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start-s", type=float, default=60.0, help="workers start within so many seconds")
    parser.add_argument("--trial-s", type=float, nargs=2, default=(600.0, 36_000.0), help="least and most")
    parser.add_argument("--notice-h", type=float, default=24.0, help="mean hours to a notice; 0: never")
    parser.add_argument("--kill-h", type=float, default=72.0, help="likewise, to an end without notice")
    parser.add_argument(
        "--outage-at-s", type=float, default=7200.0, help="a quarter loses the bucket then; 0: never"
    )
    parser.add_argument("--outage-s", type=float, default=3600.0, help="for so long")
    parser.add_argument("--until-s", type=float, default=0.0, help="simulate no longer; 0: to the end")
    arguments = vars(parser.parse_args())
    arguments["trial_s"] = tuple(arguments["trial_s"])
    scenario = Scenario(**arguments)
    changed = {
        field.name: arguments[field.name]
        for field in dataclasses.fields(Scenario)
        if arguments[field.name] != field.default
    }
    print(changed)
    report = simulate(scenario)
    for what, value in rows(report):
        print(f"| {what} | {value} |")
    for problem in report.problems:
        print(f"PROBLEM {problem}")
    sys.exit(1 if report.problems else 0)


if __name__ == "__main__":
    main()
