"""A sweep through Slurm as it is: three nodes, one of them lost, a worker preempted, every trial done once.

`make test-slurm` installs what it takes. It needs root, for namespaces of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from same_sweep import ROOT, assert_done, create, create_shared, done, listening, variables, wait_for

from sweeps.experiment import Experiment

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(240)]

NEEDED = ("slurmctld", "slurmd", "munged", "unshare", "nsenter", "ip")
SWEEP = (sys.executable, "-m", "sweeps")
NAMESPACES = ("--net", "--mount", "--uts", "--ipc", "--pid")


class Cluster:
    """Three nodes in namespaces of their own; `run` executes a command on the login node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        script = Path(__file__).with_name("slurm_cluster.py")
        argv = [
            "unshare",
            *NAMESPACES,
            "--fork",
            "--kill-child",
            "--mount-proc",
            sys.executable,
            script,
            folder,
        ]
        with (folder / "err").open("wb") as err:
            self._unshare = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True
            )
        assert self._unshare.stdout is not None
        line = self._unshare.stdout.readline()
        assert line == "READY\n", (folder / "err").read_text()
        (child,) = psutil.Process(self._unshare.pid).children()
        self._enter = ["nsenter", f"--target={child.pid}", *NAMESPACES, f"--wd={folder}", "--"]
        self._env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._env.pop("PYTEST_CURRENT_TEST", None)

    def run(self, *argv: str, status: int = 0, stderr: bool = False) -> str:
        ran = subprocess.run(
            [*self._enter, *argv],
            env={**self._env, "TOKEN": "s3cret", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert ran.returncode == status, f"{argv}\n{ran.stdout}\n{ran.stderr}\n{self.logs()}"
        return ran.stderr if stderr else ran.stdout

    def logs(self) -> str:
        files = [*self.folder.glob("slurm*.log"), *self.folder.rglob("*_log.out")]
        return "\n".join(f"==> {file.name}\n{file.read_text(errors='replace')[-3000:]}" for file in files)

    def end(self) -> None:
        self._unshare.kill()  # --kill-child: and with it everything in the namespace of processes
        self._unshare.communicate()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if os.geteuid() != 0:
        pytest.skip("a virtual Slurm cluster needs root, for namespaces of its own")
    if missing := [name for name in NEEDED if shutil.which(name) is None]:
        pytest.skip(f"{missing[0]} is not installed here; make test-slurm installs it on Debian")
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        yield cluster
    finally:
        cluster.end()


def launch(cluster: Cluster, url: str, *options: str, **variables: str) -> None:
    environment = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
    cluster.run(*SWEEP, "launch", "slurm", "--storage", url, *environment, *options)


def test_surplus_workers_leave_and_are_not_requeued(cluster: Cluster) -> None:
    folder = cluster.folder / "steered"
    folder.mkdir()
    experiment = create(folder, listening(folder))
    url = experiment.store.url
    launch(cluster, url, **variables(folder))
    (known,) = json.loads(
        cluster.run(*SWEEP, "pool", "status", "slurm", "--format", "json", "--storage", url)
    )
    assert known["worker"].isdecimal()  # one job is no array
    cluster.run(*SWEEP, "pool", "scale", "2", "slurm", "--storage", url)
    statuses = lambda: sorted(record.status for record in experiment.trials())  # noqa: E731
    wait_for(lambda: statuses() == ["running"] * 2, f"two workers did not start\n{cluster.logs()}")
    error = cluster.run(*SWEEP, "launch", "slurm", "--storage", url, status=2, stderr=True)
    assert "with 2 workers" in error

    cluster.run(*SWEEP, "pool", "scale", "1", "slurm", "--storage", url)
    assert statuses() == ["pending", "running"]
    cluster.run(*SWEEP, "down", "--storage", url)
    assert statuses() == ["pending"] * 2
    assert [record.history[-1].reason for record in experiment.trials()] == ["released"] * 2
    assert len(set((folder / "signals").read_text().split())) == 2  # SIGTERM came to the programs themselves
    assert cluster.run("squeue", "--noheader") == ""


def started(cluster: Cluster, name: str, workers: int) -> Experiment:
    """Launch workers of a program that never ends, and wait for one on each of the three nodes."""
    folder = cluster.folder / name
    folder.mkdir()
    experiment = create(folder, listening(folder))
    launch(cluster, experiment.store.url, "--workers", str(workers), "--threads", "2", **variables(folder))
    wait_for(lambda: attempts(experiment) == [("running", 0)] * 3, f"no three trials\n{cluster.logs()}")
    return experiment


def attempts(experiment: Experiment) -> list[tuple[str, int]]:
    """Return the status of each trial and how many of its attempts have ended."""
    return [(record.status, len(record.history)) for record in experiment.trials()]


def test_a_worker_that_waits_is_cancelled_alone(cluster: Cluster) -> None:
    """Until it starts, it has the id of its array."""
    experiment = started(cluster, "waiting", 4)
    url = experiment.store.url
    cluster.run(*SWEEP, "pool", "scale", "3", "slurm", "--storage", url)
    assert len(cluster.run("squeue", "--noheader", "--states=running").splitlines()) == 3
    assert attempts(experiment) == [("running", 0)] * 3
    assert not (cluster.folder / "waiting" / "signals").exists()
    cluster.run(*SWEEP, "down", "--storage", url)
    assert attempts(experiment) == [("pending", 1)] * 3
    assert cluster.run("squeue", "--noheader") == ""


def test_a_worker_with_the_id_of_its_array_is_requeued_and_leaves_alone(cluster: Cluster) -> None:
    experiment = started(cluster, "all-started", 3)
    url = experiment.store.url
    lines = cluster.run("squeue", "--noheader", "--array", "--format=%A %i").splitlines()
    (last,) = (task for job, task in map(str.split, lines) if task.startswith(f"{job}_"))
    cluster.run("scancel", "--signal=TERM", last)
    wait_for(lambda: ("running", 1) in attempts(experiment), f"it was not requeued\n{cluster.logs()}")
    assert sorted(attempts(experiment)) == [("running", 0), ("running", 0), ("running", 1)]

    cluster.run(*SWEEP, "pool", "scale", "2", "slurm", "--storage", url)
    assert sorted(status for status, _ in attempts(experiment)) == ["pending", "running", "running"]
    assert sum(ended for _, ended in attempts(experiment)) == 2
    rows = json.loads(cluster.run(*SWEEP, "pool", "status", "slurm", "--format", "json", "--storage", url))
    assert sorted(row["state"] for row in rows) == ["done", "running", "running"]
    cluster.run(*SWEEP, "down", "--storage", url)
    assert sum(ended for _, ended in attempts(experiment)) == 4
    assert cluster.run("squeue", "--noheader") == ""


def test_every_trial_completes_once_despite_lost_nodes(cluster: Cluster) -> None:
    experiment = create(cluster.folder)
    url, options = experiment.store.url, ("--workers", "3", "--threads", "2", "--grace", "20")
    launch(cluster, url, *options, "--secret", "TOKEN", "--option", "time=60", **variables(cluster.folder))

    def workers() -> dict[str, dict[str, str]]:
        rows = json.loads(
            cluster.run(*SWEEP, "pool", "status", "slurm", "--format", "json", "--storage", url)
        )
        return {row["worker"]: row for row in rows}

    wait_for(lambda: done(experiment) >= 2, "no trial was done")
    by_node = {row["where"]: worker for worker, row in workers().items()}
    assert set(by_node) == {"n1", "n2", "n3"}

    cluster.run("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=lost")
    urgent = ["sbatch", "--parsable", "--partition=high", "--exclusive", "--wrap=sleep 1"]
    cluster.run(*urgent, "--output=/dev/null")
    wait_for(lambda: workers()[by_node["n1"]]["state"] == "waiting", "nobody was preempted")
    wait_for(lambda: done(experiment) == 20, f"trials are left\n{cluster.logs()}")

    assert "completed" in cluster.run(*SWEEP, "pool", "logs", "slurm", "--storage", url)
    records = assert_done(experiment, cluster.folder, lost=1)
    reasons = [attempt.reason for record in records for attempt in record.history]
    assert any(reason in ("released", "expired") for reason in reasons), reasons
    wait_for(
        lambda: {row["state"] for row in workers().values()} == {"done"}, "the pool did not go by itself"
    )
    assert cluster.run("squeue", "--noheader") == ""
    for file in cluster.folder.rglob("*"):
        if file.is_file() and "spool" not in str(file) and "state" not in str(file):
            assert b"s3cret" not in file.read_bytes(), file


def test_a_trial_on_two_nodes_goes_on_after_one_of_its_processes_is_killed(cluster: Cluster) -> None:
    folder = cluster.folder / "shared"
    folder.mkdir()
    experiment = create_shared(folder, steps=300)  # it must still run when it is found
    url = experiment.store.url
    launch(cluster, url, "--threads", "1", OMP_NUM_THREADS="1", STAGESWEEP_CACHE=str(folder / "cache"))
    runs = folder / "store" / "shared" / "runs" / "000000"
    wait_for(lambda: list(runs.glob("attempt-1/checkpoints/0*")), f"no checkpoint\n{cluster.logs()}")
    find = f"for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/environ 2> /dev/null | grep -q 'RANK=1 .*{runs}\\|{runs}.* RANK=1 ' && "
    find += "tr '\\0' ' ' < $p/cmdline | grep -q -- '-m trainer ' && kill -9 ${p#/proc/} && echo killed; done; true"
    assert "killed" in cluster.run("bash", "-c", find)
    rows = json.loads(cluster.run(*SWEEP, "pool", "status", "slurm", "--format", "json", "--storage", url))
    assert [row["where"] for row in rows] == ["n[1-2]"]
    wait_for(lambda: done(experiment) == 1, f"the trial is left\n{cluster.logs()}")
    (record,) = experiment.trials()
    assert [attempt.reason for attempt in record.history] == ["crashed", "completed"]
    assert "going on after" in (runs / "attempt-2" / "log.txt").read_text()
    wait_for(lambda: cluster.run("squeue", "--noheader") == "", "the job is left")
