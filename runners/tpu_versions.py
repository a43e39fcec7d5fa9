"""Which software goes with which TPU. The `tpu-vm` and `skypilot` runners install it.

torch_xla 2.9.0 is the only release for this torch; a newer libtpu than these has another PJRT interface and
does not load.
"""

from __future__ import annotations

REQUIREMENTS = ("torch==2.9.1", "torch_xla[tpu]==2.9.0", "libtpu>=0.0.21,<=0.0.23.1")
WHEELS = (
    "https://storage.googleapis.com/libtpu-releases/index.html",
    "https://storage.googleapis.com/libtpu-wheels/index.html",
)

# By the family in an accelerator's name: the image of its VM (docs.cloud.google.com/tpu/docs/runtimes), and
# the largest size that is one VM. Sizes are chips for v5litepod and v6e, else cores.
_FAMILIES = {
    "v2": ("tpu-ubuntu2204-base", 8),
    "v3": ("tpu-ubuntu2204-base", 8),
    "v4": ("tpu-ubuntu2204-base", 8),
    "v5litepod": ("v2-alpha-tpuv5-lite", 8),
    "v5p": ("v2-alpha-tpuv5", 8),
    "v6e": ("v2-alpha-tpuv6e", 8),
}


def runtime_version(accelerator: str) -> str | None:
    """The image for an accelerator such as `v6e-4`; None for a family that is not known here."""
    found = _FAMILIES.get(accelerator.partition("-")[0])
    return found[0] if found else None


def largest_on_one_vm(accelerator: str) -> str | None:
    """The largest of its family that is one VM, where this one is larger; else None. Unknown families
    pass."""
    family, _, size = accelerator.partition("-")
    if family not in _FAMILIES or not size.isdecimal() or int(size) <= _FAMILIES[family][1]:
        return None
    return f"{family}-{_FAMILIES[family][1]}"
