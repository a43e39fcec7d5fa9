"""Held-out documents of streamed text, and the tokens that losses are measured on. Used by `stream`.

A document is held out if the SHA-256 of its text falls into the fraction. So its side does not depend on the
file, the order or the machine, and exact copies are on the same side: no text is on both.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic_core import from_json

from trainer.cache import artifact
from trainer.data.batching import Tokens
from trainer.data.encoder import Encoder, tokenizer_sha256
from trainer.data.errors import DataError
from trainer.data.shards import Shards
from trainer.text import counted

FORMAT = 1  # increase it when the same spec would give other tokens
SAMPLE_SEED = 0  # of the order in which text is sampled here, whatever the run's seed
TOKENIZER_BYTES = 8_000_000  # of text that a tokenizer is trained on, about as much as data=stdlib has


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldOut:
    """The held-out tokens [N], memory-mapped from the cache, and the mean bytes of text per token."""

    tokens: Tokens
    bytes_per_token: float


def is_held_out(text: str, fraction: float) -> bool:
    """Return whether a document is never trained on."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") < fraction * 2**64


def held_out(shards: Shards, tokenizer: Path) -> HeldOut:
    """Return held-out documents from blocks all over the text, until there are enough; cached.

    Raises:
        DataError: one of the sides is empty.
    """
    config = shards.config
    spec = {
        "format": FORMAT,
        "text_sha256": shards.sha256,
        "tokenizer_sha256": tokenizer_sha256(tokenizer),
        "held_out_fraction": config.held_out_fraction,
        "held_out_tokens": config.held_out_tokens,
    }
    folder = artifact("held_out", spec, lambda draft: gather(shards, tokenizer, draft))
    summary = from_json((folder / "held_out.json").read_text(encoding="utf-8"))
    tokens = np.memmap(folder / "held_out.bin", dtype=summary["dtype"], mode="r")
    return HeldOut(tokens=tokens, bytes_per_token=summary["bytes"] / len(tokens))


def training_sample(shards: Shards) -> list[str]:
    """Return training documents from blocks all over the text, to train a tokenizer on."""
    sample, size = [], 0
    for document in _shuffled(shards):
        if is_held_out(document, shards.config.held_out_fraction):
            continue
        sample.append(document)
        size += len(document.encode())
        if size >= TOKENIZER_BYTES:
            break
    return sample


def gather(shards: Shards, tokenizer: Path, folder: Path) -> None:
    """Write the held-out tokens and their summary into a folder."""
    config, encode = shards.config, Encoder.open(tokenizer)
    found: list[np.ndarray] = []
    tokens = size = documents = 0
    for document in _shuffled(shards):
        documents += 1
        if not is_held_out(document, config.held_out_fraction):
            continue
        found += encode([document])
        tokens += len(found[-1])
        size += len(document.encode())
        if tokens >= config.held_out_tokens:
            break
    if not found or len(found) == documents:
        side = "held-out" if not found else "training"
        raise DataError(
            f"data.held_out_fraction={config.held_out_fraction} leaves no {side} text among "
            f"{counted(documents, 'document')}; change it, or take more text"
        )
    (folder / "held_out.bin").write_bytes(np.concatenate(found).astype(encode.dtype).tobytes())
    summary = {
        "dtype": encode.dtype.name,
        "bytes": size,
        "documents": len(found),
        "looked_through": documents,
    }
    (folder / "held_out.json").write_text(json.dumps(summary), encoding="utf-8")


def _shuffled(shards: Shards) -> Iterator[str]:
    """Yield every document, block by block in an order that depends on neither files nor seeds."""
    reader = shards.reader()
    try:
        for block in np.random.default_rng(SAMPLE_SEED).permutation(shards.blocks):
            yield from reader.texts(int(block))
    finally:
        reader.close()
