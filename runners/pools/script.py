"""Shell script that starts a worker on any engine. Pure.

Every field stays one word: values are quoted, and the setup's lines are one argument of `eval`, so that an
open quote in them fails the setup and never reaches the worker's line.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from runners.errors import EXIT_FAILED, EXIT_PREEMPTED
from runners.pools.pool import Pool

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def worker_script(pool: Pool, command: Iterable[str] | None = None) -> str:
    """Return a bash script: environment, setup, then `exec` of the worker, so that signals reach it.

    A setup that fails exits with 1 whatever its own status (2 and 42 would mean that the worker rejected its
    input), and one that gets SIGTERM with 75. Secrets are expected in the environment: the script names the
    one that is missing.

    Args:
        pool: the environment, secrets and setup.
        command: the worker's argv, instead of the pool's.
    """
    lines = ["#!/bin/bash", "set -u"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in environment(pool).items()]
    lines += [f': "${{{name}:?is a secret of this pool, and not set here}}"' for name in pool.secrets]
    if pool.setup:
        lines += [
            f"trap 'exit {EXIT_PREEMPTED}' TERM",
            f"trap '[ $? -eq {EXIT_PREEMPTED} ] && exit {EXIT_PREEMPTED}; exit {EXIT_FAILED}' EXIT",
            "set -e +u",
            f"eval {shlex.quote(chr(10).join(pool.setup))}",
            "set +e",
            "trap - TERM EXIT",
        ]
    lines.append(f"exec -- {shlex.join(command or pool.command)}")
    return "\n".join(lines) + "\n"


def environment(pool: Pool) -> dict[str, str]:
    """Return a worker's variables without its secrets; `pool.environment` overrides `pool.threads`."""
    threads = dict.fromkeys(THREAD_VARIABLES, str(pool.threads)) if pool.threads else {}
    return {**threads, **pool.environment}
