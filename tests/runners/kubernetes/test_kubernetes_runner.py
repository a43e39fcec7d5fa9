"""Calls of kubectl, recorded by a stand-in that answers as a cluster would."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runners_pools import plain

from runners.errors import EngineFailed, EngineMissing, PoolError
from runners.kubernetes.runner import RUNNER, Kubectl

STAND_IN = r"""#!/bin/bash
n=$(ls "$HERE" | grep -c '^call')
printf '%s\n' "$@" > "$HERE/call$n"
case " $* " in *" --filename=-"*) cat > "$HERE/stdin$n" ;; esac
while [ "${1#--}" != "$1" ]; do shift; done
[ -e "$HERE/refuse-$1" ] && { cat "$HERE/refuse-$1" >&2; exit 1; }
[ "$1" = logs ] && echo 'one
two'
cat "$HERE/answer-$1-$2" 2> /dev/null || true
"""

POOL = replace(
    plain("kubernetes"),
    secrets=("HF_TOKEN",),
    options={**plain("kubernetes").options, "context": "my cluster", "namespace": "sweeps"},
)
INDEX = "batch.kubernetes.io/job-completion-index"


class Cluster:
    def __init__(self, here: Path) -> None:
        self.here = here

    def answer(self, verb: str, kind: str, document: Any) -> None:
        (self.here / f"answer-{verb}-{kind}").write_text(json.dumps(document))

    def calls(self) -> list[list[str]]:
        """Each one's words after the context and the namespace."""
        calls = [
            (self.here / f"call{n}").read_text().splitlines()
            for n in range(len(list(self.here.glob("call*"))))
        ]
        assert all(words[:2] == ["--context=my cluster", "--namespace=sweeps"] for words in calls)
        return [words[2:] for words in calls]

    def handed_over(self) -> list[dict[str, Any]]:
        return [json.loads(file.read_text()) for file in sorted(self.here.glob("stdin*"))]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    (tmp_path / "bin").mkdir()
    kubectl = tmp_path / "bin" / "kubectl"
    kubectl.write_text(STAND_IN)
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{kubectl.parent}:/usr/bin:/bin")
    monkeypatch.setenv("HERE", str(tmp_path))
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    return Cluster(tmp_path)


def job(completions: int = 3, **status: Any) -> dict[str, Any]:
    return {"spec": {"completions": completions}, "status": status}


def pod(index: int, phase: str, created: str) -> dict[str, Any]:
    metadata = {"labels": {INDEX: str(index)}, "creationTimestamp": created}
    return {"metadata": metadata, "spec": {"nodeName": f"node-{index}"}, "status": {"phase": phase}}


def secrets_of(made: dict) -> list[dict]:
    """Return the variables of the worker's container whose values are in a Secret."""
    env = made["spec"]["template"]["spec"]["containers"][0]["env"]
    return [each for each in env if "valueFrom" in each and "secretKeyRef" in each["valueFrom"]]


def test_up_creates_secret_then_job(cluster):
    lines: list[str] = []
    assert RUNNER.up(POOL, lines.append) == 0
    assert [words[:2] for words in cluster.calls()] == [
        ["get", "job"],
        ["apply", "--server-side"],
        ["create", "--filename=-"],
    ]
    secret, made = cluster.handed_over()
    assert base64.b64decode(secret["data"]["HF_TOKEN"]) == b"hunter2"
    assert made["spec"]["completions"] == 3
    assert secrets_of(made) == [
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": POOL.label, "key": "HF_TOKEN"}}}
    ]
    assert "hunter2" not in str(cluster.calls()) + str(lines)


