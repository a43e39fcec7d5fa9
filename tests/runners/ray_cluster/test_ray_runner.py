"""The Ray runner against a command that plays `ray`; `test_ray_cluster.py` has a real cluster."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path

import golden_messages
import pytest
from hypothesis import given
from runners_pools import PLAIN, hostile

from runners.errors import EngineMissing, PoolError
from runners.pools import program
from runners.pools.pool import Pool
from runners.pools.runner import WorkerStatus
from runners.ray_cluster.runner import RUNNER, submit
from sweeps.text.installation import install_command


@pytest.fixture
def ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder: `calls` has the command's arguments, a line per call; `answers` its output by subcommand."""
    command = tmp_path / "bin" / "ray"
    command.parent.mkdir()
    command.write_text(
        f"#!/bin/bash\nprintf '%q ' \"$@\" >> {tmp_path}/calls; echo >> {tmp_path}/calls\n"
        f'file="{tmp_path}/$1-$2"; [ -e "$file.fails" ] && {{ cat "$file.fails" >&2; exit 1; }}\n'
        'cat "$file" 2> /dev/null || true\n'
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:/usr/bin:/bin")
    return tmp_path


def calls(ray: Path) -> list[list[str]]:
    return [shlex.split(line) for line in (ray / "calls").read_text().splitlines()]


def a_pool(ray: Path, **changes: object) -> Pool:
    return replace(PLAIN, folder=ray / "pool", options={"address": "http://head:8265"}, **changes)  # type: ignore[arg-type]


def test_what_is_submitted_is_what_was_rendered(ray: Path) -> None:
    (ray / "job-status.fails").write_text("RuntimeError: ... Job sweep-toy-1 does not exist")
    pool = a_pool(ray, threads=2, accelerator="A100", accelerator_count=2)
    assert RUNNER.up(pool, lambda line: None) == 0
    words = shlex.split(RUNNER.render(pool)["submit.sh"])
    assert [call[:2] for call in calls(ray)] == [["job", "status"], ["job", "submit"]]
    assert words[3:5] == ["--address", "http://head:8265"]
    assert json.loads(words[words.index("--resources") + 1]) == {
        "num_cpus": 2,
        "num_gpus": 2,
        "accelerator_type": "A100",
    }
    assert words[-1] == f"--script={RUNNER.render(pool)['worker.sh']}"


@given(value=hostile, word=hostile)
def test_the_workers_script_is_one_word_of_the_command(value: str, word: str) -> None:
    pool = replace(PLAIN, environment={"X": value}, command=("python3", word))
    artifacts = RUNNER.render(pool)
    assert shlex.split(artifacts["submit.sh"]) == [*submit(pool)]
    assert submit(pool)[-1] == f"--script={artifacts['worker.sh']}"


def test_the_newest_attempt_of_a_task_is_its_place(ray: Path) -> None:
    def task(name: str, attempt: int, state: str) -> dict[str, object]:
        return {
            "task_id": name,
            "attempt_number": attempt,
            "state": state,
            "node_id": "n" * 56,
            "type": "NORMAL_TASK",
        }

    tasks = [task("a", 1, "RUNNING"), task("a", 0, "FAILED"), task("b", 0, "FINISHED")]
    (ray / "list-tasks").write_text(json.dumps(tasks))
    (ray / "job-status").write_text(f"Status for job '{PLAIN.label}': RUNNING\n")
    assert RUNNER.status(a_pool(ray)) == (
        WorkerStatus(worker="a", state="running", where="node nnnnnnnn", detail="RUNNING, retry 1"),
        WorkerStatus(worker="b", state="done", where="node nnnnnnnn", detail="FINISHED"),
    )
    (ray / "job-status").write_text(f"Job '{PLAIN.label}' was stopped\n")
    assert [worker.state for worker in RUNNER.status(a_pool(ray))] == ["failed", "done"]


def test_each_host_is_at_its_newest_start_or_its_worker_waits(ray: Path) -> None:
    def task(name: str, state: str) -> dict[str, object]:
        name = f"{PLAIN.label} worker {name}"
        return {"task_id": name[-16:], "attempt_number": 0, "name": name, "state": state, "node_id": "n" * 56}

    names = [*(f"1 start 9 host {rank}" for rank in (0, 1)), *(f"1 start 10 host {rank}" for rank in (0, 1))]
    tasks = [task(name, "FAILED" if "9" in name else "RUNNING") for name in reversed(names)]
    tasks += [task("2 start 1 host 0", "FAILED"), task("3 start 1 host 0", "FINISHED")]
    tasks.append({**task("", "RUNNING"), "name": "another pool's worker 1 start 1 host 0"})
    groups = [
        {"name": f"{PLAIN.label} worker {name}", "state": state}
        for name, state in {"1 start 10": "CREATED", "2 start 1": "REMOVED", "2 start 2": "PENDING"}.items()
    ]
    (ray / "list-tasks").write_text(json.dumps(tasks))
    (ray / "list-placement-groups").write_text(json.dumps(groups))
    (ray / "job-status").write_text(f"Status for job '{PLAIN.label}': RUNNING\n")
    pool = a_pool(ray, nodes=2)
    assert [(worker.state, worker.detail) for worker in RUNNER.status(pool)] == [
        ("waiting", "PENDING, worker 2: waits for 2 nodes"),
        ("running", "RUNNING, worker 1, host 0, start 10"),
        ("running", "RUNNING, worker 1, host 1, start 10"),
        ("done", "FINISHED, worker 3, host 0, start 1"),
    ]
    (ray / "job-status").write_text(f"Job '{PLAIN.label}' was stopped\n")
    assert [worker.state for worker in RUNNER.status(pool)] == ["failed", "failed", "failed", "done"]


def test_running_job_is_not_submitted_twice(ray: Path) -> None:
    (ray / "job-status").write_text(f"Status for job '{PLAIN.label}': RUNNING\n")
    with pytest.raises(PoolError, match="sweep down ray"):
        RUNNER.up(a_pool(ray), lambda line: None)
    (ray / "job-status").write_text(f"------\nJob '{PLAIN.label}' succeeded\n------\n")
    RUNNER.up(a_pool(ray), lambda line: None)
    assert [call[1] for call in calls(ray)] == ["status", "status", "delete", "submit"]


def test_down_asks_for_no_worker_and_stops_a_job_that_goes_on(ray: Path) -> None:
    (ray / "job-status").write_text(f"Status for job '{PLAIN.label}': RUNNING\n")
    assert RUNNER.down(a_pool(ray, grace_s=0.0), lambda line: None) == 1
    wants = next(call for call in calls(ray) if "want" in call)
    assert wants[-2:] == ["--workers", "0"]
    assert calls(ray)[-1][:2] == ["job", "stop"]


def test_down_stops_a_job_that_cannot_be_asked(ray: Path) -> None:
    (ray / "job-status").write_text(f"Status for job '{PLAIN.label}': RUNNING\n")
    (ray / "job-submit.fails").write_text("/bin/sh: 1: /opt/python: not found\n")
    lines: list[str] = []
    assert RUNNER.down(a_pool(ray, grace_s=300.0), lines.append) == 1
    assert calls(ray)[-1][:2] == ["job", "stop"]
    assert "/opt/python: not found" in lines[0]


def test_options_that_ray_would_not_take_are_refused() -> None:
    mistakes = ({"adress": "x"}, {"address": "--help"}, {"resources": "slot"}, {"memory": "8G"})
    calls = {str(options): partial(RUNNER.render, replace(PLAIN, options=options)) for options in mistakes}
    golden_messages.compare_refusals("Options of Ray", PoolError, calls)


def test_without_ray_the_runner_says_what_to_install(ray: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "find_command", lambda name: None)
    with pytest.raises(EngineMissing, match=re.escape(install_command("ray"))):
        RUNNER.up(a_pool(ray), lambda line: None)
    assert RUNNER.health().state == "missing"
