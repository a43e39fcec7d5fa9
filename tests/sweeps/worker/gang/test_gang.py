"""A leader and its members over connections of this machine: who joins, who is refused, and how a run ends.

The hosts are threads here; `tests/faults/test_killed_hosts.py` kills them as processes.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from memory_store import MemoryStore

from runners.workers import restarts
from sweeps.errors import EnvironmentFault, InputError, StoreUnavailable, SweepError
from sweeps.experiment import Experiment
from sweeps.programs import signals
from sweeps.programs.base import HostEnd
from sweeps.programs.signals import Stop
from sweeps.programs.trainer import TrainerProgram
from sweeps.space.definition import Objective, Program, Range, Search, Space
from sweeps.space.definition import Stop as StopRule
from sweeps.storage.local import LocalStore
from sweeps.trials.record import Trial, run_prefix
from sweeps.worker.gang import leader as leaders
from sweeps.worker.gang.channel import Channel, connect
from sweeps.worker.gang.host import LAST_START, Host, last_start_s
from sweeps.worker.gang.joining import join_gang
from sweeps.worker.gang.leader import Leader
from sweeps.worker.gang.member import Member
from trainer import api

ABOUT = {"space": "s", "nodes": 2, "version": "1"}
SPACE = Space(
    name="ganged",
    objectives=(Objective(metric="loss"),),
    parameters=(Range(name="x", min=0.0, max=1.0, kind="float"),),
    program=Program(kind="trainer", nodes=2),
    search=Search(method="random"),
)
REAL = replace(SPACE, parameters=(Range(name="stage2.optimizer.lr", min=1e-3, max=8e-3, kind="float"),))
"""With a parameter that the trainer has."""


def with_overrides(*texts: str) -> Space:
    return replace(REAL, program=replace(REAL.program, overrides=("device.parallel=fsdp", *texts)))


class Scripted(TrainerProgram):
    """A trainer whose processes run a line of Python."""

    line = "pass"

    def argv(self, record, folder, *, snapshots, points, host=""):
        return [sys.executable, "-I", "-c", self.line, str(folder), host]


class Hosts:
    """What the tests start; `lines` has what hosts say to people."""

    def __init__(self, experiment: Experiment, line: str = "pass") -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.experiment, self.lines = experiment, list[str]()
        self.program = Scripted(SPACE)
        self.program.line = line
        self.ends: dict[int, int | SweepError] = {}
        self.stops: list[Stop] = []
        self.asked: list[str] = []
        self.clock: Callable[[], float] = time.monotonic
        self._threads: list[threading.Thread] = []

    def leader(self, nodes: int = 2, patience_s: float = 20.0, **more: Any) -> Leader:
        host = Host(rank=0, nodes=nodes, address="127.0.0.1", port=self.port)
        about = ABOUT | {"nodes": nodes}
        return Leader(host, about, self.lines.append, self.asked.append, patience_s, clock=self.clock, **more)

    def member(
        self,
        rank: int = 1,
        patience_s: float = 20.0,
        last_s: float = 0.0,
        stop: Stop | None = None,
        **about: object,
    ) -> Stop:
        host, stop = Host(rank=rank, nodes=2, address="127.0.0.1", port=self.port), stop or Stop()
        member = Member(
            host,
            self.experiment,
            self.program,
            about=ABOUT | about,
            stop=stop,
            notify=self.lines.append,
            patience_s=patience_s,
            last_s=last_s,
            clock=self.clock,
            delays=lambda: iter([0.0] * 3),
        )

        def follow() -> None:
            try:
                self.ends[rank] = member.follow()
            except SweepError as error:
                self.ends[rank] = error

        self.stops.append(stop)
        self._threads.append(threading.Thread(target=follow))
        self._threads[-1].start()
        return stop

    def join(self) -> None:
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweeps.worker.gang.member._RETRY_S", 0.02)
    monkeypatch.setattr("sweeps.worker.gang.leader._AFTER_CRASH_S", 0.3)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Callable[..., Hosts]]:
    made: list[Hosts] = []

    def make(line: str = "pass") -> Hosts:
        made.append(Hosts(Experiment.create(LocalStore(tmp_path / "store"), SPACE), line))
        return made[-1]

    yield make
    for each in made:
        for stop in each.stops:
            stop.request("the end of the test")
        each.join()


def run(gang: Leader, two: Hosts, status: int = 0, output: str = "", **changes) -> HostEnd:
    """Run the next trial, of which this host's part ends at once."""
    record = two.experiment.ask("w")
    own = two.experiment.store.folder(run_prefix(record.trial, record.attempt))
    folder = changes.pop("folder", own)
    start = changes.pop("start", lambda host, should_stop: HostEnd(status=status, output=output))
    options = {"snapshots": False, "points": False}
    given = {"options": options, "start": start, "should_stop": lambda: False} | changes
    return gang.run(record, folder, **given)


