"""`data=stdlib`: the source text of Python's standard library, which every machine has. Called by `memory`.

Excluded, because nobody wrote it as a program:

- site-packages and dist-packages: not the standard library, and different on every machine;
- test folders: three fifths of the text, much of it tables of cases and copies of the code under test;
- `encodings` and `pydoc_data`: generated tables and help texts, easy to memorise;
- `_sysconfigdata*`: generated at installation, with paths of that machine.

idlelib, tkinter, turtledemo and lib2to3 are included: they are ordinary programs.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.errors import DataError

EXCLUDED_FOLDERS = frozenset(
    {
        "__pycache__",
        "dist-packages",
        "encodings",
        "idle_test",
        "lib-dynload",
        "pydoc_data",
        "site-packages",
        "test",
        "tests",
    }
)
EXCLUDED_PREFIX = "_sysconfigdata"


@dataclass(frozen=True, kw_only=True)
class Document:
    """A file: its path relative to the library with forward slashes, and its UTF-8 text."""

    path: str
    data: bytes


def documents(max_bytes: int | None = None, root: Path | None = None) -> list[Document]:
    """Return the library's source files, sorted by path.

    Args:
        max_bytes: files are sampled uniformly until the next would exceed this; None: all files.
        root: the library's folder; None: this interpreter's own.

    Raises:
        DataError: there is no source text.
    """
    root = Path(sysconfig.get_paths()["stdlib"]) if root is None else root
    paths = list(_source_files(root))
    found = list(_documents(root, paths) if max_bytes is None else _sample(root, paths, max_bytes))
    if not found:
        raise DataError(
            f"data=stdlib found no Python source text in {root}: this interpreter comes without its standard "
            "library's .py files (zipped or stripped); run the trainer with a Python that has them"
        )
    return sorted(found, key=lambda document: document.path)


def _source_files(root: Path) -> Iterator[str]:
    """Yield the files' paths relative to the library, with forward slashes."""
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in EXCLUDED_FOLDERS]
        inside = Path(folder).relative_to(root).as_posix()
        for name in names:
            if name.endswith(".py") and not name.startswith(EXCLUDED_PREFIX):
                yield name if inside == "." else f"{inside}/{name}"


def _documents(root: Path, paths: Iterable[str]) -> Iterator[Document]:
    """Yield the files that are readable, not blank, and UTF-8."""
    for path in paths:
        try:
            data = (root / path).read_bytes()
            data.decode()
        except (OSError, UnicodeDecodeError):
            continue
        if data.strip():
            yield Document(path=path, data=data)


def _sample(root: Path, paths: Sequence[str], max_bytes: int) -> Iterator[Document]:
    """Yield documents in an order independent of path and split, until one would exceed `max_bytes`."""
    shuffled = sorted(paths, key=lambda path: hashlib.sha256(b"sample:" + path.encode()).digest())
    total = 0
    for document in _documents(root, shuffled):
        if total + len(document.data) > max_bytes:
            if total == 0:
                raise DataError(
                    f"data.max_bytes is {max_bytes}, less than the first file drawn ({document.path}, "
                    f"{len(document.data)} bytes); raise it"
                )
            return
        total += len(document.data)
        yield document
