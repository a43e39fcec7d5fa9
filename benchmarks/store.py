"""Stores under load: `python -m benchmarks.store [PART…]`, by default all five parts in one run.

    local      claim-and-complete cycles a second over one folder, compared with Optuna's two file storages
    fresh      time until sixteen workers that start at once over a fake bucket have a trial each
    storm      a sweep in a fake bucket while workers are killed and stopped, compared with the ideal schedule
    costs      requests and dollars: of the storm for each trial, of a worker that waits for an hour
    thousand   `sweep status` and asking in a fake bucket of finished trials, without and with packs

Everything runs on this machine, the fake bucket and all workers: on a busy one the figures are worse.
"""

from __future__ import annotations

import argparse

from benchmarks import store_bucket, store_local

PARTS = ("local", "fresh", "storm", "costs", "thousand")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--processes", type=int, default=8, help="that share the folder")
    parser.add_argument("--cycles", type=int, default=1000, help="at most, for each storage")
    parser.add_argument("--limit-s", type=float, default=10.0, help="and at most so long")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the trials in the storm")
    parser.add_argument(
        "--scheme", choices=("gs", "s3"), default="gs", help="of the storm; s3: a real server, SeaweedFS"
    )
    parser.add_argument("--trials", type=int, default=1000, help="that have ended, of the part `thousand`")
    args = parser.parse_args()
    parts = args.parts or PARTS
    if unknown := set(parts) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}; choose from {', '.join(PARTS)}")
    if "local" in parts:
        _local(args.processes, args.cycles, args.limit_s)
    if "fresh" in parts:
        _fresh()
    if "storm" in parts or "costs" in parts:
        _storm(args.seed, args.scheme)
    if "costs" in parts:
        _idle()
    if "thousand" in parts:
        _thousand(args.trials)


def _local(processes: int, cycles: int, limit_s: float) -> None:
    print(f"| folder, {processes} processes | cycles | seconds | cycles/s | CPU ms/cycle | ours is |")
    print("|---|---|---|---|---|---|")
    ours = 0.0
    for rate in store_local.compare(processes=processes, trials=cycles, limit_s=limit_s):
        ours = ours or rate.per_second
        print(
            f"| {rate.store} | {rate.cycles} | {rate.seconds:.1f} | {rate.per_second:.0f} "
            f"| {1000 * rate.cpu_s / rate.cycles:.1f} | {ours / rate.per_second:.1f}x |",
            flush=True,
        )


def _fresh() -> None:
    found = store_bucket.fresh(16)
    print("\n| 16 fresh workers over an empty sweep in a bucket | |\n|---|---|")
    print(
        f"| a trial each: first, half, last | {found.first_s:.1f}, {found.half_s:.1f}, {found.last_s:.1f} s |"
    )
    print(f"| trials that were made | {found.trials} |")
    print(f"| class A, class B | {found.requests['A']:.0f}, {found.requests['B']:.0f} |", flush=True)


def _storm(seed: int, scheme: str) -> None:
    storm = store_bucket.storm(workers=16, trials=64, nap_s=(4.0, 8.0), kills=3, seed=seed, scheme=scheme)
    rows = {
        "all trials completed": storm.complete,
        "total; ideal": f"{storm.total_s:.1f} s; {storm.ideal_s:.1f} s",
        "total / ideal": f"{storm.total_s / storm.ideal_s:.2f}",
        "a worker's first claim, slowest": f"{storm.first_claim_s:.2f} s",
        "later claims, p50 / p99": f"{storm.claim_p50_s:.2f} s / {storm.claim_p99_s:.2f} s",
        "takeovers, spurious ones": f"{storm.takeovers}, {storm.spurious}",
        "workers that died by themselves": ", ".join(storm.deaths) or "none",
        "answers of 429": storm.refused,
    }
    if storm.requests is not None:
        rows["class A, class B, dollars for a trial"] = (
            f"{storm.requests['A'] / storm.trials:.1f}, {storm.requests['B'] / storm.trials:.1f}, "
            f"{storm.requests['usd'] / storm.trials:.6f}"
        )
    print("\n| storm: 16 workers, 64 trials of 4-8 s, 3 SIGKILL, 1 SIGSTOP | |\n|---|---|")
    for what, value in rows.items():
        print(f"| {what} | {value} |", flush=True)


def _idle() -> None:
    hour = store_bucket.idle_hour(seconds=60.0)
    print("\n| a worker that waits for an hour | |\n|---|---|")
    print(f"| class A, class B, dollars | {hour['A']:.0f}, {hour['B']:.0f}, {hour['usd']:.4f} |", flush=True)


def _thousand(trials: int) -> None:
    found = store_bucket.thousand(trials)
    print(f"\n| bucket with {found.trials} finished trials | without packs | with packs |\n|---|---|---|")
    rows = {
        "`sweep status`, seconds": (found.status[0], found.packed_status[0]),
        "its requests of class B": (found.status[1], found.packed_status[1]),
        "first ask of a worker, seconds": (found.asks[0], found.packed_asks[0]),
        "its next ask, seconds": (found.asks[1], found.packed_asks[1]),
    }
    for what, (plain, packed) in rows.items():
        print(f"| {what} | {plain:.4g} | {packed:.4g} |")
    print(f"| writing all packs at once, seconds | | {found.pack_s:.1f} |", flush=True)


if __name__ == "__main__":
    main()
