"""The leader of a gang: the worker, on the host of rank 0, with connections of all other hosts.

It waits until all are there before it claims, tells them what to run, and learns how their processes ended. A
thread per connection receives; the main thread waits on the condition.
"""

from __future__ import annotations

import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sweeps.errors import EXIT_DONE, EXIT_FAILED, EXIT_INPUT, EXIT_PREEMPTED, EnvironmentFault, InputError
from sweeps.programs import process
from sweeps.programs.base import HostEnd
from sweeps.programs.result import EXIT_DIVERGED, network_was_lost
from sweeps.stages.checkpoint import SNAPSHOTS
from sweeps.storage.run_files.scan import CHECKPOINTS
from sweeps.trials.record import Trial
from sweeps.trials.redaction import printable
from sweeps.worker.gang.channel import Channel, listen
from sweeps.worker.gang.host import Host

PATIENCE_S = 540.0
"""Longest wait of a gang's hosts for one another, start included: about torchrun's ten minutes."""
_LEAST_PATIENCE_S = 60.0  # after a start that took longer

_TOGETHER_S = 60.0
"""Between the first process that ends for a reason that all of them have, and the last."""
_AFTER_CRASH_S = 2.0
"""After a crash the others wait in a collective, in vain; who crashed first may be about to say so."""
_STOPPED_S = process.GRACE_S + 10.0
_POLL_S = 0.2
_HELLO_S = 10.0
_SHARED_REASONS = (EXIT_DONE, EXIT_INPUT, EXIT_DIVERGED, EXIT_PREEMPTED)
SENT = (CHECKPOINTS, SNAPSHOTS)
"""Folders of the run folder that every process of the trainer reads."""
_MARKER = ".gang-"
"""Beginning of the name of a file in the run folder: a host that sees it has the same folder."""


def patience_after(start_s: float) -> float:
    """Return for how many seconds, rounded, to wait for other hosts, after a start that took `start_s`.

    Both together are less than `runners.workers.restarts.HEALTHY_S`: a longer wait is a healthy life to a
    supervisor, which would start hosts over and over for one that never comes.
    """
    return max(_LEAST_PATIENCE_S, round(PATIENCE_S - start_s))


def marker(run: str) -> str:
    """Return the name of the file by which a host recognises the leader's run folder."""
    return f"{_MARKER}{run}"


@dataclass(kw_only=True)
class _Member:
    """A host that has joined, and how its processes of the present run ended."""

    rank: int
    name: str
    channel: Channel
    is_there: bool = True
    end: HostEnd | None = None
    ended: float = 0.0
    fault: str = ""
    last_until: float = 0.0
    """If its process ends before, on the monotonic clock, nobody starts it again."""
    may_come_back: bool = False
    """Whether its connection has another reason to end than that its process has crashed."""

    @property
    def is_running(self) -> bool:
        """Return whether its processes of the run may still be there."""
        return self.is_there and self.end is None and not self.fault


