"""The whole life of a pool through the real kubectl, against a stand-in for the API server."""

from __future__ import annotations

import base64
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from fake_kubernetes import FakeKubernetes
from runners_pools import plain

from runners.kubernetes.runner import RUNNER

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
        assert cluster.objects == {"jobs": {}, "pods": {}, "secrets": {}}
