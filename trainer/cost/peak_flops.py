"""Peak rates of devices, for MFU (model FLOPs utilisation). Used by `telemetry` and `preflight`.

Makers' figures for dense matrix products with accumulation in float32; where a data sheet states them with
sparsity, half of that. float32 is TF32 on CUDA devices that have it.
"""

from __future__ import annotations

import re

import torch

from trainer.devices.device import Device

# In 10^12 operations per second, of bfloat16 and of float32; a multiplication and an addition are two. The
# first line whose words are all in the device's name counts; so special models stand before their family.
_PEAKS: dict[tuple[str, ...], tuple[float | None, float | None]] = {
    # nvidia.com/en-us/data-center/dgx-b200: 36 PFLOPS in bfloat16 with sparsity for eight
    ("B200",): (2250, 1125),
    # nvidia.com/en-us/data-center/h200 and /h100; H100 data sheets of the three forms
    ("H200", "NVL"): (835.5, 417.5),
    ("H200",): (989.5, 494.5),
    ("GH200",): (989.5, 494.5),
    ("H100", "NVL"): (835.5, 417.5),
    ("H100", "PCIE"): (756, 378),
    ("H100",): (989.5, 494.5),
    # nvidia.com/en-us/data-center/a100, /a40, /products/a10-gpu, /a30-gpu, /l4, /l40s
    ("A100",): (312, 156),
    ("A40",): (149.7, 74.8),
    ("A30",): (165, 82),
    ("A10",): (125, 62.5),
    # d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf
    ("A10G",): (70, 35),
    ("L4",): (121, 60),
    ("L40S",): (362, 183),
    # NVIDIA Ada and Ampere GA102 white papers
    ("RTX", "4090"): (165.2, 82.6),
    ("RTX", "3090"): (71, 35.6),
    # Turing and Volta have neither bfloat16 nor TF32: plain float32
    ("T4",): (None, 8.1),
    ("V100",): (None, 15.7),
    # docs.cloud.google.com/tpu/docs/v4, /v5e, /v5p, /v6e; per chip
    ("TPU", "V4"): (275, None),
    ("TPU", "V5E"): (197, None),
    ("TPU", "V5LITEPOD"): (197, None),
    ("TPU", "V5P"): (459, None),
    ("TPU", "V6E"): (918, None),
}


def peak_flops_per_second(device: Device) -> float | None:
    """Return the peak rate of one device in its dtype; None for a CPU, or a device not in the table."""
    return None if device.kind == "cpu" else peak_of(device.name, device.dtype)


def peak_of(name: str, dtype: torch.dtype) -> float | None:
    """Return the peak rate by the words of the device's name, or None; an A100 does not match A10."""
    words = set(re.findall(r"[A-Z0-9]+", name.upper()))
    if "MIG" in words:  # a part of a GPU
        return None
    peaks = next((peaks for wanted, peaks in _PEAKS.items() if words.issuperset(wanted)), (None, None))
    tera = dict(zip((torch.bfloat16, torch.float32), peaks, strict=True)).get(dtype)
    return None if tera is None else tera * 1e12
