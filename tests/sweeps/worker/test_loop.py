"""The worker's loop and the runs of its trials: reports, leaving, waiting, and trials lost to other workers."""

from __future__ import annotations

import contextlib
import pkgutil
import shlex
import sys
import threading
import time
from dataclasses import replace

import pytest
from memory_store import MemoryStore

from sweeps.errors import (
    Busy,
    CannotStart,
    DamagedObject,
    InputError,
    Interrupted,
    StoreUnavailable,
    WriteRefused,
)
from sweeps.experiment import Experiment
from sweeps.programs.signals import Stop
from sweeps.space.definition import Brake, Budget, Lease, Program
from sweeps.trials import control
from sweeps.trials.lifecycle import Abandon, Claim, Complete, Heartbeat, Release
from sweeps.trials.record import Trial
from sweeps.worker import loop, trial_run


class Diary:
    """A watcher that records every call."""

    def __init__(self) -> None:
        self.events: list[tuple] = []

    def started(self, record) -> None:
        self.events.append(("started", record.trial))

    def progressed(self, record, progress) -> None:
        self.events.append(("progressed", record.trial, dict(progress)))

    def ended(self, record) -> None:
        self.events.append(("ended", record.trial, record.status))

    def dropped(self, record, why) -> None:
        self.events.append(("dropped", record.trial))

    def waiting(self, why) -> None:
        self.events.append(("waiting", why))

    def closed(self, why) -> None:
        self.events.append(("closed", why))


def _index(argument: object) -> int | None:
    return argument.trial if isinstance(argument, Trial) else None


LIMITS = {"max_trials", "max_hours", "leave_when_idle"}


def work(experiment, **changes):
    diary = changes.pop("watcher", Diary())
    limits = loop.Limits(**{name: changes.pop(name) for name in LIMITS & changes.keys()})
    tally = loop.work(experiment, stop=changes.pop("stop", Stop()), watcher=diary, limits=limits, **changes)
    return tally, diary


def using(experiment: Experiment, function: str, brake: Brake | None = None, **lease) -> Experiment:
    """The same sweep over another function of `functions/objectives_for_tests.py`."""
    program = Program(kind="function", function=f"objectives_for_tests:{function}")
    space = replace(experiment.space, program=program, brake=brake or Brake())
    if lease:
        space = replace(space, lease=Lease(**lease))
    return Experiment.create(MemoryStore(), space)


def test_it_works_until_the_cap_and_reports_every_trial(experiment):
    tally, diary = work(experiment)
    assert tally.ended == {"completed": 8}
    assert {record.status for record in experiment.trials()} == {"completed"}
    assert diary.events[:2] == [("started", 0), ("ended", 0, "completed")]


def test_max_trials_is_for_this_worker(experiment):
    assert work(experiment, max_trials=3)[0].ended == {"completed": 3}
    assert len(experiment.trials()) == 3


def test_failed_trials_are_reported_and_do_not_stop_the_worker(experiment):
    failing = using(experiment, "not_a_number", brake=Brake(first=0, later=0))
    assert work(failing)[0].ended == {"failed": 8}
    assert {record.failure for record in failing.trials()} == {"diverged"}


def test_an_ordinary_exception_fails_its_trial_at_once(experiment):
    crashing = using(experiment, "explodes")
    assert work(crashing, max_trials=1)[0].ended == {"failed": 1}
    (record,) = crashing.trials()
    assert (record.status, record.failure, record.attempt) == ("failed", "crashed", 1)
    assert "no such luck" in record.error


def test_a_lost_network_is_tried_again_before_it_is_a_failure(experiment):
    offline = using(experiment, "loses_the_network")
    assert work(offline, max_trials=3)[0].ended == {"crashed": 2, "failed": 1}
    (record,) = offline.trials()
    assert (record.status, record.failure, record.attempt) == ("failed", "crashed", 3)
    assert "Connection reset by peer" in record.error


