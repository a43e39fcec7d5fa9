"""The process's settings: an allocator that does not hand a step's memory back and forth."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest
import torch

from trainer.devices.environment import before_torch

FAULTS = """
import resource, sys
import numpy as np
from trainer.devices.environment import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()

def allocate():
    blocks = [np.ones(3 * 2**20) for _ in range(5)]  # 24 MiB each, 120 MiB together

allocate()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
allocate()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_reused_memory_costs_no_page_faults() -> None:
    faults = {
        how: int(subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, check=True).stdout)
        for how in ("leave", "keep")
    }
    assert faults["keep"] < min(100, faults["leave"] / 2)  # huge pages make few faults of many


CONVOLUTION = """
from trainer.devices.environment import before_torch

before_torch()

import torch

inputs, kernel = torch.ones(2, 8, 4, 4), torch.ones(8, 8, 1, 1)
torch.mkldnn_convolution(inputs, kernel, None, (0, 0), (1, 1), (1, 1), 1)
"""


@pytest.mark.slow
@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")
def test_onednn_computes_float32_in_float32() -> None:
    """By what oneDNN itself logs of each operation: on most processors the numbers do not show it."""
    asked = dict.fromkeys(["ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"], "BF16")

    def logged(program: str) -> str:
        environment = {**os.environ, **asked, "ONEDNN_VERBOSE": "1"}
        return subprocess.run(
            [sys.executable, "-c", program], capture_output=True, check=True, env=environment, text=True
        ).stdout

    assert "attr-fpmath:bf16" in logged(CONVOLUTION.replace("before_torch()", ""))
    strict = logged(CONVOLUTION)
    assert "exec,cpu,convolution" in strict
    assert "attr-fpmath" not in strict


def test_learning_rates_are_not_constants_of_xla_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless somebody says otherwise: torch_xla would build 0 and 1 into them, and compile each anew."""
    monkeypatch.delenv("XLA_NO_SPECIAL_SCALARS", raising=False)
    before_torch()
    assert os.environ["XLA_NO_SPECIAL_SCALARS"] == "1"
    monkeypatch.setenv("XLA_NO_SPECIAL_SCALARS", "0")
    before_torch()
    assert os.environ["XLA_NO_SPECIAL_SCALARS"] == "0"
