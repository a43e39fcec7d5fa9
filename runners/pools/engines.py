"""Registry of engines by name; each is imported only on use. `sweep launch`, `pool` and `down` call this."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import cast

from runners.errors import EngineMissing, PoolError
from runners.pools.pool import Pool
from runners.pools.runner import Runner
from sweeps.text.installation import install_command


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Import path of a runner, and its requirements.

    Args:
        module: defines RUNNER, and imports without the engine's package.
        package: a module of the engine's Python package; "" where none is needed.
        extra: the extra of stagesweep that installs it.
        secrets_here: True where workers get their secrets' values from the environment of `sweep launch`.
        mounts: how to make its workers see a folder of this machine, where they otherwise do not.
    """

    module: str
    package: str = ""
    extra: str = ""
    secrets_here: bool = True
    mounts: str = ""


EVERYWHERE = frozenset({"environment", "secrets", "setup", "grace_s", "restarts"})
"""Fields of a pool that every engine supports."""
_PRICES = {"max_dollars_per_hour", "dollars_per_hour", "priced_as", "price_is_least"}
"""Fields that the command line handles for every engine."""

ENGINES = {
    "local": Engine(module="runners.local"),
    "slurm": Engine(module="runners.slurm", package="submitit", extra="slurm"),
    "ray": Engine(module="runners.ray_cluster.runner", secrets_here=False),
    "tpu-vm": Engine(
        module="runners.tpu_vm.runner", package="google.cloud.tpu_v2", extra="tpu-vm", secrets_here=False
    ),
    "kubernetes": Engine(
        module="runners.kubernetes.runner",
        secrets_here=False,
        mounts="--option volume=CLAIM:FOLDER, or volume=SERVER:/PATH:FOLDER of NFS",
    ),
    "skypilot": Engine(module="runners.skypilot.runner"),
}


def runner(name: str) -> Runner:
    """Return the runner of this name, a key of ENGINES."""
    return cast(Runner, importlib.import_module(ENGINES[name].module).RUNNER)


def require(name: str) -> None:
    """Raise `EngineMissing` where the engine's Python package is not installed."""
    engine = ENGINES[name]
    if engine.package and not _is_installed(engine.package):
        raise EngineMissing(name, f"the package {engine.package}", install_command(engine.extra))


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a parent package
        return False


def check(runner: Runner, pool: Pool) -> None:
    """Raise `PoolError` for a field that the engine does not support."""
    for each in fields(Pool):
        if each.name in runner.takes | EVERYWHERE | _PRICES:
            continue
        if each.default is MISSING and each.default_factory is MISSING:
            continue
        default = each.default_factory() if each.default_factory is not MISSING else each.default
        if each.name == "nodes":  # the one engine without several hosts has TPUs
            pool.require_one_host()
        if getattr(pool, each.name) != default:
            raise PoolError(each.name, f"the {runner.name} runner has no use for it; leave it out")


def check_storage(runner: Runner, pool: Pool) -> None:
    """Raise `PoolError` for a storage that the engine's workers cannot reach."""
    path = pool.storage.removeprefix("file://")
    if "://" not in path and not runner.sees(Path(path), pool):
        mounts = ENGINES[runner.name].mounts
        raise PoolError(
            "storage",
            f"{pool.storage} is a folder of this machine, which workers of {runner.name} do not see; make "
            "the sweep in a bucket (gs://...)" + (f", or mount what it lies on: {mounts}" if mounts else ""),
        )
