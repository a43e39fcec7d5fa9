"""Calls of sky, recorded by a stand-in that answers as its server would."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from runners_pools import plain

from runners.errors import EngineFailed, EngineMissing, PoolError
from runners.skypilot.runner import RUNNER
from sweeps.text.installation import install_command

STAND_IN = r"""#!/bin/bash
printf '%s\n' "$@" > "$HERE/call$(ls "$HERE" | grep -c '^call')"
case "$2" in
  queue) [ -s "$HERE/queue" ] || { echo 'sky.exceptions.ClusterNotUpError: No in-progress managed jobs.' >&2; exit 1; }
    echo 'Fetching [status]'; cat "$HERE/queue" ;;
  logs) printf 'one\ntwo\n' ;;
  launch) echo "secret: $HF_TOKEN" > "$HERE/secret"; echo 'Job submitted'; printf '\033[31mNo cloud\033[0m is enabled\n' >&2; exit "${LAUNCH:-0}" ;;
esac
"""


PLAIN = plain("skypilot")


class Server:
    def __init__(self, here: Path) -> None:
        self.here = here
        self.has()

    def has(self, *statuses: str, name: str = PLAIN.label) -> None:
        rows = [
            {
                "job_id": number,
                "job_name": name,
                "status": status,
                "infra": "GCP (us-east1)",
                "recovery_count": number - 1,
            }
            for number, status in enumerate(statuses, start=1)
        ]
        rows.append({"job_id": 99, "job_name": "somebody-elses", "status": "RUNNING"})
        (self.here / "queue").write_text(json.dumps(rows[::-1], indent=2))

    def calls(self) -> list[list[str]]:
        count = len(list(self.here.glob("call*")))
        calls = [(self.here / f"call{number}").read_text().splitlines() for number in range(count)]
        return [words[1:] for words in calls if words[1] != "queue"]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sky").write_text(STAND_IN)
    (tmp_path / "bin" / "sky").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("HERE", str(tmp_path))
    return Server(tmp_path)


def test_up_submits_the_jobs_and_passes_on_what_sky_says(server, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    pool = replace(PLAIN, folder=tmp_path / "pool", secrets=("HF_TOKEN",))
    lines: list[str] = []
    assert RUNNER.up(pool, lines.append) == 0
    file = str(tmp_path / "pool" / "task.yaml")
    assert server.calls() == [
        ["launch", "--yes", "--detach-run", "--num-jobs", "3", "--secret", "HF_TOKEN", file]
    ]
    assert Path(file).read_text() == RUNNER.render(pool)["task.yaml"]
    assert (
        tmp_path / "secret"
    ).read_text() == "secret: hunter2\n"  # sky takes its value from the environment
    assert lines[0] == "Job submitted"
    assert "hunter2" not in Path(file).read_text() + str(lines)


def test_a_second_pool_of_the_same_jobs_is_refused(server, tmp_path):
    server.has("SUCCEEDED", "RECOVERING")
    with pytest.raises(PoolError, match="1 job sweep-toy-cee5fe0b there already"):
        RUNNER.up(replace(PLAIN, folder=tmp_path), print)
    assert server.calls() == []


def test_before_the_first_controller_there_are_no_jobs(server):
    (server.here / "queue").write_text("")
    assert RUNNER.status(PLAIN) == ()
    assert RUNNER.down(PLAIN, print) == 0


def test_status_is_each_job_of_the_name(server):
    server.has("SUCCEEDED", "RUNNING", "RECOVERING", "FAILED_SETUP", "CANCELLED")
    assert [(worker.worker, worker.state) for worker in RUNNER.status(PLAIN)] == [
        ("1", "done"),
        ("2", "running"),
        ("3", "waiting"),
        ("4", "failed"),
        ("5", "done"),
    ]
    assert RUNNER.status(PLAIN)[2].detail == "RECOVERING, 2 recoveries"
    assert RUNNER.status(PLAIN)[1].where == "GCP (us-east1)"


def test_scale_and_down_submit_and_cancel(server, tmp_path):
    pool = replace(PLAIN, folder=tmp_path)
    server.has("RUNNING", "SUCCEEDED", "RUNNING", "PENDING")
    RUNNER.scale(pool, 5, print)
    RUNNER.scale(pool, 1, print)
    RUNNER.scale(pool, 3, print)
    assert RUNNER.down(pool, print) == 3
    more, fewer, all_ = server.calls()
    assert more[:5] == ["launch", "--yes", "--detach-run", "--num-jobs", "2"]
    assert fewer == ["cancel", "--yes", "3", "4"]
    assert all_ == ["cancel", "--yes", "1", "3", "4"]


def test_logs_of_running_jobs_or_of_one(server):
    server.has("SUCCEEDED", "RUNNING")
    assert list(RUNNER.logs(PLAIN, None, 2)) == ["==> job 2 <==", "one", "two"]
    assert list(RUNNER.logs(PLAIN, "1", 2)) == ["==> job 1 <==", "one", "two"]
    assert server.calls()[1] == ["logs", "1", "--no-follow", "--tail", "2"]


def test_what_sky_says_last_is_told_where_it_fails(server, tmp_path, monkeypatch):
    monkeypatch.setenv("LAUNCH", "1")
    with pytest.raises(EngineFailed, match=r"^skypilot: No cloud is enabled$"):
        RUNNER.up(replace(PLAIN, folder=tmp_path), print)
    (server.here / "queue").write_text("The API server is down")
    with pytest.raises(EngineFailed, match="which is not JSON"):
        RUNNER.status(PLAIN)


def test_without_sky_one_line_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(EngineMissing, match=rf"command sky.*{re.escape(install_command('skypilot'))}"):
        RUNNER.up(replace(PLAIN, folder=tmp_path), print)
    assert RUNNER.health().state == "missing"
