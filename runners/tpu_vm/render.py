"""Names and labels of a pool's VMs, and requests to the TPU service for one worker, as plain values. Pure.

Names derive from the pool's label alone. The service refuses a second resource of one name in a zone: that
alone makes a repeated creation idempotent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from runners.pools.pool import Pool
from runners.tpu_versions import runtime_version
from runners.tpu_vm.options import TpuOptions
from runners.tpu_vm.vm_script import NAME_KEY, QUEUED_KEY, ZONE_KEY

POOL_LABEL = "stagesweep-pool"
WORKER_LABEL = "stagesweep-worker"
BEGUN_LABEL = "stagesweep-begun"
"""On the VMs of a worker that has had another one at work before."""
_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)


def vm_id(label: str, worker: int) -> str:
    """Return the name of a worker's queued resource and of its node."""
    return f"{label}-{worker:03d}"


def labels(label: str, worker: int, *, has_begun: bool) -> dict[str, str]:
    """Return the labels by which `status` and `down` find a pool's VMs among all others."""
    own = {POOL_LABEL: label, WORKER_LABEL: f"{worker:03d}"}
    return own | {BEGUN_LABEL: "yes"} if has_begun else own


def worker_of(label: str, id_: str, labels: Mapping[str, str]) -> int | None:
    """Return the number of the worker that a VM belongs to; None where it is not of this pool.

    Args:
        id_: the VM's name, which counts where it has no labels of ours.
    """
    if POOL_LABEL in labels:
        number = labels.get(WORKER_LABEL, "")
        return int(number) if labels[POOL_LABEL] == label and number.isdecimal() else None
    found = re.fullmatch(re.escape(label) + r"-(\d{3,})", id_)
    return int(found[1]) if found else None


def node(
    pool: Pool, options: TpuOptions, worker: int, zone: str, script: str, *, has_begun: bool = False
) -> dict[str, Any]:
    """Return a `Node` in the JSON fields of google.cloud.tpu.v2."""
    network = {"enable_external_ips": options.external_ips}
    network |= {name: value for name in ("network", "subnetwork") if (value := getattr(options, name))}
    account = {"scope": list(_SCOPES)}
    if options.service_account:
        account["email"] = options.service_account  # type: ignore[assignment]
    return {
        "accelerator_type": pool.accelerator,
        "runtime_version": options.runtime_version or runtime_version(pool.accelerator),
        "description": f"{pool.name[:400]}, worker {worker}",
        "labels": labels(pool.label, worker, has_begun=has_begun),
        "network_config": network,
        "service_account": account,
        "metadata": {
            "startup-script": script,
            "enable-guest-attributes": "TRUE",
            NAME_KEY: vm_id(pool.label, worker),
            ZONE_KEY: zone,
            QUEUED_KEY: "yes" if options.queued else "no",
        },
        # A queued resource states its tier itself.
        **({"scheduling_config": {"spot": True}} if pool.spot and not options.queued else {}),
    }


def queued_resource(
    pool: Pool, options: TpuOptions, worker: int, zone: str, script: str, *, has_begun: bool = False
) -> dict[str, Any]:
    """Return a `QueuedResource` of one node in the JSON fields of google.cloud.tpu.v2."""
    return {
        "tpu": {
            "node_spec": [
                {
                    "parent": parent(options.project, zone),
                    "node_id": vm_id(pool.label, worker),
                    "node": node(pool, options, worker, zone, script, has_begun=has_begun),
                }
            ]
        },
        **({"spot": {}} if pool.spot else {}),
        "queueing_policy": {"valid_until_duration": f"{round(options.wait_minutes * 60)}s"},
    }


def parent(project: str, zone: str) -> str:
    """Return the full resource name of a zone."""
    return f"projects/{project}/locations/{zone}"
