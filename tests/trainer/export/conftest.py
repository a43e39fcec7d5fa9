"""transformers as the tests of exports want it: nothing compiled, no cache of modules outside the test."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from students import VOCABULARY

with warnings.catch_warnings():
    # It decorates with torch.compile, whose backend uses what torch itself calls deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import transformers.integrations.bitnet

__all__ = ["transformers"]


@pytest.fixture(autouse=True)
def _eager() -> Iterator[None]:
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.fixture(autouse=True)
def _own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where transformers copies the files of a checkpoint that brings code."""
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tokenizer with as many entries as the students have embeddings."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tokenizer")
    entries = {"<|endoftext|>": 0} | {chr(32 + index): index for index in range(1, VOCABULARY)}
    words = Tokenizer(models.WordLevel(entries, unk_token="<|endoftext|>"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<|endoftext|>").save_pretrained(folder)
    return folder
