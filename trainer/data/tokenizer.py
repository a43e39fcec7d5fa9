"""Tokenizers as cached folders for `transformers.AutoTokenizer`: trained on the text, or a model's own.

Called by `memory` and `stream`.
"""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trainer.cache import artifact
from trainer.data.encoder import disable_tokenizer_threads
from trainer.data.remote import local_folder
from trainer.errors import DataError, MissingError, TokenizerError
from trainer.models.network import hub_error
from trainer.result import version

END_OF_TEXT = "<|endoftext|>"
FORMAT = 1  # increase it when the same spec would give another tokenizer


def train_tokenizer(texts: Callable[[], Sequence[str]], text_id: str, vocab_size: int) -> Path:
    """Return the folder of a byte-level BPE whose first entry is `END_OF_TEXT`, training it if necessary.

    Args:
        texts: called only if the tokenizer has to be trained.
        text_id: identifies these texts.
        vocab_size: number of entries, the special token included.

    Raises:
        DataError: the texts are too short for so many entries.
    """
    spec = {
        "format": FORMAT,
        "origin": "byte-level BPE",
        "text": text_id,
        "vocab_size": vocab_size,
        "tokenizers": version("tokenizers"),
    }
    return artifact("tokenizers", spec, lambda folder: train_bpe(texts(), vocab_size, folder))


def import_tokenizer(name_or_path: str | Path) -> Path:
    """Copy an existing tokenizer, named by folder, hub name or URL, and return the folder of the copy.

    Raises:
        TokenizerError: it does not exist, or cannot be loaded.
        MachineError: HF_HUB_OFFLINE is set, and it is not here.
        UnreachableError: the network is lost.
        DataError: it cannot be downloaded.
    """
    try:
        found = local_folder(str(name_or_path))
    except MissingError as error:
        raise TokenizerError(str(error)) from error
    tokenizer = open_tokenizer(found)
    spec = {
        "format": FORMAT,
        "origin": "adopted",
        "class": type(tokenizer).__name__,
        "content_sha256": hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest(),
        "special_tokens": {key: str(token) for key, token in tokenizer.special_tokens_map.items()},
        "transformers": version("transformers"),
    }
    return artifact("tokenizers", spec, lambda folder: _save(tokenizer, folder))


def open_tokenizer(name_or_path: str | Path) -> Any:
    """Load a tokenizer with transformers. Raises as `import_tokenizer` does."""
    from transformers import AutoTokenizer  # takes a second to import, which a warm cache does not need

    disable_tokenizer_threads()
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(name_or_path))
    except Exception as error:  # the Rust library raises nothing narrower for a damaged file
        problem = f"no tokenizer can be loaded from {str(name_or_path)!r}"
        if (unreached := hub_error(error, problem)) is not None:
            raise unreached from error
        reason = textwrap.shorten(str(error), 300) or type(error).__name__  # transformers writes paragraphs
        raise TokenizerError(f"{problem}: {reason}") from error
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise TokenizerError(
            f"the tokenizer at {str(name_or_path)!r} has no tokenizer.json (a slow tokenizer); "
            "convert it with transformers and name the converted folder"
        )
    return tokenizer


def train_bpe(texts: Sequence[str], vocab_size: int, folder: Path) -> None:
    """Train a byte-level BPE and save it into a folder, or raise DataError if the texts are too short."""
    from tokenizers import Tokenizer
    from tokenizers.decoders import ByteLevel as ByteLevelDecoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.trainers import BpeTrainer
    from transformers import PreTrainedTokenizerFast

    disable_tokenizer_threads()
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise DataError(
            f"the text yields only {tokenizer.get_vocab_size()} of data.vocab_size={vocab_size} entries; "
            "lower data.vocab_size or take more text"
        )
    _save(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END_OF_TEXT), folder)


def _save(tokenizer: Any, folder: Path) -> None:
    tokenizer.save_pretrained(folder)
