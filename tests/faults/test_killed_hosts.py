"""A gang of two hosts, of which one process is lost in each phase of a run: every trial ends once, from its checkpoint."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest
from gang_processes import PHASES, host_process, make_stand_in

from sweeps.experiment import Experiment
from sweeps.space.definition import Choice, Lease, Objective, Program, Search, Space
from sweeps.storage.local import LocalStore

pytestmark = pytest.mark.timeout(300)


class Gang:
    """Two hosts, each of which is started again whenever it has ended otherwise than with 0."""

    def __init__(
        self, folder: Path, start: Callable[..., BaseProcess], processes: int = 1, is_last: bool = False
    ) -> None:
        self.folder, self._start, self._processes, self._is_last = folder, start, processes, is_last
        self.statuses: list[int] = []  # of hosts that were started again
        make_stand_in(folder)
        space = Space(
            name="ganged",
            objectives=(Objective(metric="loss"),),
            parameters=(Choice(name="phase", values=PHASES),),
            program=Program(kind="trainer", processes=processes, nodes=2),
            search=Search(method="grid"),
            run_cap=len(PHASES),
            lease=Lease(heartbeat_s=0.2, expire_s=1.5),
        )
        self.experiment = Experiment.create(LocalStore(folder / "store"), space)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self._port = probe.getsockname()[1]
        self.hosts = [self._new(0), self._new(1)]

    def _new(self, rank: int) -> BaseProcess:
        given = (
            self.experiment.store.url,
            rank,
            self._port,
            str(self.folder),
            self._processes,
            self._is_last,
        )
        process = self._start(target=host_process, args=given)
        process.start()
        return process

    def until(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not what():
            for rank, process in enumerate(self.hosts):
                if process.exitcode not in (None, 0):
                    self.statuses.append(process.exitcode)
                    self.hosts[rank] = self._new(rank)
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.02)

    def processes(self, phase: str) -> list[int]:
        """The run's processes in the first attempt of a trial."""
        return [int((self.folder / f"at-{phase}-{rank}").read_text()) for rank in (0, 1)]

    def logs(self) -> str:
        files = [*self.folder.glob("*.log"), *self.folder.rglob("log.txt"), *self.folder.rglob("host-*.log")]
        return "\n".join(f"==> {file}\n{file.read_text()[-2000:]}" for file in files)

    def end(self) -> None:
        for process in self.hosts:
            if process.is_alive():
                process.kill()
            process.join()


@pytest.fixture
def gang(tmp_path: Path, forkserver) -> Iterator[Callable[..., Gang]]:
    started: list[Gang] = []

    def start(**options: int) -> Gang:
        started.append(Gang(tmp_path, forkserver.Process, **options))
        return started[-1]

    yield start
    for each in started:
        each.end()


def lost_process(rank: int) -> Callable[[Gang, str], None]:
    """Kill a process of the run."""
    return lambda gang, phase: os.kill(gang.processes(phase)[rank], signal.SIGKILL)


def notice(rank: int) -> Callable[[Gang, str], None]:
    """Send SIGTERM to a worker."""
    return lambda gang, phase: os.kill(gang.hosts[rank].pid, signal.SIGTERM)


def lost_host(rank: int) -> Callable[[Gang, str], None]:
    """Kill a worker and its process of the run at the same time, as a machine that is gone.

    The process lives until its guard kills it, and the other host ends the run meanwhile: on a busy machine both agreed to
    stop and saved a checkpoint. So it is suspended first.
    """

    def lose(gang: Gang, phase: str) -> None:
        psutil.Process(gang.processes(phase)[rank]).suspend()
        os.kill(gang.hosts[rank].pid, signal.SIGKILL)

    return lose


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lose", "reason"),
    [
        (lost_process(1), "crashed"),
        (lost_process(0), "crashed"),
        (lost_host(1), "crashed"),
        (lost_host(0), "expired"),
        (notice(1), "released"),
        (notice(0), "released"),
    ],
    ids=["member's process", "leader's process", "member", "leader", "notice of member", "notice of leader"],
)
def test_every_trial_ends_once(
    gang: Callable[..., Gang], lose: Callable[[Gang, str], None], reason: str
) -> None:
    two = gang()
    left = set(PHASES)
    while left:
        two.until(lambda: any((two.folder / f"at-{phase}-1").exists() for phase in left))
        phase = next(phase for phase in left if (two.folder / f"at-{phase}-1").exists())
        two.until(lambda phase=phase: (two.folder / f"at-{phase}-0").exists())
        lose(two, phase)
        two.until(lambda phase=phase: not any(map(psutil.pid_exists, two.processes(phase))))
        (two.folder / f"go-{phase}").touch()
        left.remove(phase)
    two.until(lambda: all(process.exitcode == 0 for process in two.hosts))
    for phase in PHASES:
        record = trial_of(two, phase)
        assert (record.status, [attempt.reason for attempt in record.history]) == (
            "completed",
            [reason, "completed"],
        )
        saved = PHASES.index("checkpoint")
        position = PHASES.index(phase)
        expected = position if reason == "released" else saved if position >= saved else 0
        assert record.metrics["began"] == expected, phase


def trial_of(gang: Gang, phase: str):
    records = Experiment.open(gang.experiment.store).trials()
    return next(record for record in records if record.parameters["phase"] == phase)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "passed_on", "reason"),
    [
        (0, 'received: {"returns": true}', "expired"),
        (1, "SIGTERM on host 1: all hosts of the gang stop", "released"),
    ],
    ids=["leader", "member"],
)
def test_host_killed_while_it_stops_on_its_last_start(
    gang: Callable[..., Gang], rank: int, passed_on: str, reason: str
) -> None:
    """A preempted machine: it comes back, so that the other host does not end for good, and the trial goes on."""
    two, phase = gang(is_last=True), "evaluation"
    for other in {*PHASES} - {phase}:
        (two.folder / f"go-{other}").touch()
    two.until(lambda: all((two.folder / f"at-{phase}-{each}").exists() for each in (0, 1)))
    hung, host = psutil.Process(two.processes(phase)[rank]), two.hosts[rank]
    hung.suspend()  # so that nothing can be handed back before the machine is gone
    os.kill(host.pid, signal.SIGTERM)
    other_log = two.folder / f"host-{1 - rank}.log"
    two.until(lambda: passed_on in other_log.read_text())
    assert host.is_alive()
    os.kill(host.pid, signal.SIGKILL)
    hung.kill()
    (two.folder / f"go-{phase}").touch()
    two.until(lambda: all(process.exitcode == 0 for process in two.hosts))
    assert set(two.statuses) <= {-signal.SIGKILL, 75}, two.logs()
    record = trial_of(two, phase)
    assert (record.status, [attempt.reason for attempt in record.history]) == (
        "completed",
        [reason, "completed"],
    )
    assert record.metrics["began"] >= PHASES.index("checkpoint")
