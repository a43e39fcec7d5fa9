"""A saved student is loaded bit for bit, or refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from quant_forms import FORMS
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from trainer.api import check
from trainer.config import QuantConfig
from trainer.devices.device import Device
from trainer.models.student_folder import DOCUMENT, TOKENIZER, WEIGHTS, StudentFolderError, load, save
from trainer.models.subln import make_student
from trainer.quant.ternary import ternary_layers

DEVICE = Device(torch_device=torch.device("cpu"), dtype=torch.float32, name="CPU", attention="eager")
IDS = torch.arange(24).reshape(2, 12)
SIZES = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 16,
    "attn_implementation": "eager",
}
BITNET = "absmean, one scale, int8"


def made(kind: str = "Llama", form: str = BITNET, subln: str = "calibrated") -> nn.Module:
    torch.manual_seed(0)
    teacher: nn.Module
    if kind == "Llama":
        teacher = LlamaForCausalLM(LlamaConfig(**SIZES, rms_norm_eps=1e-4))
    else:
        config = Qwen3Config(**SIZES, tie_word_embeddings=True)
        teacher = Qwen3ForCausalLM._from_config(config, dtype=torch.bfloat16)
    stage1 = check([f"stage1.subln={subln}"]).stage1
    return make_student(teacher, stage1, [IDS], quant=FORMS[form], device=DEVICE)[0].eval()


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    folder = tmp_path / "a tokenizer"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")
    (folder / "manifest.json").write_text("the cache's own")
    return folder


@pytest.fixture
def folder(tmp_path: Path, tokenizer: Path) -> Path:
    save(made(), tmp_path / "model", tokenizer=tokenizer, config_sha256="abc")
    return tmp_path / "model"


@pytest.mark.parametrize("kind", ["Llama", "Qwen3"])
@pytest.mark.parametrize("subln", ["calibrated", "blended", "none"])
@pytest.mark.parametrize("form", [BITNET, "absmedian, groups of 8, none"])
def test_it_comes_back_bit_for_bit(kind: str, subln: str, form: str, tokenizer: Path, tmp_path: Path) -> None:
    student = made(kind, form, subln)
    save(student, tmp_path / "model", tokenizer=tokenizer, config_sha256="abc")
    saved = load(tmp_path / "model")
    again = saved.model
    theirs = again.state_dict()
    assert {name: tensor.dtype for name, tensor in theirs.items()} == {
        name: tensor.dtype for name, tensor in student.state_dict().items()
    }
    assert all(torch.equal(theirs[name], tensor) for name, tensor in student.state_dict().items())
    with torch.no_grad():
        assert torch.equal(again(input_ids=IDS).logits, student(input_ids=IDS).logits)
    quant: QuantConfig = ternary_layers(again)[0].config
    assert (quant, saved.config_sha256) == (FORMS[form], "abc")
    tied = again.get_input_embeddings().weight is again.get_output_embeddings().weight
    assert tied == (kind == "Qwen3")


def test_a_student_shallower_than_its_teacher_comes_back(tokenizer: Path, tmp_path: Path) -> None:
    teacher = LlamaForCausalLM(LlamaConfig(**SIZES))
    config = check(["stage1.keep_layers=1"]).stage1
    student = make_student(teacher, config, [IDS], quant=FORMS[BITNET], device=DEVICE)[0].eval()
    save(student, tmp_path / "model", tokenizer=tokenizer, config_sha256="")
    with torch.no_grad():
        logits = load(tmp_path / "model").model(input_ids=IDS).logits
        assert torch.equal(logits, student(input_ids=IDS).logits)


def test_tokenizer_is_copied_without_cache_files(folder: Path) -> None:
    assert [path.name for path in load(folder).tokenizer.iterdir()] == ["tokenizer.json"]


def test_transformers_does_not_load_the_folder(folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    with pytest.raises((OSError, ValueError)):
        AutoModelForCausalLM.from_pretrained(folder)


def test_another_student_takes_its_place(folder: Path, tokenizer: Path) -> None:
    (folder / "of the first").touch()
    save(made(subln="none"), folder, tokenizer=tokenizer, config_sha256="def")
    assert load(folder).config_sha256 == "def"
    assert {path.name for path in folder.iterdir()} == {DOCUMENT, WEIGHTS, TOKENIZER}
    assert not list(folder.parent.glob(".*")), "something temporary was left"


def test_student_below_lambda_one_is_not_saved(tmp_path: Path, tokenizer: Path) -> None:
    student = made()
    ternary_layers(student)[0].lambda_.set(0.5)
    with pytest.raises(ValueError, match="lambda 1"):
        save(student, tmp_path / "model", tokenizer=tokenizer, config_sha256="")


def test_a_disk_that_refuses_leaves_nothing_behind(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StudentFolderError, match="model"):
        save(made(), tmp_path / "file" / "model", tokenizer=tokenizer, config_sha256="")


def damage(folder: Path, how: str) -> None:
    weights, document = folder / WEIGHTS, folder / DOCUMENT
    if how == "no document":
        document.unlink()
    elif how == "no JSON":
        document.write_text("{")
    elif how == "no object":
        document.write_text("[1]")
    elif how == "no weights":
        weights.unlink()
    elif how == "half the weights":
        weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    elif how == "empty weights":
        weights.write_bytes(b"")
    else:
        written = json.loads(document.read_text())
        change = {
            "later schema": {"schema": 2},
            "unknown form": {"quant": written["quant"] | {"weight_scale": "absmax"}},
            "other sizes": {"model_config": written["model_config"] | {"hidden_size": 32}},
            "unknown model": {"model_config": written["model_config"] | {"model_type": "no such"}},
        }[how]
        document.write_text(json.dumps(written | change))


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ("no document", "run with save_model=true"),
        ("no JSON", f"{DOCUMENT} cannot be read"),
        ("no object", "schema None, and this version reads 1"),
        ("no weights", f"{WEIGHTS} cannot be read"),
        ("half the weights", f"{WEIGHTS} cannot be read"),
        ("empty weights", f"{WEIGHTS} cannot be read"),
        ("later schema", "schema 2, and this version reads 1"),
        ("unknown form", "does not fit this version"),
        ("other sizes", "has in another shape lm_head.weight"),
        ("unknown model", "does not fit this version"),
    ],
)
def test_what_is_damaged_is_refused_in_one_line(how: str, problem: str, folder: Path) -> None:
    damage(folder, how)
    with pytest.raises(StudentFolderError, match=problem) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


GAIN = "model.layers.0.self_attn.o_proj.norm.weight"
MATRIX = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda t: t.pop(MATRIX), f"lacks {MATRIX};"),
        (lambda t: t.pop(GAIN), f"lacks {GAIN};"),
        (lambda t: t.update({"model.extra": torch.ones(1)}), "no place in the model, model.extra;"),
        (lambda t: t.update({MATRIX: torch.ones(1, 16)}), rf"{MATRIX} \[1, 16\], not \[24, 16\];"),
    ],
    ids=["a matrix", "a gain", "one more", "another shape"],
)
def test_a_student_that_is_not_complete_is_refused_by_name(
    spoil: Callable[[dict[str, Tensor]], object], problem: str, folder: Path
) -> None:
    tensors = load_file(folder / WEIGHTS)
    spoil(tensors)
    save_file(tensors, folder / WEIGHTS)
    with pytest.raises(StudentFolderError, match=problem) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
