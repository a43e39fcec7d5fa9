"""What the pipeline trains and evaluates on, wherever it comes from. `load` is the door.

Two kinds: text that fits into memory (`memory`, for `data=stdlib`) and text that is streamed (`stream`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from trainer.config.data import DataConfig
from trainer.data.batching import Tokens
from trainer.data.errors import DataError
from trainer.data.feed import Feed


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus(ABC):
    """Tokenised text. Documents follow each other, each ended by the tokenizer's end-of-text token, if any.

    Args:
        held_out: token ids [N] of the text that is never trained on, uint16 or uint32, read-only and mapped
            from the cache.
        vocab_size: every id is smaller; a model needs at least so many embeddings.
        sha256: of the text of both sides and of the tokenizer; docs/data.md says what it covers.
        tokenizer_dir: the tokenizer; `transformers.AutoTokenizer` loads it.
        bytes_per_token: of the held-out text. Nats per token / (bytes_per_token · ln 2) are bits per byte,
            which can be compared between tokenizers.
    """

    held_out: Tokens
    vocab_size: int
    sha256: str
    tokenizer_dir: Path
    bytes_per_token: float

    @property
    @abstractmethod
    def order_sha256(self) -> str:
        """Of all that decides the batches, beside the arguments of `batches`."""

    @abstractmethod
    def batches(
        self, *, batch_size: int, sequence_length: int, seed: int, rank: int = 0, world: int = 1
    ) -> Feed:
        """The training text, shuffled by `seed`.

        Args:
            batch_size: rows of all ranks together; this feed gives those of `rank` of `world`.

        Raises:
            DataError: an argument is out of range.
        """


def load(config: DataConfig, *, own_tokenizer: str | Path | None = None) -> Corpus:
    """The text in ids of the tokenizer that the configuration names, else of `own_tokenizer`, that of the
    model; where there is neither, of a byte-level BPE that is trained on the training side.

    Raises:
        ConfigError: a key names text that is not there, or that cannot be read so.
        TokenizerError: there is no such tokenizer.
        DataError: there is too little text, or it cannot be read.
        CacheError: the cache folder cannot be used.
    """
    if config.name == "stdlib":
        from trainer.data import memory

        corpus: Corpus = memory.load(config, own_tokenizer)
        advice = "data.max_bytes, data.held_out_fraction"
    else:
        from trainer.data import stream

        corpus = stream.load(config, own_tokenizer)
        advice = "data.held_out_tokens, data.held_out_fraction"
    if len(corpus.held_out) < config.sequence_length:
        raise DataError(
            f"the held-out text has {len(corpus.held_out)} tokens, fewer than "
            f"data.sequence_length={config.sequence_length}; lower it, or take more text ({advice})"
        )
    return corpus
