"""The whole life of a pool through the real kubectl, against a stand-in for the API server."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from fake_kubernetes import FakeKubernetes
from runners_pools import plain

from runners.kubernetes.job import job
from runners.kubernetes.options import options_of
from runners.kubernetes.runner import RUNNER
from runners.workers.restarts import LAST_START, SUPERVISED

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not here")

POOL = replace(
    plain("kubernetes"),
    secrets=("HF_TOKEN",),
    options={**plain("kubernetes").options, "context": "my cluster", "namespace": "sweeps"},
)


def config(server: str) -> str:
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "my cluster", "context": {"cluster": "c", "user": "u"}}],
        }
    )


def test_up_status_scale_logs_and_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    with FakeKubernetes() as cluster:
        (tmp_path / "config").write_text(config(cluster.url))
        assert RUNNER.up(POOL, print) == 0
        (secret,) = cluster.objects["secrets"].values()
        assert base64.b64decode(secret["data"]["HF_TOKEN"]) == b"hunter2"
        (job,) = cluster.objects["jobs"].values()
        assert job["spec"]["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [2, 42]

        RUNNER.scale(POOL, 5, print)
        workers = RUNNER.status(POOL)
        assert [(worker.worker, worker.state, worker.where) for worker in workers] == [
            (str(index), "running", f"node-{index}") for index in range(5)
        ]
        assert list(RUNNER.logs(POOL, "1", 3)) == ["[pod/pod-1/worker] log of pod-1"]
        assert RUNNER.down(POOL, print) == 5
        assert not any(cluster.objects.values())


def test_workers_of_two_hosts_have_a_service_that_goes_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    pool = replace(POOL, secrets=(), nodes=2, workers=2)
    with FakeKubernetes() as cluster:
        (tmp_path / "config").write_text(config(cluster.url))
        assert RUNNER.up(pool, print) == 0
        (service,) = cluster.objects["services"].values()
        (job,) = cluster.objects["jobs"].values()
        pod = job["spec"]["template"]
        assert pod["spec"]["subdomain"] == service["metadata"]["name"] == pool.label
        assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
        assert job["spec"]["completions"] == 4
        RUNNER.scale(pool, 3, print)
        assert len(RUNNER.status(pool)) == 6
        RUNNER.down(pool, print)
        assert not any(cluster.objects.values())


@pytest.mark.parametrize(
    ("index", "rank", "first"), [("0", "0", 0), ("1", "1", 0), ("4", "0", 4), ("5", "1", 4)]
)
def test_a_pod_finds_its_rank_and_its_first_host(index: str, rank: str, first: int) -> None:
    shown = ("bash", "-c", 'echo "$NODE_RANK $MASTER_ADDR"')
    pool = replace(POOL, secrets=(), nodes=2, workers=3, command=shown)
    (container,) = job(pool, options_of(pool))["spec"]["template"]["spec"]["containers"]
    command = [word.replace("$$", "$") for word in container["command"]]  # as Kubernetes does
    environment = {**os.environ, "JOB_COMPLETION_INDEX": index}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout == f"{rank} {pool.label}-{first}.{pool.label}\n"


@pytest.mark.parametrize(("failures", "last"), [("", "no"), ("0", "no"), ("1", "no"), ("2", "yes")])
def test_a_pod_is_told_of_its_last_start(failures: str, last: str) -> None:
    shown = ("bash", "-c", f'echo "${{{LAST_START}:+yes}}"')
    pool = replace(POOL, secrets=(), nodes=2, restarts=2, command=shown)
    (container,) = job(pool, options_of(pool))["spec"]["template"]["spec"]["containers"]
    (told,) = [each for each in container["env"] if each["name"] != SUPERVISED]
    command = [word.replace("$$", "$") for word in container["command"]]
    environment = {**os.environ, "JOB_COMPLETION_INDEX": "0", told["name"]: failures}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert (ran.stdout.strip() or "no") == last
