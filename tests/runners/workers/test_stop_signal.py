"""Signals that end a pool, and the one that `nohup` has ignored."""

from __future__ import annotations

import signal

import pytest

from runners.workers.signals import StopSignal

pytestmark = pytest.mark.usefixtures("keep_signals")


def test_a_pool_under_nohup_outlives_its_terminal():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stop = StopSignal()
    stop.listen()
    signal.raise_signal(signal.SIGHUP)
    assert (stop.by, signal.getsignal(signal.SIGHUP)) == ("", signal.SIG_IGN)
    signal.raise_signal(signal.SIGTERM)
    assert stop.by == "SIGTERM"


def test_a_terminal_that_is_closed_ends_its_pool():
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    stop = StopSignal()
    stop.listen()
    signal.raise_signal(signal.SIGHUP)
    assert stop.by == "SIGHUP"
