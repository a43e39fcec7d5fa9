"""Models in GGUF files, converted into folders that transformers loads. Called by `data.remote`.

The conversion is done once per file and kept in the trainer's cache. Weights are dequantised to float32.
"""

from __future__ import annotations

import copy
import dataclasses
import io
import re
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sweeps.text.installation import install_command
from trainer.cache import artifact
from trainer.errors import ConfigError, MachineError
from trainer.models import gguf_header, pretrained
from trainer.models.pretrained import Misfits, in_order, truncate

SUFFIX = ".gguf"
FORMAT = 2  # increase it when the same file would give another folder; 1 took files that lacked tensors
SMALL = 2**24  # parameters: 64 MiB of float32
ROTARY = "rope_freqs.weight"
# Of all releases of Llama 3.1 to 3.3, which differ in the factor.
_LLAMA_3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_MAGIC = b"GGUF"
_KEY = "model.name"
_PART = re.compile(r"-\d{5}-of-\d{5}$")


def convert(path: Path) -> Path:
    """Convert a GGUF file, unless the cache has it, and return the folder of its model and tokenizer.

    Raises:
        ConfigError: there is no such file, it is damaged, lacks a tensor, has one more than the model or is
            of an architecture that transformers does not read.
        MachineError: the package gguf is missing.
    """
    _check_file(path)
    require_package(_KEY)
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    header: gguf_header.Header = _read_or_explain(path, lambda: gguf_header.read_header(path))
    if header.architecture not in GGUF_SUPPORTED_ARCHITECTURES:
        raise ConfigError(
            f"{path} holds a model of architecture {truncate(header.architecture)!r}, which transformers "
            f"{version('transformers')} does not read from GGUF; take a model of the Llama or Qwen family",
            key=_KEY,
        )
    found = path.stat()
    spec = {
        "format": FORMAT,
        "path": str(path.resolve()),
        "size": found.st_size,
        "mtime_ns": found.st_mtime_ns,
        "gguf": version("gguf"),
        "transformers": version("transformers"),
    }
    return artifact("gguf", spec, lambda folder: _write(path, header, folder))


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
    """Raise MachineError, about that key of the configuration, if the package gguf is not installed."""
    try:
        version("gguf")
    except PackageNotFoundError:
        raise MachineError(
            f"GGUF files need the package gguf, which is not installed: {install_command('gguf')}",
            key=key,
        ) from None


def _write(path: Path, header: gguf_header.Header, folder: Path) -> None:
    """Write the model, its configuration and its tokenizer into the folder."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    source: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True}
    # Alone in a folder: transformers would also take a tokenizer's settings or adapters beside it.
    with TemporaryDirectory() as place, redirect_stderr(io.StringIO()):  # progress bars
        (Path(place) / path.name).symlink_to(path.resolve())
        described = _read_or_explain(path, lambda: AutoConfig.from_pretrained(place, **source))
        with torch.device("meta"):
            sketch = _read_or_explain(path, lambda: AutoModelForCausalLM.from_config(described))
        _check_size(path, sketch, header)
        arguments = {"dtype": torch.float32, **source}
        with suppress(ImportError):  # without it, older releases of transformers dequantise by default
            from transformers import GgufConfig

            arguments["quantization_config"] = GgufConfig(dequantize=True)
        loaded, misfits = _read_or_explain(
            path, lambda: pretrained.load(AutoModelForCausalLM, place, **arguments)
        )
        # A model that was loaded from GGUF refuses to be saved, so its weights go into a plain one.
        config = copy.deepcopy(loaded.config)
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        misfits = _with_file_names(misfits, loaded, header)
        if ROTARY in misfits.unexpected and _scale_rotation(config, loaded, path):
            others = tuple(name for name in misfits.unexpected if name != ROTARY)
            misfits = dataclasses.replace(misfits, unexpected=others)
        if misfits:
            raise ConfigError(f"cannot load {path}: it {misfits}; take a complete file", key=_KEY)
        tokenizer = _read_or_explain(path, lambda: AutoTokenizer.from_pretrained(place, **source))
        plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        plain.load_state_dict(loaded.state_dict())
        plain.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _check_size(path: Path, sketch: Any, header: gguf_header.Header) -> None:
    """Raise ConfigError if the file's tensors are no model of the size that its header describes.

    transformers would allocate what is described, and fill it at random. Of small models it finds the names.
    """
    described, held = sum(p.numel() for p in sketch.parameters()), sum(header.elements.values())
    if described > 2 * held + SMALL:
        raise ConfigError(
            f"cannot load {path}: its header describes a model of {described:,} parameters, and its tensors "
            f"have {held:,}; take a complete file of the model",
            key=_KEY,
        )


def _with_file_names(misfits: Misfits, model: Any, header: gguf_header.Header) -> Misfits:
    """Return the misfits with the file's names of tensors, and those that transformers passed over."""
    from transformers import modeling_gguf_pytorch_utils as reader

    try:
        from transformers.integrations.gguf import GGUF_ARCHS

        if header.architecture in GGUF_ARCHS:  # read in another way, which passes over nothing
            return misfits
    except ImportError:
        pass  # an earlier release
    processor = reader.TENSOR_PROCESSORS.get(header.architecture, reader.TensorProcessor)
    ours = reader.get_gguf_hf_weights_map(model, processor(config=model.config.to_dict()))
    theirs = {name: stored for stored, name in ours.items()}
    passed_over = [
        name
        for name in header.elements
        if name not in ours and name.removesuffix(".weight") not in ours  # experts have no suffix there
    ]
    return dataclasses.replace(
        misfits,
        missing=tuple(f"{theirs[name]} ({name})" if name in theirs else name for name in misfits.missing),
        unexpected=misfits.unexpected + in_order(passed_over),
    )


def _scale_rotation(config: Any, loaded: Any, path: Path) -> bool:
    """Set the scaling of Llama 3 that the file's divisors of frequencies come from; return False for others.

    llama.cpp stores these divisors in place of the scaling's settings, and transformers passes over them.
    """
    import torch
    from gguf import GGUFReader

    divisors = next(torch.tensor(each.data) for each in GGUFReader(path).tensors if each.name == ROTARY)
    rotary = next((module for module in loaded.modules() if hasattr(module, "inv_freq")), None)
    if rotary is None or divisors.shape != rotary.inv_freq.shape:
        return False
    settings = {"factor": float(divisors.max()), **_LLAMA_3}
    for scaling in ({}, settings):  # a file without scaling may have divisors of 1
        tried = copy.deepcopy(config)
        tried.rope_parameters = {**config.rope_parameters, **scaling}
        if torch.allclose(type(rotary)(config=tried).inv_freq, rotary.inv_freq / divisors, rtol=1e-4):
            config.rope_parameters = tried.rope_parameters
            return True
    return False


def _read_or_explain(path: Path, read: Callable[[], Any]) -> Any:
    """Return what `read` returns; raise ConfigError, with the path, for any error of a library."""
    try:
        return read()
    except (MemoryError, ConfigError):
        raise
    except Exception as error:  # a damaged header gives anything from IndexError to UnicodeDecodeError
        first = truncate(next(iter(str(error).strip().splitlines()), ""), 300)
        if isinstance(error, gguf_header.HeaderError):
            raise ConfigError(f"cannot load {path}: {first}", key=_KEY) from error
        detail = f"{type(error).__name__}: {first}" if first else type(error).__name__
        raise ConfigError(f"cannot load {path}: {detail}", key=_KEY) from error
