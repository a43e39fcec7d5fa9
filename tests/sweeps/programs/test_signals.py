"""Stop signals of a worker: an echo of the same notice is ignored, a second notice exits immediately."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys

import pytest

from sweeps.programs import signals

PROGRAM = """
import os, signal, sys, time
from sweeps.programs import signals
signals.ECHO_S = float(sys.argv[1])
stop = signals.Stop()
stop.listen()
for name in sys.argv[2:]:
    os.kill(os.getpid(), signal.Signals[name])
print(stop.by, flush=True)
"""

EXITING = "sweep: second signal: exiting immediately; a trial in hand is resumed once its lease has expired\n"


@pytest.mark.parametrize(
    ("window", "sent", "status", "stdout", "stderr"),
    [
        pytest.param("60", ["SIGTERM", "SIGTERM"], 0, "SIGTERM\n", "", id="one notice by two paths"),
        pytest.param("0", ["SIGTERM", "SIGTERM"], 75, "", EXITING, id="again, later"),
        pytest.param("60", ["SIGINT", "SIGINT"], 75, "", EXITING, id="Ctrl-C twice is a person"),
    ],
)
def test_the_same_notice_twice_is_one(window, sent, status, stdout, stderr):
    assert signals.ECHO_S < 30.0  # the shortest notice that a machine gets
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, window, *sent],
        capture_output=True,
        text=True,
        env=os.environ,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (status, stdout, stderr)


def test_the_handlers_are_left_alone_until_it_listens():
    before = signal.getsignal(signal.SIGTERM)
    assert not signals.Stop().requested
    assert signal.getsignal(signal.SIGTERM) is before


def test_ctrl_c_in_a_terminal_is_answered_at_once():
    terminal, side = pty.openpty()
    try:
        command = [sys.executable, "-c", PROGRAM, "60", "SIGINT"]
        ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=side, check=False, timeout=60)
        assert (ran.returncode, ran.stdout) == (0, b"SIGINT\n")
        assert b"Ctrl-C again exits at once" in os.read(terminal, 1000)
    finally:
        os.close(side)
        os.close(terminal)
