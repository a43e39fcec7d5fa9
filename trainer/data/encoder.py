"""Documents to token ids, whole and each ended by the end-of-text token. Used by `memory` and `stream`."""

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

ENCODED_AT_ONCE = 16
LONGEST_PIECE = 2**20  # characters; an encoding takes some hundred bytes per token until it is dropped


class Encoder:
    """A tokenizer, set to encode whole documents and nothing but their text.

    Args:
        backend: a `tokenizers.Tokenizer`; its settings are changed.
        end: id of the token that ends a text; None: nothing does.
    """

    def __init__(self, backend: Any, end: int | None) -> None:
        self._backend = backend
        self._end = np.asarray([] if end is None else [end], dtype=np.int64)
        # A tokenizer.json may carry settings of whoever saved it that would cut or fill up the documents.
        backend.no_truncation()
        backend.no_padding()
        # "</s>" in a program is four characters of it, not the end of the text.
        backend.encode_special_tokens = True

    @classmethod
    def open(cls, directory: Path) -> Encoder:
        """That of a folder that `tokenizer` made, without the second that importing transformers takes."""
        from tokenizers import Tokenizer

        say_no_to_threads()
        backend = Tokenizer.from_file(str(directory / "tokenizer.json"))
        end = _end_of_text(directory)
        return cls(backend, None if end is None else backend.token_to_id(end))

    @property
    def vocab_size(self) -> int:
        """Every id is smaller. Not the number of entries: ids may have gaps."""
        return int(max(self._backend.get_vocab().values())) + 1

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger[Any]]:
        """The smallest that holds every id."""
        return np.dtype(np.uint16 if self.vocab_size <= 2**16 else np.uint32)

    def __call__(self, texts: Sequence[str]) -> Iterator[Ids]:
        """The ids of each document, a few documents at a time."""
        for first in range(0, len(texts), ENCODED_AT_ONCE):
            pieces = [_pieces(text) for text in texts[first : first + ENCODED_AT_ONCE]]
            encodings = iter(
                self._backend.encode_batch_fast(
                    [piece for document in pieces for piece in document], add_special_tokens=False
                )
            )
            for document in pieces:
                ids = [np.asarray(next(encodings).ids, dtype=np.int64) for _ in document]
                yield np.concatenate([*ids, self._end])


def tokenizer_sha256(directory: Path) -> str:
    """sha256 over what decides the ids: the tokenizer, and which of its tokens ends a text."""
    digest = hashlib.sha256((directory / "tokenizer.json").read_bytes())
    digest.update(json.dumps(_settings(directory).get("eos_token"), sort_keys=True).encode())
    return digest.hexdigest()


def say_no_to_threads() -> None:
    """Decide for `tokenizers`: left alone it takes every core, and warns when the process forks."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def _pieces(text: str) -> list[str]:
    """The text in parts that end with a line where that is possible, so that hardly a token is cut."""
    pieces, start = [], 0
    while len(text) - start > LONGEST_PIECE:
        end = text.rfind("\n", start, start + LONGEST_PIECE) + 1 or start + LONGEST_PIECE
        pieces.append(text[start:end])
        start = end
    return [*pieces, text[start:]]


def _end_of_text(directory: Path) -> str | None:
    token = _settings(directory).get("eos_token")
    return token["content"] if isinstance(token, dict) else token


def _settings(directory: Path) -> dict[str, Any]:
    settings: dict[str, Any] = from_json((directory / "tokenizer_config.json").read_bytes())
    return settings