@dataclass
class Leader:
    """Host of rank 0. A context manager: it listens from its start, and at its end sends the others away.

    Args:
        about: what all hosts must have alike, with its value here: `version`, `space`, `nodes`.
        notify: called with a line for people.
        stop_requested: called with a reason when another host was told to go.
        patience_s: how long it waits for missing hosts.
        last_s: for how long from now a crash of this host is its last, as `last_start_s` says.
        clock: seconds, monotonic.
        is_preempted: polled; whether this host was told to go: the others then wait for the next leader, even
            if this one is killed.

    Raises:
        EnvironmentFault: its port is taken.
    """

    host: Host
    about: Mapping[str, Any]
    notify: Callable[[str], None]
    stop_requested: Callable[[str], None]
    patience_s: float = PATIENCE_S
    last_s: float = 0.0
    clock: Callable[[], float] = time.monotonic
    is_preempted: Callable[[], bool] = lambda: False
    _members: dict[int, _Member] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _run: str = ""  # of the present attempt; "" between two
    _folder: Path = field(default_factory=Path)
    _misfit: str = ""
    _given_up: dict[int, str] = field(default_factory=dict)  # by rank: that nobody starts this host again
    _status: int = EXIT_DONE
    _says_it_returns: bool = False
    _is_over: bool = False

    def __enter__(self) -> Self:
        self._last_until = self.clock() + self.last_s
        try:
            self._socket = listen(self.host.address, self.host.port)
        except OSError as error:
            raise EnvironmentFault(
                f"the gang's leader cannot listen at port {self.host.port}: {error.strerror or error}; give "
                "all hosts another one by --leader HOST:PORT"
            ) from None
        self._socket.settimeout(_POLL_S)
        threading.Thread(target=self._accept, name="gang", daemon=True).start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self._status = getattr(error, "exit_status", getattr(error, "exit_code", EXIT_FAILED))
        if self._status == EXIT_FAILED and self.clock() < self._last_until:
            self._status = EXIT_INPUT  # with which nobody starts the others again, to wait for this one
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # else the thread that accepts keeps the port
        self._socket.close()
        with self._changed:
            self._is_over = True
            for member in self._members.values():
                member.channel.send(leave=self._status)
                member.channel.close()

    def leave_with(self, status: int) -> None:
        """Let all hosts end with this status, once this one leaves the context."""
        self._status = status

    def assemble(self, should_stop: Callable[[], bool]) -> bool:
        """Wait until all hosts are there; False once `should_stop()` is true.

        Raises:
            EnvironmentFault: some did not come in time.
            InputError: one of them has another version, or another number of hosts, or is not started again.
        """
        deadline, said = self.clock() + self.patience_s, ""
        with self._changed:
            while not should_stop():
                there = {rank for rank, member in self._members.items() if member.is_there}
                missing = [rank for rank in range(1, self.host.nodes) if rank not in there]
                if not missing:
                    self._misfit = ""  # of a host that none of this gang waits for
                    if said:
                        self.notify(f"all {self.host.nodes} hosts are there")
                    return True
                if problem := self._misfit or next(iter(self._given_up.values()), ""):
                    raise InputError(problem)
                noun, ranks = "host" if len(missing) == 1 else "hosts", ", ".join(map(str, missing))
                who = f"{noun} {ranks} of {self.host.nodes}"
                if self.clock() > deadline:
                    raise EnvironmentFault(
                        f"{who} did not come within {self.patience_s:g} s; ranks count from 0, and each host "
                        f"needs to reach {self.host.address}, port {self.host.port}"
                    )
                if who != said:
                    said = who
                    self.notify(f"waiting for {who} at {self.host.address}, port {self.host.port}")
                self._changed.wait(_POLL_S)
        return False

    # ---- one attempt of a trial

    def run(
        self,
        record: Trial,
        folder: Path,
        *,
        options: Mapping[str, bool],
        start: Callable[[str, Callable[[], bool]], HostEnd],
        should_stop: Callable[[], bool],
    ) -> HostEnd:
        """Run a trial on all hosts, and return how it ended: by the first failure, else by this host's end.

        Args:
            options: passed on to the members' programs.
            start: runs this host's processes to their end. Called with this host as `trainer.api.command`
                takes it, and a function that says when to stop them.
            should_stop: polled; the trial is then stopped on all hosts.

        Raises:
            EnvironmentFault: hosts are missing, or one cannot run the trial for a fault of its machine.
        """
        if not self.assemble(should_stop):  # some may have left since the trial was claimed
            return HostEnd(status=EXIT_PREEMPTED, output="")
        run, rendezvous = uuid.uuid4().hex, f"{self.host.address}:{_free_port()}"
        (folder / marker(run)).touch()
        with self._changed:
            self._run, self._folder = run, folder
            members = list(self._members.values())
            for member in members:
                member.end, member.ended, member.fault = None, 0.0, ""
                member.channel.send(
                    run=run,
                    trial=record.trial,
                    attempt=record.attempt,
                    worker=record.worker,
                    rendezvous=rendezvous,
                    options=dict(options),
                )
        try:
            own = start(f"0/{self.host.nodes}@{rendezvous}", lambda: should_stop() or self._must_end(members))
            if should_stop():
                return own
            if own.status == EXIT_DONE:
                self._wait(members, _TOGETHER_S)
                return own
            was_ended = self._must_end(members)
            self._wait(members, _AFTER_CRASH_S)
            return self._first_failure(members, own, was_ended=was_ended)
        finally:
            for member in members:
                member.channel.send(stop=run)
            self._wait(members, _STOPPED_S)
            with self._changed:
                self._run = ""
                for member in members:
                    if member.is_running:  # it answers no more
                        member.is_there, member.may_come_back = False, True
                        member.channel.send(returns=True)
                        member.channel.close()
            with suppress(OSError):
                (folder / marker(run)).unlink()

    def _must_end(self, members: Sequence[_Member]) -> bool:
        """Return whether the run cannot go on, as a host is gone or has failed."""
        with self._changed:
            for member in members:
                if member.fault or (not member.is_there and member.end is None):
                    return True
                if member.end is not None and member.end.status != EXIT_DONE:
                    patience = _TOGETHER_S if member.end.status in _SHARED_REASONS else _AFTER_CRASH_S
                    if self.clock() > member.ended + patience:
                        return True
        return False

    def _first_failure(self, members: Sequence[_Member], own: HostEnd, *, was_ended: bool) -> HostEnd:
        """Return why the run failed on one of the hosts: the others then lose their connections to it.

        Args:
            was_ended: whether this host's processes were ended because of another host.

        Raises:
            EnvironmentFault: a host's machine is at fault.
            InputError: likewise, and the host is not started again.
        """
        with self._changed:
            for member in members:
                where = f"host {member.rank} of {self.host.nodes} ({member.name})"
                if member.fault and self.clock() < member.last_until:
                    raise InputError(
                        f"{where}: {member.fault}; after so many crashes it is not started again"
                    )
                if member.fault:
                    raise EnvironmentFault(f"{where}: {member.fault}")
                if not member.is_there and member.end is None:
                    return replace(own, lost=f"{where} is gone")
            failures = [] if was_ended else [own]
            for member in members:
                if member.end is not None and member.end.status != EXIT_DONE:
                    output = f"on host {member.rank} ({member.name}):\n{member.end.output}"
                    failures.append(replace(member.end, output=output))
        return min(failures or [own], key=lambda end: network_was_lost(end.output))

    def _wait(self, members: Sequence[_Member], seconds: float) -> None:
        """Wait until the members' processes have ended."""
        with self._changed:
            self._changed.wait_for(lambda: not any(member.is_running for member in members), seconds)

    # ---- connections, each in a thread of its own

    def _accept(self) -> None:
        while True:
            # In this thread, since the main one may be in a long upload until this process is killed.
            if self.is_preempted() and not self._says_it_returns:
                self._say_it_returns()
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                continue
            except OSError:  # it was closed
                return
            threading.Thread(target=self._serve, args=(connection,), name="gang", daemon=True).start()

    def _say_it_returns(self) -> None:
        """Let the members wait for the next leader, even if this process is killed on its last start."""
        with self._changed:
            for member in self._members.values():
                member.channel.send(returns=True)
            self._says_it_returns = True

    def _serve(self, connection: socket.socket) -> None:
        """Receive what one host says, from its first message on."""
        try:
            connection.settimeout(_HELLO_S)  # for something else than a host of a gang
            channel = Channel(connection)
            hello = channel.receive()
            connection.settimeout(None)
        except OSError:
            connection.close()
            return
        if hello is not None and "fetch" in hello:
            with self._changed:
                folder = self._folder if self._run and hello["fetch"] == self._run else None
            if folder is not None:
                with suppress(OSError):  # the host is gone, or rotates the files away: it will say so
                    channel.send_files(folder, SENT)
        elif hello is not None and (member := self._join(hello, channel)) is not None:
            while (message := channel.receive()) is not None:
                self._handle(member, message)
            with self._changed:
                member.is_there = False
                has_ended = not (channel.was_cut_off or member.may_come_back)
                if has_ended and self.clock() < member.last_until:
                    self._given_up[member.rank] = (
                        f"host {member.rank} of {self.host.nodes} ({member.name}) has ended, and after so "
                        "many crashes it is not started again; its log says why"
                    )
                self._changed.notify_all()
        channel.close()

    def _join(self, hello: Mapping[str, Any], channel: Channel) -> _Member | None:
        """Take a host in, or refuse it."""
        rank, about = hello.get("join"), hello.get("about")
        if not isinstance(rank, int) or not isinstance(about, dict):
            return None
        name = printable(str(hello.get("name"))[:100])
        with self._changed:
            if self._is_over:
                return None
            if about.get("space") != self.about["space"]:
                channel.send(refused="the leader at this address runs another sweep")
                return None
            for what, here in self.about.items():
                there = printable(str(about.get(what)))[:100]
                if about.get(what) != here:
                    self._misfit = (
                        f"host {rank} ({name}) has {what} {there}, and the leader {here}; all hosts of a "
                        "gang need the same"
                    )
                    self._changed.notify_all()
                    channel.send(refused=self._misfit)
                    return None
            present = self._members.get(rank)
            if not 0 < rank < self.host.nodes or (present is not None and present.is_there):
                where = f" ({present.name})" if present is not None else ""
                again = present is not None  # its connection may have ended without a word
                channel.send(refused=f"there is a host of rank {rank} already{where}", again=again)
                return None
            last_s = hello.get("last_s")
            until = self.clock() + last_s if isinstance(last_s, int | float) else 0.0
            self._members[rank] = member = _Member(rank=rank, name=name, channel=channel, last_until=until)
            self._given_up.pop(rank, None)
            channel.send(joined=rank, last_s=max(0.0, self._last_until - self.clock()))
            if self._says_it_returns:
                channel.send(returns=True)
            self._changed.notify_all()
            return member

    def _handle(self, member: _Member, message: Mapping[str, Any]) -> None:
        with self._changed:
            if "notice" in message:
                member.may_come_back = True
                self.stop_requested(f"{printable(str(message['notice']))[:20]} on host {member.rank}")
            elif message.get("run") == self._run and "fault" in message:
                member.fault = str(message["fault"])
            elif message.get("run") == self._run and isinstance(message.get("status"), int):
                member.end = HostEnd(status=message["status"], output=str(message.get("output", "")))
                member.ended = self.clock()
            self._changed.notify_all()


def _free_port() -> int:
    """Return a port of this machine that was free a moment ago."""
    with socket.create_server(("", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
