"""A trial of the real trainer on two hosts with disks of their own, over the fake bucket: one process is killed, and the trial
goes on from the checkpoint in the bucket to the bits of a run that was never ended.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from changing_folders import find
from fake_gcs import FakeGcs
from run_folders import download

from sweeps.experiment import Experiment
from sweeps.programs.trainer import TrainerProgram
from sweeps.space.definition import Lease, Objective, Program, Range, Search, Space
from sweeps.storage.gcs.store import GcsStore
from sweeps.trials.record import run_prefix
from trainer import api

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

STEPS = 40
TRAINER = (
    *("model.hidden_size=32", "model.intermediate_size=48", "model.layers=2", "model.heads=2"),
    *("model.teacher.max_steps=4", "model.teacher.batch_size=4", "model.teacher.schedule.warmup_steps=1"),
    *(
        "data.max_bytes=300000",
        "data.held_out_fraction=0.2",
        "data.vocab_size=300",
        "data.sequence_length=16",
    ),
    *("stage1.calibration_batches=1", "stage1_9.max_steps=6", "stage1_9.batch_size=4"),
    *("stage1_9.schedule.warmup_steps=1", f"stage2.max_steps={STEPS}", "stage2.batch_size=4"),
    *("eval.batches=2", "eval.batch_size=4", "device=cpu", "device.threads=1", "log_every=1"),
    *("checkpoint.every_steps=10", "device.parallel=fsdp"),
)


def trainers(worker: subprocess.Popen[str]) -> list[psutil.Process]:
    found = psutil.Process(worker.pid).children(recursive=True)
    return [process for process in found if process.cmdline()[1:4] == ["-P", "-m", "trainer"]]


def test_killed_process_of_one_host_hands_the_trial_back(
    gcs: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    monkeypatch.setenv("STAGESWEEP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    space = Space(
        name="ganged",
        objectives=(Objective(metric="final_loss"),),
        parameters=(Range(name="stage2.optimizer.lr", min=1e-3, max=8e-3, kind="float"),),
        program=Program(kind="trainer", overrides=TRAINER, nodes=2),
        search=Search(method="random"),
        run_cap=1,
        lease=Lease(heartbeat_s=1.0, expire_s=30.0),
    )
    experiment = Experiment.create(GcsStore("gs://bucket/ganged/sweep"), space)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        leader = f"127.0.0.1:{probe.getsockname()[1]}"
    hosts = [
        subprocess.Popen(
            [sys.executable, "-m", "sweeps", "worker", "--storage", experiment.store.url, "--leader", leader],
            env={**os.environ, "NODE_RANK": str(rank), "SWEEP_SCRATCH": str(tmp_path / f"disk-{rank}")},
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        deadline = time.monotonic() + 200
        while not find(tmp_path / "disk-0", "**/checkpoints/[0-9]*"):
            assert time.monotonic() < deadline
            assert hosts[0].poll() is None
            time.sleep(0.05)
        killed = trainers(hosts[1])
        assert len(killed) == 1
        os.kill(killed[0].pid, signal.SIGKILL)
        said = [host.communicate(timeout=200)[1] for host in hosts]
    finally:
        for host in hosts:
            host.kill()
            host.wait()
    assert [host.returncode for host in hosts] == [0, 0], said
    (record,) = Experiment.open(experiment.store).trials()
    assert [attempt.reason for attempt in record.history] == ["crashed", "completed"]
    assert (record.status, record.attempt) == ("completed", 2)
    second = tmp_path / "second"
    assert download(experiment.store, run_prefix(0, 2), second)
    assert json.loads((second / "config.json").read_text())["config"]["checkpoint"]["format"] == "whole"
    log = (second / "log.txt").read_text()
    assert (going_on := re.search(r"going on after step (\d+) of stage2", log)) is not None
    made = [int(n) for n in re.findall(rf"^stage2 (\d+)/{STEPS}  loss", log, re.MULTILINE)]
    assert made == list(range(int(going_on[1]) + 1, STEPS + 1))
    assert not list(tmp_path.glob("disk-*/**/attempt-*"))  # no host keeps a copy

    alone = tmp_path / "alone"  # both processes on one host, never ended
    command = api.command(TrainerProgram(space).overrides(record.parameters), alone, processes=2)
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=True, timeout=200)
    expected = json.loads((alone / "result.json").read_text())["metrics"]
    for name in ("final_loss", "stage1_9_final_loss", "stage2_train_loss", "effective_steps"):
        assert record.metrics[name] == expected[name], name
