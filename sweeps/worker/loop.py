"""Loop of a worker (`sweep worker`): claim a trial, run it, report it. Any number may share a sweep."""

from __future__ import annotations

import logging
import os
import platform
import random
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field

from sweeps.errors import (
    InputError,
    Interrupted,
    NothingToAsk,
    StoreUnavailable,
    SweepClosed,
    WriteRefused,
)
from sweeps.experiment import Experiment
from sweeps.programs.function import Function
from sweeps.programs.kinds import program_of
from sweeps.programs.signals import Stop
from sweeps.search.confirm import rounds
from sweeps.text.counted import counted
from sweeps.transfer import removal
from sweeps.trials import budget, storable
from sweeps.trials.record import Trial
from sweeps.worker.gang.leader import Leader
from sweeps.worker.leftovers import remove_leftovers
from sweeps.worker.trial_run import End, LastUploads, TrialRun, Watcher, retry_delays

log = logging.getLogger(__name__)

_PAUSED_POLL_S = 5.0
_IDLE_POLL_S, _IDLE_POLL_REMOTE_S = 1.0, 10.0


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Numbers of a worker's trials by how they ended.

    Args:
        preempted_by: what preempted the worker; "" if nothing did.
        handed_back: whether it then had a trial, which another worker can claim now.
    """

    ended: Mapping[End, int]
    preempted_by: str = ""
    handed_back: bool = False

    @property
    def preemption(self) -> str:
        """Return what preempted the worker and what became of its trial, in one clause."""
        how = "left after handing its trial back" if self.handed_back else "left without a trial"
        return f"{self.preempted_by}: {how}"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Conditions under which a worker leaves by itself.

    Args:
        max_trials: leave after this many trials, however they ended.
        max_hours: claim nothing more this many hours after the start; the current trial is finished.
        leave_when_idle: leave as soon as there is nothing to claim, without waiting for others' trials.
        leave_when_braked: leave as soon as the sweep has paused itself, without waiting for a person.
        confirming: claim only trials of the confirmation, and leave once it is finished.
    """

    max_trials: int | None = None
    max_hours: float | None = None
    leave_when_idle: bool = False
    leave_when_braked: bool = False
    confirming: bool = False
    started: float = field(default_factory=time.monotonic)

    @property
    def out_of_time(self) -> bool:
        """Return whether `max_hours` are over."""
        return self.max_hours is not None and time.monotonic() - self.started >= self.max_hours * 3600

    def reached(self, trials: int) -> bool:
        """Return whether a worker that has run so many trials claims nothing more."""
        return (self.max_trials is not None and trials >= self.max_trials) or self.out_of_time


def identity() -> str:
    """Return a unique worker name: host, process id, and a token, because those two are reused."""
    return f"{storable.line(platform.node(), 100) or 'host'}-{os.getpid()}-{uuid.uuid4().hex[:6]}"


def work(
    experiment: Experiment,
    *,
    stop: Stop,
    watcher: Watcher,
    limits: Limits | None = None,
    name: str | None = None,
    function: Function | None = None,
    leader: Leader | None = None,
) -> Tally:
    """Run trials until there are none left to claim, a limit is reached, or `stop` is requested.

    Args:
        name: of the worker; None: a unique one.
        function: to call in place of the sweep's program.
        leader: of the gang that shares each trial; None: this worker runs them alone.

    Raises:
        InputError: a trial takes several hosts, and this worker has no others.
        CannotStart: the sweep's program is not in this folder, or not on this machine.
        StoreUnavailable: the store could not be reached; a claimed trial expires and is taken over.
    """
    if leader is None and function is None and (nodes := experiment.space.program.nodes) > 1:
        raise InputError(
            f"program.trainer.nodes: a trial of this sweep runs on {nodes} hosts; start `sweep worker` on "
            "each, or `sweep launch`"
        )
    worker = storable.line(name or "") or identity()
    limits = limits or Limits()
    ended: Counter[End] = Counter()
    handed_back = False
    uploads = LastUploads()
    try:
        with closing(program_of(experiment.space, function)) as program:
            program.hosts, program.own_disks = leader, experiment.store.is_remote
            while not stop.requested and not limits.reached(ended.total()):
                handed_back = False
                with stop.interruptible():  # before a claim, because loading a function may take long
                    program.require_startable()
                program.warm_up()
                if leader is not None and not leader.assemble(lambda: stop.requested):
                    break
                record = _NextTrial(experiment, worker, stop, watcher, limits).claim()
                if record is None:
                    break
                if experiment.store.is_remote:
                    remove_leftovers(experiment)
                trial_run = TrialRun(experiment, record, program, stop, watcher, uploads)
                try:
                    end, preempted_by = trial_run.execute(has_run=bool(ended))
                finally:
                    handed_back = trial_run.handed_back
                if preempted_by:
                    return Tally(ended=ended, preempted_by=preempted_by, handed_back=handed_back)
                ended[end] += 1
                if end == "completed" and ended[end] == 1:
                    for metric in budget.unreported(experiment.space, [trial_run.record]):
                        log.warning(
                            "trial %d reports no %s: budget.%s does not count it, and never ends the sweep "
                            "if no trial reports any",
                            *(record.trial, metric, metric),
                        )
                if not stop.requested:
                    removal.collect(experiment)
                    experiment.pack_records(after=record.trial)
    except Interrupted:
        log.debug("interrupted, and not while a program ran")
    finally:
        uploads.wait()
    return Tally(ended=ended, preempted_by=stop.by, handed_back=handed_back)


