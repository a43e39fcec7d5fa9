"""`kubernetes`: a pool as an Indexed Job, which the cluster keeps."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from runners.errors import EXIT_DONE, EngineFailed, PoolError
from runners.kubernetes.job import POOL_LABEL, job, secret_name, service
from runners.kubernetes.options import KubernetesOptions, options_of, volume
from runners.pools.pool import Pool
from runners.pools.program import parse_json, require_command, run_command
from runners.pools.runner import Artifacts, Health, Notify, WorkerState, WorkerStatus
from runners.pools.yaml_text import yaml_text
from sweeps.text.counted import counted

NAME = "kubernetes"
_TIMEOUT_S = 60
REMEDY = "install it: https://kubernetes.io/docs/tasks/tools/"
_INDEX = "batch.kubernetes.io/job-completion-index"
_STATES: dict[str, WorkerState] = {"Running": "running", "Succeeded": "done"}  # else waiting


class Kubernetes:
    """Runner for Kubernetes; a worker's id is its index, from 0."""

    name = NAME
    takes = frozenset({"accelerator", "accelerator_count", "spot", "threads", "options", "nodes"})
    keeps = False
    python = "python"

    def sees(self, folder: Path, pool: Pool) -> bool:
        """Return whether the folder lies in the volume that the pods mount, if they mount one."""
        mounted = volume(options_of(pool))
        return mounted is not None and folder.is_relative_to(mounted.folder)

    def render(self, pool: Pool) -> Artifacts:
        """Return the Job, and the Secret that `up` would create, with names instead of values."""
        options = options_of(pool)
        artifacts = {"job.yaml": yaml_text(job(pool, options))}
        if pool.nodes > 1:
            artifacts["service.yaml"] = yaml_text(service(pool))
        if pool.secrets and not options.secret:
            values = {name: f"<the value of {name} here>" for name in pool.secrets}
            artifacts["secret.yaml"] = yaml_text(_secret(pool, options, {"stringData": values}))
        return artifacts

    def up(self, pool: Pool, notify: Notify) -> int:
        """Create the Secret and the Job, replacing a finished Job of the same sweep."""
        options = options_of(pool)
        manifest = job(pool, options)
        _validate(manifest)
        kubectl = Kubectl(options)
        secrets = _values(pool, options)
        existing = kubectl.get("job", pool.label)
        if existing is not None:
            if not _has_ended(existing):
                raise PoolError(
                    "workers", f"the job {pool.label} runs already; `sweep down kubernetes` ends it"
                )
            kubectl("delete", "job", pool.label, "--wait=true", timeout_s=120)
        apply = ("apply", "--server-side", "--force-conflicts")
        try:
            if secrets:
                kubectl.create(_secret(pool, options, {"data": secrets}), apply)
            if pool.nodes > 1:
                kubectl.create(service(pool), apply)
            kubectl.create(manifest)
        except BaseException:  # also Ctrl-C: the values of secrets stay nowhere without their pool
            _delete_orphans(kubectl, pool)
            raise
        notify(
            f"the job {pool.label} has {counted(pool.workers, 'worker')}; "
            "`sweep pool status kubernetes` shows them"
        )
        return EXIT_DONE

    def status(self, pool: Pool) -> tuple[WorkerStatus, ...]:
        """Return every index with its newest pod, if there is one yet."""
        kubectl = Kubectl(options_of(pool))
        found = kubectl.get("job", pool.label)
        if found is None:
            return ()
        failed = _indexes(found.get("status", {}).get("failedIndexes", ""))
        done = _indexes(found.get("status", {}).get("completedIndexes", ""))
        pods = sorted(_pods(kubectl, pool), key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
        newest = {_index(pod): pod for pod in pods}
        return tuple(
            _worker_status(index, newest.get(index), done=index in done, failed=index in failed)
            for index in range(int(found["spec"]["completions"]))
        )

    def scale(self, pool: Pool, workers: int, notify: Notify) -> None:
        """Change completions and parallelism of the elastic Indexed Job; the highest indexes leave."""
        kubectl, count = Kubectl(options_of(pool)), int(workers) * pool.nodes
        patch = f'{{"spec": {{"completions": {count}, "parallelism": {count}}}}}'
        kubectl("patch", "job", pool.label, "--type=merge", f"--patch={patch}")
        notify(f"the job {pool.label} has {counted(workers, 'worker')}")

    def logs(self, pool: Pool, worker: str | None, lines: int) -> Iterator[str]:
        """Yield the last log lines of each pod that the cluster still has."""
        selector = f"{POOL_LABEL}={pool.label}" + ("" if worker is None else f",{_INDEX}={worker}")
        words = ("logs", f"--selector={selector}", f"--tail={int(lines)}", "--prefix", "--ignore-errors")
        yield from Kubectl(options_of(pool))(*words, "--max-log-requests=100").splitlines()

    def down(self, pool: Pool, notify: Notify) -> int:
        """Delete the Job and its Secret; the pods have their grace time."""
        kubectl = Kubectl(options_of(pool))
        phases = [pod.get("status", {}).get("phase") for pod in _pods(kubectl, pool)]
        running = [phase for phase in phases if phase in ("Pending", "Running")]
        spec = (kubectl.get("job", pool.label) or {}).get("spec", {}).get("template", {}).get("spec", {})
        # The number of hosts is not known here where the pool was launched elsewhere.
        has_service = pool.nodes > 1 or "subdomain" in spec
        words = (
            "delete",
            f"job,{_beside(has_service=has_service)}",
            f"--selector={POOL_LABEL}={pool.label}",
            "--ignore-not-found",
        )
        kubectl(*words, "--cascade=foreground", "--wait=true", timeout_s=pool.grace_s + 120)
        if running:
            notify(f"the job {pool.label} is deleted, and with it {counted(len(running), 'pod')}")
        return len(running)

    def health(self) -> Health:
        """Check for kubectl, and that a cluster answers."""
        found = shutil.which("kubectl")
        if found is None:
            return Health(state="missing", detail="kubectl is missing", remedy=REMEDY)
        try:
            ran = subprocess.run(
                [found, "version", "--request-timeout=5s"],
                capture_output=True,
                text=True,
                timeout=15,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return Health(
                state="unreachable", detail=f"kubectl: {error}", remedy="kubectl config get-contexts"
            )
        versions = ", ".join(line.strip() for line in ran.stdout.splitlines() if line)
        if ran.returncode:
            return Health(
                state="unreachable",
                detail=f"{versions}; no cluster answers",
                remedy="kubectl config use-context NAME",
            )
        return Health(state="ready", detail=versions)


def _pods(kubectl: Kubectl, pool: Pool) -> list[dict[str, Any]]:
    found = kubectl.get("pods", f"--selector={POOL_LABEL}={pool.label}") or {}
    return list(found.get("items", []))


def _validate(manifest: dict[str, Any]) -> None:
    """Check against the newest schema of kubernetes-validate, where that is installed."""
    if importlib.util.find_spec("kubernetes_validate") is None:
        return
    import kubernetes_validate

    try:
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
    except kubernetes_validate.ValidationError as error:
        where = ".".join(str(each) for each in error.path)
        raise PoolError("options", f"{where} of the Job: {error.message}") from None


def _values(pool: Pool, options: KubernetesOptions) -> dict[str, str]:
    """Return the secrets' values in base64; none where the user names a Secret."""
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


def _beside(*, has_service: bool) -> str:
    """Return the kinds of objects that a pool has besides its Job, as kubectl takes them."""
    return "secret,service" if has_service else "secret"


def _delete_orphans(kubectl: Kubectl, pool: Pool) -> None:
    """Delete Secret and Service of a Job that was not created; the error about that is the one raised."""
    with suppress(EngineFailed):
        if kubectl.get("job", pool.label) is None:
            kinds = _beside(has_service=pool.nodes > 1)
            kubectl("delete", kinds, f"--selector={POOL_LABEL}={pool.label}", "--ignore-not-found")


def _has_ended(job: dict[str, Any]) -> bool:
    conditions = job.get("status", {}).get("conditions") or []
    return any(each["type"] in ("Complete", "Failed") and each["status"] == "True" for each in conditions)


def _indexes(text: str) -> set[int]:
    """Parse indexes such as `1,3-5`."""
    spans = (word.partition("-") for word in text.split(",") if word)
    return {index for first, _, last in spans for index in range(int(first), int(last or first) + 1)}


def _index(pod: dict[str, Any]) -> int:
    metadata = pod["metadata"]
    return int(metadata.get("labels", {}).get(_INDEX) or metadata.get("annotations", {}).get(_INDEX, "-1"))


def _worker_status(index: int, pod: dict[str, Any] | None, *, done: bool, failed: bool) -> WorkerStatus:
    state: WorkerState = "waiting"
    phase, node = "no pod", ""
    if pod is not None:
        phase, node = pod.get("status", {}).get("phase", ""), pod.get("spec", {}).get("nodeName", "")
        state = _STATES.get(phase, "waiting")
    if done or failed:
        state = "done" if done else "failed"
    return WorkerStatus(worker=str(index), state=state, where=node, detail=phase)


RUNNER = Kubernetes()


class Kubectl:
    """Command `kubectl`: raises `EngineMissing` without it; its calls raise `EngineFailed` with its error."""

    def __init__(self, options: KubernetesOptions) -> None:
        require_command(NAME, "kubectl", REMEDY)
        self._argv = ["kubectl"]
        for flag in ("context", "namespace"):
            if value := getattr(options, flag):
                self._argv.append(f"--{flag}={value}")

    def __call__(self, *words: str, stdin: str = "", timeout_s: float = _TIMEOUT_S) -> str:
        """Run it and return its stdout."""
        return run_command(NAME, (*self._argv, *words), remedy=REMEDY, timeout_s=timeout_s, stdin=stdin)

    def get(self, *words: str) -> Any:
        """Return the parsed objects; None for a single object that does not exist."""
        text = self("get", *words, "--output=json", "--ignore-not-found")
        return parse_json(NAME, "kubectl get", text) if text.strip() else None

    def create(self, manifest: dict[str, Any], verb: Sequence[str] = ("create",)) -> None:
        """Create the objects of a manifest, which is passed on stdin."""
        self(*verb, "--filename=-", stdin=json.dumps(manifest))