def test_a_secret_of_the_cluster_is_only_named(cluster, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(PoolError, match="secrets: HF_TOKEN"):
        RUNNER.up(POOL, print)
    assert cluster.calls() == []
    RUNNER.up(replace(POOL, options={**POOL.options, "secret": "theirs"}), print)
    (made,) = cluster.handed_over()
    assert [each["valueFrom"]["secretKeyRef"]["name"] for each in secrets_of(made)] == ["theirs"]


def test_running_job_stays_finished_one_is_replaced(cluster):
    cluster.answer("get", "job", job(active=1))
    with pytest.raises(PoolError, match="runs already"):
        RUNNER.up(POOL, print)
    cluster.answer("get", "job", job(conditions=[{"type": "Complete", "status": "True"}]))
    RUNNER.up(POOL, print)
    assert [words[0] for words in cluster.calls()] == ["get", "get", "delete", "apply", "create"]


@pytest.mark.parametrize("made", [False, True], ids=["refused", "made all the same"])
def test_a_secret_without_a_job_is_taken_back(cluster, made):
    (cluster.here / "refuse-create").write_text("quota exceeded")
    answer = (cluster.here / "answer-get-job", json.dumps(job(active=1)))
    kubectl = cluster.here / "bin" / "kubectl"
    if made:  # the answer was lost: from the first `create` on, there is a job
        kubectl.write_text(
            STAND_IN.replace('cat "$HERE/refuse', f"echo '{answer[1]}' > '{answer[0]}'; cat \"$HERE/refuse")
        )
    with pytest.raises(EngineFailed, match="quota exceeded"):
        RUNNER.up(POOL, print)
    undone = [words for words in cluster.calls() if words[0] == "delete"]
    selector = f"--selector=stagesweep-pool={POOL.label}"
    assert undone == ([] if made else [["delete", "secret", selector, "--ignore-not-found"]])


@pytest.mark.parametrize("kind", ["Secret", "Service", "Job"])
def test_ctrl_c_during_up_leaves_no_secret_and_no_service(cluster, monkeypatch, kind):
    create = Kubectl.create

    def create_or_interrupt(kubectl: Kubectl, manifest: dict[str, Any], *verb: Any) -> None:
        if manifest["kind"] == kind:
            raise KeyboardInterrupt
        create(kubectl, manifest, *verb)

    monkeypatch.setattr(Kubectl, "create", create_or_interrupt)
    with pytest.raises(KeyboardInterrupt):
        RUNNER.up(replace(POOL, nodes=2), print)
    selector = f"--selector=stagesweep-pool={POOL.label}"
    assert cluster.calls()[-1] == ["delete", "secret,service", selector, "--ignore-not-found"]


def test_status_is_each_indexs_newest_pod(cluster):
    cluster.answer("get", "job", job(6, completedIndexes="0,4-5", failedIndexes="2"))
    pods = [pod(1, "Running", "2026-01-02"), pod(1, "Failed", "2026-01-01"), pod(2, "Failed", "2026-01-01")]
    cluster.answer("get", "pods", {"items": pods})
    assert [(worker.worker, worker.state, worker.where) for worker in RUNNER.status(POOL)] == [
        ("0", "done", ""),
        ("1", "running", "node-1"),
        ("2", "failed", "node-2"),
        ("3", "waiting", ""),
        ("4", "done", ""),
        ("5", "done", ""),
    ]


def test_nothing_is_there_before_up(cluster):
    assert RUNNER.status(POOL) == ()


def test_scale_logs_and_down(cluster):
    cluster.answer(
        "get", "pods", {"items": [pod(0, "Running", "1"), pod(1, "Succeeded", "1"), pod(2, "Pending", "1")]}
    )
    RUNNER.scale(POOL, 7, print)
    assert list(RUNNER.logs(POOL, "1", 5)) == ["one", "two"]
    assert RUNNER.down(POOL, print) == 2
    patch, logs, *_, delete = cluster.calls()
    assert json.loads(patch[-1].removeprefix("--patch=")) == {"spec": {"completions": 7, "parallelism": 7}}
    assert logs[:3] == ["logs", f"--selector=stagesweep-pool={POOL.label},{INDEX}=1", "--tail=5"]
    assert delete[:3] == ["delete", "job,secret", f"--selector=stagesweep-pool={POOL.label}"]


@pytest.mark.parametrize(
    ("subdomain", "kinds"), [({"subdomain": "a"}, "job,secret,service"), ({}, "job,secret")]
)
def test_down_finds_the_service_of_an_unknown_pool(cluster, subdomain, kinds):
    cluster.answer("get", "job", {"spec": {"template": {"spec": {"containers": [], **subdomain}}}})
    RUNNER.down(POOL, print)
    assert cluster.calls()[-1][:2] == ["delete", kinds]


def test_what_kubectl_says_is_told_in_one_line(cluster):
    (cluster.here / "refuse-get").write_text("Unable to connect to the server:\n  no route to host\n")
    with pytest.raises(EngineFailed, match=r"^kubernetes: .*: no route to host$"):
        RUNNER.status(POOL)


def test_without_kubectl_one_line_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HF_TOKEN", "x")
    with pytest.raises(EngineMissing, match=r"command kubectl.*https://"):
        RUNNER.up(POOL, print)
    assert RUNNER.health().state == "missing"


def test_invalid_job_is_refused_before_submission(cluster):
    with pytest.raises(PoolError, match=r"options: spec.template.spec.tolerations.0"):
        RUNNER.up(replace(POOL, options={**POOL.options, "tolerations": [{"kee": "x"}]}), print)
    assert cluster.calls() == []
