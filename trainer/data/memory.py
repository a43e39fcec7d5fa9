"""`data=stdlib`: text that fits into memory, tokenised once per machine. Called by `inputs`.

Later runs memory-map the cached ids and read the text's files only to verify that they are the same.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from pydantic_core import from_json

from sweeps.text.counted import counted
from sweeps.text.regular_file import read_regular
from trainer.cache import artifact
from trainer.config.data import StdlibConfig
from trainer.data.batching import Tokens, WindowFeed, open_tokens
from trainer.data.corpus import HELD_OUT, SIDES, TEST, TRAIN, Corpus, mean_bytes, side
from trainer.data.encoder import Encoder, tokenizer_sha256
from trainer.data.feed import Feed
from trainer.data.near_copies import RULE, collect_shingles, is_contained
from trainer.data.stdlib import Document, documents
from trainer.data.tokenizer import import_tokenizer, open_tokenizer, train_tokenizer
from trainer.errors import DataError

FORMAT = 2  # increase it when the same spec would give other ids
SUMMARY = "corpus.json"

Sides = Mapping[str, Sequence[Document]]


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryCorpus(Corpus):
    """A corpus whose ids are one array.

    Args:
        train: token ids [N] of the training text, like `held_out`.
    """

    train: Tokens

    @property
    def order_sha256(self) -> str:
        return self.sha256

    def batches(
        self, *, batch_size: int, sequence_length: int, seed: int, rank: int = 0, world: int = 1
    ) -> Feed:
        return WindowFeed(
            self.train,
            text=self.sha256,
            batch_size=batch_size,
            sequence_length=sequence_length,
            seed=seed,
            rank=rank,
            world=world,
        )


def load(config: StdlibConfig, own_tokenizer: str | Path | None = None) -> MemoryCorpus:
    """Load the text that `inputs.load` describes."""
    found = documents(config.max_bytes)
    fingerprint = _fingerprint(found)
    sides = cache(lambda: split(found, config.held_out_fraction, config.test_fraction))
    if name := config.tokenizer or own_tokenizer:
        return _load(config, sides, fingerprint, import_tokenizer(name))

    def training_texts() -> list[str]:
        return [document.data.decode() for document in sides()[TRAIN]]

    text_id = f"{fingerprint}/{config.held_out_fraction!r}/{config.test_fraction!r}"
    directory = train_tokenizer(training_texts, text_id, config.vocab_size)
    return _load(config, sides, fingerprint, directory)


def most_tokens(config: StdlibConfig) -> int:
    """Return an upper bound of the held-out tokens, by bytes. Raises DataError if a side has no text."""
    sides = split(documents(config.max_bytes), config.held_out_fraction, config.test_fraction)
    return sum(len(document.data) + 1 for document in sides[HELD_OUT])


def _load(
    config: StdlibConfig, sides: Callable[[], Sides], fingerprint: str, tokenizer_dir: Path
) -> MemoryCorpus:
    spec = {
        "format": FORMAT,
        "name": config.name,
        "python": platform.python_version(),
        "text_sha256": fingerprint,
        "held_out_fraction": config.held_out_fraction,
        "test_fraction": config.test_fraction,
        "near_copies": RULE,
        "tokenizer_sha256": tokenizer_sha256(tokenizer_dir),
    }
    folder = artifact("corpora", spec, lambda draft: tokenise(sides(), tokenizer_dir, draft))
    summary = from_json(read_regular(folder / SUMMARY))
    train, held_out, test = (open_tokens(folder / f"{name}.bin", summary["dtype"]) for name in SIDES)
    if len(train) < config.sequence_length:
        raise DataError(
            f"the training text has {len(train)} tokens, fewer than "
            f"data.sequence_length={config.sequence_length}; lower it, or take more text "
            "(data.max_bytes, data.held_out_fraction, data.test_fraction)"
        )
    return MemoryCorpus(
        train=train,
        held_out=held_out,
        test=test,
        vocab_size=summary["vocab_size"],
        sha256=summary["sha256"],
        tokenizer_dir=tokenizer_dir,
        bytes_per_token=summary["bytes_per_token"],
    )


def tokenise(sides: Sides, tokenizer_dir: Path, folder: Path) -> None:
    """Write all sides' ids and the summary into `folder`."""
    tokenizer = open_tokenizer(tokenizer_dir)
    encode = Encoder(tokenizer.backend_tokenizer, tokenizer.eos_token_id)
    digest = hashlib.sha256(tokenizer_sha256(tokenizer_dir).encode())
    tokens: dict[str, int] = {}
    for name, side_documents in sides.items():
        encoded = encode([document.data.decode() for document in side_documents])
        ids = np.concatenate([np.empty(0, dtype=np.int64), *encoded])
        (folder / f"{name}.bin").write_bytes(ids.astype(encode.dtype).tobytes())
        digest.update(f"{name}:{_fingerprint(side_documents)}".encode())
        tokens[name] = len(ids)
    held_out_bytes = sum(len(document.data) for document in sides[HELD_OUT])
    summary = {
        "dtype": encode.dtype.name,
        "vocab_size": encode.vocab_size,
        "sha256": digest.hexdigest(),
        "bytes_per_token": mean_bytes(held_out_bytes, tokens[HELD_OUT]),
        "tokens": tokens,
        "files": {name: [document.path for document in docs] for name, docs in sides.items()},
    }
    (folder / SUMMARY).write_text(json.dumps(summary, indent=1), encoding="utf-8")


def _fingerprint(found: Sequence[Document]) -> str:
    """Return the digest of paths and contents, each with its length, so that it is unambiguous."""
    digest = hashlib.sha256()
    for document in found:
        digest.update(f"{len(document.path)}:{document.path}:{len(document.data)}:".encode())
        digest.update(document.data)
    return digest.hexdigest()


def split(
    documents: Sequence[Document], held_out_fraction: float, test_fraction: float
) -> dict[str, list[Document]]:
    """Return the documents of each side; a small library may leave the test side empty.

    The hash of its path decides the side of a file. Of the measured sides, those are dropped that the sides
    before them contain (`near_copies.is_contained`): they would measure memorisation, or what was selected
    by.

    Raises:
        DataError: the training or the held-out side is empty.
    """
    fractions = {"held_out_fraction": held_out_fraction, "test_fraction": test_fraction}
    sides: dict[str, list[Document]] = {name: [] for name in SIDES}
    for document in documents:
        sides[side(document.path, **fractions)].append(document)
    others = list(sides[TRAIN])
    for name in (HELD_OUT, TEST):
        known = collect_shingles(_text(document) for document in others)
        sides[name] = [document for document in sides[name] if not is_contained(_text(document), known)]
        others += sides[name]
    if not sides[TRAIN] or not sides[HELD_OUT]:
        missing = "training" if not sides[TRAIN] else "held-out"
        raise DataError(
            f"data.held_out_fraction={held_out_fraction} (data.test_fraction={test_fraction}) leaves no "
            f"{missing} text among {counted(len(documents), 'file')}; change it, or take more text "
            "(data.max_bytes)"
        )
    return sides


def _text(document: Document) -> str:
    return document.data.decode()
