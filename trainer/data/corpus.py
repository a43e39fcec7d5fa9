"""The tokenised text of a run: held in memory (`memory`, for `data=stdlib`) or streamed (`stream`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from trainer.data.batching import Tokens
from trainer.data.encoder import Encoder
from trainer.data.feed import Feed


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus(ABC):
    """Tokenised text, with the tokenizer's end-of-text token, if any, after each document.

    Args:
        held_out: token ids [N] of the text that is never trained on, uint16 or uint32, read-only and
            memory-mapped from the cache. A search selects by its loss on this text.
        test: token ids [N] like `held_out`, that runs are measured on only if `eval.test` asks for it; empty
            where there is too little text.
        vocab_size: every id is smaller; a model needs at least as many embeddings.
        sha256: of the text of all sides and of the tokenizer; docs/data.md says what it covers.
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
            seed: of the order.
            rank: of this process.
            world: number of processes.

        Raises:
            DataError: an argument is out of range.
        """