def raising(error: Exception) -> Callable[[int], Trial]:
    def trial(index: int) -> Trial:
        raise error

    return trial


def waiting(should_stop: Callable[[], bool]) -> HostEnd:
    """Play processes that wait for others until they are ended."""
    until(should_stop)
    return HostEnd(status=-15, output="")


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class TestJoining:
    def test_late_members_are_waited_for_and_sent_away_with_the_leaders_status(self, hosts):
        two = hosts()
        with two.leader() as gang:
            threading.Timer(0.3, two.member).start()
            assert gang.assemble(lambda: False)
            gang.leave_with(75)
        until(lambda: two.ends == {1: 75})
        assert two.lines[0] == f"waiting for host 1 of 2 at 127.0.0.1, port {two.port}"
        assert "all 2 hosts are there" in two.lines

    def test_an_early_member_waits_for_its_leader(self, hosts):
        two = hosts()
        two.member()
        until(lambda: any("no leader answers" in line for line in two.lines))
        with two.leader() as gang:
            assert gang.assemble(lambda: False)
        until(lambda: two.ends == {1: 0})

    def test_a_member_outlives_its_leader(self, hosts):
        two = hosts()
        two.member()
        with two.leader() as gang:
            assert gang.assemble(lambda: False)
            gang._socket.shutdown(socket.SHUT_RDWR)  # as if the leader were killed: nobody joins it again
            gang._members[1].channel.close()
        until(lambda: any("the leader is gone" in line for line in two.lines))
        with two.leader() as gang:
            assert gang.assemble(lambda: False)
        until(lambda: two.ends == {1: 0})

    def test_missing_hosts_end_the_leader(self, hosts):
        two = hosts()
        with two.leader(patience_s=0.1) as gang, pytest.raises(EnvironmentFault, match="host 1 of 2 did not"):
            gang.assemble(lambda: False)

    def test_a_missing_leader_ends_the_member(self, hosts):
        two = hosts()
        two.member(patience_s=0.1)
        until(lambda: 1 in two.ends)
        assert isinstance(two.ends[1], EnvironmentFault)
        assert f"no leader answers at 127.0.0.1, port {two.port}" in str(two.ends[1])

    def test_a_taken_port_is_one_line(self, hosts):
        two = hosts()
        with two.leader(), pytest.raises(EnvironmentFault, match=rf"port {two.port}.*--leader HOST:PORT"):
            two.leader().__enter__()

    @pytest.mark.parametrize(
        ("about", "message"),
        [({"version": "2"}, "version 2, and the leader 1"), ({"nodes": 3}, "nodes 3, and the leader 2")],
    )
    def test_unlike_hosts_end_the_whole_gang(self, hosts, about, message):
        two = hosts()
        two.member(**about)
        with two.leader() as gang, pytest.raises(InputError, match=message):
            gang.assemble(lambda: False)
        until(lambda: 1 in two.ends)
        assert isinstance(two.ends[1], InputError)
        assert message in str(two.ends[1])

    def test_an_unlike_host_does_not_end_a_gang_that_is_complete(self, hosts):
        """As of a second gang, of another size, that was given the leader of the first."""
        two = hosts()
        with two.leader() as gang:
            two.member()
            assert gang.assemble(lambda: False)
            two.member(rank=2, nodes=3)
            until(lambda: isinstance(two.ends.get(2), InputError))
            assert gang.assemble(lambda: False)

    def test_a_host_of_another_sweep_is_refused_alone(self, hosts):
        two = hosts()
        with two.leader() as gang:
            two.member(space="another")
            until(lambda: 1 in two.ends)
            assert "runs another sweep" in str(two.ends[1])
            two.member()
            assert gang.assemble(lambda: False)

    def test_second_host_of_a_rank_waits_until_the_first_is_gone(self, hosts, monkeypatch):
        two = hosts()
        with two.leader() as gang:
            first = two.member()
            assert gang.assemble(lambda: False)
            two.member()
            until(lambda: any("a host of rank 1 already" in line for line in two.lines))
            monkeypatch.setattr("sweeps.worker.gang.member._STAYS_S", 0.0)
            first.request("SIGTERM")
            until(lambda: sum("joined the leader" in line for line in two.lines) == 2)
            assert gang.assemble(lambda: False)

    def test_a_leader_that_says_nothing_is_not_waited_for_forever(self, hosts, monkeypatch):
        monkeypatch.setattr("sweeps.worker.gang.channel._CONNECT_S", 0.1)
        two = hosts()
        with socket.create_server(("127.0.0.1", two.port)):  # accepts, as a stopped process does
            two.member(patience_s=0.1)
            until(lambda: 1 in two.ends)
        assert "no leader answers" in str(two.ends[1])

    def test_a_member_may_hear_nothing_for_longer_than_it_waits_for_an_answer(self, hosts, monkeypatch):
        monkeypatch.setattr("sweeps.worker.gang.channel._CONNECT_S", 0.1)
        two = hosts()
        with two.leader() as gang:
            two.member()
            assert gang.assemble(lambda: False)
            time.sleep(0.4)
            assert gang.assemble(lambda: False)
        until(lambda: two.ends == {1: 0})
        assert not any("the leader is gone" in line for line in two.lines)

    def test_a_host_that_starts_after_an_extension_belongs_to_the_gang(self, tmp_path, monkeypatch):
        monkeypatch.setattr(TrainerProgram, "version", lambda self: "1")
        store, stop = LocalStore(tmp_path), Stop()
        Experiment.create(store, SPACE)
        before, leader = join_gang(Experiment.open(store), None, 0, "127.0.0.1:29400", stop)
        Experiment.open(store).extend({"run_cap": 50}, by="a person")
        after, restarted = join_gang(Experiment.open(store), None, 0, "127.0.0.1:29400", stop)
        assert isinstance(leader, Leader)
        assert isinstance(restarted, Leader)
        assert restarted.about == leader.about
        assert (before.space.run_cap, after.space.run_cap) == (None, 50)

    def test_a_leader_is_preempted_when_its_worker_is_told_to_stop(self, tmp_path, monkeypatch):
        monkeypatch.setattr(TrainerProgram, "version", lambda self: "1")
        stop = Stop()
        experiment = Experiment.create(LocalStore(tmp_path), SPACE)
        _, leader = join_gang(experiment, None, 0, "127.0.0.1:29400", stop)
        assert isinstance(leader, Leader)
        assert not leader.is_preempted()
        stop.request("SIGTERM")
        assert leader.is_preempted()

    def test_a_notice_of_the_leader_itself_after_that_of_another_host_ends_nothing_at_once(
        self, tmp_path, monkeypatch, keep_signals
    ):
        """Both hosts are on spot machines, or the engine ends the leader because the other host has left."""
        monkeypatch.setattr(TrainerProgram, "version", lambda self: "1")
        monkeypatch.setattr(signals, "ECHO_S", 0.0)
        exits: list[int] = []
        monkeypatch.setattr(os, "_exit", exits.append)
        stop = Stop()
        stop.listen()
        experiment = Experiment.create(LocalStore(tmp_path), SPACE)
        _, leader = join_gang(experiment, None, 0, "127.0.0.1:29400", stop)
        assert isinstance(leader, Leader)
        leader.stop_requested("SIGTERM on host 1")
        until(lambda: stop.requested)
        leader.stop_requested("SIGTERM on host 2")
        os.kill(os.getpid(), signal.SIGTERM)
        assert exits == []
        os.kill(os.getpid(), signal.SIGTERM)
        assert exits == [75]

    def test_strangers_do_no_harm(self, hosts):
        two = hosts()
        with two.leader() as gang:
            for message in (b"GET / HTTP/1.1\r\n\r\n", b"{}\n", b"[1]\n", b'{"join": "1"}\n', b"\xff\n"):
                with socket.create_connection(("127.0.0.1", two.port)) as stranger:
                    stranger.sendall(message)
                    assert stranger.recv(100) == b""
            two.member()
            assert gang.assemble(lambda: False)