@dataclass
class _NextTrial:
    """Claim of the next trial, with all the waiting that may come before it."""

    experiment: Experiment
    worker: str
    stop: Stop
    watcher: Watcher
    limits: Limits
    first_beats: dict[tuple[int, int], float] = field(default_factory=dict)
    """First observed heartbeat of each running (trial, attempt) of other workers."""

    def claim(self) -> Trial | None:
        """Return the next trial to run, or None once nothing is left that this worker should wait for."""
        exhausted, delays = False, retry_delays()
        while not self.limits.out_of_time:  # not `reached`, of which each call may take a ticket
            try:
                record = self.experiment.ask(
                    self.worker, wait=self.stop.sleep, make=not exhausted, confirming=self.limits.confirming
                )
                if record is not None:
                    return record
                delays = retry_delays()  # it answers again: a worker may wait here for days
            except NothingToAsk as error:
                exhausted, delays = True, retry_delays()
                log.warning("%s", error)
            except StoreUnavailable as error:
                delay = next(delays, None)
                if delay is None or isinstance(error, WriteRefused):
                    raise
                log.warning("asking failed, trying again: %s", error)
                self.stop.sleep(delay)
                continue
            except SweepClosed as closed:
                may_reopen = closed.state == "paused" or (
                    closed.state == "braked" and not self.limits.leave_when_braked
                )
                if self.limits.leave_when_idle or not may_reopen:
                    self.watcher.closed(str(closed))
                    return None
                delays = retry_delays()
                self.watcher.waiting(str(closed))
                self.stop.sleep(random.uniform(0.5, 1.5) * _PAUSED_POLL_S)  # noqa: S311 - spreads workers out
                continue
            if self.limits.leave_when_idle or not self._wait_for_others():
                if not self.limits.confirming and (why := self.experiment.why_done()):
                    self.watcher.closed(why)
                return None
        return None

    def _wait_for_others(self) -> bool:
        """Sleep a while if a trial of another worker may have to be run again; False if none may.

        At the run cap, a worker leaves only after each running trial of others has sent a heartbeat (or
        ended), so that the replacement of a dead worker outlasts its lease. While a confirmation is not
        finished it stays, because results of others bring the next round.
        """
        records = self.experiment.recent_trials()  # as just listed by `ask`: buckets bill each listing
        others = [r for r in records if r.generator == "confirm" or not self.limits.confirming]
        running = {
            (other.trial, other.attempt): other.heartbeat
            for other in others
            if other.status == "running" and other.heartbeat is not None
        }
        silent = sum(self.first_beats.setdefault(key, beat) == beat for key, beat in running.items())
        stuck = sum(other.status == "pending" for other in others)  # else this worker would have claimed it
        if stuck:
            self.watcher.waiting(f"{counted(stuck, 'trial')} cannot be claimed now: waiting")
        elif silent:
            self.watcher.waiting(f"waiting for a heartbeat of {counted(silent, 'trial')} elsewhere")
        else:
            confirmation = rounds.of_store(self.experiment.store, self.experiment.space, records)
            if confirmation is None:
                return False
            _, now = confirmation
            # Trials of `sweep ask`, which send no heartbeat, do not count: they may run for ever.
            watched = sum(record.heartbeat is not None for record in now.open)
            if not watched and not now.due:
                return False
            elsewhere = f"{counted(watched, 'trial')} elsewhere"
            self.watcher.waiting(f"waiting for round {now.round} of the confirmation: {elsewhere}")
        # Nothing changes before a heartbeat or the end of a lease; in a bucket every listing is billed.
        longest = _IDLE_POLL_REMOTE_S if self.experiment.store.is_remote else _IDLE_POLL_S
        self.stop.sleep(min(longest, self.experiment.space.lease.heartbeat_s / 4))
        return True