def test_trainer_that_lost_the_network_hands_its_trial_back(command_space):
    line = "trainer: error: lost the network: cannot read gs://b/x.parquet: ServerDisconnectedError"
    command = ("sh", "-c", f"echo '{line}' >&2; exit 1", "${overrides}")
    space = replace(command_space, program=Program(kind="command", command=command))
    experiment = Experiment.create(MemoryStore(), space)
    assert work(experiment, max_trials=1)[0].ended == {"crashed": 1}
    (record,) = experiment.trials()
    assert (record.status, record.attempt) == ("pending", 1)


@pytest.mark.parametrize(
    ("signum", "failure"), [("SEGV", "crashed"), ("BUS", "crashed"), ("KILL", "out_of_memory")]
)
def test_a_signal_is_tried_again_before_it_is_a_failure(command_space, signum, failure):
    command = ("sh", "-c", f"ulimit -c 0; kill -{signum} $$", "${overrides}")
    experiment = Experiment.create(
        MemoryStore(), replace(command_space, program=Program(kind="command", command=command))
    )
    assert work(experiment, max_trials=3)[0].ended == {"crashed": 2, "failed": 1}
    (record,) = experiment.trials()
    assert (record.status, record.failure, record.attempt) == ("failed", failure, 3)


def test_status_75_hands_the_trial_back_and_ends_the_worker(command_space, clock):
    space = replace(
        command_space, program=Program(kind="command", command=("sh", "-c", "exit 75", "${overrides}"))
    )
    experiment = Experiment.create(MemoryStore(clock=clock), space)
    tally, _ = work(experiment)
    assert "75" in tally.preempted_by
    assert tally.preemption.endswith(": left after handing its trial back")
    (record,) = experiment.trials()
    assert (record.status, record.attempt, record.history[0].reason) == ("pending", 1, "given_up")


def test_program_ended_with_its_worker_keeps_the_attempt(command_space, monkeypatch):
    """A machine that goes ends everything at once; our own signal comes a moment after the program's."""
    monkeypatch.setattr(trial_run, "SIGNAL_DELAY_S", 30.0)
    stop = Stop()
    space = replace(
        command_space, program=Program(kind="command", command=("sh", "-c", "kill $$", "${overrides}"))
    )
    experiment = Experiment.create(MemoryStore(), space)
    sleep = Stop.sleep

    def signalled(self, seconds: float) -> None:
        if seconds == 30.0:
            self.request("SIGTERM")
        sleep(self, seconds)

    monkeypatch.setattr(Stop, "sleep", signalled)
    tally, _ = work(experiment, stop=stop)
    assert (tally.preempted_by, tally.handed_back) == ("SIGTERM", True)
    (record,) = experiment.trials()
    assert [(a.reason, a.detail) for a in record.history] == [("released", "SIGTERM")]


def test_repeated_status_75_ends(command_space, monkeypatch):
    monkeypatch.setattr(trial_run, "SIGNAL_DELAY_S", 0.0)
    space = replace(
        command_space,
        program=Program(kind="command", command=("sh", "-c", "exit 75", "${overrides}")),
        run_cap=1,
    )
    experiment = Experiment.create(MemoryStore(), space)
    tallies = [work(experiment)[0] for _ in range(3)]  # its engine starts a worker again that ends with 75
    assert all("75" in tally.preempted_by for tally in tallies)
    assert [tally.handed_back for tally in tallies] == [True, True, False]
    (record,) = experiment.trials()
    assert (record.status, record.failure, record.attempt) == ("failed", "lost", 3)
    assert record.error.startswith("lost 3 times: attempt 1 by ")


def test_a_request_before_the_first_claim_leaves_no_trace(experiment):
    stop = Stop()
    stop.request("SIGTERM")
    tally, _ = work(experiment, stop=stop)
    assert (tally.preempted_by, tally.ended, experiment.trials()) == ("SIGTERM", {}, [])
    assert tally.preemption == "SIGTERM: left without a trial"


