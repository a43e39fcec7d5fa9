"""`kubernetes`: a pool is an Indexed Job, which the cluster keeps. RUNNER is what `engines` finds."""

from __future__ import annotations

import base64
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from runners.counted import counted
from runners.errors import EXIT_DONE, EngineFailed, PoolError
from runners.kubernetes.job import POOL_LABEL, job, secret_name
from runners.kubernetes.kubectl import NAME, REMEDY, Kubectl
from runners.kubernetes.options import KubernetesOptions, options_of
from runners.pools.pool import Pool
from runners.pools.runner import Artifacts, Health, Place, PlaceState, Tell
from runners.pools.yaml_text import yaml_text

_INDEX = "batch.kubernetes.io/job-completion-index"
_STATES: dict[str, PlaceState] = {"Running": "running", "Succeeded": "done"}  # else it waits


class Kubernetes:
    """The runner. A worker is its index, from 0."""

    name = NAME
    takes = frozenset(
        {"accelerator", "accelerator_count", "spot", "threads", "environment", "secrets", "setup", "grace_s"}
        | {"restarts", "max_dollars_per_hour", "options"}
    )
    keeps = False
    sees_folders = False
    python = "python"

    def render(self, pool: Pool) -> Artifacts:
        """The Job; and the Secret that `up` would make, with names instead of values."""
        options = options_of(pool)
        artifacts = {"job.yaml": yaml_text(job(pool, options))}
        if pool.secrets and not options.secret:
            values = {name: f"<the value of {name} here>" for name in pool.secrets}
            artifacts["secret.yaml"] = yaml_text(_secret(pool, options, {"stringData": values}))
        return artifacts

    def up(self, pool: Pool, notify: Tell) -> int:
        """Create the Secret and the Job; an earlier Job of this sweep makes way if it is finished."""
        options = options_of(pool)
        manifest = job(pool, options)
        _validate(manifest)
        kubectl = Kubectl(options)
        secrets = _values(pool, options)
        there = kubectl.get("job", pool.label)
        if there is not None:
            if not _finished(there):
                raise PoolError(
                    "workers", f"the job {pool.label} runs already; `sweep down kubernetes` ends it"
                )
            kubectl("delete", "job", pool.label, "--wait=true", patience_s=120)
        if secrets:
            secret = _secret(pool, options, {"data": secrets})
            kubectl.create(secret, ("apply", "--server-side", "--force-conflicts"))
        try:
            kubectl.create(manifest)
        except EngineFailed:
            if secrets:
                _take_back(kubectl, pool, options)
            raise
        notify(
            f"the job {pool.label} has {counted(pool.workers, 'worker')}; "
            "`sweep pool status kubernetes` shows them"
        )
        return EXIT_DONE

    def status(self, pool: Pool) -> tuple[Place, ...]:
        """Every index: its newest pod, or none yet."""
        kubectl = Kubectl(options_of(pool))
        found = kubectl.get("job", pool.label)
        if found is None:
            return ()
        failed = _indexes(found.get("status", {}).get("failedIndexes", ""))
        done = _indexes(found.get("status", {}).get("completedIndexes", ""))
        pods = sorted(_pods(kubectl, pool), key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
        newest = {_index(pod): pod for pod in pods}
        return tuple(
            _place(index, newest.get(index), done=index in done, failed=index in failed)
            for index in range(int(found["spec"]["completions"]))
        )

    def scale(self, pool: Pool, workers: int, notify: Tell) -> None:
        """An elastic Indexed Job: completions and parallelism change together. The highest indexes leave."""
        kubectl = Kubectl(options_of(pool))
        patch = f'{{"spec": {{"completions": {int(workers)}, "parallelism": {int(workers)}}}}}'
        kubectl("patch", "job", pool.label, "--type=merge", f"--patch={patch}")
        notify(f"the job {pool.label} has {counted(workers, 'worker')}")

    def logs(self, pool: Pool, worker: str | None, lines: int) -> Iterator[str]:
        """The end of each pod's log, of the pods that the cluster still has."""
        selector = f"{POOL_LABEL}={pool.label}" + ("" if worker is None else f",{_INDEX}={worker}")
        words = ("logs", f"--selector={selector}", f"--tail={int(lines)}", "--prefix", "--ignore-errors")
        yield from Kubectl(options_of(pool))(*words, "--max-log-requests=100").splitlines()

    def down(self, pool: Pool, notify: Tell) -> int:
        """Delete the Job and its Secret; the pods have their grace."""
        kubectl = Kubectl(options_of(pool))
        phases = [pod.get("status", {}).get("phase") for pod in _pods(kubectl, pool)]
        running = [phase for phase in phases if phase in ("Pending", "Running")]
        words = ("delete", "job,secret", f"--selector={POOL_LABEL}={pool.label}", "--ignore-not-found")
        kubectl(*words, "--cascade=foreground", "--wait=true", patience_s=pool.grace_s + 120)
        if running:
            notify(f"the job {pool.label} is deleted, and with it {counted(len(running), 'pod')}")
        return len(running)

    def health(self) -> Health:
        """kubectl, and whether a cluster answers it."""
        found = shutil.which("kubectl")
        if found is None:
            return Health(state="missing", told="kubectl is missing", remedy=REMEDY)
        try:
            ran = subprocess.run(
                [found, "version", "--request-timeout=5s"],
                capture_output=True,
                text=True,
                timeout=15,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return Health(state="unreachable", told=f"kubectl: {error}", remedy="kubectl config get-contexts")
        told = ", ".join(line.strip() for line in ran.stdout.splitlines() if line)
        if ran.returncode:
            return Health(
                state="unreachable",
                told=f"{told}; no cluster answers",
                remedy="kubectl config use-context NAME",
            )
        return Health(state="ready", told=told)


def _pods(kubectl: Kubectl, pool: Pool) -> list[dict[str, Any]]:
    found = kubectl.get("pods", f"--selector={POOL_LABEL}={pool.label}") or {}
    return list(found.get("items", []))


def _validate(manifest: dict[str, Any]) -> None:
    """Against the schema of the newest Kubernetes that kubernetes-validate knows, where it is installed."""
    if importlib.util.find_spec("kubernetes_validate") is None:
        return
    import kubernetes_validate

    try:
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
    except kubernetes_validate.ValidationError as error:
        where = ".".join(str(each) for each in error.path)
        raise PoolError("options", f"{where} of the Job: {error.message}") from None


def _values(pool: Pool, options: KubernetesOptions) -> dict[str, str]:
    """The secrets' values in base64, where the Secret is ours to make."""
    if options.secret:
        return {}
    for name in pool.secrets:
        if name not in os.environ:
            raise PoolError(
                "secrets", f"{name} is not set here; set it, or name a Secret by the option secret"
            )
    return {name: base64.b64encode(os.environb[name.encode()]).decode() for name in pool.secrets}


def _secret(pool: Pool, options: KubernetesOptions, values: dict[str, dict[str, str]]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": secret_name(pool, options), "labels": {POOL_LABEL: pool.label}},
        "type": "Opaque",
        **values,
    }


def _take_back(kubectl: Kubectl, pool: Pool, options: KubernetesOptions) -> None:
    """The Secret of a Job that there is not; the cluster's complaint about the Job is what people hear."""
    with suppress(EngineFailed):
        if kubectl.get("job", pool.label) is None:
            kubectl("delete", "secret", secret_name(pool, options), "--ignore-not-found")


def _finished(job: dict[str, Any]) -> bool:
    conditions = job.get("status", {}).get("conditions") or []
    return any(each["type"] in ("Complete", "Failed") and each["status"] == "True" for each in conditions)


def _indexes(text: str) -> set[int]:
    """`1,3-5` as numbers."""
    spans = (word.partition("-") for word in text.split(",") if word)
    return {index for first, _, last in spans for index in range(int(first), int(last or first) + 1)}


def _index(pod: dict[str, Any]) -> int:
    metadata = pod["metadata"]
    told = metadata.get("labels", {}).get(_INDEX) or metadata.get("annotations", {}).get(_INDEX, "-1")
    return int(told)


def _place(index: int, pod: dict[str, Any] | None, *, done: bool, failed: bool) -> Place:
    state: PlaceState = "waiting"
    phase, node = "no pod", ""
    if pod is not None:
        phase, node = pod.get("status", {}).get("phase", ""), pod.get("spec", {}).get("nodeName", "")
        state = _STATES.get(phase, "waiting")
    if done or failed:
        state = "done" if done else "failed"
    return Place(worker=str(index), state=state, where=node, told=phase)


RUNNER = Kubernetes()
