"""Exported adapters are what peft loads: the same weights, and with the checkpoint the student's logits."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from quant_forms import BITNET, FORMS
from safetensors.torch import load_file, save_file
from students import ids, student
from torch import nn

from trainer.errors import ConfigError
from trainer.export import ExportError
from trainer.export import adapters as room
from trainer.export.adapters import TakenAdapters
from trainer.export.checkpoint import export
from trainer.export.gguf_file import export_file
from trainer.models import student_folder
from trainer.models.adapters import Adapters, adapters_of, add_adapters
from trainer.models.student_folder import SavedStudent
from trainer.quant.ternary import TernaryLinear

pytest.importorskip("peft")

WEIGHTS_ONLY = FORMS["absmean, one scale, none"]


def adapted(architecture: str, *, modules: str = "", **settings: object) -> nn.Module:
    """A student with trained adapters, those of the layers whose names contain `modules`."""
    made = student(architecture, **settings)  # type: ignore[arg-type]
    names = [
        name for name, layer in made.named_modules() if isinstance(layer, TernaryLinear) and modules in name
    ]
    add_adapters(made, Adapters(rank=3, alpha=1.5, modules=tuple(names)), seed=0)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    return made.eval()


def loaded_with_peft(folder: Path, *, own_class: bool) -> nn.Module:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", trust_remote_code=own_class
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return PeftModel.from_pretrained(base, str(folder / "adapter")).eval()


@pytest.mark.parametrize(
    ("architecture", "form", "quant"),
    [
        ("Llama", "packed", BITNET),
        ("Llama", "dense", WEIGHTS_ONLY),
        ("Qwen3", "dense", WEIGHTS_ONLY),  # with a class of its own
    ],
)
def test_peft_computes_what_the_student_does(
    architecture: str, form: str, quant: object, tokenizer: Path, tmp_path: Path
) -> None:
    made = adapted(architecture, quant=quant)
    with torch.no_grad():
        expected = made(input_ids=ids()).logits
    out = tmp_path / "out"
    done = export(SavedStudent(model=made, tokenizer=tokenizer, config_sha256=""), out, form=form)  # type: ignore[arg-type]
    assert done.adapters == out / "adapter"
    with torch.no_grad():
        plain = made(input_ids=ids()).logits  # the adapters are gone from it
        got = loaded_with_peft(out, own_class=architecture == "Qwen3")(input_ids=ids()).logits
    size = expected.square().mean().sqrt()
    off = (got - expected).square().mean().sqrt() / size
    # transformers rounds activations a little otherwise than we do.
    assert off < (0.1 if quant is BITNET else 1e-5)
    assert (plain - expected).square().mean().sqrt() / size > 0.3


def test_a_saved_student_comes_back_with_its_adapters(tokenizer: Path, tmp_path: Path) -> None:
    made = adapted("Llama", modules="mlp")
    student_folder.save(made, tmp_path / "model", tokenizer=tokenizer, config_sha256="a")
    loaded = student_folder.load(tmp_path / "model").model
    assert adapters_of(loaded) == adapters_of(made)
    with torch.no_grad():
        assert torch.equal(loaded(input_ids=ids()).logits, made(input_ids=ids()).logits)
    document = json.loads((tmp_path / "model" / "student.json").read_text())
    assert document["adapters"]["rank"] == 3
    plain = student("Llama")
    student_folder.save(plain, tmp_path / "plain", tokenizer=tokenizer, config_sha256="a")
    assert "adapters" not in json.loads((tmp_path / "plain" / "student.json").read_text())


@pytest.mark.parametrize("form", ["master", "gguf-tq2_0"])
def test_a_form_that_cannot_hold_them_refuses(form: str, tokenizer: Path, tmp_path: Path) -> None:
    saved = SavedStudent(model=adapted("Llama"), tokenizer=tokenizer, config_sha256="")
    write = export if form == "master" else export_file
    with pytest.raises(ConfigError, match=rf"^--format: {form} .*adapters"):
        write(saved, tmp_path / "out", form=form)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("weights", "came back changed; nothing was written"),
        ("missing", r"v_proj\.lora_B\.weight came back changed; nothing was written"),
        ("one more", r"differ in .*lora_A\.weight, .*lora_B\.weight; nothing was written"),
        ("alpha", "with the adapters computes something else than the student does"),
    ],
)
def test_what_does_not_read_back_is_not_written(
    damage: str, message: str, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = room.write_adapters

    def damaging(folder: Path, taken: TakenAdapters, target: object) -> None:
        write(folder, taken, target)  # type: ignore[arg-type]
        config = folder / room.FOLDER / "adapter_config.json"
        if damage == "alpha":
            document = json.loads(config.read_text())
            config.write_text(json.dumps(document | {"lora_alpha": 150.0}))
        elif damage == "one more":
            document = json.loads(config.read_text())
            more = [*document["target_modules"], "model.layers.0.mlp.gate_proj"]
            config.write_text(json.dumps(document | {"target_modules": more}))
        elif damage == "missing":
            weights = folder / room.FOLDER / room.WEIGHTS
            tensors = load_file(weights)
            del tensors[max(tensors)]
            save_file(tensors, weights, metadata={"format": "pt"})
        else:
            weights = folder / room.FOLDER / room.WEIGHTS
            content = bytearray(weights.read_bytes())
            content[-3] ^= 1
            weights.write_bytes(content)

    monkeypatch.setattr("trainer.export.checkpoint.write_adapters", damaging)
    saved = SavedStudent(model=adapted("Llama", modules="self_attn"), tokenizer=tokenizer, config_sha256="")
    with pytest.raises(ExportError, match=message):
        export(saved, tmp_path / "out", form="packed")
    assert list(tmp_path.iterdir()) == []
