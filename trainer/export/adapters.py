"""Adapters of an exported student, as a folder that `peft.PeftModel.from_pretrained` puts on the checkpoint.

    OUT/adapter/adapter_config.json, adapter_model.safetensors      peft's own files

The checkpoint itself is the ternary student without adapters. The folder is read back: its weights must be
the student's, and the loaded model must compute what the student does with them. Used by `checkpoint`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from sweeps.text.shorten import first_line
from trainer.errors import ConfigError
from trainer.export import ExportError
from trainer.export.readback import LOADED_TOLERANCE, difference_of, load_as, probe, quiet
from trainer.export.target import Target
from trainer.export.tensors import FORMAT_KEY
from trainer.models.adapters import Adapters, adapters_of, as_loaded, remove_adapters
from trainer.models.causal_lm import ADAPTER, run
from trainer.models.pretrained import in_order, some_of

FOLDER, WEIGHTS = "adapter", "adapter_model.safetensors"
_PREFIX = "base_model.model."  # of a model inside of peft's


@dataclass(frozen=True, kw_only=True)
class TakenAdapters:
    """The adapters that a student had, and what it computed with them.

    Args:
        tensors: weights by the student's names of the parameters.
        probe: token ids [B, T].
        logits: of the student with adapters on those ids, [B, T, V].
    """

    settings: Adapters
    tensors: Mapping[str, Tensor]
    probe: Tensor
    logits: Tensor


@torch.no_grad()
def take_adapters(student: nn.Module) -> TakenAdapters | None:
    """Remove the adapters of a student, in place, and return them; None: it has none."""
    settings = adapters_of(student)
    if settings is None:
        return None
    ids_BT = probe(student)
    taken = TakenAdapters(
        settings=settings,
        tensors={
            as_loaded(name): parameter.detach().contiguous()
            for name, parameter in student.named_parameters()
            if ADAPTER in name
        },
        probe=ids_BT,
        logits=run(student, ids_BT).logits.float(),
    )
    remove_adapters(student)
    return taken


def refuse_adapters(student: nn.Module, form: str) -> None:
    """Raise ConfigError if the student has adapters, which a form cannot hold."""
    if adapters_of(student) is not None:
        raise ConfigError(
            f"{form} cannot hold this student's adapters; write packed or dense, or --without-adapters for "
            "the ternary student as it was before them",
            key=FORMAT_KEY,
        )


def write_adapters(folder: Path, taken: TakenAdapters, target: Target) -> None:
    """Write the adapter's folder into that of a checkpoint. Raises OSError."""
    from peft import LoraConfig

    place = folder / FOLDER
    place.mkdir()
    settings = taken.settings
    config = LoraConfig(
        r=settings.rank, lora_alpha=cast(int, settings.alpha), task_type="CAUSAL_LM", inference_mode=True
    )
    # Set here, it is written in this order; as an argument it becomes a set.
    config.target_modules = [target.module(name) for name in settings.modules]
    config.save_pretrained(place)
    save_file(_peft_weights(taken, target), place / WEIGHTS, metadata={"format": "pt"})


@torch.no_grad()
def read_adapters_back(folder: Path, taken: TakenAdapters, target: Target) -> float:
    """Return the difference of the logits of checkpoint and adapters from the student's, over their size.

    Raises:
        ExportError: peft cannot load them, a weight changed, or they compute something else.
    """
    from peft import PeftModel

    with quiet(), warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by earlier names
        warnings.filterwarnings("ignore", "Found missing adapter keys")  # compared below
        base: Any = load_as(folder, target)
        try:
            loaded: Any = PeftModel.from_pretrained(base, str(folder / FOLDER)).eval()
        except (ImportError, KeyError, RuntimeError, ValueError) as error:
            first = first_line(error)
            raise ExportError(f"peft cannot load the adapters that were written: {first}") from error
        written = _peft_weights(taken, target)
        theirs = {as_loaded(name): tensor for name, tensor in loaded.named_parameters() if ADAPTER in name}
        # peft gives an adapter that its file lacks random numbers, and warns.
        if odd := in_order(written.keys() ^ theirs.keys()):
            raise ExportError(f"peft and the adapters' file differ in {some_of(odd)}; nothing was written")
        for name, ours in written.items():
            if not torch.equal(theirs[name], ours):
                raise ExportError(f"the adapter {name} came back changed; nothing was written")
        difference = difference_of(loaded.get_base_model(), taken.probe, taken.logits)
    if not difference <= LOADED_TOLERANCE:
        raise ExportError(
            f"{target.name} with the adapters computes something else than the student does: its logits "
            f"differ by {difference:.1e} of their size; nothing was written"
        )
    return difference


def _peft_weights(taken: TakenAdapters, target: Target) -> dict[str, Tensor]:
    """Return the weights by the names of peft's file."""
    return {f"{_PREFIX}{target.rename(name)}": tensor for name, tensor in taken.tensors.items()}
