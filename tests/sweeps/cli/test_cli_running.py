"""A running trial in `sweep status`."""

from __future__ import annotations

from memory_store import MemoryStore

from sweeps.cli.show import status_lines
from sweeps.experiment import Experiment
from sweeps.operations.status import running_rows
from sweeps.search.allocation import ASK_KEY
from sweeps.trials.lease import ObjectLease
from sweeps.trials.lifecycle import Heartbeat


def test_running_trial_shows_both_losses(space):
    experiment = Experiment.create(MemoryStore(), space)
    for index in range(2):
        experiment.ask(f"w{index}")
    progress = {"stage": "stage2", "step": 50, "of": 200, "loss": 3.5}
    experiment.apply(0, Heartbeat(worker="w0", attempt=1, progress=progress))
    experiment.apply(1, Heartbeat(worker="w1", attempt=1, progress=progress | {"held_out_loss": 3.25}))
    first, second = running_rows(experiment, experiment.trials())
    assert (first["loss"], "held_out_loss" in first) == (3.5, False)
    assert (second["loss"], second["held_out_loss"]) == (3.5, 3.25)


def test_status_names_the_worker_that_chooses_the_next_trial(space):
    now = [1000.0]
    experiment = Experiment.create(MemoryStore(clock=lambda: now[0]), space)
    times = space.lease
    lease = ObjectLease(experiment.store, ASK_KEY, heartbeat_s=times.heartbeat_s, expire_s=times.expire_s)
    with lease.held("w0") as held:
        assert held
        assert status_lines(experiment, [])[-1] == "next    w0 is choosing a trial"
        now[0] += times.expire_s + 1
        assert not any("choosing" in line for line in status_lines(experiment, []))
    assert not any("choosing" in line for line in status_lines(experiment, []))