class TestLastStarts:
    """Hosts whose supervisor gives them up with their next crash."""

    def joined(self, two: Hosts, last_s: float) -> Channel:
        """Return the connection of a host of rank 1, which ends with it as with its process."""
        channel = connect("127.0.0.1", two.port)
        channel.send(join=1, name="m", about=ABOUT, last_s=last_s)
        assert channel.receive() == {"joined": 1, "last_s": 0.0}
        return channel

    def test_a_host_that_is_given_up_ends_the_wait_at_once(self, hosts):
        two = hosts()
        two.clock = lambda: 0.0
        with two.leader() as gang:
            self.joined(two, 600.0).close()
            until(lambda: not gang._members[1].is_there)
            with pytest.raises(InputError, match=r"host 1 of 2 \(m\) has ended, .* is not started again"):
                gang.assemble(lambda: False)

    @pytest.mark.parametrize(
        ("last_s", "lives_s", "says"),
        [(0.0, 0.0, {}), (600.0, 601.0, {}), (600.0, 0.0, {"notice": "SIGTERM"})],
        ids=["it has restarts left", "it ran long enough to have them again", "it was told to go"],
    )
    def test_others_are_waited_for(self, hosts, last_s, lives_s, says):
        two = hosts()
        now = [0.0]
        two.clock = lambda: now[0]
        with two.leader(patience_s=1e9) as gang:
            channel = self.joined(two, last_s)
            now[0] = lives_s
            channel.send(**says)
            channel.close()
            until(lambda: not gang._members[1].is_there)
            assert not gang.assemble(lambda: bool(two.lines))
        assert two.lines[-1].startswith("waiting for host 1")

    def test_a_host_that_is_cut_off_is_waited_for_and_comes_back(self, hosts):
        two = hosts()
        two.clock = lambda: 0.0
        with two.leader() as gang:
            channel = self.joined(two, 600.0)
            gang._members[1].channel.limit_silence(0.05)
            channel.send()  # the limit holds from the next message on
            until(lambda: not gang._members[1].is_there)
            assert not gang.assemble(lambda: bool(two.lines))
            channel.close()
            two.member()
            assert gang.assemble(lambda: False)

    @pytest.mark.parametrize(
        ("error", "is_cut_off"),
        [
            (OSError(errno.EHOSTUNREACH, "no route"), True),
            (TimeoutError(), True),
            (ConnectionResetError(), False),
        ],
        ids=["unreachable", "silent", "reset"],
    )
    def test_a_connection_that_is_reset_is_that_of_a_process_that_has_ended(
        self, error, is_cut_off, monkeypatch
    ):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            monkeypatch.setattr("sweeps.worker.gang.channel._KEEPALIVE", {})
            channel = Channel(ours)
            reader = Mock(readline=Mock(side_effect=error))
            channel._reader.close()
            monkeypatch.setattr(channel, "_reader", reader)
            assert channel.receive() is None
            assert channel.was_cut_off is is_cut_off

    def test_a_host_that_answers_no_more_may_come_back(self, hosts, monkeypatch):
        monkeypatch.setattr(leaders, "_STOPPED_S", 0.05)
        two = hosts()
        two.clock = lambda: 0.0
        with two.leader() as gang:
            channel = self.joined(two, 600.0)
            assert run(gang, two, status=1).status == 1
            # The thread that accepts is left, and that of the connection has noted its end.
            until(lambda: [thread.name for thread in threading.enumerate()].count("gang") == 1)
            assert not gang.assemble(lambda: any("waiting" in line for line in two.lines))
            channel.close()

    def test_one_that_was_started_by_hand_goes_on(self, hosts):
        two = hosts()
        two.clock = lambda: 0.0
        with two.leader() as gang:
            self.joined(two, 600.0).close()
            until(lambda: bool(gang._given_up))
            two.member()
            until(lambda: gang._members[1].is_there)
            assert gang.assemble(lambda: False)

    @pytest.mark.parametrize("has_stopped_a_trial", [False, True])
    def test_a_leader_that_is_killed_on_its_last_start_is_not_waited_for(self, hosts, has_stopped_a_trial):
        two = hosts()
        two.clock = lambda: 0.0
        two.member()
        with two.leader(last_s=600.0) as gang:
            assert gang.assemble(lambda: False)
            if has_stopped_a_trial:  # early, as opposed to for a preemption
                run(gang, two, status=75, should_stop=lambda: True)
            gang._members[1].channel.close()  # as if the leader were killed
            until(lambda: 1 in two.ends)
        assert isinstance(two.ends[1], InputError)
        assert "the leader at 127.0.0.1 has ended" in str(two.ends[1])

    @pytest.mark.parametrize("joins_later", [False, True])
    def test_a_preempted_leader_that_is_killed_is_waited_for(self, hosts, joins_later):
        two, told = hosts(), Stop()
        two.clock = lambda: 0.0
        with two.leader(last_s=600.0, is_preempted=lambda: told.requested) as gang:
            if not joins_later:
                two.member()
                assert gang.assemble(lambda: False)
            told.request("SIGTERM")
            until(lambda: gang._says_it_returns)
            if joins_later:
                two.member()
                assert gang.assemble(lambda: False)
            gang._members[1].channel.close()  # as if the leader were killed at the end of its grace
            until(lambda: 1 in two.ends or sum("joined the leader" in line for line in two.lines) == 2)
        until(lambda: 1 in two.ends)
        assert two.ends == {1: 0}
        assert "the leader is gone; waiting for the next one" in two.lines

    @staticmethod
    def hang_reads(two, monkeypatch) -> threading.Event:
        """Let reads of trials wait for the event, and the leader hardly wait for members."""
        monkeypatch.setattr(leaders, "_STOPPED_S", 0.05)
        goes_on, read = threading.Event(), two.experiment.trial

        def hang(index: int) -> Trial:
            assert goes_on.wait(20)
            return read(index)

        monkeypatch.setattr(two.experiment, "trial", hang)
        return goes_on

    def test_a_member_that_answers_too_late_goes_back_to_its_leader(self, hosts, monkeypatch):
        two = hosts()
        two.clock = lambda: 0.0
        two.member()
        with two.leader(last_s=600.0) as gang:
            assert gang.assemble(lambda: False)
            goes_on = self.hang_reads(two, monkeypatch)
            assert run(gang, two, status=1).status == 1
            goes_on.set()
            until(lambda: 1 in two.ends or gang._members[1].is_there)
        until(lambda: 1 in two.ends)
        assert two.ends == {1: 0}

    def test_a_member_that_answers_too_late_leaves_a_folder_that_hosts_share(self, hosts, monkeypatch):
        """For a sweep in a bucket, the leader's mark is gone by then, as on a disk of the host's own."""
        two = hosts()
        two.clock = lambda: 0.0
        two.member()
        with two.leader(last_s=600.0) as gang:
            assert gang.assemble(lambda: False)
            goes_on = self.hang_reads(two, monkeypatch)
            assert run(gang, two, status=1).status == 1
            monkeypatch.setattr(two.experiment.store, "is_remote", True)
            (folder,) = Path(two.experiment.store.folder("runs")).glob("*/attempt-*")
            (folder / "checkpoints").mkdir(exist_ok=True)
            (folder / "checkpoints" / "weights").write_bytes(b"8")
            goes_on.set()
            until(lambda: 1 in two.ends or gang._members[1].is_there)
        until(lambda: 1 in two.ends)
        assert (folder / "checkpoints" / "weights").read_bytes() == b"8"

    def test_a_leader_that_gives_itself_up_takes_the_others_along(self, hosts):
        two = hosts()
        two.clock = lambda: 0.0
        two.member()
        with suppress(OSError), two.leader(last_s=600.0) as gang:
            assert gang.assemble(lambda: False)
            raise OSError
        until(lambda: two.ends == {1: 2})

    def test_the_fault_of_a_machine_that_is_given_up_ends_the_gang_for_good(self, hosts, monkeypatch):
        two = hosts()
        monkeypatch.setattr("sweeps.worker.gang.member._VISIBLE_S", 0.1)
        monkeypatch.setattr(leaders, "marker", lambda run: "unseen")
        two.member(last_s=600.0)
        with two.leader() as gang, pytest.raises(InputError, match=r"share the sweep.*not started again"):
            run(gang, two, status=1)

    @pytest.mark.parametrize("start_s", [30.0, 300.0])
    def test_host_that_never_comes_is_waited_for_an_hour(self, hosts, monkeypatch, start_s):
        """A supervisor counts each wait as a crash, however long it was: with five restarts there are six."""
        monkeypatch.setattr(leaders, "_POLL_S", 0.001)
        two, now, crashes, turns = hosts(), [0.0], 0, 0

        def tick() -> float:
            now[0] += 5.0
            return now[0]

        two.clock = tick
        while True:
            began, turns = now[0], turns + 1
            now[0] += start_s  # imports
            with (
                two.leader(patience_s=leaders.patience_after(start_s)) as gang,
                pytest.raises(EnvironmentFault, match="host 1 of 2 did not"),
            ):
                gang.assemble(lambda: False)
            end = restarts.after_exit(1, ran_s=now[0] - began, crashes=crashes, restarts=5)
            if end == "given up":
                break
            crashes, now[0] = end.crashes, now[0] + end.after_s
        assert turns == 6
        assert now[0] == pytest.approx(3600, rel=0.1)

    @pytest.mark.parametrize(
        ("value", "runs_s", "left"),
        [("600", 40.0, 560.0), ("600", 700.0, 0.0), ("", 0.0, 0.0), ("inf", 0.0, 0.0), ("x", 0.0, 0.0)],
    )
    def test_what_a_supervisor_says_counts_from_the_start(self, value, runs_s, left):
        assert last_start_s({LAST_START: value}, runs_s=runs_s) == left

    def test_supervisors_and_workers_name_the_same_variable(self):
        assert LAST_START == restarts.LAST_START


