"""`python -m fake_gcs --port 4443`: a fake of its own process, until it is killed.

Prints one line of JSON with its URL; then `STORAGE_EMULATOR_HOST=URL sweep …` works against it.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys

from fake_gcs.server import FakeGcs


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m fake_gcs", description="A small fake of Google Cloud Storage."
    )
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0 picks a free one")
    parser.add_argument(
        "--bucket", action="append", default=[], help="a bucket to begin with (default: bucket)"
    )
    parser.add_argument("--latency-s", type=float, default=0.0, help="every answer is this late")
    parser.add_argument(
        "--one-write-per-second", action="store_true", help="429 for faster changes of one name"
    )
    parser.add_argument("--seed", type=int, default=0, help="for faults with a chance")
    arguments = parser.parse_args()
    buckets = tuple(arguments.bucket) or ("bucket",)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    with FakeGcs(port=arguments.port, seed=arguments.seed, buckets=buckets) as server:
        server.latency_s = arguments.latency_s
        server.objects.one_write_per_second = arguments.one_write_per_second
        print(json.dumps({"url": server.url}), flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
