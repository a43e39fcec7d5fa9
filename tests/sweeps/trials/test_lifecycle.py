"""Lifecycle of a trial: transitions, refused events, and invariants of all sequences of events."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sweeps.errors import IllegalTransition
from sweeps.trials import lifecycle
from sweeps.trials.lifecycle import (
    Abandon,
    Claim,
    Complete,
    Expire,
    Fail,
    Forget,
    Heartbeat,
    Release,
    Retry,
    StopEarly,
    apply,
)
from sweeps.trials.record import FINISHED, Trial, decode, encode
from sweeps.trials.stage_run import StageRun

EXPIRE = Expire(after_s=30, max_attempts=3)


def pending() -> Trial:
    return Trial(trial=7, status="pending", parameters={"x": 1.0}, generator="sobol", created=100.0)


def running(worker: str = "w1", now: float = 200.0) -> Trial:
    return apply(pending(), Claim(worker=worker), now)


def completed() -> Trial:
    return apply(running(), Complete(worker="w1", attempt=1, metrics={"loss": 1.5}), 300.0)


def failed() -> Trial:
    return apply(
        running(), Fail(worker="w1", attempt=1, error="diverged\nat step 3", failure="diverged"), 300.0
    )


def test_claim_sets_worker_attempt_and_heartbeat():
    trial = running()
    assert (trial.status, trial.worker, trial.attempt, trial.heartbeat, trial.started) == (
        "running",
        "w1",
        1,
        200.0,
        200.0,
    )
    assert apply(pending(), Claim(worker="w1", nodes=2), 200.0).nodes == 2


def test_a_curve_and_its_kind_change_together():
    training, held_out = ((1.0, 4.0), (2.0, 3.0)), ((2.0, 3.5),)
    trial = apply(running(), Heartbeat(worker="w1", attempt=1, curve=training), 210.0)
    assert (trial.curve, trial.curve_of) == (training, "loss")
    beat = Heartbeat(worker="w1", attempt=1, curve=held_out, curve_of="held_out_loss")
    trial = apply(trial, beat, 220.0)
    trial = apply(trial, Heartbeat(worker="w1", attempt=1), 230.0)  # its losses could not be read
    assert (trial.curve, trial.curve_of) == (held_out, "held_out_loss")
    for end in (
        Complete(worker="w1", attempt=1, metrics={"loss": 1.5}),
        StopEarly(worker="w1", attempt=1, metrics={}),
    ):
        assert (apply(trial, end, 240.0).curve, apply(trial, end, 240.0).curve_of) == (
            held_out,
            "held_out_loss",
        )
    trial = apply(apply(trial, EXPIRE, 900.0), Claim(worker="w2"), 901.0)
    assert (trial.curve, trial.curve_of) == ((), "loss")


def test_claim_without_lease_never_goes_stale():
    trial = apply(pending(), Claim(worker="me", leased=False), 200.0)
    assert trial.heartbeat is None
    assert not lifecycle.is_stale(trial, 1e12, 30)


def test_heartbeat_renews_lease_and_keeps_progress():
    trial = apply(running(), Heartbeat(worker="w1", attempt=1, progress={"step": 5}), 210.0)
    trial = apply(trial, Heartbeat(worker="w1", attempt=1), 220.0)
    assert (trial.heartbeat, dict(trial.progress)) == (220.0, {"step": 5})


def test_a_completed_trial_keeps_its_metrics_and_its_history():
    trial = completed()
    assert (trial.status, dict(trial.metrics), trial.worker, trial.ended) == (
        "completed",
        {"loss": 1.5},
        None,
        300.0,
    )
    (attempt,) = trial.history
    assert (attempt.worker, attempt.start, attempt.end, attempt.reason) == ("w1", 200.0, 300.0, "completed")


def test_failed_trial_keeps_error_and_history_line():
    trial = failed()
    assert (trial.status, trial.error, trial.history[0].detail) == (
        "failed",
        "diverged\nat step 3",
        "diverged",
    )
    assert trial.history[0].reason == "failed"


def test_released_trial_keeps_index_and_parameters():
    trial = apply(running(), Release(worker="w1", attempt=1, detail="SIGTERM"), 250.0)
    again = apply(trial, Claim(worker="w2"), 260.0)
    assert (again.trial, again.parameters, again.attempt, again.worker) == (7, {"x": 1.0}, 2, "w2")
    assert [a.reason for a in again.history] == ["released"]


def test_releases_do_not_count_as_lost_attempts():
    trial = pending()
    for attempt in range(1, 10):
        trial = apply(trial, Claim(worker="w"), 0.0)
        trial = apply(trial, Release(worker="w", attempt=attempt), 1.0)
    assert trial.status == "pending"


def test_a_silent_worker_loses_its_trial_only_after_the_lease():
    with pytest.raises(IllegalTransition, match="run out"):
        apply(running(), EXPIRE, 230.0)
    assert apply(running(), EXPIRE, 230.1).status == "pending"


def test_a_heartbeat_from_the_future_is_no_sign_of_life():
    """A clock that was wrong once must not keep a trial for ever."""
    ahead = apply(running(), Heartbeat(worker="w1", attempt=1), 1e9)
    taken = apply(ahead, EXPIRE, 300.0)
    assert (taken.status, taken.history[-1].end) == ("pending", 300.0)


def test_a_trial_lost_too_often_fails_with_the_whole_story():
    trial, now = pending(), 0.0
    for attempt in range(1, 4):
        trial = apply(trial, Claim(worker=f"w{attempt}"), now)
        now += 31
        trial = apply(trial, EXPIRE, now)
    assert trial.status == "failed"
    assert all(f"w{attempt}" in trial.error for attempt in range(1, 4))


def test_late_report_is_refused_and_names_new_worker():
    taken = apply(apply(running("w1"), EXPIRE, 300.0), Claim(worker="w2"), 301.0)
    for event in (
        Complete(worker="w1", attempt=1, metrics={"loss": 1.0}),
        Fail(worker="w1", attempt=1, error="x", failure="diverged"),
        Release(worker="w1", attempt=1),
        Heartbeat(worker="w1", attempt=1),
        StopEarly(worker="w1", attempt=1, metrics={}),
    ):
        with pytest.raises(IllegalTransition, match="attempt 2 of w2"):
            apply(taken, event, 302.0)


def test_the_same_worker_is_fenced_too_when_it_claims_anew():
    """A worker that stalled, lost the trial and claimed it again must not report its first attempt."""
    again = apply(apply(running("w1"), EXPIRE, 300.0), Claim(worker="w1"), 301.0)
    with pytest.raises(IllegalTransition):
        apply(again, Complete(worker="w1", attempt=1, metrics={"loss": 1.0}), 302.0)


def test_the_repeat_of_a_report_changes_nothing():
    first = completed()
    assert apply(first, Complete(worker="w1", attempt=1, metrics={"loss": 1.5}), 400.0) is first
    first = failed()
    assert (
        apply(first, Fail(worker="w1", attempt=1, error="diverged\nat step 3", failure="diverged"), 400.0)
        is first
    )


@pytest.mark.parametrize(
    "event",
    [
        Complete(worker="w1", attempt=1, metrics={"loss": 9.9}),
        Fail(worker="w1", attempt=1, error="x", failure="diverged"),
        Release(worker="w1", attempt=1),
        Claim(worker="w2"),
        EXPIRE,
        Heartbeat(worker="w1", attempt=1),
        Abandon(by="me"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_has_ended_stays_as_it_ended(event):
    with pytest.raises(IllegalTransition):
        apply(completed(), event, 1e9)


def test_a_refusal_tells_the_story():
    with pytest.raises(IllegalTransition) as caught:
        apply(completed(), Claim(worker="w2"), 400.0)
    error = caught.value
    assert (error.trial, error.status, error.event) == (7, "completed", "Claim")
    assert "attempt 1 by w1 completed" in str(error)


def crash(trial: Trial, max_attempts: int = 3) -> Trial:
    trial = apply(trial, Claim(worker="w"), 0.0)
    event = Fail(
        worker="w",
        attempt=trial.attempt,
        error="boom\nlast words",
        failure="crashed",
        max_attempts=max_attempts,
    )
    return apply(trial, event, 1.0)


def test_crash_is_retried_until_max_attempts():
    once = crash(pending())
    assert (once.status, once.failure, once.history[-1].reason, once.history[-1].detail) == (
        "pending",
        None,
        "crashed",
        "boom",
    )
    thrice = crash(crash(once))
    assert (thrice.status, thrice.failure, thrice.error) == ("failed", "crashed", "boom\nlast words")


def test_crashes_and_silent_workers_count_together():
    trial = crash(crash(pending()))
    trial = apply(trial, Claim(worker="w"), 10.0)
    assert apply(trial, EXPIRE, 50.0).failure == "lost"


def give_up(trial: Trial, detail: str = "RecursionError: too deep", max_attempts: int | None = 3) -> Trial:
    trial = apply(trial, Claim(worker=f"w{trial.attempt + 1}"), 0.0)
    event = Release(
        worker=trial.worker or "", attempt=trial.attempt, detail=detail, max_attempts=max_attempts
    )
    return apply(trial, event, 1.0)


def test_trial_given_up_repeatedly_is_lost():
    twice = give_up(give_up(pending()))
    assert (twice.status, twice.history[-1].reason) == ("pending", "given_up")
    lost = give_up(twice)
    assert (lost.status, lost.failure, lost.ended) == ("failed", "lost", 1.0)
    assert lost.error.startswith("lost 3 times: attempt 1 by w1 given_up: RecursionError: ")
    again = apply(lost, Retry(by="me"), 2.0)
    assert give_up(give_up(again)).status == "pending"
    assert give_up(give_up(give_up(again))).failure == "lost"


@pytest.mark.parametrize(
    ("before", "status"),
    [
        ((), "pending"),
        ((crash,), "pending"),
        ((crash, crash), "failed"),
        ((crash, give_up), "failed"),
        ((give_up, lambda trial: give_up(trial, max_attempts=None)), "pending"),
        ((lambda trial: give_up(trial, max_attempts=None),) * 9, "pending"),
    ],
    ids=["first", "one-crash", "two-crashes", "one-of-each", "one-was-free", "all-were-free"],
)
def test_given_up_attempts_count_as_lost(before, status):
    trial = pending()
    for step in before:
        trial = step(trial)
    assert give_up(trial).status == status


@pytest.mark.parametrize("failure", ["crashed", "out_of_memory"])
def test_transient_failures_of_any_kind_are_retried(failure):
    trial = pending()
    for attempt, status in ((1, "pending"), (2, "pending"), (3, "failed")):
        trial = apply(trial, Claim(worker="w"), 0.0)
        event = Fail(worker="w", attempt=attempt, error="killed", failure=failure, max_attempts=3)
        trial = apply(trial, event, 1.0)
        assert (trial.status, trial.history[-1].reason) == (status, "crashed")
    assert (trial.failure, trial.error) == (failure, "killed")


def test_what_none_can_mend_fails_at_once_whatever_was_before():
    trial = apply(crash(pending()), Claim(worker="w"), 2.0)
    failed = apply(trial, Fail(worker="w", attempt=2, error="KeyError: 'lr'", failure="crashed"), 3.0)
    assert (failed.status, failed.failure) == ("failed", "crashed")


def test_a_trial_that_completes_after_a_crash_has_no_error():
    trial = apply(crash(pending()), Claim(worker="w"), 2.0)
    done = apply(trial, Complete(worker="w", attempt=2, metrics={"loss": 1.0}), 3.0)
    assert (done.status, done.error, done.failure) == ("completed", None, None)


def test_retry_forgives_earlier_attempts():
    trial = apply(crash(crash(crash(pending()))), Retry(by="me"), 10.0)
    assert (trial.status, trial.error, trial.failure, trial.ended) == ("pending", None, None, None)
    assert crash(crash(trial)).status == "pending"
    assert crash(crash(crash(trial))).status == "failed"
    assert len(crash(trial).history) == 4
    stop = StopEarly(worker="w1", attempt=1, metrics={"loss": 2.0}, predicted={"loss": 1.0})
    again = apply(apply(running(), stop, 300.0), Retry(by="me"), 301.0)
    assert (again.metrics, again.predicted) == ({}, {})


def test_the_last_attempt_says_who_had_it_tried_again():
    trial = apply(crash(crash(crash(pending()))), Retry(by="me"), 10.0)
    details = [attempt.detail for attempt in trial.history]
    assert details[2] == f"{details[1]}; tried again by me"
    assert details[0] == details[1]
    assert apply(apply(pending(), Abandon(by="you"), 1.0), Retry(by="me"), 2.0).history == ()


@pytest.mark.parametrize("trial", [pending(), running(), completed()], ids=lambda trial: trial.status)
def test_only_what_ended_badly_can_be_tried_again(trial):
    with pytest.raises(IllegalTransition, match="tried again"):
        apply(trial, Retry(by="me"), 1.0)


def test_an_early_stop_keeps_its_reason():
    predicted = {"loss": 1.0, "loss_sem": 0.1}
    stop = StopEarly(worker="w1", attempt=1, metrics={}, predicted=predicted, detail="worse than half")
    trial = apply(running(), stop, 210.0)
    assert (trial.status, trial.history[-1].detail) == ("early_stopped", "worse than half")
    assert trial.predicted == predicted


def test_abandoning_ends_a_pending_and_a_running_trial():
    assert apply(pending(), Abandon(by="me"), 1.0).status == "abandoned"
    trial = apply(running(), Abandon(by="me"), 210.0)
    assert (trial.status, trial.worker, trial.history[-1].reason) == ("abandoned", None, "abandoned")


KEY, OTHER = "a" * 64, "b" * 64
STAGES = (
    StageRun(name="one", key=KEY, cost=2.0, snapshot=True, seconds=9.0),
    StageRun(name="two", key=OTHER, cost=1.0, snapshot=True),
    StageRun(name="three", key="", cost=1.0),
)
POINTS = (
    StageRun(name="three", key="d" * 64, cost=0.5, step=7, snapshot=True),
    StageRun(name="three", key="e" * 64, cost=0.2, step=3),
)


def test_the_next_attempt_begins_with_what_is_stored():
    trial = apply(running(), Heartbeat(worker="w1", attempt=1, stages=STAGES, points=POINTS), 210.0)
    trial = apply(trial, Heartbeat(worker="w1", attempt=1), 220.0)
    assert (trial.stages, trial.points) == (STAGES, POINTS)
    trial = apply(apply(trial, Release(worker="w1", attempt=1), 230.0), Claim(worker="w2"), 240.0)
    assert (trial.stages, trial.points) == (STAGES[:2], POINTS[:1])


@pytest.mark.parametrize(
    "end",
    [
        Complete(worker="w1", attempt=1, metrics={"loss": 1.5}, stages=STAGES),
        StopEarly(worker="w1", attempt=1, metrics={}, stages=STAGES),
        Abandon(by="me"),
        Fail(worker="w1", attempt=1, error="x", failure="diverged"),
        Release(worker="w1", attempt=1),
    ],
    ids=lambda event: type(event).__name__,
)
def test_forget_changes_only_the_stored_flag(end):
    trial = apply(running(), Heartbeat(worker="w1", attempt=1, stages=STAGES, points=POINTS), 210.0)
    before = apply(trial, end, 300.0)
    after = apply(before, Forget(key=KEY), 900.0)
    assert after == replace(before, stages=(replace(STAGES[0], snapshot=False), *STAGES[1:]))
    point = (replace(POINTS[0], snapshot=False), POINTS[1])
    assert apply(before, Forget(key=POINTS[0].key), 900.0) == replace(before, points=point)
    with pytest.raises(IllegalTransition, match="aaaaaaaaaaaa"):
        apply(after, Forget(key=KEY), 901.0)


def test_a_running_trials_snapshots_are_its_workers():
    trial = apply(running(), Heartbeat(worker="w1", attempt=1, stages=STAGES), 210.0)
    with pytest.raises(IllegalTransition, match="still reports"):
        apply(trial, Forget(key=KEY), 220.0)


@pytest.mark.parametrize("key", ["c" * 64, ""])
def test_a_key_that_the_trial_did_not_publish_is_refused(key):
    trial = apply(running(), Complete(worker="w1", attempt=1, metrics={}, stages=STAGES), 300.0)
    with pytest.raises(IllegalTransition, match="no stored snapshot"):
        apply(trial, Forget(key=key), 301.0)


class TrialMachine(RuleBasedStateMachine):
    """Several workers, each acting on its own, possibly stale, idea of who it is; the clock jumps."""

    workers = st.sampled_from(["w1", "w2", "w3"])

    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        self.trial = pending()
        self.accepted: list[Complete | Fail] = []

    def _try(self, event) -> None:
        before = self.trial
        try:
            self.trial = apply(before, event, self.now)
        except IllegalTransition:
            self.trial = before
        else:
            if isinstance(event, Complete | Fail) and self.trial is not before and self.trial.finished:
                self.accepted.append(event)
            if isinstance(event, Retry):
                self.accepted.clear()

    @rule(seconds=st.floats(0, 60))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule(worker=workers)
    def claim(self, worker: str) -> None:
        self._try(Claim(worker=worker))

    @rule(worker=workers, attempt=st.integers(0, 4))
    def beat(self, worker: str, attempt: int) -> None:
        self._try(Heartbeat(worker=worker, attempt=attempt, progress={"step": self.now}, stages=STAGES))

    @precondition(lambda self: self.trial.attempt > 0)
    @rule(worker=workers, behind=st.integers(0, 2), loss=st.sampled_from([1.0, 2.0]))
    def complete(self, worker: str, behind: int, loss: float) -> None:
        self._try(Complete(worker=worker, attempt=self.trial.attempt - behind, metrics={"loss": loss}))

    @precondition(lambda self: self.trial.attempt > 0)
    @rule(worker=workers, behind=st.integers(0, 2), failure=st.sampled_from(["diverged", "crashed"]))
    def fail(self, worker: str, behind: int, failure: str) -> None:
        self._try(
            Fail(
                worker=worker, attempt=self.trial.attempt - behind, error="e", failure=failure, max_attempts=3
            )
        )

    @rule(worker=workers, attempt=st.integers(0, 4), max_attempts=st.sampled_from([None, 3]))
    def release(self, worker: str, attempt: int, max_attempts: int | None) -> None:
        self._try(Release(worker=worker, attempt=attempt, max_attempts=max_attempts))

    @rule()
    def expire(self) -> None:
        self._try(EXPIRE)

    @rule()
    def retry(self) -> None:
        self._try(Retry(by="me"))

    @rule(key=st.sampled_from([KEY, OTHER]))
    def forget(self, key: str) -> None:
        self._try(Forget(key=key))

    @invariant()
    def a_failure_has_a_kind_and_nothing_else_has(self) -> None:
        assert (self.trial.failure is not None) == (self.trial.status == "failed")

    @invariant()
    def at_most_one_report_was_accepted(self) -> None:
        assert len(self.accepted) <= 1

    @invariant()
    def what_was_accepted_is_what_stands(self) -> None:
        if self.accepted and isinstance(self.accepted[0], Complete):
            assert self.trial.status == "completed"
            assert dict(self.trial.metrics) == dict(self.accepted[0].metrics)

    @invariant()
    def only_a_running_trial_has_a_worker(self) -> None:
        assert (self.trial.worker is not None) == (self.trial.status == "running")

    @invariant()
    def every_claim_is_in_the_history_or_running(self) -> None:
        attempts = [attempt.attempt for attempt in self.trial.history]
        assert attempts == list(range(1, len(attempts) + 1))
        assert self.trial.attempt == len(attempts) + (self.trial.status == "running")

    @invariant()
    def nobody_is_handed_a_trial_that_was_lost_too_often(self) -> None:
        lost = [
            attempt
            for attempt in self.trial.history[self.trial.forgiven :]
            if attempt.reason in ("expired", "crashed", "given_up")
        ]
        assert len(lost) <= 3
        assert len(lost) < 3 or self.trial.finished

    @invariant()
    def identity_never_changes(self) -> None:
        assert (self.trial.trial, self.trial.parameters, self.trial.generator) == (7, {"x": 1.0}, "sobol")

    @invariant()
    def the_record_survives_storage(self) -> None:
        assert decode(encode(self.trial, "t")).status == self.trial.status
        assert self.trial.finished == (self.trial.status in FINISHED)


TestTrialMachine = TrialMachine.TestCase
TestTrialMachine.settings = settings(
    max_examples=2 * settings.default.max_examples, stateful_step_count=30, deadline=None
)
