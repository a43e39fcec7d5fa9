"""A finished student as a folder, written by `__main__` for `save_model=true` and read by `export`.

    student.json          schema, transformers' configuration of the model, quantisation, adapters
    student.safetensors   the master weights, SubLN's gains, adapters
    tokenizer/            for transformers' AutoTokenizer

Master weights allow further training. The files are not named as transformers names its own, because its
classes would silently load them without SubLN and quantisation.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from pydantic import ValidationError
from pydantic_core import from_json
from torch import Tensor, nn

from sweeps.text.regular_file import open_regular, read_regular
from trainer.cache import MANIFEST
from trainer.checkpoint.parts import Weights
from trainer.config import QuantConfig
from trainer.distributed.ranks import ALONE, Ranks
from trainer.distributed.tensors import full_tensor
from trainer.errors import TrainerError
from trainer.models import adapters
from trainer.models.causal_lm import xla_to_cpu
from trainer.models.pretrained import Misfits
from trainer.models.subln import BEFORE, quantise
from trainer.quant.ternary import fully_quantised, ternary_layers
from trainer.quant.warmup import Lambda

SCHEMA = 1
DOCUMENT, WEIGHTS, TOKENIZER = "student.json", "student.safetensors", "tokenizer"


class StudentFolderError(TrainerError):
    """A student folder that cannot be written or read."""

    def __init__(self, folder: Path, problem: str) -> None:
        self.folder, self.problem = folder, problem
        super().__init__(f"{str(folder)!r}: {problem}")


@dataclass(frozen=True, kw_only=True)
class SavedStudent:
    """A student read from its folder.

    Args:
        model: in evaluation mode, at lambda 1.
        config_sha256: digest of the run's configuration, as in the run's result.
    """

    model: nn.Module
    tokenizer: Path
    config_sha256: str


def save(
    student: nn.Module, folder: Path, *, tokenizer: Path, config_sha256: str, ranks: Ranks = ALONE
) -> None:
    """Write a student atomically, replacing an existing folder.

    Args:
        student: at lambda 1, without salient columns.
        tokenizer: the folder of its tokenizer, which is copied.
        ranks: the processes that share the run. All must call, as weights may be sharded; rank 0 writes.

    Raises:
        StudentFolderError: the disk refuses it.
        ValueError: the student is not fully quantised.
    """
    if not fully_quantised(student):
        raise ValueError("the student is not at lambda 1")
    tensors = _gather(xla_to_cpu(student), keep=ranks.first)
    if ranks.first:
        _write(student, tensors, folder, tokenizer=tokenizer, config_sha256=config_sha256)


def _gather(student: nn.Module, *, keep: bool) -> dict[str, Tensor]:
    """Gather all weights on the CPU, tied ones once; without `keep`, take part but return nothing.

    The module's state dict would not do: with FSDP it has only this process's shard of each weight.
    """
    tensors = {}
    for name, part in Weights(student).state().tensors.items():
        tensor = full_tensor(part.detach())
        if keep:
            tensors[name] = tensor.cpu().contiguous()
    return tensors


def _write(
    student: nn.Module, tensors: dict[str, Tensor], folder: Path, *, tokenizer: Path, config_sha256: str
) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        model, found = cast(Any, student), adapters.adapters_of(student)
        document = {
            "schema": SCHEMA,
            "dtype": str(next(student.parameters()).dtype).removeprefix("torch."),
            "quant": asdict(ternary_layers(student)[0].config),
            "model_config": model.config.to_dict(),
            "generation_config": model.generation_config.to_dict() if model.generation_config else None,
            **({"adapters": asdict(found)} if found else {}),
            "config_sha256": config_sha256,
        }
        (temporary / DOCUMENT).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        save_file(tensors, temporary / WEIGHTS)
        shutil.copytree(tokenizer, temporary / TOKENIZER, ignore=shutil.ignore_patterns(MANIFEST))
        shutil.rmtree(folder, ignore_errors=True)
        temporary.replace(folder)
    except (OSError, SafetensorError) as error:  # safetensors reports a full disk as its own error
        reason = getattr(error, "strerror", None) or error
        raise StudentFolderError(folder, f"cannot write the model: {reason}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load(folder: Path) -> SavedStudent:
    """Load a student that `save` wrote, on the CPU.

    Raises:
        MachineError: it has adapters, and the package for them is not installed.
        StudentFolderError: it is missing, damaged, or written by an incompatible version.
    """
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_model
    from transformers import AutoConfig, AutoModelForCausalLM

    document = _read_document(folder)
    if document.get("adapters"):
        adapters.require_package(str(folder))
    try:
        quant = QuantConfig(**document["quant"])
        config = AutoConfig.for_model(**document["model_config"])
        model = AutoModelForCausalLM.from_config(
            config, dtype=getattr(torch, document["dtype"]), attn_implementation="eager"
        )
        open_regular(folder / WEIGHTS).close()  # safetensors would wait for the writer of a pipe
        with safe_open(folder / WEIGHTS, framework="pt") as weights:
            found = {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118
        # Layers with a SubLN, by the names of their weights. Not by those of the gains: one that is missing
        # would make a model without it, which fits.
        stems, suffix = {adapters.without_base(name) for name in found}, ".projection.weight"
        stems = {name.removesuffix(suffix) for name in stems if name.endswith(suffix)}
        gains = {stem: 1.0 for stem in stems if stem.rpartition(".")[2] in BEFORE}
        quantise(model, Lambda(), quant, gains, blended=False)
        if settings := document.get("adapters"):
            settings = adapters.Adapters(**settings | {"modules": tuple(settings["modules"])})
            adapters.add_adapters(model, settings, seed=0)
        expected = {name: tensor.shape for name, tensor in Weights(model).state().tensors.items()}
        if misfits := Misfits.between(expected, found):
            raise StudentFolderError(folder, f"{WEIGHTS} {misfits}; copy the folder again, or train again")
        load_model(model, folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise StudentFolderError(folder, f"{WEIGHTS} cannot be read: {error}") from error
    except (KeyError, ValueError, RuntimeError, ValidationError) as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise StudentFolderError(folder, f"it does not fit this version of the program: {first}") from error
    if generation := document.get("generation_config"):
        model.generation_config = type(model.generation_config).from_dict(generation)
    return SavedStudent(
        model=model.eval(), tokenizer=folder / TOKENIZER, config_sha256=document["config_sha256"]
    )


def _read_document(folder: Path) -> dict[str, Any]:
    try:
        document = from_json(read_regular(folder / DOCUMENT))
    except FileNotFoundError as error:
        raise StudentFolderError(folder, "there is no saved student; run with save_model=true") from error
    except (OSError, ValueError) as error:
        raise StudentFolderError(folder, f"{DOCUMENT} cannot be read: {error}") from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise StudentFolderError(folder, f"{DOCUMENT} has schema {schema}, and this version reads {SCHEMA}")
    return cast(dict[str, Any], document)
