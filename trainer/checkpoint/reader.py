"""Reading of the parts' states from a verified checkpoint. Used by `checkpoints`."""

from __future__ import annotations

from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from trainer.checkpoint.discover import Found
from trainer.checkpoint.manifest import TENSORS, WEIGHTS
from trainer.checkpoint.parts import MODEL
from trainer.checkpoint.state import State


def read(found: Found, part: str) -> State:
    """Return the state of a part; an empty one for a part that the checkpoint does not have."""
    file, prefix = (WEIGHTS, "") if part == MODEL else (TENSORS, f"{part}/")
    return State(tensors=_tensors(found.path / file, prefix), values=found.manifest.values.get(part, {}))


def _tensors(path: Path, prefix: str) -> dict[str, Tensor]:
    with safe_open(path, framework="pt") as file:
        names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118 - it is no mapping
        return {name.removeprefix(prefix): file.get_tensor(name) for name in names}
