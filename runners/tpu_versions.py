"""Software versions for each family of TPU, which the `tpu-vm` and `skypilot` runners install.

The ranges stand in `trainer.devices.tpu_versions`, which this package may not import:
`python tests/contracts/tpu_matrix.py` writes REQUIREMENTS from them, and a test compares.
"""

from __future__ import annotations

REQUIREMENTS = ("torch==2.9.1", "torch_xla[tpu]==2.9.0", "libtpu>=0.0.21,<=0.0.23.1")
WHEELS = (
    "https://storage.googleapis.com/libtpu-releases/index.html",
    "https://storage.googleapis.com/libtpu-wheels/index.html",
)

# By family, the accelerator's name up to the dash: the image of its VM
# (docs.cloud.google.com/tpu/docs/runtimes), and the largest size that is one VM, in chips for v5litepod and
# v6e, else in cores.
_FAMILIES = {
    "v2": ("tpu-ubuntu2204-base", 8),
    "v3": ("tpu-ubuntu2204-base", 8),
    "v4": ("tpu-ubuntu2204-base", 8),
    "v5litepod": ("v2-alpha-tpuv5-lite", 8),
    "v5p": ("v2-alpha-tpuv5", 8),
    "v6e": ("v2-alpha-tpuv6e", 8),
}


def runtime_version(accelerator: str) -> str | None:
    """Return the VM image for an accelerator such as `v6e-4`; None for an unknown family."""
    found = _FAMILIES.get(accelerator.partition("-")[0])
    return found[0] if found else None


def largest_on_one_vm(accelerator: str) -> str | None:
    """Return the largest one-VM size of its family where this one is larger; else, or if unknown, None."""
    family, _, size = accelerator.partition("-")
    if family not in _FAMILIES or not size.isdecimal() or int(size) <= _FAMILIES[family][1]:
        return None
    return f"{family}-{_FAMILIES[family][1]}"
