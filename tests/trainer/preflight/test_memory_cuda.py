"""Estimated memory against what torch's allocator gave out at most on a CUDA device, over real stages."""

from __future__ import annotations

import pytest
import torch
from test_memory import NO_WARMUP, ONLY, SHAPE, build_teacher, train_stage

from trainer.api import check
from trainer.devices.device import Device, open_device
from trainer.preflight.memory import stage_memory, stages
from trainer.preflight.trace import blueprint

LARGER = (
    "model.layers=6", "model.hidden_size=512", "model.intermediate_size=1536", "model.heads=8",
    "data.vocab_size=16384", "data.sequence_length=512", "stage1_9.batch_size=8", "stage2.batch_size=8",
    "device=cuda", "device.compile=false",
)  # fmt: skip


def multiply_once(device: Device) -> None:
    """Have cuBLAS allocate its workspaces, one for each thread: they stay, and are no tensors of a stage."""
    layer = torch.nn.Linear(8, 8, device=device.torch_device)
    layer(torch.ones(8, 8, device=device.torch_device)).sum().backward()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "case", ["stage1_9", "stage1_9 device.recompute=true", "stage2", "stage2 stage2.micro_batch_size=2"]
)
def test_estimate_is_within_20_percent_of_the_device(case: str, dtype: str) -> None:
    stage, *more = case.split()
    config = check([*SHAPE, *ONLY[stage], *NO_WARMUP, *LARGER, f"device.dtype={dtype}", *more])
    device = open_device(config.device)
    plan = blueprint(config, device)
    ((name, of_stage),) = stages(config)
    estimate = stage_memory(config, name, of_stage, plan, device)
    multiply_once(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    train_stage(config, plan, device, build_teacher(plan, device))
    measured = torch.cuda.max_memory_allocated() - before
    assert estimate.peak == pytest.approx(measured, rel=0.2)
