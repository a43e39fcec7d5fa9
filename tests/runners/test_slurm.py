"""The Slurm runner against stand-ins for its commands; `test_slurm_cluster.py` has a real cluster."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path

import golden_messages
import pytest
from hypothesis import given
from runners_pools import PLAIN, hostile

pytest.importorskip("submitit")

from runners.errors import EngineFailed, EngineMissing, PoolError
from runners.pools import launched
from runners.pools.pool import Pool
from runners.pools.runner import WorkerStatus
from runners.slurm import RUNNER


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of stand-in commands on the PATH; `sbatch` copies its script and is job 12."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    monkeypatch.setenv("PATH", f"{bin_}:/usr/bin:/bin")

    def command(name: str, body: str) -> None:
        (bin_ / name).write_text(f"#!/bin/bash\n{body}\n")
        (bin_ / name).chmod(0o755)

    command("sbatch", f'cp "$1" {tmp_path}/sbatch.script; echo "Submitted batch job 12"')
    command("srun", "exit 0")
    command("scancel", f'echo "$*" >> {tmp_path}/cancelled')
    command("squeue", f"cat {tmp_path}/queue; : > {tmp_path}/queue")
    return bin_


def a_pool(folder: Path, **changes: object) -> Pool:
    return replace(PLAIN, folder=folder / "it's here", **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [1, 3])
def test_what_is_submitted_is_what_was_rendered(tmp_path: Path, commands: Path, workers: int) -> None:
    pool = a_pool(
        tmp_path,
        workers=workers,
        threads=4,
        accelerator="a100",
        options={"partition": "gpu", "exclusive": True},
    )
    lines: list[str] = []
    assert RUNNER.up(pool, lines.append) == 0
    rendered = RUNNER.render(pool)
    assert (tmp_path / "sbatch.script").read_text() == rendered["submission.sh"]
    assert (pool.folder / "worker.sh").read_text() == rendered["worker.sh"]
    assert "as job 12" in lines[0]
    found = launched.read(pool.folder)
    assert found is not None
    assert found.notes == {"jobs": ["12"]}


def test_status_shows_queued_and_ended_jobs(tmp_path: Path, commands: Path) -> None:
    pool = a_pool(tmp_path)
    RUNNER.up(pool, lambda line: None)
    (pool.folder / "12_1_0_result.pkl").touch()
    (tmp_path / "queue").write_text("14|12_0|RUNNING|n1|None\n")
    assert RUNNER.status(pool) == (
        WorkerStatus(worker="12_0", state="running", where="n1", detail="RUNNING"),
        WorkerStatus(worker="12_1", state="done"),
        WorkerStatus(worker="12_2", state="failed"),
    )


@pytest.mark.parametrize(
    ("queue", "wanted", "cancelled"),
    [
        pytest.param(
            ["14|12_0|RUNNING|n1|None", "12|12_1|PENDING||Resources", "12|12_2|PENDING||Resources"],
            2,
            ["12_2"],
            id="tasks that have not started",
        ),
        pytest.param(
            ["14|12_0|RUNNING|n1|None", "15|12_1|PENDING||BeginTime", "12|12_2|RUNNING|n2|None"],
            1,
            ["12_1", "--signal=TERM 12_2", "12_2"],
            id="the last task to start",
        ),
    ],
)
def test_waiting_workers_go_before_running_ones(
    tmp_path: Path, commands: Path, queue: list[str], wanted: int, cancelled: list[str]
) -> None:
    """The array's id, which would cancel all of it, is also the id of some of its tasks."""
    pool = a_pool(tmp_path, grace_s=0.0)
    pool.folder.mkdir()
    (tmp_path / "queue").write_text("".join(f"{line}\n" for line in queue))
    RUNNER.scale(pool, wanted, lambda line: None)
    assert (tmp_path / "cancelled").read_text().splitlines() == cancelled
    assert not list(pool.folder.glob("leave-*"))