def test_request_after_a_trial_that_has_ended_hands_none_back(experiment, monkeypatch):
    stop = Stop()

    def request(*args, **options) -> None:
        stop.request("SIGTERM")

    monkeypatch.setattr("sweeps.transfer.removal.collect", request)
    tally, _ = work(experiment, stop=stop)
    assert (tally.ended, tally.preemption) == ({"completed": 1}, "SIGTERM: left without a trial")


def test_request_while_a_checkpoint_is_fetched_hands_the_trial_back(experiment, monkeypatch):
    def interrupt(*args) -> None:
        raise Interrupted("SIGTERM")

    stop = Stop()
    monkeypatch.setattr(trial_run, "fetch_checkpoints", interrupt)
    tally, _ = work(experiment, stop=stop)
    assert tally.handed_back
    assert [record.status for record in experiment.trials()] == ["pending"]


def test_heartbeats_renew_the_lease_and_carry_the_progress(command_space):
    code = (
        'printf \'{"stage": "2", "step": 2, "held_out_loss": 2.5}\\n{"stage": "2", "step": 3, "of": 9, "done": 0.4}\\n\''
        ' > "$SWEEP_RUN_DIR/metrics.jsonl"; sleep 1.2; '
        'echo \'{"loss": 1}\' > "$SWEEP_RUN_DIR/result.json"'
    )
    space = replace(
        command_space,
        program=Program(kind="command", command=("sh", "-c", code, "${overrides}")),
        lease=Lease(heartbeat_s=0.2, expire_s=5),
        run_cap=1,
    )
    experiment = Experiment.create(MemoryStore(), space)
    watching = Experiment.open(experiment.store)
    thread = threading.Thread(target=work, args=(experiment,))
    thread.start()
    deadline, observed = time.monotonic() + 60, []
    while thread.is_alive() and time.monotonic() < deadline:
        observed += [
            (record.heartbeat, dict(record.progress)) for record in watching.trials() if record.heartbeat
        ]
        time.sleep(0.05)
    thread.join()
    assert len({heartbeat for heartbeat, _ in observed}) >= 3
    known = {"stage": "2", "step": 3, "of": 9, "done": 0.4, "held_out_loss": 2.5}
    assert known in [progress for _, progress in observed]


def test_worker_that_lost_its_trial_reports_nothing(command_space):
    space = replace(
        command_space,
        program=Program(kind="command", command=("sleep", "600", "${overrides}")),
        lease=Lease(heartbeat_s=0.1, expire_s=300),
        run_cap=1,
    )
    # `sleep` refuses the overrides, so give it a shell that ignores them.
    space = replace(space, program=Program(kind="command", command=("sh", "-c", "sleep 600", "${overrides}")))
    experiment = Experiment.create(MemoryStore(), space)
    diary = Diary()

    def take_over(record) -> None:
        Diary.started(diary, record)
        other = Experiment.open(experiment.store)
        other.apply(0, Release(worker=record.worker, attempt=1))
        other.apply(0, Claim(worker="other"))
        other.apply(0, Complete(worker="other", attempt=2, metrics={"loss": 0.5}))

    diary.started = take_over
    tally, _ = work(experiment, watcher=diary)
    assert tally.ended == {"dropped": 1}
    assert ("dropped", 0) in diary.events
    record = experiment.trial(0)
    assert (record.status, dict(record.metrics)) == ("completed", {"loss": 0.5})


