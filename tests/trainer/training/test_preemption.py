"""A signal while the trainer is loading, where libraries wrap exceptions raised amid imports, or while it ends."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from trainer import api
from trainer.errors import EXIT_PREEMPTED, DivergedError, PreemptedError
from trainer.training.preemption import StopSignal, closing_device

# A library in the way of an import, which is told to stop while it loads and wraps whatever it sees.
SLOW_LIBRARY = """
import importlib.abc, os, signal, sys

class Signalled(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == WHERE:
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                for _ in range(1000): pass
            except Exception as error:
                raise RuntimeError("failed to import") from error
        return None

sys.meta_path.insert(0, Signalled())
from trainer.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


class Closing:
    """A device that calls `then` when it is closed."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.then: Callable[[], object] = lambda: None

    def close(self, within_s: float) -> None:
        self.seconds.append(within_s)
        self.then()


def start(where: str, *overrides: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, PYTHONPATH=str(Path(api.__file__).parents[1]))
    return subprocess.run(
        [sys.executable, "-c", f"WHERE = {where!r}\n{SLOW_LIBRARY}", *overrides],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "where",
    [
        "hydra",
        pytest.param("torch", marks=pytest.mark.slow),
        pytest.param("transformers.models.llama.modeling_llama", marks=pytest.mark.slow),
        pytest.param("trainer.telemetry.wandb_run", marks=pytest.mark.slow),
    ],
)
def test_a_signal_during_an_import_ends_with_75_and_one_line(
    where: str, small: tuple[str, ...], tmp_path: Path
) -> None:
    done = start(where, *small, "run_dir=run", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (75, "trainer: stopped by SIGTERM after loading\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_signal_while_wandb_starts_ends_with_75(small: tuple[str, ...], tmp_path: Path) -> None:
    done = start("wandb", *small, "wandb.mode=offline", "run_dir=run", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (75, "trainer: stopped by SIGTERM after loading\n")


@pytest.mark.slow
def test_a_signal_in_a_library_that_wraps_it_ends_with_75(small: tuple[str, ...], tmp_path: Path) -> None:
    """Outside of `hold`, too: tokenizers are imported only where a text is not cached yet."""
    where = "transformers.models.auto.tokenization_auto"
    done = start(where, *small, "data.vocab_size=303", "run_dir=run", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (75, "trainer: stopped by SIGTERM\n")


PATIENT = """
import time
from trainer.training.preemption import StopSignal

stop = StopSignal()
stop.install()
with stop.hold("step 1"):
    print("now", flush=True)
    end = time.monotonic() + float(SECONDS)
    while time.monotonic() < end:
        time.sleep(0.01)
    print("done", flush=True)
"""


@pytest.mark.parametrize(("pause", "seconds"), [(1.1, 60), (0.0, 2)], ids=["a second signal", "its echo"])
def test_second_signal_ends_at_once_but_no_echo(pause: float, seconds: float) -> None:
    """A signal to a job reaches the trainer twice, the second time through its worker."""
    process = subprocess.Popen(
        [sys.executable, "-c", PATIENT.replace("SECONDS", repr(seconds))],
        env=dict(os.environ, PYTHONPATH=str(Path(api.__file__).parents[1])),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "now\n"
    process.send_signal(signal.SIGTERM)
    time.sleep(pause)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=100)
    assert (process.returncode == 75, output) == ((True, "") if pause else (False, "done\n"))


@pytest.fixture
def stop():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    stop = StopSignal()
    stop.install()
    yield stop
    for number, handler in before.items():
        signal.signal(number, handler)


def test_what_a_library_made_of_a_signal_comes_out_as_the_signal(stop: StopSignal) -> None:
    def library() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except Exception as error:
            raise RuntimeError("failed to import") from error

    with pytest.raises(PreemptedError, match=r"stopped by SIGTERM$"), stop.unwrapped():
        library()


def test_error_of_a_signalled_step_is_raised(stop: StopSignal) -> None:
    def step() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"), stop.unwrapped(), stop.hold("step 1"):
        step()


def test_processes_end_at_the_same_hold(stop: StopSignal) -> None:
    asked: list[bool] = []

    def any_of_all(flag: bool) -> bool:
        asked.append(flag)
        return flag

    stop.share(any_of_all)
    with stop.hold("step 1"), stop.hold("its middle"):
        pass
    os.kill(os.getpid(), signal.SIGTERM)  # between two holds: noted, not raised
    with pytest.raises(PreemptedError, match="SIGTERM after step 2"), stop.together("step 2"):
        pass
    assert asked == [False, True]


def test_a_process_ends_with_the_one_that_received_a_signal(stop: StopSignal) -> None:
    stop.share(lambda flag: True)
    with pytest.raises(PreemptedError, match="after step 1"), stop.hold("step 1"):
        pass


def test_a_process_that_has_left_the_others_ends_by_itself(stop: StopSignal) -> None:
    stop.share(lambda flag: pytest.fail("the others are gone"))
    stop.ignore()
    stop.unshare()
    with pytest.raises(PreemptedError, match="SIGTERM"), stop.interrupting():
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_after_the_last_step_of_all_processes_is_raised_where_one_goes_on(stop: StopSignal) -> None:
    stop.share(lambda flag: flag)
    os.kill(os.getpid(), signal.SIGTERM)
    stop.ignore()
    stop.unshare()
    with pytest.raises(PreemptedError, match="SIGTERM"), stop.interrupting():
        pytest.fail("a hook may take hours")


@pytest.mark.parametrize(
    ("ending", "seconds"),
    [(None, 20.0), (DivergedError(quantity="loss", value=math.nan, stage="stage2", step=1), 10.0)],
)
def test_device_is_closed_however_a_run_ends(
    ending: Exception | None, seconds: float, stop: StopSignal
) -> None:
    """What a run has come to (here: that it diverged) is not taken back by a signal that comes later."""
    device = Closing()
    device.then = lambda: os.kill(os.getpid(), signal.SIGTERM)
    with contextlib.suppress(DivergedError), closing_device(cast(Any, device), stop):
        if ending:
            raise ending
    assert device.seconds == [seconds]
    assert not stop.received


def test_preempted_run_closes_its_device_quickly(stop: StopSignal, monkeypatch: pytest.MonkeyPatch) -> None:
    device, left = Closing(), list[int]()
    monkeypatch.setattr("trainer.training.preemption.ECHO_S", 0.0)
    monkeypatch.setattr("trainer.training.preemption.os._exit", left.append)
    device.then = lambda: os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(PreemptedError), closing_device(cast(Any, device), stop):
        os.kill(os.getpid(), signal.SIGTERM)
    assert device.seconds == [10.0]
    assert left == [EXIT_PREEMPTED]
