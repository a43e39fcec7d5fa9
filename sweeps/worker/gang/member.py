"""A host of a gang that is not the leader: it runs its processes of the leader's trials, and claims nothing.

It reads the trial from the store, so that the leader can only say which one. When the leader is gone, its
processes end, and it waits for the next one; when it is told to go itself, it passes that on first, and stays
until the leader has left, which has the checkpoint to upload.
"""

from __future__ import annotations

import math
import platform
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sweeps.errors import EXIT_PREEMPTED, EnvironmentFault, InputError, StoreUnavailable, SweepError
from sweeps.experiment import Experiment
from sweeps.programs import process
from sweeps.programs.signals import Stop
from sweeps.programs.trainer import FORMAT, TrainerProgram
from sweeps.trials.record import Trial, run_prefix
from sweeps.worker.gang.channel import Channel, connect
from sweeps.worker.gang.host import Host
from sweeps.worker.gang.leader import PATIENCE_S, SENT, marker
from sweeps.worker.trial_run import retry_delays

_POLL_S = 0.2
_RETRY_S = 1.0
_SILENT_S = 60.0
"""How long the leader may read from its disk; a process that is stopped says nothing more."""
_VISIBLE_S = 30.0
"""How long a network file system may take to show the leader's file."""
_STAYS_S = 60.0
"""How long a host that is to go stays for the leader, which saves and uploads the trial: engines end the
leader, too, once another host has left."""


class Member:
    """Host of a rank from 1.

    Args:
        about: what all hosts must have alike, as of `Leader`.
        notify: called with a line for people.
        patience_s: how long it looks for a leader.
        last_s: for how long from now a crash of this host is its last, as `last_start_s` says.
        clock: seconds, monotonic.
        delays: returns the seconds between tries to read a trial from a store without answer.
    """

    def __init__(
        self,
        host: Host,
        experiment: Experiment,
        program: TrainerProgram,
        *,
        about: Mapping[str, Any],
        stop: Stop,
        notify: Callable[[str], None],
        patience_s: float = PATIENCE_S,
        last_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        delays: Callable[[], Iterator[float]] = retry_delays,
    ) -> None:
        self.host, self.experiment, self.program = host, experiment, program
        program.own_disks = experiment.store.is_remote
        self.stop, self.notify, self.clock, self.delays = stop, notify, clock, delays
        self._about, self._patience_s, self._last_until = dict(about), patience_s, clock() + last_s

    def follow(self) -> int:
        """Run what leaders say until one sends this host away, and return the exit status that it says.

        Raises:
            InputError: the leader refuses this host, or has ended and is not started again.
            EnvironmentFault: there is no leader, or this machine cannot run its processes.
        """
        while True:
            session = self._join()
            status = EXIT_PREEMPTED if session is None else session.serve()
            if status is not None:
                return status
            if session is not None and session.leader_is_given_up:
                raise InputError(
                    f"host {self.host.rank} of {self.host.nodes}: the leader at {self.host.address} has "
                    "ended, and after so many crashes it is not started again; its log says why"
                )
            self.notify("the leader is gone; waiting for the next one")

    def _join(self) -> _Session | None:
        """Return the session with a leader, or None once this host has to leave."""
        host, deadline, said = self.host, self.clock() + self._patience_s, ""
        where = f"{host.address}, port {host.port}"
        while not self.stop.requested:
            problem = f"no leader answers at {where}"
            try:
                channel = connect(host.address, host.port)
            except OSError as error:
                problem += f" ({error.strerror or error})"
            else:
                last_s = max(0.0, self._last_until - self.clock())
                channel.send(join=host.rank, name=platform.node(), about=self._about, last_s=last_s)
                answer = channel.receive() or {}
                if "joined" in answer:
                    channel.limit_silence(None)
                    self.notify(f"host {host.rank} of {host.nodes}: joined the leader at {where}")
                    leaders = answer.get("last_s")
                    until = self.clock() + leaders if isinstance(leaders, int | float) else 0.0
                    return _Session(self, channel, leaders_last_until=until)
                channel.close()
                if problem_ := answer.get("refused"):
                    problem = str(problem_)
                    if not answer.get("again"):
                        raise InputError(f"host {host.rank} of {host.nodes}: {problem}")
            if self.clock() > deadline:
                raise EnvironmentFault(
                    f"host {host.rank} of {host.nodes}: {problem} for {self._patience_s:g} s"
                )
            if problem != said:
                said = problem
                self.notify(f"host {host.rank} of {host.nodes}: {problem}; waiting")
            with suppress(InterruptedError):
                time.sleep(_RETRY_S)
        return None


