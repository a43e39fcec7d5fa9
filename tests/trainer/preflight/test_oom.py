"""Memory that runs out is told as such, with the estimate beside it, in words that a sweep knows."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from sweeps.programs.result import OUT_OF_MEMORY
from trainer.config.compose import compose_config
from trainer.devices.device import open_device
from trainer.errors import DivergedError, OutOfMemory
from trainer.preflight import oom, preflight
from trainer.preflight.memory import StageMemory

GIB = 2**30


@pytest.fixture
def estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = StageMemory(name="stage2", micro_batch=8, weights=0, gradients=0, optimizer=0, peak=3 * GIB)
    monkeypatch.setattr(preflight, "stage_memory", lambda *_, **__: memory)
    monkeypatch.setattr(
        preflight, "evaluation_memory", lambda *_: dataclasses.replace(memory, name="evaluation")
    )


@pytest.mark.usefixtures("estimate")
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore"),
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError(
            "Bad StatusOr access: RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 2.50G."
        ),
    ],
    ids=["cuda", "python", "cpu", "cublas", "xla"],
)
def test_running_out_is_told_with_the_estimate(error: Exception, small: tuple[str, ...]) -> None:
    config = compose_config([*small, "stage1_9.max_steps=0"])
    with pytest.raises(OutOfMemory) as raised, oom.explain_errors(config, open_device(config.device)):
        raise error
    text = str(raised.value)
    assert text.startswith("out of memory (")
    assert "3.00 GiB in stage2 (8 sequences at once), 3.00 GiB in evaluation" in text
    assert "write a smaller micro_batch_size" in text
    assert "\n" not in text
    assert OUT_OF_MEMORY.search(f"trainer: error: {text}")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("shapes differ"),
        DivergedError(quantity="loss", value=float("nan"), stage="stage2", step=1),
    ],
    ids=["of the program", "of the run"],
)
def test_other_errors_stay_what_they_are(error: Exception, small: tuple[str, ...]) -> None:
    config = compose_config(small)
    with pytest.raises(type(error)) as raised, oom.explain_errors(config, open_device(config.device)):
        raise error
    assert raised.value is error
