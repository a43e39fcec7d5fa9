"""Manifest of a pool: an Indexed Job, one index for each worker. Pure.

Result of a worker's end for the Job (`podFailurePolicy`, the first rule that matches):

0                   the index is done
2, 42               FailIndex: its input is invalid; the other workers go on
75                  Ignore: it handed its trial back, and the pod is replaced
a node was lost     Ignore, by the pod's condition DisruptionTarget
anything else       replaced, `restarts` times, with exponential backoff

A worker of several hosts has as many successive indexes. Its pods find the first of them by the name that an
Indexed Job gives it, in the domain of a headless Service.
"""

from __future__ import annotations

import math
from typing import Any

from runners.errors import EXIT_PREEMPTED, PoolError
from runners.kubernetes.options import KubernetesOptions, placement, volume
from runners.pools.pool import Pool
from runners.pools.script import worker_script
from runners.workers.restarts import LAST_START, POISON, SUPERVISED

POOL_LABEL = "stagesweep-pool"
CONTAINER = "worker"
VOLUME = "sweeps"
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - in the pod, which nobody else writes to
_FAILURES_VARIABLE = "STAGESWEEP_FAILURES"
_FAILURES_FIELD = "metadata.annotations['batch.kubernetes.io/job-index-failure-count']"
"""Where a pod of a Job with `backoffLimitPerIndex` says how often its index has failed."""
_FOR_GOOD_S = 10**9  # a long life does not reset Kubernetes' count


def job(pool: Pool, options: KubernetesOptions) -> dict[str, Any]:
    """Return the Job (batch/v1). Raises `PoolError`."""
    if not options.image:
        raise PoolError("options", "image: it is missing: a container image with stagesweep in it")
    labels = {"app.kubernetes.io/name": "stagesweep", POOL_LABEL: pool.label}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": pool.label, "labels": labels},
        "spec": {
            "completionMode": "Indexed",
            "completions": pool.workers * pool.nodes,
            "parallelism": pool.workers * pool.nodes,
            "backoffLimitPerIndex": pool.restarts,
            # A terminating pod still has its trial: its replacement waits until that is handed back.
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {
                "rules": [
                    {"action": "FailIndex", "onExitCodes": _exit_codes(*POISON)},
                    {"action": "Ignore", "onExitCodes": _exit_codes(EXIT_PREEMPTED)},
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                ]
            },
            "template": {"metadata": {"labels": labels}, "spec": _pod(pool, options)},
        },
    }


def _pod(pool: Pool, options: KubernetesOptions) -> dict[str, Any]:
    nodes = placement(pool, options)
    if any("tpu" in name for name in nodes.limits):
        pool.require_one_host()
    requests = {key: value for key in ("cpu", "memory") if (value := getattr(options, key))}
    container = {
        "name": CONTAINER,
        "image": options.image,
        "command": ["bash", "-c", literal(_host(pool) + worker_script(pool))],
        "env": [
            {"name": SUPERVISED, "value": "1"},
            *({"name": name, "value": value} for name, value in nodes.environment.items()),
            *(_from_secret(name, secret_name(pool, options)) for name in pool.secrets),
            *(
                [{"name": _FAILURES_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": _FAILURES_FIELD}}}]
                if pool.nodes > 1
                else ()
            ),
        ],
        "resources": {"requests": {**requests, **nodes.limits}, "limits": nodes.limits},
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(pool.grace_s),
        "containers": [container],
        "nodeSelector": nodes.selector,
        "tolerations": nodes.tolerations,
    }
    volumes: dict[str, dict[str, Any]] = {}  # by where they are mounted
    if (mounted := volume(options)) is not None:
        volumes[str(mounted.folder)] = {"name": VOLUME, **mounted.source}
    if pool.accelerator_count > 1:
        # A container has 64 MiB, which NCCL fills where GPUs do not reach each other's memory.
        volumes.setdefault(_SHARED_MEMORY, {"name": "dshm", "emptyDir": {"medium": "Memory"}})
    if volumes:
        spec["volumes"] = [*volumes.values()]
        container["volumeMounts"] = [
            {"name": each["name"], "mountPath": folder} for folder, each in volumes.items()
        ]
    if pool.nodes > 1:
        spec["subdomain"] = pool.label
    if options.service_account:
        spec["serviceAccountName"] = options.service_account
    return spec


def _host(pool: Pool) -> str:
    """Return lines of shell that say which host of a worker this is, and whether its start is the last."""
    if pool.nodes == 1:
        return ""
    index, nodes = "JOB_COMPLETION_INDEX", pool.nodes
    return (
        f"export NODE_RANK=$(({index} % {nodes}))\n"
        f"export MASTER_ADDR={pool.label}-$(({index} / {nodes} * {nodes})).{pool.label}\n"
        f'[ "${{{_FAILURES_VARIABLE}:-0}}" -lt {pool.restarts} ] || export {LAST_START}={_FOR_GOOD_S}\n'
    )


def service(pool: Pool) -> dict[str, Any]:
    """Return the headless Service in whose domain the pods of a worker find each other."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": pool.label, "labels": {POOL_LABEL: pool.label}},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {POOL_LABEL: pool.label},
        },
    }


def secret_name(pool: Pool, options: KubernetesOptions) -> str:
    """Return the name of the Secret with the workers' secrets."""
    return options.secret or pool.label


def literal(text: str) -> str:
    """Escape text where Kubernetes would expand $(VARIABLES)."""
    return text.replace("$", "$$")


def _from_secret(name: str, secret: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": name}}}


def _exit_codes(*values: int) -> dict[str, Any]:
    return {"containerName": CONTAINER, "operator": "In", "values": sorted(values)}
