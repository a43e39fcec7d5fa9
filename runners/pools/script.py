"""The shell script that becomes a worker. Slurm, Ray, SkyPilot, TPU VMs and Kubernetes run it. Pure.

Whatever a field holds stays one word: values are quoted, and the setup's lines are one argument of `eval`, so
that an open quote in them ends the setup and never reaches the worker's line.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from runners.errors import EXIT_FAILED, EXIT_PREEMPTED
from runners.pools.pool import Pool

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def worker_script(pool: Pool, command: Iterable[str] | None = None) -> str:
    """Bash: the environment, the setup, and then the worker in the shell's own process: signals reach it.

    A setup that fails ends with 1 whatever its own status (2 and 42 would say that the worker was refused its
    input), and one that is told to go with 75. Secrets are expected in the environment: the script names the
    one that is missing.

    Args:
        command: instead of the pool's.
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
    """The variables of a worker that are no secrets; those that the pool gives win over its threads."""
    threads = dict.fromkeys(THREAD_VARIABLES, str(pool.threads)) if pool.threads else {}
    return {**threads, **pool.environment}