class TestLeaving:
    def test_at_the_cap_it_leaves_after_heartbeats_of_the_others(self, experiment):
        sweep = using(experiment, "paraboloid", heartbeat_s=0.1, expire_s=60)
        other = Experiment.open(sweep.store)
        record = other.ask("other")
        diary = Diary()

        def beat(why: str) -> None:
            Diary.waiting(diary, why)
            other.apply(record.trial, Heartbeat(worker="other", attempt=1))

        diary.waiting = beat
        tally, _ = work(sweep, watcher=diary)
        assert tally.ended == {"completed": 7}
        assert diary.events[-1][0] == "waiting"
        assert sweep.trial(record.trial).status == "running"

    def test_it_outwaits_the_lease_of_a_dead_one_and_takes_over(self, experiment):
        sweep = using(experiment, "paraboloid", heartbeat_s=0.1, expire_s=0.5)
        dead = Experiment.open(sweep.store).ask("dead")
        tally, _ = work(sweep)
        assert tally.ended == {"completed": 8}
        record = sweep.trial(dead.trial)
        assert (record.status, record.attempt, record.history[0].reason) == ("completed", 2, "expired")

    def test_while_it_waits_it_lists_once_for_each_poll(self, experiment, monkeypatch):
        """In a bucket every listing is billed."""
        sweep = using(experiment, "paraboloid", heartbeat_s=0.1, expire_s=60)
        Experiment.open(sweep.store).ask("other")
        while sweep.ask("me", leased=False) is not None:
            pass  # up to the cap
        listed, listings_so_far = [], []
        real = sweep.store.list
        monkeypatch.setattr(sweep.store, "list", lambda prefix: listed.append(prefix) or real(prefix))
        stop, diary = Stop(), Diary()

        def count_listings(why: str) -> None:
            listings_so_far.append(len(listed))
            if len(listings_so_far) == 4:
                stop.request("SIGTERM")

        diary.waiting = count_listings
        work(sweep, watcher=diary, stop=stop)
        assert listings_so_far == [1, 2, 3, 4]

    def test_it_does_not_wait_for_a_person_who_asked(self, experiment):
        Experiment.open(experiment.store).ask("me", leased=False)
        assert work(experiment)[0].ended == {"completed": 7}

    def test_a_used_up_space_is_the_end_and_no_error(self, experiment, caplog):
        from sweeps.space.definition import Choice

        space = replace(
            experiment.space,
            parameters=(Choice(name="x", values=(0.0, 0.5, 1.0)), *experiment.space.parameters[2:]),
            program=Program(
                kind="command", command=("sh", "-c", 'echo \'{"loss": 1}\' > "$SWEEP_RUN_DIR/result.json"')
            ),
            run_cap=None,
        )
        sweep = Experiment.create(MemoryStore(), space)
        assert work(sweep)[0].ended == {"completed": 3}


def test_two_workers_on_one_host_have_different_names():
    assert loop.identity() != loop.identity()


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_the_run_folder_of_every_attempt_is_its_own(experiment, status):
    sweep = using(experiment, "paraboloid" if status == "completed" else "explodes")
    work(sweep, max_trials=1)
    assert sweep.store.folder("runs/000000/attempt-1").is_dir()


class TestLimits:
    def test_after_max_hours_the_current_trial_is_finished(self, experiment):
        assert work(experiment, max_hours=1e-9)[0].ended == {}
        assert work(experiment, max_hours=1)[0].ended == {"completed": 8}

    @pytest.mark.parametrize("waits", ["paused", "for others"])
    def test_max_hours_end_while_it_waits(self, experiment, monkeypatch, waits):
        monkeypatch.setattr(loop, "_PAUSED_POLL_S", 0.01)
        store = experiment.store
        if waits == "paused":
            control.write(store, "paused", "me")
        else:
            other = Experiment.open(store)
            while (record := other.ask("other")) is not None:
                last = record
        diary = Diary()

        def outlast(why: str) -> None:
            time.sleep(1.0)
            if waits == "paused":
                control.write(store, "running", "me")
            else:
                other.apply(last.trial, Release(worker="other", attempt=1))

        diary.waiting = outlast
        assert work(experiment, watcher=diary, max_hours=1.0 / 3600)[0].ended == {}

    def test_when_idle_it_may_leave_without_waiting_for_others(self, experiment):
        Experiment.open(experiment.store).ask("other")
        tally, diary = work(experiment, leave_when_idle=True)
        assert tally.ended == {"completed": 7}
        assert not [event for event in diary.events if event[0] == "waiting"]


