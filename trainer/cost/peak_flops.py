"""Peak rates of devices, for MFU (model FLOPs utilisation). Used by `telemetry` and `preflight`.

Makers' figures for dense matrix products with accumulation in float32; where a data sheet states them with
sparsity, half of that. float32 is TF32 on CUDA devices that have it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from trainer.devices.device import Device


@dataclass(frozen=True, kw_only=True)
class Peak:
    """Peak rates in 10^12 operations per second; a multiplication and an addition are two."""

    bfloat16: float | None = None
    float32: float | None = None

    def flops_per_second(self, dtype: torch.dtype) -> float | None:
        """Return operations per second in matrix products of that dtype; None if not known."""
        tera = {torch.bfloat16: self.bfloat16, torch.float32: self.float32}.get(dtype)
        return None if tera is None else tera * 1e12


# The first line whose words are all in the device's name counts; so special models stand before their family.
_PEAKS: dict[tuple[str, ...], Peak] = {
    # nvidia.com/en-us/data-center/dgx-b200: 36 PFLOPS in bfloat16 with sparsity for eight
    ("B200",): Peak(bfloat16=2250, float32=1125),
    # nvidia.com/en-us/data-center/h200 and /h100; H100 data sheets of the three forms
    ("H200", "NVL"): Peak(bfloat16=835.5, float32=417.5),
    ("H200",): Peak(bfloat16=989.5, float32=494.5),
    ("GH200",): Peak(bfloat16=989.5, float32=494.5),
    ("H100", "NVL"): Peak(bfloat16=835.5, float32=417.5),
    ("H100", "PCIE"): Peak(bfloat16=756, float32=378),
    ("H100",): Peak(bfloat16=989.5, float32=494.5),
    # nvidia.com/en-us/data-center/a100, /a40, /products/a10-gpu, /a30-gpu, /l4, /l40s
    ("A100",): Peak(bfloat16=312, float32=156),
    ("A40",): Peak(bfloat16=149.7, float32=74.8),
    ("A30",): Peak(bfloat16=165, float32=82),
    ("A10",): Peak(bfloat16=125, float32=62.5),
    # d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf
    ("A10G",): Peak(bfloat16=70, float32=35),
    ("L4",): Peak(bfloat16=121, float32=60),
    ("L40S",): Peak(bfloat16=362, float32=183),
    # NVIDIA Ada and Ampere GA102 white papers
    ("RTX", "4090"): Peak(bfloat16=165.2, float32=82.6),
    ("RTX", "3090"): Peak(bfloat16=71, float32=35.6),
    # Turing and Volta have neither bfloat16 nor TF32: plain float32
    ("T4",): Peak(float32=8.1),
    ("V100",): Peak(float32=15.7),
    # docs.cloud.google.com/tpu/docs/v4, /v5e, /v5p, /v6e; per chip
    ("TPU", "V4"): Peak(bfloat16=275),
    ("TPU", "V5E"): Peak(bfloat16=197),
    ("TPU", "V5LITEPOD"): Peak(bfloat16=197),
    ("TPU", "V5P"): Peak(bfloat16=459),
    ("TPU", "V6E"): Peak(bfloat16=918),
}


def peak_flops_per_second(device: Device) -> float | None:
    """Return the peak rate of one device in its dtype; None for a CPU, or a device not in the table."""
    return None if device.kind == "cpu" else peak_of(device.name, device.dtype)


def peak_of(name: str, dtype: torch.dtype) -> float | None:
    """Return the peak rate by the words of the device's name, or None; an A100 does not match A10."""
    words = set(re.findall(r"[A-Z0-9]+", name.upper()))
    if "MIG" in words:  # a part of a GPU
        return None
    for wanted, peak in _PEAKS.items():
        if words.issuperset(wanted):
            return peak.flops_per_second(dtype)
    return None
