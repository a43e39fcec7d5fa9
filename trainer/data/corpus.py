"""Text that fits into memory, from files to token ids, cached: what the pipeline trains and evaluates on.

`load` is the door. It tokenises once per machine; afterwards it only reads the text's files to see that they
are still the same, and maps the ids.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.cache import artifact
from trainer.config.data import StdlibConfig
from trainer.data.batching import Tokens, WindowFeed
from trainer.data.errors import DataError
from trainer.data.feed import Feed
from trainer.data.split import split
from trainer.data.stdlib import Document, documents
from trainer.data.tokenizer import adopted, open_tokenizer, trained

FORMAT = 1  # raise it when the same spec would give other ids
SUMMARY = "corpus.json"
SIDES = ("train", "held_out")
ENCODED_AT_ONCE = 16


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """Tokenised text.

    Args:
        train, held_out: token ids [N], uint16 or uint32, read-only and mapped from the cache. Files follow
            each other, each ended by the tokenizer's end-of-text token where it has one.
        vocab_size: every id is smaller; a model needs at least so many embeddings.
        sha256: of the text of both sides and of the tokenizer.
        tokenizer_dir: the tokenizer; `transformers.AutoTokenizer` loads it.
        bytes_per_token: of the held-out text. Nats per token / (bytes_per_token · ln 2) are bits per byte,
            which can be compared between tokenizers.
    """

    train: Tokens
    held_out: Tokens
    vocab_size: int
    sha256: str
    tokenizer_dir: Path
    bytes_per_token: float

    def batches(
        self,
        *,
        batch_size: int,
        sequence_length: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
    ) -> Feed:
        """The training text, shuffled by `seed`.

        Args:
            batch_size: rows of all ranks together; this feed gives those of `rank` of `world`.

        Raises:
            DataError: an argument is out of range.
        """
        return WindowFeed(
            self.train,
            text=self.sha256,
            batch_size=batch_size,
            sequence_length=sequence_length,
            seed=seed,
            rank=rank,
            world=world,
        )


def load(config: StdlibConfig, *, own_tokenizer: str | Path | None = None) -> Corpus:
    """The text in ids of the tokenizer that the configuration names, else of `own_tokenizer`, that of the
    model; where there is neither, of a byte-level BPE that is trained on the training side.

    Raises:
        TokenizerError: there is no such tokenizer.
        DataError: there is no text, or too little of it.
        CacheError: the cache folder cannot be used.
    """
    found = documents(config.max_bytes)
    fingerprint = _fingerprint(found)
    if given := config.tokenizer or own_tokenizer:
        return _load(config, found, fingerprint, adopted(given))

    def training_texts() -> list[str]:
        return [document.data.decode() for document in split(found, config.held_out_fraction)[0]]

    directory = trained(training_texts, f"{fingerprint}/{config.held_out_fraction!r}", config.vocab_size)
    return _load(config, found, fingerprint, directory)


def _load(config: StdlibConfig, found: Sequence[Document], fingerprint: str, tokenizer_dir: Path) -> Corpus:
    spec = {
        "format": FORMAT,
        "name": config.name,
        "python": platform.python_version(),
        "text_sha256": fingerprint,
        "held_out_fraction": config.held_out_fraction,
        "tokenizer_sha256": _tokenizer_sha256(tokenizer_dir),
    }
    folder = artifact(
        "corpora", spec, lambda work: _tokenise(found, config.held_out_fraction, tokenizer_dir, work)
    )
    summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    train, held_out = (np.memmap(folder / f"{side}.bin", dtype=summary["dtype"], mode="r") for side in SIDES)
    corpus = Corpus(
        train=train,
        held_out=held_out,
        vocab_size=summary["vocab_size"],
        sha256=summary["sha256"],
        tokenizer_dir=tokenizer_dir,
        bytes_per_token=summary["bytes_per_token"],
    )
    _require_a_window(corpus, config.sequence_length)
    return corpus


def _require_a_window(corpus: Corpus, sequence_length: int) -> None:
    for side, tokens in (("training", corpus.train), ("held-out", corpus.held_out)):
        if len(tokens) < sequence_length:
            raise DataError(
                f"the {side} text has {len(tokens)} tokens, fewer than "
                f"data.sequence_length={sequence_length}; lower it, or take more text "
                "(data.max_bytes, data.held_out_fraction)"
            )


def _tokenise(found: Sequence[Document], held_out_fraction: float, tokenizer_dir: Path, folder: Path) -> None:
    """Write both sides' ids and the summary into `folder`."""
    tokenizer = open_tokenizer(tokenizer_dir)
    vocab_size = max(tokenizer.get_vocab().values()) + 1  # not its length: ids may have gaps
    dtype = np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)
    digest = hashlib.sha256(_tokenizer_sha256(tokenizer_dir).encode())
    sides = dict(zip(SIDES, split(found, held_out_fraction), strict=True))
    tokens: dict[str, int] = {}
    for side, side_documents in sides.items():
        ids = _encode(side_documents, tokenizer)
        (folder / f"{side}.bin").write_bytes(ids.astype(dtype).tobytes())
        digest.update(f"{side}:{_fingerprint(side_documents)}".encode())
        tokens[side] = len(ids)
    held_out_bytes = sum(len(document.data) for document in sides["held_out"])
    summary = {
        "dtype": dtype.name,
        "vocab_size": vocab_size,
        "sha256": digest.hexdigest(),
        "bytes_per_token": held_out_bytes / tokens["held_out"],
        "tokens": tokens,
        "files": {side: [document.path for document in docs] for side, docs in sides.items()},
    }
    (folder / SUMMARY).write_text(json.dumps(summary, indent=1), encoding="utf-8")


def _encode(side_documents: Sequence[Document], tokenizer: Any) -> npt.NDArray[np.int64]:
    """The ids of all documents in order, each followed by the end-of-text token if there is one."""
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    backend = tokenizer.backend_tokenizer
    # A tokenizer.json may carry the settings of whoever saved it; they would cut or fill up the documents.
    backend.no_truncation()
    backend.no_padding()
    # "</s>" in a program is four characters of it, not the end of the text.
    backend.encode_special_tokens = True
    ids: list[npt.NDArray[np.int64]] = []
    # A few at a time: an encoding takes some hundred bytes per token until it is dropped.
    for first in range(0, len(side_documents), ENCODED_AT_ONCE):
        texts = [document.data.decode() for document in side_documents[first : first + ENCODED_AT_ONCE]]
        encodings = backend.encode_batch_fast(texts, add_special_tokens=False)
        ids += [np.asarray(encoding.ids + end, dtype=np.int64) for encoding in encodings]
    return np.concatenate(ids)


def _fingerprint(found: Sequence[Document]) -> str:
    """sha256 over paths and contents, each with its length, so that no two lists of files read alike."""
    digest = hashlib.sha256()
    for document in found:
        digest.update(f"{len(document.path)}:{document.path}:{len(document.data)}:".encode())
        digest.update(document.data)
    return digest.hexdigest()


def _tokenizer_sha256(directory: Path) -> str:
    """sha256 over what decides the ids: the tokenizer, and which of its tokens ends a text."""
    digest = hashlib.sha256((directory / "tokenizer.json").read_bytes())
    settings = json.loads((directory / "tokenizer_config.json").read_bytes())
    digest.update(json.dumps(settings.get("eos_token"), sort_keys=True).encode())
    return digest.hexdigest()