class TestSteering:
    def test_a_stopped_sweep_lets_its_workers_finish_and_leave(self, experiment):
        diary = Diary()

        def stop_it(record) -> None:
            Diary.started(diary, record)
            if record.trial == 2:
                control.write(experiment.store, "stopped", "me")

        diary.started = stop_it
        assert work(experiment, watcher=diary)[0].ended == {"completed": 3}
        assert diary.events[-1][0] == "closed"

    def test_workers_of_a_paused_sweep_wait_until_it_is_resumed(self, experiment, monkeypatch):
        monkeypatch.setattr(loop, "_PAUSED_POLL_S", 0.01)
        control.write(experiment.store, "paused", "me")
        diary = Diary()

        def resume(why: str) -> None:
            Diary.waiting(diary, why)
            control.write(experiment.store, "running", "me")

        diary.waiting = resume
        assert work(experiment, watcher=diary)[0].ended == {"completed": 8}
        assert "is paused" in diary.events[0][1]

    @pytest.mark.parametrize("alike", [False, True])
    def test_waiting_worker_runs_no_other_sweep_of_the_same_name(self, experiment, monkeypatch, alike):
        monkeypatch.setattr(loop, "_PAUSED_POLL_S", 0.01)
        store, space = experiment.store, experiment.space
        control.write(store, "paused", "me")
        diary = Diary()

        def make_another(why: str) -> None:
            Diary.waiting(diary, why)
            for entry in store.list(""):
                store.delete(entry.key, entry.version)
            function = "objectives_for_tests:paraboloid" if alike else "objectives_for_tests:recorded"
            Experiment.create(store, replace(space, program=replace(space.program, function=function)))

        diary.waiting = make_another
        tally, _ = work(experiment, watcher=diary)
        # With the same space, it is the same work.
        assert tally.ended == ({"completed": 8} if alike else {})
        assert len(Experiment.open(store).trials()) == (8 if alike else 0)
        if not alike:
            assert diary.events[-1][0] == "closed"
            assert "is another sweep now" in diary.events[-1][1]

    @pytest.mark.parametrize("when", ["started", "ended"])
    def test_worker_leaves_a_sweep_that_is_deleted_under_its_trial(self, experiment, when):
        store, diary = experiment.store, Diary()

        def delete(record: Trial) -> None:
            for entry in store.list(""):
                store.delete(entry.key, entry.version)

        setattr(diary, when, delete)
        tally, _ = work(experiment, watcher=diary)
        assert tally.ended == ({"dropped": 1} if when == "started" else {"completed": 1})
        assert diary.events[-1][0] == "closed"
        assert "is gone: somebody has renamed or deleted the sweep" in diary.events[-1][1]
        assert store.list("") == []

    @pytest.mark.parametrize("waits", ["paused", "for others"])
    def test_short_outages_while_a_worker_waits_for_days_do_not_add_up(self, experiment, monkeypatch, waits):
        monkeypatch.setattr(loop, "retry_delays", lambda: iter([0.0] * 2))
        monkeypatch.setattr(loop, "_PAUSED_POLL_S", 0.01)
        sweep = using(experiment, "paraboloid", heartbeat_s=0.01, expire_s=60)
        if waits == "paused":
            control.write(sweep.store, "paused", "me")
        else:
            other = Experiment.open(sweep.store)
            while (record := other.ask("other")) is not None:
                last = record
        asks, real = [], Experiment.ask

        def ask(self, worker, **options):
            asks.append(worker)
            if len(asks) % 2:
                raise Busy("trials/000000.json", "locked")
            if len(asks) == 10 and waits == "paused":
                control.write(sweep.store, "running", "me")
            elif len(asks) == 10:
                other.apply(last.trial, Release(worker="other", attempt=1))
            return real(self, worker, **options)

        monkeypatch.setattr(Experiment, "ask", ask)
        assert work(sweep, max_trials=1)[0].ended == {"completed": 1}

    def test_an_abandoned_trial_is_stopped_where_it_runs(self, command_space):
        space = replace(
            command_space,
            program=Program(kind="command", command=("sh", "-c", "sleep 600", "${overrides}")),
            lease=Lease(heartbeat_s=0.1, expire_s=300),
            run_cap=1,
        )
        experiment = Experiment.create(MemoryStore(), space)
        diary = Diary()

        def abandon(record) -> None:
            Diary.started(diary, record)
            Experiment.open(experiment.store).apply(0, Abandon(by="me"))

        diary.started = abandon
        assert work(experiment, watcher=diary)[0].ended == {"dropped": 1}
        assert experiment.trial(0).status == "abandoned"

    def test_a_spent_budget_ends_the_claiming(self, experiment):
        space = replace(experiment.space, budget=Budget(effective_steps=60.0))
        sweep = Experiment.create(MemoryStore(), space)
        _, diary = work(sweep)
        steps = [record.metrics["effective_steps"] for record in sweep.trials()]
        assert sum(steps) >= 60 > sum(steps[:-1])
        assert "effective_steps are spent" in diary.events[-1][1]


