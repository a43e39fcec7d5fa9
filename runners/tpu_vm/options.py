"""What `tpu-vm` takes as a pool's options: its own knobs, checked before anything is asked for."""

from __future__ import annotations

import re

from pydantic import ConfigDict, field_validator
from pydantic.dataclasses import dataclass

from runners.errors import PoolError
from runners.pools.options import parse
from runners.pools.pool import Pool
from runners.tpu_versions import largest_on_one_vm, runtime_version

_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class TpuOptions:
    """Args:
    project: the Google Cloud project, by its id.
    zones: where to look for TPUs, the first one first; a list, or words with commas between them.
    runtime_version: the image of the VM; "" for the one that goes with the accelerator.
    queued: ask through a queued resource, which waits for capacity; else for a TPU VM at once.
    wait_minutes: how long a queued resource waits in one zone before the next one is asked. The service
        itself gives it up then, also where nobody watches any more.
    package: what pip installs on the VM: a requirement, or the URL of a wheel, also gs://...
    network, subnetwork: "" for the project's default network.
    external_ips: whether the VM has an address in the Internet, without which pip needs a proxy or a NAT.
    service_account: whose rights the VM has; "" for the project's default. It reads and writes the bucket,
        reads the secrets, and deletes its own VM where nobody else does.
    """

    project: str
    zones: tuple[str, ...]
    runtime_version: str = ""
    queued: bool = True
    wait_minutes: float = 60.0
    package: str = "stagesweep[tpu]"
    network: str = ""
    subnetwork: str = ""
    external_ips: bool = True
    service_account: str = ""

    @field_validator("zones", mode="before")
    @classmethod
    def _split(cls, given: object) -> object:
        return [word.strip() for word in given.split(",")] if isinstance(given, str) else given

    @field_validator("zones")
    @classmethod
    def _zones(cls, zones: tuple[str, ...]) -> tuple[str, ...]:
        if not zones or len(set(zones)) < len(zones) or not all(_NAME.fullmatch(zone) for zone in zones):
            raise ValueError("name zones, each once, such as us-east5-b,asia-northeast1-b")
        return zones

    @field_validator("project")
    @classmethod
    def _project(cls, project: str) -> str:
        if not re.fullmatch(r"([a-z0-9.-]+:)?[a-z0-9-]+", project):
            raise ValueError("write the project's id, such as my-project-123")
        return project

    @field_validator("wait_minutes")
    @classmethod
    def _wait(cls, minutes: float) -> float:
        if not 1 <= minutes <= 60 * 24 * 7:
            raise ValueError("from 1 minute to a week (10080)")
        return minutes


def options_of(pool: Pool) -> TpuOptions:
    """The pool's options. Raises `PoolError`."""
    return parse(TpuOptions, pool)


def check_accelerator(pool: Pool, options: TpuOptions) -> None:
    """Raises `PoolError` for a pool of what is no TPU, or more than one VM."""
    if not pool.accelerator:
        raise PoolError("accelerator", "name a TPU, such as v6e-4 or v5litepod-8")
    if largest := largest_on_one_vm(pool.accelerator):
        raise PoolError(
            "accelerator", f"{pool.accelerator} is several VMs, and a worker runs on one; at most {largest}"
        )
    if not (options.runtime_version or runtime_version(pool.accelerator)):
        raise PoolError(
            "accelerator",
            f"{pool.accelerator} is of no known family; name its image as the option runtime_version",
        )
