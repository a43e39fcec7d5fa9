"""The measured documents of streamed text, held-out and test, and their near-copies. Used by `stream`.

The SHA-256 of a document's text decides its side (`corpus.side`). So it does not depend on the file, the
order or the machine, and exact copies are on the same side. Near-copies are found by their shingles
(`near_copies`): a test document that nearly copies a held-out one is dropped here, and a training document
that nearly copies a measured one is skipped wherever it occurs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from pydantic_core import from_json

from sweeps.text.counted import counted
from sweeps.text.regular_file import read_regular
from trainer.cache import artifact
from trainer.config.data import StreamConfig
from trainer.data.batching import Tokens, open_tokens
from trainer.data.corpus import HELD_OUT, TEST, TRAIN, mean_bytes, side
from trainer.data.encoder import Encoder, Ids, tokenizer_sha256
from trainer.data.near_copies import RULE, NearCopies
from trainer.data.shards import Shards
from trainer.errors import DataError

FORMAT = 3  # increase it when the same spec would give other tokens
SAMPLE_SEED = 0  # of the order in which text is sampled here, whatever the run's seed
TOKENIZER_BYTES = 8_000_000  # of text that a tokenizer is trained on, about as much as data=stdlib has
WAITING_BYTES = 8  # of test documents per token of test text that are kept until the held-out text is known
SUMMARY = "held_out.json"


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldOut:
    """The measured text, memory-mapped from the cache.

    Args:
        tokens: of the held-out documents, [N].
        test: of the test documents, [N]; may be empty.
        bytes_per_token: of the held-out documents.
        copies: all these documents, to compare training documents with.
    """

    tokens: Tokens
    test: Tokens
    bytes_per_token: float
    copies: NearCopies


def document_side(text: str, config: StreamConfig) -> str:
    """Return the side of a document of that text."""
    return side(text, held_out_fraction=config.held_out_fraction, test_fraction=config.test_fraction)


def side_settings(config: StreamConfig) -> dict[str, Any]:
    """Return what decides the sides, and the near-copies that are not trained on."""
    keys = ("held_out_fraction", "held_out_tokens", "test_fraction", "test_tokens")
    return {"format": FORMAT, "near_copies": RULE} | {key: getattr(config, key) for key in keys}


def held_out(shards: Shards, tokenizer: Path) -> HeldOut:
    """Return measured documents from blocks all over the text, until there are enough; cached.

    Raises:
        DataError: there is no held-out or no training text.
    """
    spec = side_settings(shards.config) | {
        "text_sha256": shards.sha256,
        "blocks": shards.blocks,
        "tokenizer_sha256": tokenizer_sha256(tokenizer),
    }
    folder = artifact("held_out", spec, lambda draft: gather(shards, tokenizer, draft))
    summary = from_json(read_regular(folder / SUMMARY))
    tokens, test = (open_tokens(folder / f"{name}.bin", summary["dtype"]) for name in (HELD_OUT, TEST))
    return HeldOut(
        tokens=tokens,
        test=test,
        bytes_per_token=mean_bytes(summary["bytes"], len(tokens)),
        copies=NearCopies.load(folder / "copies"),
    )


def most_tokens(shards: Shards, enough: int) -> int:
    """Return an upper bound of the held-out tokens, by bytes, from the documents that `enough` need.

    Raises:
        DataError: there is no held-out or no training text.
    """
    bound, passed = 0, Counter[str]()
    for name, text in _sampled_documents(shards, passed):
        if name == HELD_OUT:
            bound += len(text.encode()) + 1
        if passed[TRAIN] and bound >= enough:
            break
    if not (passed[TRAIN] and bound):
        raise _no_text_left(shards.config, "training" if bound else "held-out", passed.total())
    return bound


def _no_text_left(config: StreamConfig, missing: str, passed: int) -> DataError:
    return DataError(
        f"data.held_out_fraction={config.held_out_fraction} (data.test_fraction={config.test_fraction}) "
        f"leaves no {missing} text among {counted(passed, 'document')}; change it, or take more text"
    )


def training_sample(shards: Shards) -> list[str]:
    """Return training documents from blocks all over the text, to train a tokenizer on."""
    sample, size = [], 0
    for name, document in _sampled_documents(shards, Counter()):
        if name != TRAIN:
            continue
        sample.append(document)
        size += len(document.encode())
        if size >= TOKENIZER_BYTES:
            break
    return sample


def gather(shards: Shards, tokenizer: Path, folder: Path) -> None:
    """Write the measured tokens, their summary and the documents' shingles into a folder."""
    config, encode = shards.config, Encoder.open(tokenizer)
    chosen, test = _Chosen(encode, config.held_out_tokens), _Chosen(encode, config.test_tokens)
    passed = Counter[str]()
    documents = _sampled_documents(shards, passed)
    waiting, size = [], 0
    for name, text in documents:
        if name == HELD_OUT:
            chosen.add(text)
            if chosen.enough:
                break
        elif name == TEST and size < WAITING_BYTES * config.test_tokens:
            waiting.append(text)
            size += len(text.encode())
    # A test document may come before the held-out one that it copies, so that it has to wait.
    copies = NearCopies.build(chosen.texts)
    for text in chain(waiting, (text for name, text in documents if name == TEST)):
        if not copies.has(text):
            test.add(text)
        if test.enough:
            break
    if not chosen.texts or not (passed[TRAIN] or any(name == TRAIN for name, _ in documents)):
        missing = "training" if chosen.texts else "held-out"
        raise _no_text_left(config, missing, passed.total())
    for name, measured in ((HELD_OUT, chosen), (TEST, test)):
        ids = np.concatenate([np.empty(0, dtype=np.int64), *measured.ids])
        (folder / f"{name}.bin").write_bytes(ids.astype(encode.dtype).tobytes())
    NearCopies.build([*chosen.texts, *test.texts]).save(folder / "copies")
    summary = {
        "dtype": encode.dtype.name,
        "bytes": sum(len(text.encode()) for text in chosen.texts),
        "documents": {HELD_OUT: len(chosen.texts), TEST: len(test.texts)},
    }
    (folder / SUMMARY).write_text(json.dumps(summary), encoding="utf-8")


class _Chosen:
    """Documents of one side with their ids, until there are so many tokens."""

    def __init__(self, encode: Encoder, tokens: int) -> None:
        self.texts: list[str] = []
        self.ids: list[Ids] = []
        self._encode, self._missing = encode, tokens

    @property
    def enough(self) -> bool:
        return self._missing <= 0

    def add(self, text: str) -> None:
        self.texts.append(text)
        self.ids += self._encode([text])
        self._missing -= len(self.ids[-1])


def _sampled_documents(shards: Shards, passed: Counter[str]) -> Iterator[tuple[str, str]]:
    """Yield every document with its side, block by block in an order of neither files nor seeds.

    Args:
        passed: counts the documents of each side that were yielded.

    Raises:
        DataError: there is none.
    """
    reader = shards.reader()
    try:
        for block in np.random.default_rng(SAMPLE_SEED).permutation(shards.blocks):
            for text in reader.texts(int(block)):
                name = document_side(text, shards.config)
                passed[name] += 1
                yield name, text
    finally:
        reader.close()
    if not passed:
        key = shards.config.text_key
        under = f"every {key!r} (data.text_key) is null or blank" if key else "all files are blank"
        raise DataError(f"the training text has no document: {under}")
