"""Bytes per token: they add up to the text, token by token, for every kind of tokenizer that is in use."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from trainer.api import check
from trainer.data.corpus import Corpus
from trainer.data.inputs import load
from trainer.data.token_bytes import scored_bytes, token_bytes

TEXT = "def f(x):\n    return x  # naïve café, 東京 🙂\n\tif x: pass\n"
SPECIAL = "<|endoftext|>"


def byte_level() -> Tokenizer:
    """A byte-level tokenizer as of GPT-2, Llama 3, Qwen and SmolLM."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=[SPECIAL], show_progress=False
    )
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    return tokenizer


def byte_level_without_decoder() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.decoder = None
    return tokenizer


def sentencepiece() -> Tokenizer:
    """A SentencePiece tokenizer as of Llama 2 and Mistral: ▁ for spaces, byte fallback."""
    known = sorted({character for character in TEXT if character.isascii()} - {" "})
    tokens = [SPECIAL, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *known, "re", "é"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("r", "e")], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens([SPECIAL, "<unk>"])
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> Path:
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("made", [byte_level, byte_level_without_decoder, sentencepiece])
def test_each_token_has_the_bytes_of_its_piece_of_the_text(
    made: Callable[[], Tokenizer], tmp_path: Path
) -> None:
    tokenizer = made()
    lengths = token_bytes(save(tokenizer, tmp_path))
    encoding = tokenizer.encode(TEXT)
    assert int(lengths[encoding.ids].sum()) == len(TEXT.encode())
    # Where a token is made of whole characters, the library's own offsets say which.
    pieces = [
        (index, TEXT[start:end])
        for index, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)
        if TEXT[start:end].isascii()
    ]
    assert len(pieces) > 10
    for index, piece in pieces:
        assert lengths[index] == len(piece), piece


@pytest.mark.parametrize("made", [byte_level, sentencepiece])
def test_bytes_of_special_and_added_tokens(made: Callable[[], Tokenizer], tmp_path: Path) -> None:
    tokenizer = made()
    tokenizer.add_tokens([AddedToken("café(x)", normalized=False)])
    lengths = token_bytes(save(tokenizer, tmp_path))
    assert lengths[tokenizer.token_to_id(SPECIAL)] == 0
    assert lengths[tokenizer.token_to_id("café(x)")] == 8


@pytest.fixture
def corpus(small: tuple[str, ...]) -> Corpus:
    return load(check(small).data)


def test_the_embedded_corpus_is_accounted_for_to_the_byte(corpus: Corpus) -> None:
    lengths = token_bytes(corpus.tokenizer_dir)
    expected = corpus.bytes_per_token * len(corpus.held_out)
    assert int(lengths[corpus.held_out].sum()) == pytest.approx(expected, abs=1e-3)


def test_only_scored_tokens_count(corpus: Corpus) -> None:
    lengths = token_bytes(corpus.tokenizer_dir)
    ids = np.asarray(corpus.held_out[:12], dtype=np.int64)
    batches = [torch.from_numpy(ids.reshape(1, 2, 6)[0]), torch.from_numpy(ids.reshape(1, 2, 6)[0])]
    expected = 2 * sum(int(lengths[index]) for place, index in enumerate(ids) if place not in (0, 6))
    assert scored_bytes(corpus, batches) == expected


def test_a_tokenizer_that_changes_the_text_has_no_bytes(corpus: Corpus, tmp_path: Path) -> None:
    """A tokenizer that drops spaces: its tokens have fewer bytes than the text."""
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.Replace(" ", "")
    ids = np.asarray(tokenizer.encode(TEXT).ids, dtype=np.uint16)
    spoilt = dataclasses.replace(
        corpus,
        held_out=ids,
        tokenizer_dir=save(tokenizer, tmp_path),
        bytes_per_token=len(TEXT.encode()) / len(ids),
    )
    assert scored_bytes(spoilt, [torch.from_numpy(ids.astype(np.int64))[None]]) is None
