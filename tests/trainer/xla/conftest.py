"""The XLA device, opened once: on XLA's own CPU, unless PJRT_DEVICE names another."""

from __future__ import annotations

import os

import pytest

from trainer.devices.environment import before_torch

# Read when torch_xla is loaded. LLVM takes ten times as long as the tests do to make their small graphs fast.
os.environ.setdefault("PJRT_DEVICE", "CPU")
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)
before_torch()


@pytest.fixture(scope="session", autouse=True)
def _xla_comes_first() -> None:
    """Before the first backward pass of the process: autograd counts the devices then, and never again."""
    import torch_xla

    torch_xla.device()
