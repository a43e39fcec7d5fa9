"""Generator of the copies of `trainer.devices.tpu_versions.MATRIX`: `python tests/contracts/tpu_matrix.py`.

The table stands in the trainer. The runners may not import it and a wheel needs its extras as text, so this
writes the versions into them and into the documentation; `test_tpu_matrix.py` fails where a file would change.
"""

from __future__ import annotations

import re
from pathlib import Path

from trainer.devices.tpu_versions import MATRIX

ROOT = Path(__file__).parents[2]
ALLOWED = {package.name: f"{package.name}{package.allowed}" for package in MATRIX}
PINS = {package.name: package.pin for package in MATRIX}
ON_TPU = ALLOWED["torch_xla"].replace("torch_xla", "torch_xla[tpu]")
LIBTPU = re.findall(r"[\d.]+", ALLOWED["libtpu"])

COPIES = {
    "pyproject.toml": {
        r"^xla = .*$": f'xla = ["{ALLOWED["torch"]}", "{ALLOWED["torch_xla"]}"]',
        r"^tpu = .*$": f'tpu = ["stagesweep[xla]", "{ON_TPU}", "{ALLOWED["libtpu"]}"]',
        r"^flash = .*$": f'flash = ["{ALLOWED["jax"]}", "{ALLOWED["jaxlib"]}"]',
    },
    "runners/tpu_versions.py": {
        r"^REQUIREMENTS = .*$": f'REQUIREMENTS = ("torch=={PINS["torch"]}", "{ON_TPU}", "{ALLOWED["libtpu"]}")',
    },
    "docs/how-to/launch.md": {
        r"torch [\d.]+, torch_xla [\d.]+ and a libtpu from [\d.]+ to [\d.]+\d": f"torch {PINS['torch']}, "
        f"torch_xla {PINS['torch_xla']} and a libtpu from {LIBTPU[0]} to {LIBTPU[1]}",
    },
    "docs/how-to/tpu.md": {
        rf"^\| {package.name} \| `.*?` \| `.*?` \|": f"| {package.name} | `{package.allowed}` | `{package.pin}` |"
        for package in MATRIX
    }
    | {rf"\b{name}==\d[\d.]*\d": f"{name}=={pin}" for name, pin in PINS.items() if "torch" not in name},
}
"""By file: pattern -> text of each copy."""


def regenerated(file: str) -> str:
    """Return the file's text with the versions of MATRIX. Raises ValueError where a copy is not found."""
    text = (ROOT / file).read_text(encoding="utf-8")
    for pattern, copy in COPIES[file].items():
        text, count = re.subn(pattern, copy, text, flags=re.MULTILINE)
        if not count:
            raise ValueError(f"{file}: nothing matches {pattern}")
    return text


if __name__ == "__main__":
    for name in COPIES:
        (ROOT / name).write_text(regenerated(name), encoding="utf-8")
