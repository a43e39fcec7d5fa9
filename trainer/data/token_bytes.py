"""Bytes of text per token, to compare losses of different tokenizers.

Called by `inputs`, once for the batches that every loss of a run is measured on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pydantic_core import from_json
from tokenizers import Tokenizer

from trainer.data.corpus import Corpus

UNACCOUNTED = 0.005  # tolerated fraction of the text: SentencePiece adds a space per document


def scored_bytes(corpus: Corpus, batches: Sequence[torch.Tensor]) -> int | None:
    """Return the bytes of text of the tokens 2..T in batches [B, T], int64: those that a loss scores.

    The end-of-text token has no bytes. The result is None if the tokenizer's entries do not add up to the
    held-out text, because it normalises its input (lower case, dropped spaces, …), or if there are no bytes.
    """
    lengths = token_bytes(corpus.tokenizer_dir)
    text_bytes = corpus.bytes_per_token * len(corpus.held_out)
    if abs(int(lengths[corpus.held_out].sum()) - text_bytes) > UNACCOUNTED * text_bytes:
        return None
    return sum(int(lengths[ids_BT[:, 1:].numpy()].sum()) for ids_BT in batches) or None


def token_bytes(tokenizer_dir: Path) -> npt.NDArray[np.int64]:
    """Return the bytes of text per id, int64 [V]; 0 for special tokens and unused ids."""
    text = (tokenizer_dir / "tokenizer.json").read_text(encoding="utf-8")
    tokenizer, document = Tokenizer.from_str(text), from_json(text)
    kinds = {kind for part in ("normalizer", "pre_tokenizer", "decoder") for kind in _types(document[part])}
    added = tokenizer.get_added_tokens_decoder()
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    lengths = np.zeros(max(vocabulary.values()) + 1, dtype=np.int64)
    for token, index in vocabulary.items():
        if index in added:
            lengths[index] = 0 if added[index].special else len(token.encode())
        elif "ByteLevel" in kinds:
            lengths[index] = len(token)  # one character for each byte
        elif "ByteFallback" in kinds and _is_byte(token):
            lengths[index] = 1
        else:
            lengths[index] = len(token.replace("▁", " ").encode())
    return lengths


def _types(part: Any) -> Iterator[str]:
    """Yield the types of a component of tokenizer.json and of all its parts."""
    if isinstance(part, dict):
        yield from (part["type"],) if "type" in part else ()
        for inner in part.values():
            yield from _types(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from _types(inner)


def _is_byte(token: str) -> bool:
    return len(token) == 6 and token.startswith("<0x") and token.endswith(">")
