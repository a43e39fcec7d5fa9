"""Export of a student as a folder that transformers loads. Called by `__main__`."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from sweeps.text.installation import install_command
from trainer.export import ExportError
from trainer.export.adapters import FOLDER, read_adapters_back, refuse_adapters, take_adapters, write_adapters
from trainer.export.readback import read_back
from trainer.export.target import choose
from trainer.export.tensors import Form, quantization, tensors
from trainer.models.student_folder import SavedStudent
from trainer.quant.ternary import ternary_layers


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A checkpoint that was written and read back.

    Args:
        class_name: in transformers, or in the checkpoint's own file.
        trusts_code: whether loading needs `trust_remote_code=True`.
        weight_bytes: of all tensors on the disk.
        difference: of the logits, see `readback.read_back`.
        adapters: folder of the adapters; None: the student has none.
        adapted_difference: of the logits with them.
    """

    class_name: str
    trusts_code: bool
    ternary: int
    weight_bytes: int
    difference: float
    adapters: Path | None = None
    adapted_difference: float = 0.0


def export(saved: SavedStudent, out: Path, *, form: Form) -> Exported:
    """Write the checkpoint, and compare the model that it loads as with the student.

    Args:
        saved: the student, which loses its adapters here.
        out: folder to write, which must be absent or empty.
        form: of the ternary weights: two bits each, floating-point numbers, or the master weights.

    Raises:
        ConfigError: the format cannot hold the student.
        ExportError: the disk refuses it, it cannot be loaded, or it computes something else.
    """
    from huggingface_hub import save_torch_state_dict

    student = saved.model
    if form == "master":
        refuse_adapters(student, form)
    taken = take_adapters(student)
    target = choose(student)
    bitnet = quantization(student, target, form)
    if bitnet and find_spec("accelerate") is None:
        raise ExportError(
            "transformers loads BitNet checkpoints with accelerate, which is not installed; "
            f"write: {install_command('export')}"
        )
    found = tensors(student, target, form)
    temporary = out.with_name(f"{out.name}-{os.getpid()}-unfinished")
    try:
        temporary.mkdir(parents=True)
        config = target.config
        config.dtype = next(student.parameters()).dtype
        if bitnet:
            config.quantization_config = bitnet
        try:
            config.save_pretrained(temporary)
        except ValueError as error:
            reason = " ".join(str(error).split())
            raise ExportError(f"transformers refuses {target.name}'s configuration: {reason}") from error
        if generation := getattr(student, "generation_config", None):
            # `save_pretrained` refuses what published files hold, such as a temperature without `do_sample`.
            cast(Any, generation).to_json_file(temporary / "generation_config.json", use_diff=True)
        for name, text in target.code.items():
            (temporary / name).write_text(text, encoding="utf-8")
        save_torch_state_dict(found, temporary, filename_pattern="model{suffix}.safetensors")
        for path in sorted(saved.tokenizer.iterdir()):
            shutil.copy(path, temporary / path.name)
        difference = read_back(temporary, student, target)
        adapted = 0.0
        if taken is not None:
            write_adapters(temporary, taken, target)
            adapted = read_adapters_back(temporary, taken, target)
        if out.exists():
            out.rmdir()  # it is empty
        temporary.replace(out)
    except OSError as error:
        raise ExportError(f"cannot write {str(out)!r}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Exported(
        class_name=target.name,
        trusts_code=bool(target.code),
        ternary=len(ternary_layers(student)),
        weight_bytes=sum(path.stat().st_size for path in out.glob("*.safetensors")),
        difference=difference,
        adapters=out / FOLDER if taken else None,
        adapted_difference=adapted,
    )
