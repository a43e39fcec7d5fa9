"""A worker that is told to go: the same notice twice is one, a second notice is no time left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from sweeps.worker import signals as stopping

TOLD = """
import os, signal, sys, time
from sweeps.worker import signals as stopping
stopping.ECHO_S = float(sys.argv[1])
stop = stopping.Stop()
stop.listen()
for name in sys.argv[2:]:
    os.kill(os.getpid(), signal.Signals[name])
print(stop.by, flush=True)
"""

LEFT = "sweep: told twice: left at once; a trial in hand goes on elsewhere when its lease has run out\n"


@pytest.mark.parametrize(
    ("window", "signals", "status", "said", "left"),
    [
        pytest.param("60", ["SIGTERM", "SIGTERM"], 0, "SIGTERM\n", "", id="one notice through two ways"),
        pytest.param("0", ["SIGTERM", "SIGTERM"], 75, "", LEFT, id="again, later"),
        pytest.param("60", ["SIGINT", "SIGINT"], 75, "", LEFT, id="Ctrl-C twice is a person"),
    ],
)
def test_the_same_notice_twice_is_one(window, signals, status, said, left):
    assert stopping.ECHO_S < 30.0  # the shortest notice that a machine gets
    ran = subprocess.run(
        [sys.executable, "-c", TOLD, window, *signals],
        capture_output=True,
        text=True,
        env=os.environ,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (status, said, left)


def test_the_handlers_are_left_alone_until_it_listens():
    before = signal.getsignal(signal.SIGTERM)
    assert not stopping.Stop().requested
    assert signal.getsignal(signal.SIGTERM) is before
