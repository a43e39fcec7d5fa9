"""Worker as a managed job of SkyPilot, and the command that submits N of them. Pure.

`runners.on_vm` restarts the worker on its machine, so that a crash costs no new machine. The job ends with
its exit status: 0 SUCCEEDED; 75 (preempted): recovered, as after the loss of a machine; 2 and 1: FAILED.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

from runners.errors import EXIT_PREEMPTED
from runners.pools.options import require_package
from runners.pools.pool import Pool
from runners.pools.script import worker_script
from runners.skypilot.options import SkyOptions, tpu_of
from runners.tpu_versions import REQUIREMENTS, WHEELS, runtime_version

FILE = "task.yaml"
ROOT = "$HOME/stagesweep"
PYTHON = "python"
"""Interpreter of the environment at ROOT, which comes first on the PATH."""
LONGEST_GRACE_S = 25.0  # SkyPilot kills what is there 30 s after its SIGTERM, and so do spot machines


def task(pool: Pool, options: SkyOptions) -> dict[str, Any]:
    """Return one worker as SkyPilot's task YAML. Raises `PoolError`."""
    tpu = tpu_of(pool)
    if tpu:
        pool.require_one_host()
    resources: dict[str, Any] = {
        "use_spot": pool.spot,
        "job_recovery": {"max_restarts_on_errors": 0, "recover_on_exit_codes": [EXIT_PREEMPTED]},
    }
    if pool.accelerator:
        resources["accelerators"] = f"{pool.accelerator}:{pool.accelerator_count}"
    if tpu:
        resources["accelerator_args"] = {"runtime_version": runtime_version(tpu)}
    for name in ("infra", "cpus", "memory", "disk_size"):
        if value := getattr(options, name):
            resources[name] = value
    return {
        "name": pool.label,
        **({"num_nodes": pool.nodes} if pool.nodes > 1 else {}),
        "resources": {**resources, **options.resources},
        **({"secrets": dict.fromkeys(pool.secrets)} if pool.secrets else {}),
        **({"file_mounts": options.file_mounts} if options.file_mounts else {}),
        "setup": _setup(options, tpu),
        "run": _run(pool, tpu),
    }


def launch(pool: Pool, workers: int, file: str) -> tuple[str, ...]:
    """Return the arguments of `sky` that submit so many workers; `sky` reads the secrets' values here."""
    secrets = (word for name in pool.secrets for word in ("--secret", name))
    return ("jobs", "launch", "--yes", "--detach-run", "--num-jobs", str(workers), *secrets, file)


def _setup(options: SkyOptions, tpu: str | None) -> str:
    require_package(
        options.package, "https://…/stagesweep-….whl, its path in file_mounts, or another requirement of pip"
    )
    words = (*REQUIREMENTS, options.package) if tpu else (options.package,)
    wheels = [word for url in WHEELS for word in ("--find-links", url)] if tpu else []
    venv = f'python3 -m uv venv --quiet --seed --python 3.11 "{ROOT}"'
    return "\n".join(
        [
            "set -e",
            # Where no pip.py or uv.py of the user is: the machine's own Python may be too old for -P.
            "(cd / && python3 -m pip install --quiet uv)",
            f'[ -x "{ROOT}/bin/python" ] || (cd / && {venv})',
            f'"{ROOT}/bin/python" -P -m pip install --quiet {shlex.join([*wheels, "--", *words])}',
            "",
        ]
    )


def _run(pool: Pool, tpu: str | None) -> str:
    grace_s = min(pool.grace_s, LONGEST_GRACE_S)
    supervisor = ("-P", "-m", "runners.on_vm", "--log", "/dev/stdout", "--restarts", str(pool.restarts))
    words = (PYTHON, *supervisor, "--grace", f"{grace_s:g}", "--", *pool.command)
    environment = {"PJRT_DEVICE": "TPU"} if tpu else {}
    named = replace(pool, environment={**environment, **pool.environment})
    return f'PATH="{ROOT}/bin:$PATH"\n' + worker_script(named, words)
