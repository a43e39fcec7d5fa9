"""From a configuration to its corpus: held in memory (`memory`, for `data=stdlib`) or streamed (`stream`)."""

from __future__ import annotations

from pathlib import Path

from trainer.config.data import DataConfig
from trainer.data.corpus import Corpus
from trainer.data.errors import DataError


def load(config: DataConfig, *, own_tokenizer: str | Path | None = None) -> Corpus:
    """Load the text that the configuration names, tokenised.

    The tokenizer is the one that the configuration names, otherwise the model's (`own_tokenizer`); without
    either, a byte-level BPE is trained on the training side.

    Raises:
        ConfigError: a key names text that does not exist or has another format.
        TokenizerError: there is no such tokenizer.
        DataError: there is too little text, or it cannot be read.
        CacheError: the cache folder cannot be used.
    """
    if config.name == "stdlib":
        from trainer.data import memory

        corpus: Corpus = memory.load(config, own_tokenizer)
    else:
        from trainer.data import stream

        corpus = stream.load(config, own_tokenizer)
    _refuse_too_few(len(corpus.held_out), config)
    return corpus


def require_text(config: DataConfig) -> None:
    """Look whether there is text of each side, reading no more than that takes, and without a tokenizer.

    Raises:
        ConfigError: a key names text that does not exist or has another format.
        DataError: there is too little text, or it cannot be read.
    """
    if config.name == "stdlib":
        from trainer.data import memory

        most = memory.most_tokens(config)
    else:
        from trainer.data import held_out, shards

        most = held_out.most_tokens(shards.open_shards(config), config.sequence_length)
    _refuse_too_few(most, config, "at most ")


def _refuse_too_few(tokens: int, config: DataConfig, bound: str = "") -> None:
    if tokens < config.sequence_length:
        more = "data.max_bytes" if config.name == "stdlib" else "data.held_out_tokens"
        raise DataError(
            f"the held-out text has {bound}{tokens} tokens, fewer than data.sequence_length="
            f"{config.sequence_length}; lower it, or take more text ({more}, data.held_out_fraction)"
        )