def test_workers_that_were_sent_away_have_not_failed(tmp_path: Path, commands: Path) -> None:
    pool = a_pool(tmp_path, grace_s=0.0)
    RUNNER.up(pool, lambda line: None)
    kept = "14|12_0|RUNNING|n1|None\n"
    (tmp_path / "queue").write_text(f"{kept}12|12_1|RUNNING|n2|None\n15|12_2|PENDING||BeginTime\n")
    RUNNER.scale(pool, 1, lambda line: None)
    (tmp_path / "queue").write_text(kept)
    states = {status.worker: status.state for status in RUNNER.status(pool)}
    assert states == {"12_0": "running", "12_1": "done", "12_2": "done"}


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    ("worker", "leave", "status", "requeued"),
    [
        pytest.param(0, False, 0, False, id="no work is left"),
        pytest.param(75, False, 75, True, id="preempted"),
        pytest.param(75, True, 0, False, id="preempted by sweep down"),
        pytest.param(2, False, 2, False, id="poison"),
        pytest.param(1, False, 1, False, id="given up"),
    ],
)
def test_only_preempted_jobs_are_requeued(
    tmp_path: Path, commands: Path, workers: int, worker: int, leave: bool, status: int, requeued: bool
) -> None:
    pool = a_pool(tmp_path, workers=workers)
    pool.folder.mkdir()
    if leave:
        (pool.folder / "leave-14").touch()
    for name, body in (
        ("srun", f'printf "%s\\n" "$@" > {tmp_path}/srun.words; exit {worker}'),
        ("scontrol", f'echo "$*" > {tmp_path}/scontrol.words'),
    ):
        (commands / name).write_text(f"#!/bin/bash\n{body}\n")
        (commands / name).chmod(0o755)
    script = RUNNER.render(pool)["submission.sh"]
    ids = {"SLURM_JOB_ID": "14", "SLURM_ARRAY_JOB_ID": "14", "SLURM_ARRAY_TASK_ID": "2"}
    ran = subprocess.run(["bash", "-c", script], env={**os.environ, **ids}, check=False)
    assert ran.returncode == status
    words = tmp_path / "scontrol.words"
    # One worker is no array, even where it was launched from a task of one.
    task = "14_2" if workers > 1 else "14"
    assert (words.read_text().split() if words.exists() else []) == (["requeue", task] if requeued else [])
    assert (tmp_path / "srun.words").read_text().splitlines()[-1] == str(
        pool.folder
    )  # one word, with its quote


def test_a_queue_that_does_not_answer_is_told_in_one_line(tmp_path: Path, commands: Path) -> None:
    (commands / "squeue").write_text("#!/bin/bash\necho 'slurm_load_jobs error:\nno answer' >&2; exit 1\n")
    with pytest.raises(EngineFailed, match=r"^slurm: squeue: .*: no answer$"):
        RUNNER.status(a_pool(tmp_path))


def test_without_slurm_the_runner_says_where_it_would_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineMissing, match="sbatch"):
        RUNNER.up(a_pool(tmp_path), lambda line: None)
    assert RUNNER.health().state == "missing"


def test_the_doctor_is_told_whether_the_controller_answers(tmp_path: Path, commands: Path) -> None:
    for name, body in (("scontrol", "exit 1"), ("sbatch", "echo slurm 22.05.8")):
        (commands / name).write_text(f"#!/bin/bash\n{body}\n")
        (commands / name).chmod(0o755)
    assert RUNNER.health().state == "unreachable"
    (commands / "scontrol").write_text("#!/bin/bash\necho 'Slurmctld(primary) at n1 is UP'\n")
    health = RUNNER.health()
    assert (health.state, health.remedy) == ("ready", "")
    assert health.detail.endswith(", slurm 22.05.8")


MISTAKES: tuple[dict[str, object], ...] = (
    {"array": "0-9"},
    {"Mem": "8G"},
    {"mem; rm": "8G"},
    {"comment": "a\nrm -rf /"},
    {"exclusive": False},
    {"mem": None},
)


def test_options_that_sbatch_would_read_otherwise_are_refused() -> None:
    calls = {str(options): partial(RUNNER.render, replace(PLAIN, options=options)) for options in MISTAKES}
    golden_messages.compare_refusals("Options of sbatch", PoolError, calls)


@given(text=hostile)
def test_no_text_gets_out_of_its_line(text: str) -> None:
    """A line end in an #SBATCH line would make the rest of it a command."""
    plain = RUNNER.render(replace(PLAIN, options={"comment": "x"}))["submission.sh"].splitlines()
    try:
        lines = RUNNER.render(replace(PLAIN, options={"comment": text}))["submission.sh"].split("\n")
    except PoolError:
        assert re.search("[\n\r]", text)
        return
    other = [line for line in lines if line not in plain]
    assert len(other) <= 1
    assert all(line.startswith("#SBATCH --comment=") for line in other if line)


def test_a_wckey_is_passed_where_it_is_wanted() -> None:
    script = RUNNER.render(replace(PLAIN, options={"wckey": "lab"}))["submission.sh"]
    assert [line for line in script.splitlines() if "wckey" in line] == ["#SBATCH --wckey=lab"]
    assert "wckey" not in RUNNER.render(PLAIN)["submission.sh"]
