"""Steps and lines for the tests of telemetry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from trainer.devices.device import Device
from trainer.telemetry.run import Telemetry
from trainer.training.loop import Step

CPU = Device(torch_device=torch.device("cpu"), dtype=torch.float32, name="CPU", attention="eager")


def step(index: int, of: int, **fields: Any) -> Step:
    """A step of 100 tokens in half a second."""
    known: dict[str, Any] = {
        "stage": "stage2",
        "losses": {"loss": 3.0},
        "lr": 0.001,
        "grad_norm": 1.0,
        "tokens": 100,
        "seconds": 0.5,
        "settings": {"lambda": 1.0},
    }
    return Step(step=index, of=of, **(known | fields))


def begun(telemetry: Telemetry, of: int, *, device: Device = CPU, flops_per_token: float = 0.0) -> None:
    """A run of one stage of so many steps begins it."""
    telemetry.plan(of)
    telemetry.begin("stage2", finished=0, weight=1, device=device, flops_per_token=flops_per_token)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
