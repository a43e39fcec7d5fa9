"""Training text: from files to batches of token ids.

Names are imported on first use: whoever needs one of them does not load all that the others need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.data.batching import eval_batches as eval_batches
    from trainer.data.corpus import Corpus as Corpus
    from trainer.data.feed import Feed as Feed
    from trainer.data.inputs import load as load
    from trainer.data.remote import local_folder as local_folder
    from trainer.data.token_bytes import scored_bytes as scored_bytes

_MODULES = {
    "Corpus": "corpus",
    "Feed": "feed",
    "eval_batches": "batching",
    "load": "inputs",
    "local_folder": "remote",
    "scored_bytes": "token_bytes",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