class LateStop(Stop):
    """A stop that comes right after somebody has looked for one, as a signal may."""

    _late = ""

    def request(self, by: str) -> None:
        self._late = by

    @property
    def requested(self) -> bool:
        before = super().requested
        if self._late:
            super().request(self._late)
        return before


class TestRuns:
    @pytest.mark.parametrize("kind", [Stop, LateStop])
    def test_member_in_a_long_read_passes_its_notice_on(self, hosts, monkeypatch, kind):
        two, is_reading, goes_on = hosts(), threading.Event(), threading.Event()
        read = two.experiment.trial

        def hang(index: int) -> Trial:
            is_reading.set()
            assert goes_on.wait(20)
            return read(index)

        stop = two.member(stop=kind())
        with two.leader() as gang:
            assert gang.assemble(lambda: False)
            monkeypatch.setattr(two.experiment, "trial", hang)

            def start(host: str, should_stop: Callable[[], bool]) -> HostEnd:
                assert is_reading.wait(20)
                stop.request("SIGTERM")
                until(lambda: two.asked == ["SIGTERM on host 1"])
                goes_on.set()
                return HostEnd(status=75, output="")

            assert run(gang, two, start=start).status == 75

    def test_every_host_gets_its_place(self, hosts):
        two = hosts("import sys, pathlib; pathlib.Path(sys.argv[1], 'told').write_text(sys.argv[2])")
        with two.leader() as gang:
            two.member()
            told = []

            def start(host: str, should_stop: Callable[[], bool]) -> HostEnd:
                told.append(host)
                return HostEnd(status=0, output="")

            assert run(gang, two, start=start).status == 0
        (file,) = Path(two.experiment.store.location("")).rglob("told")
        rendezvous = told[0].removeprefix("0/2@")
        assert file.read_text() == f"1/2@{rendezvous}"
        assert rendezvous.startswith("127.0.0.1:")
        assert not list(file.parent.glob(".gang-*"))

    @pytest.mark.parametrize(
        ("line", "own", "status", "says"),
        [
            (
                "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
                "ConnectionResetError: x",
                -9,
                "on host 1",
            ),
            ("raise SystemExit(70)", "ConnectionResetError: x", 70, "on host 1"),
            ("raise ConnectionResetError('x')", "MemoryError", 1, "MemoryError"),
            (
                "raise SystemExit(70)",
                "diverged",
                1,
                "diverged",
            ),  # both failed by themselves: the first host's
        ],
    )
    def test_first_failure_counts_and_not_the_connections_that_it_broke(
        self, hosts, monkeypatch, line, own, status, says
    ):
        monkeypatch.setattr(leaders, "_AFTER_CRASH_S", 20.0)  # until the other host's process has ended
        two = hosts(line)
        with two.leader() as gang:
            two.member()
            end = run(gang, two, status=1, output=own)
        assert (end.status, end.lost) == (status, "")
        assert says in end.output

    def test_a_failure_elsewhere_ends_what_waits_for_it(self, hosts):
        two = hosts("raise SystemExit('out of memory')")

        def wait(host: str, should_stop: Callable[[], bool]) -> HostEnd:
            until(should_stop)
            return HostEnd(status=-15, output="")

        with two.leader() as gang:
            two.member()
            end = run(gang, two, start=wait)
        assert (end.status, end.output.splitlines()[-1]) == (1, "out of memory")

    def test_a_stop_reaches_all(self, hosts):
        two = hosts("import signal, sys; signal.signal(15, lambda *_: sys.exit(75)); signal.pause()")
        with two.leader() as gang:
            two.member()
            end = run(gang, two, status=75, should_stop=lambda: True)
            assert end.status == 75
            assert gang.assemble(lambda: False)  # nobody was lost
        until(lambda: two.ends == {1: 0})

    def test_a_notice_of_one_host_is_passed_on(self, hosts):
        two = hosts("import signal, sys; signal.signal(15, lambda *_: sys.exit(75)); signal.pause()")

        def wait(host: str, should_stop: Callable[[], bool]) -> HostEnd:
            two.stops[0].request("SIGTERM")
            until(lambda: bool(two.asked))
            return HostEnd(status=75, output="")

        with two.leader() as gang:
            two.member()
            run(gang, two, start=wait, should_stop=lambda: bool(two.asked))
        assert two.asked == ["SIGTERM on host 1"]
        until(lambda: two.ends == {1: 75})

    def test_a_host_that_is_to_go_stays_until_the_leader_has_left(self, hosts):
        """Ray and SkyPilot end the leader, which uploads the checkpoint, once another host has left."""
        two = hosts("import signal, sys; signal.signal(15, lambda *_: sys.exit(75)); signal.pause()")

        def wait(host: str, should_stop: Callable[[], bool]) -> HostEnd:
            two.stops[0].request("SIGTERM")
            until(should_stop)
            return HostEnd(status=75, output="")

        with two.leader() as gang:
            two.member()
            run(gang, two, start=wait, should_stop=lambda: bool(two.asked))
            time.sleep(0.5)  # while the leader uploads
            assert two.ends == {}
            assert gang.assemble(lambda: False)
        until(lambda: two.ends == {1: 75})

    def test_a_host_that_is_to_go_stays_no_longer_than_a_minute(self, hosts, monkeypatch):
        monkeypatch.setattr("sweeps.worker.gang.member._STAYS_S", 0.1)
        two = hosts()
        with two.leader() as gang:
            stop = two.member()
            assert gang.assemble(lambda: False)
            stop.request("SIGTERM")
            until(lambda: two.ends == {1: 75})

    def test_a_host_that_is_to_go_answers_what_it_is_told_meanwhile(self, hosts):
        """The leader may have begun a trial before it has received the notice."""
        two = hosts("import pathlib, sys; pathlib.Path(sys.argv[1], 'ran').touch()")
        with two.leader() as gang:
            stop = two.member()
            assert gang.assemble(lambda: False)
            stop.request("SIGTERM")
            until(lambda: bool(two.asked))
            began = time.monotonic()
            assert run(gang, two, start=lambda host, should_stop: HostEnd(status=75, output="")).status == 75
            assert time.monotonic() - began < 10
            assert gang._members[1].end == HostEnd(status=75, output="")
        until(lambda: two.ends == {1: 75})
        assert not list(Path(two.experiment.store.location("")).rglob("ran"))

    def test_a_host_that_is_gone_is_named(self, hosts):
        two = hosts("import time; time.sleep(60)")

        def lose(host: str, should_stop: Callable[[], bool]) -> HostEnd:
            gang._members[1].channel.close()
            until(should_stop)
            return HostEnd(status=-15, output="")

        with two.leader() as gang:
            two.member()
            end = run(gang, two, start=lose)
            assert end.lost.startswith("host 1 of 2 (")
            assert gang.assemble(lambda: False)  # it has come back

    def test_a_fault_of_another_machine_is_the_gangs(self, hosts, monkeypatch):
        two = hosts()
        monkeypatch.setattr("sweeps.worker.gang.member._VISIBLE_S", 0.1)
        monkeypatch.setattr(leaders, "marker", lambda run: "unseen")  # as if the folder were not shared
        two.member()
        with (
            two.leader() as gang,
            pytest.raises(EnvironmentFault, match=r"1 of 2 .*share the sweep's folder"),
        ):
            run(gang, two, status=1)
        until(lambda: isinstance(two.ends.get(1), EnvironmentFault))

    def test_a_store_that_does_not_answer_a_host_for_a_while_ends_no_gang(self, hosts, monkeypatch):
        two = hosts()
        read, failures = two.experiment.trial, [StoreUnavailable("no answer")] * 2

        def trial(index: int) -> Trial:
            if threading.current_thread() is not threading.main_thread() and failures:
                raise failures.pop()
            return read(index)

        monkeypatch.setattr(two.experiment, "trial", trial)
        with two.leader() as gang:
            two.member()
            assert gang.assemble(lambda: False)
            assert run(gang, two).status == 0
        assert two.lines.count("trial 0 cannot be read, trying again: no answer") == 2

    def test_a_host_whose_store_stays_silent_says_so(self, hosts, monkeypatch):
        two = hosts()
        monkeypatch.setattr(two.experiment, "trial", raising(StoreUnavailable("no answer")))
        two.member()
        with two.leader() as gang, pytest.raises(EnvironmentFault, match=r"host 1 of 2 .*: no answer"):
            run(gang, two, status=1, start=lambda host, should_stop: waiting(should_stop))

    def test_a_host_with_other_records_is_refused(self, hosts):
        two = hosts()
        with two.leader() as gang:
            two.member()
            gang.assemble(lambda: False)
            two.experiment.ask("another")
            record = replace(two.experiment.trial(0), worker="somebody")
            folder = two.experiment.store.folder(run_prefix(0, 1))
            with pytest.raises(EnvironmentFault, match="trial 0 is not the leader's"):
                gang.run(
                    record,
                    folder,
                    options={"snapshots": False, "points": False},
                    start=lambda host, should_stop: HostEnd(status=1, output=""),
                    should_stop=lambda: False,
                )


