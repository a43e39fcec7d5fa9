"""Estimate of a clock from dates in whole seconds."""

from __future__ import annotations

import random
from email.utils import formatdate

import pytest

from sweeps.storage.clock import ServerClock, steady_seconds

OFFSET = 1_700_000_000.4  # what the server's clock shows when the local one shows 0


class Local:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def local() -> Local:
    return Local()


@pytest.fixture
def clock(local: Local) -> ServerClock:
    return ServerClock(local)


def respond(
    clock: ServerClock, local: Local, *, there: float = 0.02, back: float = 0.02, offset: float = OFFSET
):
    """One request that takes `there + back` seconds; the server stamps it in between."""
    sent = local.seconds
    local.seconds += there
    date = formatdate(local.seconds + offset, usegmt=True)
    local.seconds += back
    clock.observe(date, sent, local.seconds)


def test_before_the_first_response_there_is_no_time(clock):
    assert clock.age() == float("inf")
    with pytest.raises(RuntimeError, match="no response"):
        clock.now()


def test_one_response_gives_the_time_to_half_a_second(clock, local):
    respond(clock, local, there=0.1, back=0.3)
    assert abs(clock.now() - (local.seconds + OFFSET)) <= 0.5 + 0.4


def test_many_responses_tell_it_far_better_than_a_second(clock, local):
    draw = random.Random(1)
    for _ in range(60):
        respond(clock, local, there=draw.uniform(0.005, 0.04), back=draw.uniform(0.005, 0.04))
        local.seconds += draw.uniform(0.1, 1.7)
    assert abs(clock.now() - (local.seconds + OFFSET)) < 0.1


def test_it_never_steps_back_while_the_estimate_settles(clock, local):
    draw = random.Random(2)
    estimates = []
    for _ in range(200):
        respond(clock, local, there=draw.uniform(0, 0.8), back=draw.uniform(0, 0.8))
        estimates.append(clock.now())
    assert estimates == sorted(estimates)


def test_a_slow_local_clock_is_corrected(clock, local):
    for step in range(2000):  # 100 ppm slow, over two hours
        respond(clock, local, offset=OFFSET + step * 4 * 1e-4)
        local.seconds += 4.0
    assert abs(clock.now() - (local.seconds + OFFSET + 0.8)) < 0.6


def test_paused_machine_lags_and_never_leads(clock, local):
    respond(clock, local)
    before = clock.now()
    assert clock.now() <= before + 3600  # an hour passed that the local clock did not count
    respond(clock, local, offset=OFFSET + 3600)
    assert abs(clock.now() - (local.seconds + OFFSET + 3600)) <= 0.6


@pytest.mark.parametrize("step", [-3600.0, -30.0, 45.0], ids=["hour-back", "half-minute-back", "ahead"])
def test_a_server_clock_that_was_set_is_followed(clock, local, step):
    respond(clock, local)
    clock.now()
    respond(clock, local, offset=OFFSET + step)
    assert abs(clock.now() - (local.seconds + OFFSET + step)) <= 0.6


@pytest.mark.parametrize("date", [None, "", "yesterday", "Fri, 99 Foo 2026 25:00:00 GMT"])
def test_a_date_that_is_none_is_ignored(clock, local, date):
    respond(clock, local)
    before = clock.now()
    clock.observe(date, local.seconds, local.seconds)
    assert clock.now() == before


def test_the_local_clock_runs():
    assert steady_seconds() <= steady_seconds()
