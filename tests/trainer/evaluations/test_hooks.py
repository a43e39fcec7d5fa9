"""Evaluation hooks: their numbers, their failures, their time, and what is refused before training."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer.api import check
from trainer.errors import ConfigError, PreemptedError
from trainer.evaluations import hooks
from trainer.evaluations.lm_eval import scores
from trainer.training.preemption import StopSignal

HOOKS = """
import time

def exam(student):
    return {"points": 3, "share": 0.5}

def broken(student):
    raise ValueError("no\\npoints")

def words(student):
    return {"grade": "A"}

def endless(student):
    while True:
        try:
            time.sleep(60)
        except Exception:
            pass

def nothing(student):
    return None

picky = lambda student: {}
def _refuse(config):
    from trainer.errors import ConfigError
    raise ConfigError("not today", key="hooks.names")
picky.check = _refuse
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with hooks, in the working directory."""
    name = f"exams_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(HOOKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def called(module: str, *names: str, timeout: float = 60.0) -> hooks.Scored:
    listed = ",".join(f"'{module}:{name}'" for name in names)
    student: Any = SimpleNamespace(config=check([f"hooks.names=[{listed}]", f"hooks.timeout_s={timeout}"]))
    return hooks.run(student)


def test_numbers_are_metrics_with_the_functions_name(module: str) -> None:
    found = called(module, "exam")
    assert (found.metrics, found.failed) == ({"exam_points": 3.0, "exam_share": 0.5}, {})


def test_folder_is_first_while_a_hook_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial's trainer starts without it; afterwards its files come after every package."""
    name, elsewhere = f"hook_{tmp_path.name.replace('-', '_')}", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / f"{name}.py").write_text("raise RuntimeError('installed')\n")
    (tmp_path / f"{name}.py").write_text("def exam(student): return {'points': 1}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(elsewhere)
    assert called(name, "exam").metrics == {"exam_points": 1.0}
    assert (sys.path[0], sys.path[-1]) == (str(elsewhere), str(tmp_path))


def test_failing_hook_leaves_other_scores(module: str) -> None:
    found = called(module, "broken", "words", "nothing", "exam")
    assert set(found.metrics) == {"exam_points", "exam_share"}
    assert found.failed == {
        "broken": "ValueError: no points",
        "words": "TypeError: 'grade': 'A' is not a finite number with a name of letters and digits",
        "nothing": "TypeError: it returned NoneType, not numbers by name",
    }


def test_a_hook_that_does_not_end_is_ended(module: str) -> None:
    began = time.monotonic()
    found = called(module, "endless", "exam", timeout=0.3)
    assert time.monotonic() - began < 5
    assert found.failed == {"endless": "not done within hooks.timeout_s=0.3"}
    assert "exam_points" in found.metrics


def test_a_preemption_is_no_failure_of_a_hook(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def preempted(student: Any) -> dict[str, float]:
        raise PreemptedError(signal_name="SIGTERM")

    monkeypatch.setattr(f"{module}.exam", preempted)
    with pytest.raises(PreemptedError):
        called(module, "exam")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no_such_module:f", "'no_such_module:f'"),
        ("math:no_such_function", "'math:no_such_function'"),
        ("{module}:picky", "not today"),
    ],
)
def test_what_cannot_be_called_is_refused(module: str, name: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        hooks.check_hooks(check([f"hooks.names=['{name.format(module=module)}']"]))
    assert caught.value.key == "hooks.names"
    assert says in caught.value.problem


def test_hooks_of_shared_runs_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        check(["hooks.names=[cpp]", "device.parallel=fsdp"], processes=2)
    assert caught.value.key == "hooks.names"


def test_scores_of_the_harness_are_named_by_task_and_measure() -> None:
    results = {
        "arc_easy": {"alias": "arc_easy", "acc,none": 0.25, "acc_stderr,none": "N/A", "acc_norm,none": 0.5},
        "my-task": {"exact_match,strict-match": 1, "sample_len": 10, "nan,none": float("nan")},
    }
    assert scores(results) == {
        "arc_easy_acc": 0.25,
        "arc_easy_acc_norm": 0.5,
        "my_task_exact_match_strict_match": 1.0,
    }


def test_signals_are_handled_only_while_hooks_run() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    stop = StopSignal()
    stop.install()
    try:
        stop.ignore()
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(PreemptedError), stop.interrupting():
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
