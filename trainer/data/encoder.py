"""Encoding of full documents to token ids, each ended by the end-of-text token. Used by corpora."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic_core import from_json

Ids = npt.NDArray[np.int64]

ENCODE_BATCH = 16
LONGEST_PIECE = 2**20  # characters; an encoding occupies about a hundred bytes per token


class Encoder:
    """A tokenizer that encodes documents without truncation, padding or special tokens in their text.

    Args:
        backend: a `tokenizers.Tokenizer`, whose settings are changed.
        end: id of the token that ends a document; None: there is none.
    """

    def __init__(self, backend: Any, end: int | None) -> None:
        self.backend = backend
        self._end = np.asarray([] if end is None else [end], dtype=np.int64)
        # A tokenizer.json may have been saved with truncation or padding enabled.
        backend.no_truncation()
        backend.no_padding()
        # "</s>" inside a document is four characters, not the end of the text.
        backend.encode_special_tokens = True

    @classmethod
    def open(cls, directory: Path) -> Encoder:
        """Open the tokenizer of a folder without importing transformers, which takes a second."""
        from tokenizers import Tokenizer

        disable_tokenizer_threads()
        backend = Tokenizer.from_file(str(directory / "tokenizer.json"))
        token = _settings(directory).get("eos_token")
        end = token["content"] if isinstance(token, dict) else token
        return cls(backend, None if end is None else backend.token_to_id(end))

    @property
    def end(self) -> int | None:
        """Return the id of the token that ends a document; None: there is none."""
        return int(self._end[0]) if len(self._end) else None

    @property
    def vocab_size(self) -> int:
        """Return the largest id plus one, which may exceed the number of entries: ids may have gaps."""
        return int(max(self.backend.get_vocab().values())) + 1

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger[Any]]:
        """Return the smallest dtype that holds every id."""
        return np.dtype(np.uint16 if self.vocab_size <= 2**16 else np.uint32)

    def __call__(self, texts: Sequence[str]) -> Iterator[Ids]:
        """Yield the ids [N] of each document, int64, encoding a few documents at a time."""
        for first in range(0, len(texts), ENCODE_BATCH):
            pieces = [_pieces(text) for text in texts[first : first + ENCODE_BATCH]]
            encodings = iter(
                self.backend.encode_batch_fast(
                    [piece for document in pieces for piece in document], add_special_tokens=False
                )
            )
            for document in pieces:
                ids = [np.asarray(next(encodings).ids, dtype=np.int64) for _ in document]
                yield np.concatenate([*ids, self._end])


def tokenizer_sha256(directory: Path) -> str:
    """Return the digest of all that decides the ids: the tokenizer and its end-of-text token."""
    digest = hashlib.sha256((directory / "tokenizer.json").read_bytes())
    digest.update(json.dumps(_settings(directory).get("eos_token"), sort_keys=True).encode())
    return digest.hexdigest()


def disable_tokenizer_threads() -> None:
    """Keep `tokenizers` from using every core and warning about forks, unless the environment decides."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def _pieces(text: str) -> list[str]:
    """Split a text into pieces, at line ends if possible, so that hardly a token is cut."""
    pieces, start = [], 0
    while len(text) - start > LONGEST_PIECE:
        end = text.rfind("\n", start, start + LONGEST_PIECE) + 1 or start + LONGEST_PIECE
        pieces.append(text[start:end])
        start = end
    return [*pieces, text[start:]]


def _settings(directory: Path) -> dict[str, Any]:
    settings: dict[str, Any] = from_json((directory / "tokenizer_config.json").read_bytes())
    return settings
