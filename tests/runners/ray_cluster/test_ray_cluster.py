"""A sweep through Ray as it is: a head and two nodes, one of them killed, every trial done once.

`make test-ray` makes an environment with Ray in it, which STAGESWEEP_RAY_PYTHON names.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from same_sweep import assert_done, create, create_shared, done, listening, variables, wait_for

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

PYTHON = os.environ.get("STAGESWEEP_RAY_PYTHON", "")
SWEEP = (sys.executable, "-m", "sweeps")


@dataclass(kw_only=True)
class Cluster:
    """Ray cluster; `run` executes a command with `ray` on its PATH."""

    process: subprocess.Popen[str]
    env: dict[str, str]

    def run(self, *argv: str) -> str:
        ran = subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=200, check=False)
        assert ran.returncode == 0, f"{argv}\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout

    def tell(self, what: str) -> None:
        """Kill or add a node."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "DONE\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if not PYTHON:
        pytest.skip("STAGESWEEP_RAY_PYTHON names no interpreter with Ray; make test-ray makes one")
    folder = tmp_path_factory.mktemp("ray")
    env = {
        **os.environ,
        **variables(folder),
        "PATH": f"{Path(PYTHON).parent}{os.pathsep}{os.environ['PATH']}",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_COLOR_PREFIX": "0",
    }
    env.pop("OMP_NUM_THREADS")
    with (folder / "err").open("wb") as err:
        process = subprocess.Popen(
            [PYTHON, Path(__file__).with_name("ray_nodes.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
            env=env,
            start_new_session=True,
        )
    try:
        assert process.stdout is not None
        line = next((line for line in process.stdout if line.startswith("READY ")), "")
        assert line, (folder / "err").read_text()
        env["RAY_ADDRESS"] = env["RAY_API_SERVER_ADDRESS"] = f"http://127.0.0.1:{line.split()[1]}"
        yield Cluster(process=process, env=env)
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=30)  # the end of its input
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def launch(cluster: Cluster, folder: Path, url: str, workers: int, **more: str) -> None:
    given = {**variables(folder), **more}
    environment = [word for name, value in given.items() for word in ("--env", f"{name}={value}")]
    environment += [
        "--option",
        "resources={slot: 1}",
        "--python",
        PYTHON,
    ]
    cluster.run(*SWEEP, "launch", "ray", "--workers", str(workers), "--storage", url, *environment)


def workers(cluster: Cluster, url: str) -> list[dict[str, str]]:
    return list(
        json.loads(cluster.run(*SWEEP, "pool", "status", "ray", "--format", "json", "--storage", url))
    )


def test_workers_that_are_not_wanted_hand_their_trials_back(cluster: Cluster, tmp_path: Path) -> None:
    experiment = create(tmp_path, listening(tmp_path))
    url = experiment.store.url
    launch(cluster, tmp_path, url, 1)

    def statuses() -> list[str]:
        return sorted(record.status for record in experiment.trials())

    cluster.run(*SWEEP, "pool", "scale", "2", "ray", "--storage", url)
    wait_for(lambda: statuses() == ["running"] * 2, "two workers did not start")
    cluster.run(*SWEEP, "pool", "scale", "1", "ray", "--storage", url)
    wait_for(lambda: statuses() == ["pending", "running"], "nobody left")
    cluster.run(*SWEEP, "down", "--storage", url)
    assert statuses() == ["pending"] * 2
    assert [record.history[-1].reason for record in experiment.trials()] == ["released"] * 2
    pids = set((tmp_path / "signals").read_text().split())
    assert len(pids) == 2  # SIGTERM came to the programs themselves
    assert {worker["state"] for worker in workers(cluster, url)} <= {"done", "failed"}


def test_a_trial_on_two_nodes_waits_for_another_node_after_one_is_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    experiment = create_shared(tmp_path, steps=1000)  # of which a status call takes a part
    url, runs = experiment.store.url, tmp_path / "store" / "shared" / "runs" / "000000"
    launch(cluster, tmp_path, url, 1, STAGESWEEP_CACHE=str(tmp_path / "cache"))
    wait_for(lambda: list(runs.glob("attempt-1/checkpoints/0*")), "no checkpoint was written")
    rows = workers(cluster, url)
    assert [row["state"] for row in rows] == ["running"] * 2
    assert len({row["where"] for row in rows}) == 2

    cluster.tell("kill")
    wait_for(
        lambda: [row["told"] for row in workers(cluster, url)] == ["PENDING, worker 1: waits for 2 nodes"],
        "the worker does not wait",
    )
    (record,) = experiment.trials()
    assert (record.status, len(record.history)) == ("pending", 1)
    logs = cluster.run(*SWEEP, "pool", "logs", "ray", "--storage", url)
    assert (
        "worker 1 waits for 2 nodes, one for each host, with slot 1; of the cluster's 2 nodes only 1" in logs
    )

    cluster.tell("add")
    wait_for(lambda: done(experiment) == 1, "the trial is left")
    assert "going on after" in (runs / "attempt-2" / "log.txt").read_text()
    wait_for(
        lambda: {row["state"] for row in workers(cluster, url)} == {"done"},
        "the pool did not go by itself",
    )


def test_a_killed_node_leaves_every_trial_done_once(cluster: Cluster, tmp_path: Path) -> None:
    experiment = create(tmp_path)
    url = experiment.store.url
    launch(cluster, tmp_path, url, 3)
    wait_for(lambda: done(experiment) >= 3, "no trial was done")
    cluster.tell("kill")
    wait_for(lambda: done(experiment) == 20, "trials are left")
    cluster.tell("add")  # for other tests
    assert_done(experiment, tmp_path, lost=2)
    wait_for(
        lambda: {worker["state"] for worker in workers(cluster, url)} == {"done"},
        "the pool did not go by itself",
    )
    assert len(workers(cluster, url)) == 3
    assert "trial" in cluster.run(*SWEEP, "pool", "logs", "ray", "--storage", url)
