"""The tokenised text of a run: held in memory (`memory`, for `data=stdlib`) or streamed (`stream`).

It has three sides: training text is trained on; held-out text is what a search selects by; test text is
measured by nothing but the runs that confirm what was selected (`eval.test`).
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from trainer.config import Config
from trainer.data.batching import Tokens
from trainer.data.encoder import Encoder
from trainer.data.feed import Feed
from trainer.distributed.ranks import ALONE, Ranks
from trainer.errors import DataError

TRAIN, HELD_OUT, TEST = SIDES = ("train", "held_out", "test")


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus(ABC):
    """Tokenised text, with the tokenizer's end-of-text token, if any, after each document.

    Args:
        held_out: token ids [N] of the text that is never trained on, uint16 or uint32, read-only and
            memory-mapped from the cache. A search selects by its loss on this text.
        test: token ids [N] like `held_out`, that runs are measured on only if `eval.test` asks for it; empty
            where there is too little text.
        vocab_size: every id is smaller; a model needs at least as many embeddings.
        sha256: of the text of all sides and of the tokenizer; docs/how-to/text.md says what it covers.
        tokenizer_dir: the tokenizer's folder, for `transformers.AutoTokenizer`.
        bytes_per_token: of the held-out text. Nats per token / (bytes_per_token · ln 2) are bits per byte,
            which can be compared between tokenizers.
    """

    held_out: Tokens
    test: Tokens
    vocab_size: int
    sha256: str
    tokenizer_dir: Path
    bytes_per_token: float

    @property
    def document_end(self) -> int | None:
        """Return the id of the token that ends each document; None: the tokenizer has none."""
        return Encoder.open(self.tokenizer_dir).end

    @property
    @abstractmethod
    def order_sha256(self) -> str:
        """Return the digest of all that decides the batches but for the arguments of `batches`."""

    @abstractmethod
    def batches(
        self, *, batch_size: int, sequence_length: int, seed: int, rank: int = 0, world: int = 1
    ) -> Feed:
        """Return a feed of the training text, shuffled by `seed`.

        Args:
            batch_size: rows of all ranks together; the feed has those of `rank` alone.
            sequence_length: T, in tokens.

        Raises:
            DataError: the ranks cannot share a batch evenly.
        """


def side(content: str, *, held_out_fraction: float, test_fraction: float) -> str:
    """Return the side of a document, which the SHA-256 of its content alone decides.

    Held-out documents have the smallest hashes and test documents the largest, so that other fractions (below
    a half) move documents from or to the training text, but none from one measured text to the other.
    """
    position = int.from_bytes(hashlib.sha256(content.encode()).digest()[:8], "big")
    if position < held_out_fraction * 2**64:
        return HELD_OUT
    return TEST if position >= (1 - test_fraction) * 2**64 else TRAIN


def mean_bytes(text_bytes: int, tokens: int) -> float:
    """Return the bytes per token of a measured text; raise DataError if the tokenizer knows none of it."""
    if not tokens:
        raise DataError("the tokenizer makes no token of the held-out text; name another data.tokenizer")
    return text_bytes / tokens


def stage_text(corpus: Corpus, config: Config, stage: str, batch_size: int, ranks: Ranks = ALONE) -> Feed:
    """Return a feed shuffled by the run's seed and the stage's name, which the caller closes.

    Args:
        batch_size: rows of all ranks together.
        ranks: the processes that share each batch; the feed has the rows of this one.
    """
    digest = hashlib.sha256(f"{config.seed}/{stage}".encode()).digest()
    return corpus.batches(
        batch_size=batch_size,
        sequence_length=config.data.sequence_length,
        seed=int.from_bytes(digest[:4], "big"),
        rank=ranks.data_rank,
        world=ranks.data_world,
    )
