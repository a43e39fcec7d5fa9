"""Models in GGUF files, converted into folders that transformers loads. Called by `data.remote`.

The conversion is done once per file and kept in the trainer's cache. Weights are dequantised to float32.
"""

from __future__ import annotations

import copy
import io
import re
from collections.abc import Callable
from contextlib import redirect_stderr
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from trainer.cache import artifact
from trainer.errors import ConfigError

SUFFIX = ".gguf"
FORMAT = 1  # increase it when the same file would give another folder
_MAGIC = b"GGUF"
_KEY = "model.name"
_PART = re.compile(r"-\d{5}-of-\d{5}$")


def converted(path: Path) -> Path:
    """Return the folder of a GGUF file's model and tokenizer, converting it if that is not in the cache.

    Raises:
        ConfigError: there is no such file, it is damaged or of an architecture that transformers does not
            read, or the package gguf is missing.
    """
    _check_file(path)
    require_package(_KEY)
    _check_architecture(path)
    found = path.stat()
    spec = {
        "format": FORMAT,
        "path": str(path.resolve()),
        "size": found.st_size,
        "mtime_ns": found.st_mtime_ns,
        "gguf": version("gguf"),
        "transformers": version("transformers"),
    }
    return artifact("gguf", spec, lambda folder: _convert(path, folder))


def _check_file(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}", key=_KEY) from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", key=_KEY) from error
    if magic != _MAGIC:
        raise ConfigError(f"{path} is no GGUF file: it does not begin with GGUF", key=_KEY)
    if _PART.search(path.stem):
        raise ConfigError(
            f"{path} is one of several parts; join them with llama.cpp's llama-gguf-split --merge, and name "
            "the joined file",
            key=_KEY,
        )


def require_package(key: str) -> None:
    """Raise ConfigError, about that key of the configuration, if the package gguf is not installed."""
    try:
        version("gguf")
    except PackageNotFoundError:
        raise ConfigError(
            "GGUF files need the package gguf, which is not installed: pip install 'stagesweep[gguf]'",
            key=key,
        ) from None


def _check_architecture(path: Path) -> None:
    """Raise ConfigError for a file whose header cannot be read or names an unknown architecture."""
    from gguf import GGUFReader
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    field = _readable(path, lambda: GGUFReader(path).get_field("general.architecture"))
    name = str(field.contents()) if field is not None else ""
    if name not in GGUF_SUPPORTED_ARCHITECTURES:
        raise ConfigError(
            f"{path} holds a model of architecture {name!r}, which transformers {version('transformers')} "
            "does not read from GGUF; take a model of the Llama or Qwen family",
            key=_KEY,
        )


def _convert(path: Path, folder: Path) -> None:
    """Write the model, its configuration and its tokenizer into the folder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True}
    with redirect_stderr(io.StringIO()):  # progress bars
        arguments = {"dtype": torch.float32, **source, **_dequantised()}
        loaded = _readable(path, lambda: AutoModelForCausalLM.from_pretrained(path.parent, **arguments))
        tokenizer = _readable(path, lambda: AutoTokenizer.from_pretrained(path.parent, **source))
        # A model that was loaded from GGUF refuses to be saved, so its weights go into a plain one.
        config = copy.deepcopy(loaded.config)
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        plain.load_state_dict(loaded.state_dict())
        plain.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _dequantised() -> dict[str, Any]:
    """Return the setting that has weights unpacked; older releases of transformers know no other way."""
    try:
        from transformers import GgufConfig
    except ImportError:
        return {}
    return {"quantization_config": GgufConfig(dequantize=True)}


def _readable(path: Path, read: Callable[[], Any]) -> Any:
    """Return what `read` returns; raise ConfigError for what it raises, of which libraries name nothing."""
    try:
        return read()
    except MemoryError:
        raise
    except Exception as error:  # a damaged header gives anything from IndexError to UnicodeDecodeError
        first = next(iter(str(error).strip().splitlines()), "")
        detail = f"{type(error).__name__}: {first}" if first else type(error).__name__
        raise ConfigError(f"cannot load {path}: {detail}", key=_KEY) from error