class TestTheMachineIsAtFault:
    @pytest.mark.parametrize(
        "command",
        [("gone-here", "${overrides}"), (sys.executable, "gone-here.py", "${overrides}")],
        ids=["program", "script"],
    )
    def test_missing_program_ends_the_worker_before_a_claim(self, command_space, command):
        space = replace(command_space, program=Program(kind="command", command=command))
        experiment = Experiment.create(MemoryStore(), space)
        with pytest.raises(CannotStart, match="gone-here"):
            work(experiment)
        assert experiment.trials() == []

    def test_a_function_that_is_missing_here_too(self, experiment):
        sweep = using(experiment, "no_such_function")
        with pytest.raises(CannotStart, match="no_such_function"):
            work(sweep)
        assert sweep.trials() == []

    @pytest.mark.parametrize(
        "command",
        [
            ("sh", "-c", "./gone-here.sh", "${overrides}"),
            ("sh", "-c", f"{shlex.quote(sys.executable)} gone-here.py", "${overrides}"),
            (sys.executable, "-m", "gone_here", "${overrides}"),
        ],
        ids=["127", "python", "module"],
    )
    def test_program_that_never_began_ends_the_worker(self, command_space, command):
        space = replace(command_space, program=Program(kind="command", command=command), run_cap=1)
        experiment = Experiment.create(MemoryStore(), space)
        for _ in range(5):
            with pytest.raises(CannotStart, match=r"gone.here"):
                work(experiment)
        (record,) = experiment.trials()
        assert (record.status, record.error) == ("pending", None)
        assert {attempt.reason for attempt in record.history} == {"released"}

    def test_worker_that_has_run_the_program_retries_the_trial(self, command_space):
        """Then it may be one value of a parameter that names a program which nobody has."""
        code = (
            '[ "$SWEEP_TRIAL" = 1 ] && exec ./gone-here.sh; '
            'echo \'{"loss": 1}\' > "$SWEEP_RUN_DIR/result.json"'
        )
        space = replace(
            command_space,
            program=Program(kind="command", command=("sh", "-c", code, "${overrides}")),
            run_cap=3,
        )
        experiment = Experiment.create(MemoryStore(), space)
        assert work(experiment)[0].ended == {"completed": 2, "crashed": 2, "failed": 1}
        record = experiment.trial(1)
        assert (record.failure, record.attempt) == ("crashed", 3)
        assert record.error.startswith("the program could not be started: ")

    def test_a_watcher_that_fails_does_not_strand_the_trial(self, experiment):
        diary = Diary()

        def broken(record) -> None:
            raise BrokenPipeError

        diary.started = broken
        with pytest.raises(BrokenPipeError):
            work(experiment, watcher=diary)
        assert [r.status for r in experiment.trials()] == ["pending"]

    @pytest.mark.parametrize(
        "where",
        [
            "sweeps.programs.function.FunctionProgram.run",
            "sweeps.worker.trial_run.fetch_checkpoints",
        ],
        ids=["running", "fetching"],
    )
    @pytest.mark.parametrize(
        "error", [RecursionError("too deep"), DamagedObject("runs/x", "torn", "here")], ids=["any", "damaged"]
    )
    def test_an_error_over_one_trial_costs_that_trial_and_no_worker(
        self, experiment, monkeypatch, caplog, where, error
    ):
        """A poison pill: whoever takes it fails over it."""
        real = pkgutil.resolve_name(where)

        def poisoned(*arguments, **named):
            if any("000003" in str(argument) or _index(argument) == 3 for argument in arguments):
                raise error
            return real(*arguments, **named)

        monkeypatch.setattr(where, poisoned)
        tally, _ = work(experiment)
        assert tally.ended == {"completed": 7, "given_up": 2, "failed": 1}
        record = experiment.trial(3)
        assert (record.status, record.failure, record.attempt) == ("failed", "lost", 3)
        assert [a.reason for a in record.history] == ["given_up"] * 3
        assert type(error).__name__ in record.error
        assert "trial 3 is given up" in caplog.text

    @pytest.mark.parametrize("kind", [RecursionError, PermissionError], ids=["given up", "handed back"])
    def test_no_secret_is_cut_in_half_in_a_reason(self, experiment, monkeypatch, kind):
        """Half of one would not be recognised, and would be stored."""
        text = f"{'x' * 460}\n  ghp_{'a' * 36} end"

        def broken(*arguments, **named):
            raise kind(text)

        monkeypatch.setattr("sweeps.programs.function.FunctionProgram.run", broken)
        with contextlib.suppress(PermissionError):
            work(experiment, max_trials=1)
        assert experiment.trial(0).history[0].detail == f"{kind.__name__}: {'x' * 460} *** end"

    def test_a_result_is_kept_until_the_store_answers_again(self, experiment, monkeypatch):
        monkeypatch.setattr(trial_run, "retry_delays", lambda: iter([0.0] * 5))
        refused = []
        original = Experiment.apply

        def flaky(self, index, event):
            if isinstance(event, Complete) and len(refused) < 3:
                refused.append(index)
                raise StoreUnavailable("no space left")
            return original(self, index, event)

        monkeypatch.setattr(Experiment, "apply", flaky)
        assert work(experiment, max_trials=1)[0].ended == {"completed": 1}
        assert refused == [0, 0, 0]

    def test_a_store_that_stays_away_is_reported_at_last(self, experiment, monkeypatch):
        monkeypatch.setattr(trial_run, "retry_delays", lambda: iter([0.0] * 2))
        original = Experiment.apply

        def away(self, index, event):
            if isinstance(event, Complete):
                raise StoreUnavailable("gone")
            return original(self, index, event)

        monkeypatch.setattr(Experiment, "apply", away)
        with pytest.raises(StoreUnavailable):
            work(experiment)

    def test_folder_without_answer_is_asked_again_unless_writing_is_forbidden(self, experiment, monkeypatch):
        """A mounted folder has outages as a bucket does, and a worker of a week outlasts them."""
        monkeypatch.setattr(loop, "retry_delays", lambda: iter([0.0] * 3))
        answers = [StoreUnavailable("stale file handle"), StoreUnavailable("not mounted any more")]
        real = Experiment.ask

        def ask(self, worker, **options):
            if answers:
                raise answers.pop()
            return real(self, worker, **options)

        monkeypatch.setattr(Experiment, "ask", ask)
        assert not experiment.store.is_remote
        assert work(experiment, max_trials=1)[0].ended == {"completed": 1}
        answers.append(WriteRefused("read-only file system"))
        with pytest.raises(WriteRefused):
            work(experiment, max_trials=1)

    def test_pauses_grow_and_end(self):
        pauses = list(trial_run.retry_delays())
        assert pauses[:4] == [1.0, 2.0, 4.0, 8.0]
        assert max(pauses) == 60.0
        assert trial_run.RETRY_FOR_S <= sum(pauses) <= trial_run.RETRY_FOR_S + 60

    def test_a_run_that_says_nan_keeps_its_heart(self, command_space):
        """A diverging program logs NaN; its worker must not fall silent over that."""
        code = (
            'for i in 1 2 3 4 5 6 7 8; do echo \'{"step": 1, "loss": NaN}\' >> "$SWEEP_RUN_DIR/metrics.jsonl"; sleep 0.15; done; '
            'echo \'{"loss": 1}\' > "$SWEEP_RUN_DIR/result.json"'
        )
        space = replace(
            command_space,
            program=Program(kind="command", command=("sh", "-c", code, "${overrides}")),
            lease=Lease(heartbeat_s=0.1, expire_s=0.8),
            run_cap=1,
        )
        experiment = Experiment.create(MemoryStore(), space)
        rival = threading.Thread(target=work, args=(Experiment.open(experiment.store),))
        diary = Diary()
        diary.started = lambda record: rival.start()
        work(experiment, watcher=diary)
        rival.join()
        (record,) = experiment.trials()
        assert (record.status, record.attempt) == ("completed", 1)

    @pytest.mark.parametrize("line", ["", '{"stage": "stage2", "step": 1, "of": 9, "loss": 1.0}'])
    def test_heartbeats_go_on_while_the_program_hangs(self, line, command_space):
        """The worker beats for it; whether it hangs is for people to judge (or for `early_terminate`)."""
        code = (
            f"echo '{line}' > \"$SWEEP_RUN_DIR/metrics.jsonl\"; sleep 3; "
            'echo \'{"loss": 1}\' > "$SWEEP_RUN_DIR/result.json"'
        )
        space = replace(
            command_space,
            program=Program(kind="command", command=("sh", "-c", code, "${overrides}")),
            lease=Lease(heartbeat_s=0.1, expire_s=1.0),
            run_cap=1,
        )
        experiment = Experiment.create(MemoryStore(), space)
        rival = threading.Thread(target=work, args=(Experiment.open(experiment.store),))
        diary = Diary()
        diary.started = lambda record: rival.start()
        work(experiment, watcher=diary)
        rival.join()
        (record,) = experiment.trials()
        assert (record.status, record.attempt) == ("completed", 1)


@pytest.mark.parametrize("kind", ["loss", "held_out_loss"])
def test_curve_of_a_finished_trial_is_complete(command_space, kind):
    code = (
        f'for i in 1 2 3; do echo "{{\\"step\\": $i, \\"{kind}\\": $i}}"; done > "$SWEEP_RUN_DIR/metrics.jsonl"; '
        'echo \'{"loss": 1}\' > "$SWEEP_RUN_DIR/result.json"'
    )
    space = replace(
        command_space, program=Program(kind="command", command=("sh", "-c", code, "${overrides}")), run_cap=1
    )
    experiment = Experiment.create(MemoryStore(), space)
    work(experiment)
    assert experiment.trial(0).curve == ((1.0, 1.0), (2.0, 2.0), (3.0, 3.0))
    assert experiment.trial(0).curve_of == kind


def test_no_trial_is_claimed_alone_that_takes_several_hosts(space):
    shared = replace(space, program=Program(kind="trainer", nodes=2))
    experiment = Experiment.create(MemoryStore(), shared)
    with pytest.raises(InputError, match="runs on 2 hosts"):
        work(experiment)
    assert experiment.trials() == []