class TestFiles:
    def test_a_host_with_a_disk_of_its_own_gets_what_processes_read(self, tmp_path, monkeypatch):
        found = "' '.join(sorted(p.name for p in pathlib.Path(sys.argv[1]).rglob('*') if p.is_file()))"
        line = f"import sys, pathlib; raise SystemExit({found})"
        monkeypatch.setattr(MemoryStore, "is_remote", True)
        monkeypatch.setattr(leaders, "_AFTER_CRASH_S", 20.0)  # until the other host's process has ended
        experiment = Experiment.create(MemoryStore(), SPACE)
        two = Hosts(experiment, line)
        ours = tmp_path / "ours"
        for name in ("checkpoints/8/model", "snapshots/stage1_9/state.json", "metrics.jsonl"):
            (ours / name).parent.mkdir(parents=True, exist_ok=True)
            (ours / name).write_text(name)
        theirs = experiment.store.folder(run_prefix(0, 1))
        (theirs / "checkpoints" / "left").mkdir(parents=True)
        record = experiment.ask("w")
        with two.leader() as gang:
            two.member()
            end = gang.run(
                record,
                ours,
                options={"snapshots": False, "points": False},
                start=lambda host, should_stop: HostEnd(status=1, output="ConnectionResetError: x"),
                should_stop=lambda: False,
            )
        assert end.output.splitlines()[-1] == "host-1.log model state.json"
        two.join()
        assert not theirs.exists()

    @pytest.mark.parametrize("written", ["checkpoint.format=sharded", "checkpoint={format: sharded}"])
    def test_parts_of_checkpoints_need_one_folder(self, tmp_path, monkeypatch, written):
        monkeypatch.setattr(MemoryStore, "is_remote", True)
        two = Hosts(Experiment.create(MemoryStore(), REAL))
        two.program.space = with_overrides(written)
        two.member()
        with two.leader() as gang, pytest.raises(EnvironmentFault, match=r"checkpoint.format=sharded needs"):
            run(gang, two, start=lambda host, should_stop: waiting(should_stop), folder=tmp_path)
        two.join()

    @pytest.mark.parametrize(
        ("written", "expected"),
        [
            ((), "whole"),
            (("checkpoint.format=auto",), "whole"),
            (("++checkpoint.format='auto'",), "whole"),
            (("checkpoint={format: auto}",), "whole"),
            (("checkpoint.format=whole",), "whole"),
            (("checkpoint.format=sharded",), "sharded"),
            (("checkpoint.format=auto", "checkpoint.format=sharded"), "sharded"),
        ],
        ids=str,
    )
    def test_format_of_checkpoints_where_hosts_have_disks_of_their_own(self, tmp_path, written, expected):
        program = TrainerProgram(with_overrides(*written))
        record = Experiment.create(MemoryStore(), REAL).ask("w")
        program.own_disks = True
        command = program.argv(record, tmp_path, snapshots=False, points=False, host="0/2@a:1")
        overrides = command[command.index("0/2@a:1") + 1 : -1]  # the last one is run_dir
        assert api.check(overrides).checkpoint.format == expected

    def test_what_was_cut_off_is_not_taken_for_all(self, hosts, tmp_path):
        (tmp_path / "a" / "checkpoints").mkdir(parents=True)
        (tmp_path / "a" / "checkpoints" / "one").write_text("1")
        two = hosts()
        with two.leader() as gang:
            gang._run, gang._folder = "r", tmp_path / "a"
            for run_, all_ in (("r", True), ("another", False)):
                source = connect("127.0.0.1", two.port)
                source.send(fetch=run_)
                assert source.receive_files(tmp_path / run_, lambda: False) is all_
                source.close()
        assert (tmp_path / "r" / "checkpoints" / "one").read_text() == "1"

    def test_between_two_runs_nothing_is_handed_out(self, hosts, tmp_path, monkeypatch):
        (tmp_path / "checkpoints").mkdir()
        (tmp_path / "checkpoints" / "private").touch()
        monkeypatch.chdir(tmp_path)
        two = hosts()
        with two.leader():
            source = connect("127.0.0.1", two.port)
            source.send(fetch="")
            assert not source.receive_files(tmp_path / "got", lambda: False)
            source.close()
        assert not (tmp_path / "got").exists()


class TestLimits:
    def test_a_worker_goes_by_what_sweep_init_wrote_and_each_later_change(self, tmp_path):
        stop = StopRule(expected_gain=0.1, trials=30)
        alone = replace(SPACE, program=Program(kind="trainer"), search=Search(stop=stop))
        store = LocalStore(tmp_path)
        Experiment.create(store, alone).extend({"expected_gain": None}, by="a person")
        worker, gang = join_gang(Experiment.open(store), None, None, None, Stop())
        Experiment.open(store).extend({"expected_gain": 0.5}, by="a person")
        worker.amendments.refresh()
        assert gang is None
        assert worker.space.search.stop == StopRule(expected_gain=0.5, trials=30)
