"""A file for its owner alone, replaced as a whole: it may hold an environment that is nobody's business.

`launched` and the runners that leave a script or a task beside a pool's logs call this.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path


def write_private(path: Path, text: str, *, executable: bool = False) -> None:
    """The text, in a folder that is made if need be. A reader, also a shell in the middle of what was there,
    sees the one or the other. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)  # whose mode would stay
    opener = partial(os.open, mode=0o700 if executable else 0o600)
    with open(fresh, "w", encoding="utf-8", opener=opener) as file:
        file.write(text)
    fresh.replace(path)
