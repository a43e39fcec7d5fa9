"""The header of a GGUF file, read within limits. Called by `gguf`.

gguf's own reader makes an array for each item that the header announces, and transformers builds the model
that it describes, without a limit: a small file would keep them busy for minutes. This one checks that what
is announced is small, is inside the file, and is UTF-8 where it is text.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trainer.models.pretrained import truncate

# Each is far above that of any published model: 126 layers, 2,000 tensors, vocabulary and merges of 800,000
# strings, templates of 100 kB.
MOST_LAYERS = 4096
MOST_KEYS = MOST_TENSORS = 2**16
MOST_ITEMS = 2**21  # of all arrays
LONGEST_NAME = 2**16 - 1  # bytes of a key, a tensor's name or a string in an array
LONGEST_TEXT = 2**24
MOST_DIMENSIONS = 4

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_ALIGNMENT = "general.alignment"


class HeaderError(ValueError):
    """A header that is damaged, or beyond a limit; the message follows "cannot load FILE: "."""


@dataclass(frozen=True, kw_only=True)
class Header:
    """The contents of a header.

    Args:
        architecture: of the model; "" if there is none.
        values: scalars and strings by key.
        elements: number of elements of each tensor, by name.
    """

    architecture: str
    values: Mapping[str, Any]
    elements: Mapping[str, int]


def read_header(path: Path) -> Header:
    """Read the header of a file that begins with GGUF.

    Raises:
        HeaderError: it is damaged, ends before its tensors do, or is beyond a limit.
        OSError: it cannot be read.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _Reader(data).header()


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._at, self._order, self._items = data, 4, "<", 0

    def header(self) -> Header:
        if self._number("I") & 0xFFFF == 0:  # the version, which is small: read in the wrong byte order
            self._order = ">"
        tensors, keys = self._number("Q"), self._number("Q")
        for count, most, noun in ((tensors, MOST_TENSORS, "tensors"), (keys, MOST_KEYS, "keys")):
            if count > most:
                raise HeaderError(f"its header announces {count:,} {noun}; {most:,} is the most")
        values = {}
        for _ in range(keys):
            key = self._name("a key")
            values[key] = self._value(self._number("I"), key)
        elements, extents = {}, []
        for _ in range(tensors):
            name = self._name("a tensor's name")
            elements[name], extent = self._tensor(name)
            extents.append((name, *extent))
        self._check_extents(extents, values.get(_ALIGNMENT, 32))
        architecture = values.get("general.architecture", "")
        if not isinstance(architecture, str):
            raise HeaderError("general.architecture is no text")
        layers = values.get(f"{architecture}.block_count", 0)
        if isinstance(layers, int) and layers > min(MOST_LAYERS, tensors):
            raise HeaderError(
                f"its header announces {layers:,} layers; {MOST_LAYERS:,} is the most, and it has "
                f"{tensors:,} tensors"
            )
        return Header(
            architecture=architecture, values=MappingProxyType(values), elements=MappingProxyType(elements)
        )

    def _take(self, size: int) -> bytes:
        begin, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise HeaderError(f"it ends within its header, at byte {len(self._data):,}")
        return self._data[begin : self._at]

    def _number(self, kind: str) -> Any:
        return struct.unpack(self._order + kind, self._take(struct.calcsize("<" + kind)))[0]

    def _name(self, what: str) -> str:
        return self._text(what, LONGEST_NAME)

    def _text(self, what: str, longest: int) -> str:
        length, begin = self._number("Q"), self._at
        if length > longest:
            raise HeaderError(f"{what} at byte {begin:,} has {length:,} bytes; {longest:,} is the most")
        try:
            return self._take(length).decode()
        except UnicodeDecodeError:
            raise HeaderError(f"{what} at byte {begin:,} is not UTF-8") from None

    def _value(self, kind: int, key: str) -> Any:
        """Return a scalar or a string; of an array, None."""
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        key = truncate(key)
        if kind == _STRING:
            return self._text(key, LONGEST_TEXT)
        if kind != _ARRAY:
            raise HeaderError(f"{key} has a value of type {kind}, which GGUF does not have")
        kind, count = self._number("I"), self._number("Q")
        self._items += count
        if self._items > MOST_ITEMS:
            raise HeaderError(
                f"its arrays have {self._items:,} items up to {key}; {MOST_ITEMS:,} is the most"
            )
        if kind in _SCALARS:
            self._take(count * struct.calcsize("<" + _SCALARS[kind]))
        elif kind == _STRING:
            for _ in range(count):
                # Not decoded: transformers does that to those which it takes.
                length = self._number("Q")
                if length > LONGEST_NAME:
                    raise HeaderError(f"a string of {key} has {length:,} bytes; {LONGEST_NAME:,} is the most")
                self._take(length)
        else:
            raise HeaderError(f"{key} is an array of type {kind}; only scalars and strings are read")
        return None

    def _tensor(self, name: str) -> tuple[int, tuple[int, int]]:
        """Return the number of elements, offset and bytes of a tensor."""
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        name, count = truncate(name), self._number("I")
        if count > MOST_DIMENSIONS:
            raise HeaderError(f"tensor {name} has {count:,} dimensions; {MOST_DIMENSIONS} is the most")
        elements = math.prod(self._number("Q") for _ in range(count))
        kind, offset = self._number("I"), self._number("Q")
        try:
            block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        except (KeyError, ValueError):
            raise HeaderError(f"tensor {name} is of type {kind}, which this gguf does not have") from None
        return elements, (offset, elements * size // block)

    def _check_extents(self, extents: list[tuple[str, int, int]], alignment: Any) -> None:
        """Raise HeaderError if a tensor ends behind the file, or two of them share bytes."""
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise HeaderError(f"{_ALIGNMENT} is {alignment!r}, which is no power of two")
        begin = -(-self._at // alignment) * alignment
        end, last = 0, ""
        for name, offset, size in sorted(extents, key=lambda each: each[1:]):
            if offset < end:
                raise HeaderError(f"tensors {truncate(last)} and {truncate(name)} share bytes of the file")
            end, last = offset + size, name
            if begin + end > len(self._data):
                raise HeaderError(
                    f"it ends at byte {len(self._data):,}, and tensor {truncate(name)} at {begin + end:,}; "
                    "copy or download it again"
                )
