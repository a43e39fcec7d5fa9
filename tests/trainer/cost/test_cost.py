"""Operations and dollars: the formulas against operations that torch counts, and rates against the table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from trainer import outcome
from trainer.cost import flops
from trainer.cost.flops import usd
from trainer.cost.peak_flops import peak_flops_per_second, peak_of
from trainer.devices.device import Device
from trainer.outcome import Outcome
from trainer.training.train_step import TrainStep

WITHIN = 1e-6
"""For a plain Llama with eager attention, every product of the formula is one that is made, and no other is."""
STAGE3 = ("stage3.max_steps=6", "stage3.batch_size=4", "stage3.schedule.warmup_steps=1")


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param((), id="both stages"),
        ("stage1_9.max_steps=0", "stage2.distill.weight=0.5"),
        ("stage1_9.max_steps=0", "stage2.max_steps=0", *STAGE3),
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in (
                ("stage1_9.max_steps=0",),
                ("stage2.max_steps=0",),
                ("stage2.max_steps=0", "stage1.keep_layers=1"),
                ("stage2.max_steps=0", "stage1_9.loss_type=kl"),
                ("stage2.micro_batch_size=2",),
            )
        ),
    ],
    ids=" ".join,
)
def test_train_flops_are_what_torch_counts(
    overrides: tuple[str, ...], run_small: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = 0
    accumulate = TrainStep.accumulate

    def counting(step: TrainStep, ids_BT: Tensor) -> dict[str, Tensor]:
        nonlocal counted
        if step.plan.name == "teacher":
            return accumulate(step, ids_BT)
        with FlopCounterMode(display=False) as counter:
            parts = accumulate(step, ids_BT)
        counted += counter.get_total_flops()
        return parts

    monkeypatch.setattr(TrainStep, "accumulate", counting)
    metrics = run_small(*overrides).result.metrics
    assert metrics.train_flops == pytest.approx(counted, rel=WITHIN)


H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB"


@pytest.mark.parametrize(
    ("kind", "name", "price", "spot", "expected"),
    [
        ("cpu", "CPU", None, False, 0.0),
        ("cpu", "CPU", 0.5, False, 1.0),
        ("cuda", H100, None, False, 5.78),
        ("cuda", H100, None, True, None),  # nobody's spot price is in the table
        ("cuda", A100, None, False, 2.38),
        ("cuda", A100, 0.0, False, 0.0),
        ("cuda", A100, 0.5, True, 1.0),
        ("cuda", "NVIDIA A10", None, False, None),
        ("cuda", "NVIDIA GA100X", None, False, None),
        ("cuda", "Voodoo 2", None, False, None),
        ("xla", "TPU v5litepod-8", None, False, 12.24),
        ("xla", "TPU v5litepod-8", None, True, 4.08),
        ("xla", "TPU v6e-4", None, False, 10.20),
        ("xla", "TPU v6e-4", None, True, 3.40),
        ("xla", "TPU v6e-8", None, False, None),  # another machine
    ],
)
def test_two_hours_cost(
    kind: str, name: str, price: float | None, spot: bool, expected: float | None
) -> None:
    device = Device(torch_device=torch.device(kind), dtype=torch.float32, name=name, attention="eager")
    price_of_it = usd(device, price, 7200, spot=spot)
    assert price_of_it == (expected if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(("pricing", "expected"), [("on_demand", 6.12), ("spot", 2.04)])
def test_pricing_chooses_the_price_of_a_run(
    pricing: str, expected: float, run_small: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = flops.Rate(on_demand=6.12, spot=2.04, listed="GCP v5litepod-8", dated="2026-02")
    monkeypatch.setitem(flops.RATES, "v5litepod-8", listed)
    real = outcome.usd
    monkeypatch.setattr(
        outcome,
        "usd",
        lambda device, price, seconds, *, spot: real(
            dataclasses.replace(device, torch_device=torch.device("xla"), name="TPU v5litepod-8"),
            price,
            seconds,
            spot=spot,
        ),
    )
    metrics = run_small(f"device.pricing={pricing}").result.metrics
    assert metrics.usd is not None
    assert metrics.usd / metrics.train_seconds * 3600 == pytest.approx(expected)


BF16, F32 = torch.bfloat16, torch.float32


@pytest.mark.parametrize(
    ("name", "dtype", "tera"),
    [
        ("NVIDIA H200", BF16, 989.5),
        (H100, BF16, 989.5),
        (H100, F32, 494.5),
        ("NVIDIA H100 PCIe", BF16, 756),
        ("NVIDIA H100 NVL", BF16, 835.5),
        (A100, BF16, 312),
        ("NVIDIA A100 80GB PCIe", F32, 156),
        ("NVIDIA A40", BF16, 149.7),
        ("NVIDIA A10", BF16, 125),
        ("NVIDIA A10G", BF16, 70),
        ("NVIDIA L4", BF16, 121),
        ("NVIDIA L40S", BF16, 362),
        ("Tesla T4", F32, 8.1),
        ("Tesla T4", BF16, None),
        ("TPU v5litepod-8", BF16, 197),
        ("TPU v5e", BF16, 197),
        ("TPU v5p", BF16, 459),
        ("TPU v6e-4", BF16, 918),
        ("TPU v6e-4", F32, None),
        ("NVIDIA A1000", BF16, None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", BF16, None),
        ("Voodoo 2", BF16, None),
    ],
)
def test_peaks_are_found_by_whole_words_of_the_name(
    name: str, dtype: torch.dtype, tera: float | None
) -> None:
    assert peak_of(name, dtype) == (tera if tera is None else pytest.approx(tera * 1e12))


def test_nobody_tells_the_peak_of_a_cpu() -> None:
    device = Device(torch_device=torch.device("cpu"), dtype=F32, name="CPU A100 edition", attention="eager")
    assert peak_flops_per_second(device) is None
