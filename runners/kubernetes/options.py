"""Options of `kubernetes`, and the labels of accelerators and spot nodes by kind of cluster."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from runners.errors import PoolError
from runners.pools.options import Quantity, parse
from runners.pools.pool import Pool

Cluster = Literal["gke", "eks", "aks", "other"]

# The label of spot nodes, its value, and True where they are also tainted with it.
_SPOT: dict[Cluster, tuple[str, str, bool]] = {
    "gke": ("cloud.google.com/gke-spot", "true", True),
    "eks": ("eks.amazonaws.com/capacityType", "SPOT", False),
    "aks": ("kubernetes.azure.com/scalesetpriority", "spot", True),
}
_GPU_LABEL: dict[Cluster, str] = {"gke": "cloud.google.com/gke-accelerator"}
_CLAIM = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")  # a DNS subdomain
_GPU_LABEL_ELSEWHERE = "nvidia.com/gpu.product"  # NVIDIA's GPU feature discovery

# Single-host TPUs of docs.cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus: the node's label, the
# topology and the number of chips. v4 and v5p count cores, two per chip.
_TPUS = {
    "v4-8": ("tpu-v4-podslice", "2x2x1", 4),
    "v5p-8": ("tpu-v5p-slice", "2x2x1", 4),
    "v5litepod-1": ("tpu-v5-lite-podslice", "1x1", 1),
    "v5litepod-4": ("tpu-v5-lite-podslice", "2x2", 4),
    "v5litepod-8": ("tpu-v5-lite-podslice", "2x4", 8),
    "v6e-1": ("tpu-v6e-slice", "1x1", 1),
    "v6e-4": ("tpu-v6e-slice", "2x2", 4),
    "v6e-8": ("tpu-v6e-slice", "2x4", 8),
}


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid", strict=True))
class KubernetesOptions:
    """Options of a pool as an Indexed Job.

    Args:
        image: container image with stagesweep; its `python` runs the workers, unless --python names another.
        cluster: kind of cluster, which decides the labels of accelerators and spot nodes.
        context: of kubectl; "" for its default.
        namespace: of kubectl; "" for its default.
        secret: an existing Secret with the pool's secrets as its keys; "": `up` creates one with their values
            here.
        service_account: of the pods; on GKE and EKS it may read and write the bucket.
        cpu: request of each worker, such as "8"; "" for the cluster's default.
        memory: request of each worker, such as "64Gi"; "" for the cluster's default.
        volume: what every pod mounts, for a sweep in a folder: "CLAIM:FOLDER" (a PersistentVolumeClaim that
            many nodes may write) or "SERVER:/PATH:FOLDER" (NFS); FOLDER is absolute.
        node_selector: added to the labels of the accelerator and of spot nodes.
        tolerations: added to those of the accelerator and of spot nodes.
    """

    image: str = ""
    cluster: Cluster = "gke"
    context: str = ""
    namespace: str = ""
    secret: str = ""
    service_account: str = ""
    cpu: Quantity = ""
    memory: Quantity = ""
    volume: str = ""
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: list[dict[str, Any]] = Field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Volume:
    """Storage that every pod mounts.

    Args:
        source: how a pod's specification names it: a claim, or a path of an NFS server.
        folder: where it is mounted.
    """

    source: dict[str, dict[str, str]]
    folder: PurePosixPath


@dataclass(kw_only=True)
class Placement:
    """Constraints on the nodes, a worker's limits on one, and its additional environment."""

    selector: dict[str, str] = Field(default_factory=dict)
    tolerations: list[dict[str, Any]] = Field(default_factory=list)
    limits: dict[str, str] = Field(default_factory=dict)
    environment: dict[str, str] = Field(default_factory=dict)


def options_of(pool: Pool) -> KubernetesOptions:
    """Return the pool's options. Raises `PoolError`."""
    return parse(KubernetesOptions, pool)


def volume(options: KubernetesOptions) -> Volume | None:
    """Return the volume that the options name. Raises `PoolError`."""
    if not options.volume:
        return None
    match options.volume.split(":"):
        case [claim, folder] if _CLAIM.fullmatch(claim):
            source = {"persistentVolumeClaim": {"claimName": claim}}
        case [server, path, folder] if server and path.startswith("/"):
            source = {"nfs": {"server": server, "path": path}}
        case _:
            folder, source = "", {}
    if not folder.startswith("/") or folder == "/" or ".." in PurePosixPath(folder).parts:
        raise PoolError(
            "options",
            f"volume: {options.volume!r}: write CLAIM:FOLDER, or SERVER:/PATH:FOLDER of NFS, with the "
            "absolute FOLDER under which this machine has it too",
        )
    return Volume(source=source, folder=PurePosixPath(folder))


def placement(pool: Pool, options: KubernetesOptions) -> Placement:
    """Return the placement of the workers. Raises `PoolError` for what this kind of cluster does not have."""
    found = Placement()
    if _is_tpu(pool.accelerator):
        found = _on_tpus(pool, options)
    elif pool.accelerator:
        found.selector[_GPU_LABEL.get(options.cluster, _GPU_LABEL_ELSEWHERE)] = pool.accelerator
        found.tolerations.append(_tolerate("nvidia.com/gpu"))
        found.limits["nvidia.com/gpu"] = str(pool.accelerator_count)
    if pool.spot:
        if options.cluster not in _SPOT:
            raise PoolError("spot", "name the spot nodes of this cluster by the option node_selector")
        key, value, tainted = _SPOT[options.cluster]
        found.selector[key] = value
        if tainted:
            found.tolerations.append(_tolerate(key))
    found.selector.update(options.node_selector)
    found.tolerations.extend(options.tolerations)
    return found


def _on_tpus(pool: Pool, options: KubernetesOptions) -> Placement:
    if options.cluster != "gke" or pool.accelerator not in _TPUS:
        raise PoolError(
            "accelerator",
            f"{pool.accelerator}: on GKE there are {', '.join(_TPUS)}, on other clusters no TPUs",
        )
    if pool.accelerator_count != 1:
        raise PoolError(
            "accelerator_count", f"{pool.accelerator} is one accelerator; its size is in its name"
        )
    kind, topology, chips = _TPUS[pool.accelerator]
    labels = ("cloud.google.com/gke-tpu-accelerator", "cloud.google.com/gke-tpu-topology")
    return Placement(
        selector=dict(zip(labels, (kind, topology), strict=True)),
        tolerations=[_tolerate("google.com/tpu")],
        limits={"google.com/tpu": str(chips)},
        environment={"PJRT_DEVICE": "TPU"},  # without it torch_xla uses the CPU
    )


def _is_tpu(accelerator: str) -> bool:
    family, dash, size = accelerator.partition("-")
    return bool(dash) and size.isdecimal() and family in {name.partition("-")[0] for name in _TPUS}


def _tolerate(key: str) -> dict[str, str]:
    return {"key": key, "operator": "Exists", "effect": "NoSchedule"}
