"""`sweep launch tpu-vm` as people call it: a sweep over VMs of a (fake) service, one of them taken away.

The VMs' work is done here, a trial for each poll of the keeper, by what their start-up script would start.
"""

from __future__ import annotations

import json
import os
import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_tpu import FakeTpu

from runners.tpu_vm import client, watch
from runners.tpu_vm.runner import TpuVm
from sweeps.operations.opening import open_sweep
from sweeps.programs.signals import Stop
from sweeps.worker.loop import Limits
from sweeps.worker.loop import work as work_on
from sweeps.worker.progress import Lines

POOL = ("tpu-vm", "--workers", "2", "--accelerator", "v6e-4", "--spot", "--secret", "HF_TOKEN")
OPTIONS = (
    *("--option", "project=p", "--option", "zones=us-east5-b,us-central2-b"),
    *("--option", "package=gs://bucket/stagesweep-1.0.0-py3-none-any.whl"),
)


def worker_words(startup_script: str) -> list[str]:
    """The worker's argv in the start-up script of a VM."""
    (line,) = (line for line in startup_script.splitlines() if line.startswith("exec -- "))
    words = shlex.split(line)
    return words[words.index("--", 2) + 1 :]


def test_a_sweep_is_done_over_vms_that_are_taken_away(
    sweep: Callable[..., object], space_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TpuVm, "sees", lambda *_: True)  # these VMs are in this process
    monkeypatch.setattr("runners.workers.signals.StopSignal.listen", lambda self: None)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    url = str(Path(sweep("init", str(space_file)).out.strip()).absolute())
    dry = json.loads(sweep("launch", *POOL, *OPTIONS, "--dry-run", "--format", "json", "--storage", url).out)
    assert set(dry) == {"startup.sh", "requests.json"}

    reported: list[tuple[int, str]] = []
    with FakeTpu() as tpu:
        monkeypatch.setattr(client, "connect", tpu.client)

        def pass_time(seconds: float, stopped: object = None) -> None:
            for (zone, name), node in list(tpu.cloud.nodes.items()):
                if node.state != "READY" or node.ended:
                    continue
                words = worker_words(node.spec.metadata["startup-script"])
                assert words[1:] == ["-P", "-m", "sweeps", "worker", "--storage", url]
                experiment = open_sweep(words[-1], None)
                before = {record.trial for record in experiment.trials() if record.status == "completed"}
                work_on(experiment, stop=Stop(), watcher=Lines(experiment), limits=Limits(max_trials=1))
                done = [
                    r.trial for r in experiment.trials() if r.status == "completed" and r.trial not in before
                ]
                reported.extend((trial, name) for trial in done)
                if len(reported) == 2:
                    tpu.cloud.preempt(zone, name)
                elif not done:
                    node.ended = "0"

        monkeypatch.setattr(watch, "pause", pass_time)
        monkeypatch.setattr(watch, "CLEAR_EVERY_S", 0.01)
        tpu.hurries = True
        ran = sweep("launch", *POOL, *OPTIONS, "--storage", url)
        assert ran.status == 0, ran.err
        assert (tpu.cloud.nodes, tpu.cloud.requests) == ({}, {})
        assert tpu.cloud.made == 3
        assert Counter(trial for trial, _ in reported) == Counter(range(5))
        assert "is deleted: SUSPENDED" in ran.err

        tpu.cloud.create_node(
            "us-central2-b", f"{next(iter(json.loads(dry['requests.json'])))}", {}
        )  # a forgotten one
        ran = sweep("down", "tpu-vm", *OPTIONS[:4], "--storage", url)
        assert (ran.status, tpu.cloud.nodes) == (0, {})
    assert "HF_TOKEN" not in os.environ


def test_what_is_missing_is_reported_in_one_line(sweep: Callable[..., object], space_file: Path, monkeypatch):
    sweep("init", str(space_file))
    ran = sweep("launch", "tpu-vm")
    assert ran.status == 2
    assert "bucket" in ran.err
    monkeypatch.setattr(TpuVm, "sees", lambda *_: True)
    ran = sweep("launch", "tpu-vm")
    assert (ran.status, "--option: project: " in ran.err) == (2, True)