class _Session:
    """A leader's orders, until its connection ends."""

    def __init__(self, member: Member, channel: Channel, *, leaders_last_until: float) -> None:
        self._host, self._channel, self._stop = member.host, channel, member.stop
        self._experiment, self._program, self._notify = member.experiment, member.program, member.notify
        self._clock, self._delays, self._leaders_last_until = member.clock, member.delays, leaders_last_until
        self.leader_is_given_up = False
        self._changed = threading.Condition()
        self._orders: list[Mapping[str, Any]] = []
        self._stopped = set[str]()  # runs
        self._status: int | None = None
        self._is_open, self._has_told, self._leader_returns = True, False, False

    def serve(self) -> int | None:
        """Follow orders, and return the status to leave with; None once the leader is gone."""
        for loop in (self._receive, self._pass_on_notice):
            threading.Thread(target=loop, name="gang", daemon=True).start()
        leave_at = math.inf
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: bool(self._orders) or not self._is_open, _POLL_S)
                    order = self._orders.pop(0) if self._orders else None
                    is_open, status = self._is_open, self._status
                is_told = self._told_to_go()
                if is_told:
                    leave_at = min(leave_at, self._clock() + _STAYS_S)
                is_late = self._clock() >= leave_at
                if status is not None or is_late or not (order or is_open):
                    return EXIT_PREEMPTED if is_told else status
                if order is not None:
                    self._obey(order)
        finally:
            self._channel.close()

    def _receive(self) -> None:
        while (message := self._channel.receive()) is not None:
            with self._changed:
                if isinstance(message.get("leave"), int):
                    self._status = message["leave"]
                elif "returns" in message:  # it was preempted, or is alive and closes this connection
                    self._leader_returns = True
                elif "stop" in message:
                    self._stopped.add(str(message["stop"]))
                elif "run" in message:
                    self._orders.append(message)
                self._changed.notify_all()
        with self._changed:
            is_last = self._clock() < self._leaders_last_until and not self._leader_returns
            self.leader_is_given_up = is_last and not self._channel.was_cut_off
            self._is_open = False
            self._changed.notify_all()

    def _pass_on_notice(self) -> None:
        # In this thread, since the main one may be in a long read of the store until this process is killed.
        while self._is_open and not self._told_to_go():
            time.sleep(_POLL_S)

    def _told_to_go(self) -> bool:
        """Return whether this machine is to go, and pass that on to the leader, for all hosts, once."""
        with self._changed:
            # Read once: a signal after this line is passed on by the next call, and ends nothing before.
            is_told = self._stop.requested
            if is_told and not self._has_told:
                self._has_told = True
                self._channel.send(notice=self._stop.by)
        return is_told

    def _obey(self, order: Mapping[str, Any]) -> None:
        """Run this host's processes of a trial, and say how they ended. Raises `EnvironmentFault`."""
        run = str(order["run"])

        def should_stop() -> bool:
            with self._changed:
                over = run in self._stopped or not self._is_open or self._status is not None
            return self._told_to_go() or over

        try:
            status, output = self._execute(order, run, should_stop)
        except (SweepError, OSError, process.Unstartable) as error:
            fault = " ".join(str(error).split())
            self._channel.send(run=run, fault=fault)
            raise EnvironmentFault(fault) from error
        self._channel.send(run=run, status=status, output=output)

    def _execute(
        self, order: Mapping[str, Any], run: str, should_stop: Callable[[], bool]
    ) -> tuple[int, str]:
        if should_stop():  # told to go before the order came: the leader waits for an answer
            return EXIT_PREEMPTED, ""
        self._program.require_startable()
        record = self._read(int(order["trial"]), should_stop)
        if record is None:
            return EXIT_PREEMPTED, ""
        if (record.status, record.attempt, record.worker) != ("running", order["attempt"], order["worker"]):
            if should_stop():
                return EXIT_PREEMPTED, ""
            raise EnvironmentFault(
                f"trial {record.trial} is not the leader's in {self._experiment.store.url}; all hosts need "
                "the same sweep"
            )
        folder = self._experiment.store.folder(run_prefix(record.trial, record.attempt))
        own = not self._sees(folder / marker(run), should_stop)
        if own and should_stop():  # or the leader has ended the run, and this is its folder after all
            return EXIT_PREEMPTED, ""
        if own and self._program.checkpoint_format(record.parameters) == "sharded":
            raise EnvironmentFault(
                f"{FORMAT}=sharded needs one folder for all hosts: let SWEEP_SCRATCH name one that they "
                "share, or leave it out"
            )
        try:
            if own and not self._fetch(folder, run, should_stop):
                if should_stop():
                    return EXIT_PREEMPTED, ""
                raise EnvironmentFault(
                    f"the checkpoints of trial {record.trial} did not come from the leader"
                )
            host = f"{self._host.rank}/{self._host.nodes}@{order['rendezvous']}"
            argv = self._program.argv(
                record,
                folder,
                snapshots=bool(order["options"]["snapshots"]),
                points=bool(order["options"]["points"]),
                host=host,
            )
            log = folder / f"host-{self._host.rank}.log"
            variables = self._program.variables(record, folder)
            status = process.run(argv, log_file=log, env=variables, should_stop=should_stop)
            return status, process.last_lines(log)
        finally:
            if own:
                shutil.rmtree(folder, ignore_errors=True)

    def _read(self, trial: int, should_stop: Callable[[], bool]) -> Trial | None:
        """Read a trial, as often as a worker tries its own requests; None if this is to stop meanwhile."""
        for delay in self._delays():
            try:
                return self._experiment.trial(trial)
            except StoreUnavailable as error:
                self._notify(f"trial {trial} cannot be read, trying again: {error}")
            until = time.monotonic() + delay
            while not should_stop() and time.monotonic() < until:
                time.sleep(min(delay, _POLL_S))
            if should_stop():
                return None
        return self._experiment.trial(trial)

    def _sees(self, file: Path, should_stop: Callable[[], bool]) -> bool:
        """Return whether this is the leader's own folder. Raises `EnvironmentFault` if it should be."""
        if file.exists() or self._experiment.store.is_remote:
            return file.exists()
        deadline = time.monotonic() + _VISIBLE_S
        while not file.exists() and not should_stop():  # the leader removes it with the end of the run
            if time.monotonic() > deadline:
                raise EnvironmentFault(
                    f"{file.parent} is not the leader's folder; hosts need to share the sweep's folder, or "
                    "the sweep lies in a bucket"
                )
            time.sleep(_POLL_S)
        return True

    def _fetch(self, folder: Path, run: str, should_stop: Callable[[], bool]) -> bool:
        """Copy from the leader what the trainer's processes read; return whether all of it came."""
        for name in SENT:  # left by a lost record whose index was reused
            shutil.rmtree(folder / name, ignore_errors=True)
        source = connect(self._host.address, self._host.port)
        source.limit_silence(_SILENT_S)
        try:
            source.send(fetch=run)
            return source.receive_files(folder, should_stop)
        finally:
            source.close()
