"""The parts' states out of a checkpoint. Used by `checkpoints`; `find` has verified the files before."""

from __future__ import annotations

from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from trainer.checkpoint.discover import Found
from trainer.checkpoint.manifest import TENSORS, WEIGHTS
from trainer.checkpoint.parts import MODEL
from trainer.checkpoint.state import State


def read(found: Found, part: str) -> State:
    """What the checkpoint holds of a part; without anything for a part that it does not know."""
    file, prefix = (WEIGHTS, "") if part == MODEL else (TENSORS, f"{part}/")
    return State(tensors=_tensors(found.path / file, prefix), values=found.document.values.get(part, {}))


def _tensors(path: Path, prefix: str) -> dict[str, Tensor]:
    with safe_open(path, framework="pt") as file:
        names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118 - it is no mapping
        return {name.removeprefix(prefix): file.get_tensor(name) for name in names}
