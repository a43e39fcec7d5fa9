"""Training text: from files to batches of token ids. The pipeline calls what is exported here.

Names are imported when first used, because the configuration (`trainer.data.config`) lives in this package
and must be readable without numpy and torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.data.batching import batches, eval_batches
    from trainer.data.config import DataConfig
    from trainer.data.corpus import Corpus, load, load_with_tokenizer
    from trainer.data.errors import DataError, TokenizerError

__all__ = [
    "Corpus",
    "DataConfig",
    "DataError",
    "TokenizerError",
    "batches",
    "eval_batches",
    "load",
    "load_with_tokenizer",
]

_HOME = {
    "Corpus": "corpus",
    "DataConfig": "config",
    "DataError": "errors",
    "TokenizerError": "errors",
    "batches": "batching",
    "eval_batches": "batching",
    "load": "corpus",
    "load_with_tokenizer": "corpus",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
