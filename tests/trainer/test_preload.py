"""What a process imports before a sweep's worker forks trials from it: all that a run needs, and no device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from trainer import api, preload

IMPORT_AND_RUN = """
import os, sys
from trainer import preload

overrides = sys.argv[1:]
assert preload.preload([override for override in overrides if "max_steps" not in override]) == ""
import torch
print(torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork())
for number in range(2):  # the first run builds text, tokenizer and teacher
    sys.stdout.flush()
    if (pid := os.fork()) == 0:
        before = set(sys.modules)
        from trainer.__main__ import main
        assert main([*overrides, f"run_dir=run-{number}"]) == 0
        print(sorted({name for name in sys.modules.keys() - before if name.startswith("trainer")}))
        sys.stdout.flush()
        os._exit(0)
    print(len(os.listdir("/proc/self/task")), os.waitpid(pid, 0)[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has warm starts")
def test_preloaded_run_imports_nothing_more(tmp_path: Path, small: tuple[str, ...]) -> None:
    environment = dict(os.environ, PYTHONPATH=str(Path(api.__file__).parents[1]))
    environment.pop("OMP_NUM_THREADS", None)  # OpenBLAS starts a thread, and ends it before a fork
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_AND_RUN, *small],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "False False"
    assert lines.count("1 0") == 2, done.stderr
    assert lines[-2:] == ["['trainer.__main__']", "1 0"]


def test_incomplete_overrides_can_be_preloaded() -> None:
    assert preload.preload(["model=tiny", "stage2.max_steps=6"]) == ""  # shorter than lambda's warmup


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (["device=xla"], "torch_xla"),
        (["model=hf", "model.name=./nothing"], "there is no folder './nothing'"),
    ],
    ids=["xla", "model"],
)
def test_what_each_run_would_refuse_is_the_reason(monkeypatch, overrides: list[str], why: str) -> None:
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    monkeypatch.setattr("trainer.distributed.tpu_host.find_spec", lambda name: None)
    assert why in preload.preload(overrides)


def test_runs_on_xla_start_by_themselves(monkeypatch) -> None:
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    monkeypatch.setattr("trainer.distributed.tpu_host.find_spec", lambda name: "torch_xla is here")
    assert preload.preload(["device=xla"]) == "XLA's devices do not survive a fork"
    assert preload.must_start_cold(["device=xla"])
    assert not preload.must_start_cold(["device=cpu"])


@pytest.mark.parametrize("function", ["is_initialized", "_is_in_bad_fork"])
def test_opened_cuda_device_forces_a_cold_start(monkeypatch, function: str) -> None:
    assert not preload.must_start_cold([])
    monkeypatch.setattr(torch.cuda, function, lambda: True)
    assert preload.must_start_cold([])
    assert preload.preload([]) == "one of its imports opens a CUDA device"


def test_a_run_that_is_refused_reports_that_itself() -> None:
    assert not preload.must_start_cold(["stage2.max_stps=3"])


def test_the_configurations_files_are_known() -> None:
    names = {file.name for file in preload.data_files()}
    assert {"config.yaml", "tiny.yaml"} <= names
