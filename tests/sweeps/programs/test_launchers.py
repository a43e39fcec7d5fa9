"""Programs behind torchrun and `accelerate launch`: what they exit with and say, in place of the launcher."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sweeps.programs.kinds import program_of
from sweeps.programs.result import Failed, Preempted
from sweeps.programs.signals import Stop
from sweeps.space.definition import Program
from sweeps.trials.record import Trial

RECORD = Trial(
    trial=4, status="running", parameters={"x": 0.5, "n": 10}, generator="sobol", attempt=1, worker="w", heartbeat=1.0
)  # fmt: skip
SCRIPT = """
import os, signal, sys, time
if os.environ.get("LOCAL_RANK", "1") == "1":
    {}
time.sleep(60)  # until the launcher ends this process, too
"""
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
ACCELERATE = (
    *(sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes=1", "--num_machines=1"),
    *("--mixed_precision=no", "--dynamo_backend=no"),
)


REPORTED = {
    "torchrun": """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 6, in <module>
[rank1]: RuntimeError: [gloo/pair.cc:547] Connection closed by peer [127.0.0.1]:44096
W1128 20:33:19.144000 14003 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 14057 closing signal SIGTERM
E1128 20:33:19.145000 14003 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 14058) of binary: python3
Traceback (most recent call last):
  File "bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
=======================================================
train.py FAILED
-------------------------------------------------------
Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 14057)  (SIGTERM)
-------------------------------------------------------
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 14058)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 14058
=======================================================
""",
    "accelerate": """\
Traceback (most recent call last):
  File "train.py", line 6, in <module>
RuntimeError: [gloo/pair.cc:547] Connection closed by peer [127.0.0.1]:44096
Traceback (most recent call last):
  File "bin/accelerate", line 8, in <module>
    sys.exit(main())
  File "accelerate/commands/launch.py", line 999, in simple_launcher
    raise subprocess.CalledProcessError(returncode=process.returncode, cmd=cmd)
subprocess.CalledProcessError: Command '['python3', 'train.py']' died with <Signals.SIGKILL: 9>.
""",
}
"""As torch 2.13 and accelerate 1.15 have printed them, abridged."""


@pytest.mark.parametrize("launcher", REPORTED)
def test_report_of_a_launcher_is_read(space, tmp_path, launcher):
    (tmp_path / "report").write_text(REPORTED[launcher], encoding="utf-8")
    outcome = run(space, tmp_path, ("sh", "-c", f"cat {tmp_path}/report; exit 1"), "pass")
    assert isinstance(outcome, Failed)
    message, *rest = outcome.error.splitlines()
    assert message == (
        "the program killed by SIGKILL, most likely for want of memory; its last words: RuntimeError: "
        "[gloo/pair.cc:547] Connection closed by peer [127.0.0.1]:44096"
    )
    assert rest[0] == "Traceback (most recent call last):"
    assert (outcome.failure, outcome.retryable) == ("out_of_memory", True)


@pytest.mark.slow  # each starts three Pythons with torch
@pytest.mark.parametrize("launcher", [TORCHRUN, ACCELERATE], ids=["torchrun", "accelerate"])
@pytest.mark.parametrize(
    ("statement", "failure", "retryable", "first_line"),
    [
        (
            "raise ValueError('lr is too large')",
            *("crashed", False),
            "the program exited with status 1; its last words: ValueError: lr is too large",
        ),
        (
            "print('lost its peer'); os.kill(os.getpid(), signal.SIGSEGV)",
            *("crashed", True),
            "the program killed by SIGSEGV",
        ),
        ("print('loss is nan'); sys.exit(70)", "diverged", False, "diverged: loss is nan"),
    ],
    ids=["raises", "killed", "diverged"],
)
def test_failure_is_the_programs_own(space, tmp_path, launcher, statement, failure, retryable, first_line):
    outcome = run(space, tmp_path, launcher, statement)
    assert isinstance(outcome, Failed)
    assert outcome.error.partition("\n")[0].startswith(first_line)
    assert (outcome.failure, outcome.retryable) == (failure, retryable)


@pytest.mark.slow
def test_preempted_process_is_handed_back(space, tmp_path):
    assert run(space, tmp_path, TORCHRUN, "sys.exit(75)") == Preempted(
        detail="the program exited with status 75"
    )


def run(space, tmp_path: Path, launcher: tuple[str, ...], statement: str):
    script, folder = tmp_path / "train.py", tmp_path / "run"
    script.write_text(SCRIPT.format(statement), encoding="utf-8")
    folder.mkdir()
    launched = replace(space, program=Program(kind="command", command=(*launcher, str(script))))
    return program_of(launched).run(RECORD, folder, stop=Stop(), wants_stop=lambda: False)
