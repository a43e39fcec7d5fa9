"""The precision that a test of equality means, said through the configuration."""

from __future__ import annotations

MUONS = tuple(f"{part}.optimizer.muon.dtype" for part in ("model.teacher", "stage1_9", "stage2", "stage3"))
MUON_FLOAT32 = tuple(f"{key}=float32" for key in MUONS)
FLOAT32 = ("device.dtype=float32", *MUON_FLOAT32)
"""Every product of a run in float32, the orthogonalisations of Muon among them: rounding stays small."""
