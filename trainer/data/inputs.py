"""The text of a run, from its configuration: tokenised, and cut into the batches that losses are measured on.

It is held in memory (`memory`, for `data=stdlib`) or streamed (`stream`). Called by `__main__` before
`pipeline`, and by `stages.teacher` ahead of many runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from trainer.config import Config
from trainer.config.data import DataConfig
from trainer.data.batching import eval_batches, eval_documents
from trainer.data.corpus import Corpus
from trainer.data.encoder import Encoder
from trainer.data.token_bytes import scored_bytes
from trainer.errors import ConfigError, DataError, TokenizerError
from trainer.layout import Progress


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The text of a run.

    Args:
        held_out: the batches [B, T] that losses are measured on, int64.
        held_out_bytes: bytes of text of the tokens scored in them; None if the tokenizer does not tell.
        held_out_documents: number of the document of each sequence in them; empty if the tokenizer has no
            end-of-text token.
        test: batches [B, T] of the test text; none unless `eval.test` asks for them.
        test_documents: likewise of these.
    """

    corpus: Corpus
    held_out: list[Tensor]
    held_out_bytes: int | None
    held_out_documents: tuple[int, ...]
    test: list[Tensor]
    test_documents: tuple[int, ...]


def prepare_inputs(config: Config, progress: Progress = lambda message, fraction: None) -> Inputs:
    """Load the text, tokenising it if it is not in the cache yet.

    Raises:
        ConfigError: there is no such text or tokenizer, or too little text for the evaluation.
        DataError: the text cannot be read, or is too short.
    """
    progress("corpus", None)
    own_tokenizer = config.model.name if config.model.kind == "hf" else None
    try:
        corpus = load(config.data, own_tokenizer=own_tokenizer)
    except TokenizerError as error:
        key = "data.tokenizer" if config.data.tokenizer else "model.name"
        raise ConfigError(str(error), key=key) from error
    length, batches = config.data.sequence_length, config.eval.batches
    size = config.eval.batch_size
    cut = partial(eval_batches, batch_size=size, sequence_length=length, batches=batches)
    end = Encoder.open(corpus.tokenizer_dir).end
    documents = partial(eval_documents, end=end, batch_size=size, sequence_length=length, batches=batches)
    try:
        held_out = cut(corpus.held_out)
    except DataError as error:
        raise ConfigError(str(error), key="eval.batches") from error
    test: list[Tensor] = []
    if config.eval.test:  # else nothing reads the test text, not even its length
        try:
            test = cut(corpus.test, text="test")
        except DataError as error:
            raise ConfigError(f"{error} (data.test_fraction)", key="eval.test") from error
    return Inputs(
        corpus=corpus,
        held_out=held_out,
        held_out_bytes=scored_bytes(corpus, held_out),
        held_out_documents=documents(corpus.held_out),
        test=test,
        test_documents=documents(corpus.test) if test else (),
    )


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
    """Check that there is text of each side, reading no more than that takes, and without a tokenizer.

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
