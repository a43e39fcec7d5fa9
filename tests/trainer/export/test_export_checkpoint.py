"""A checkpoint is loaded by transformers' own Auto classes and computes what the student computes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from quant_forms import BITNET, FORMS
from students import ids, student
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.integrations import bitnet

from trainer.export import ExportError, checkpoint
from trainer.export.checkpoint import export
from trainer.models import student_folder
from trainer.models.student_folder import SavedStudent
from trainer.quant.activations import int8_activation
from trainer.quant.ternary import ternary_layers


def saved(model: nn.Module, tokenizer: Path) -> SavedStudent:
    return SavedStudent(model=model, tokenizer=tokenizer, config_sha256="")


def load(folder: Path, **more: Any) -> nn.Module:
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", **more).eval()


@torch.no_grad()
def logits(model: nn.Module) -> torch.Tensor:
    return model(input_ids=ids(), use_cache=False).logits.float()


CASES = {
    "Llama, packed": ("Llama", {}, True, "BitNetForCausalLM"),
    "Llama, dense": ("Llama", {}, False, "BitNetForCausalLM"),
    "Llama without SubLN": ("Llama", {"subln": "none"}, True, "LlamaForCausalLM"),
    "Mistral": ("Mistral", {}, True, "BitNetForCausalLM"),
    "Mistral with a sliding window": ("Mistral", {"sliding_window": 8}, True, "SubLNMistralForCausalLM"),
    "Llama with biases in the MLP": ("Llama", {"mlp_bias": True}, False, "SubLNLlamaForCausalLM"),
    "Qwen2": ("Qwen2", {}, False, "SubLNQwen2ForCausalLM"),
    "Qwen3, packed": ("Qwen3", {}, True, "SubLNQwen3ForCausalLM"),
    "Qwen3 without SubLN": ("Qwen3", {"subln": "none"}, True, "Qwen3ForCausalLM"),
    **{
        f"Llama, {name}": ("Llama", {"quant": form}, False, "BitNetForCausalLM")
        for name, form in FORMS.items()
        if form != BITNET
    },
}


@pytest.mark.parametrize(("architecture", "more", "packed", "name"), CASES.values(), ids=CASES.keys())
def test_it_loads_back_with_equal_logits(
    architecture: str,
    more: dict[str, Any],
    packed: bool,
    name: str,
    tokenizer: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Equal to rounding as it is. And bit for bit once both sides use one expression where they have two of the
    same thing: x over max/127 or x times 127/max, the normalisation, the scale before or after the sum."""
    made = student(architecture, **more)
    done = export(saved(made, tokenizer), tmp_path / "out", form="packed" if packed else "dense")
    assert (done.class_name, done.ternary) == (name, 14)
    assert done.trusts_code == name.startswith("SubLN")
    loaded = load(tmp_path / "out", trust_remote_code=done.trusts_code)
    assert type(loaded).__name__ == name
    expected, got = logits(made), logits(loaded)
    off = (got - expected).abs().amax(dim=-1) / expected.square().mean().sqrt()
    assert off.median() < 1e-5, "most tokens meet no value between two levels"
    assert off.square().mean().sqrt() < 0.05

    monkeypatch.setattr(bitnet, "ActQuant", SimpleNamespace(apply=int8_activation))
    for path, theirs in list(loaded.named_modules()):
        ours = path.replace("attn_sub_norm", "o_proj.norm").replace("ffn_sub_norm", "down_proj.norm")
        if ours != path or type(theirs).__name__ == "SubLN":
            loaded.set_submodule(path, made.get_submodule(ours))
        elif isinstance(theirs, bitnet.AutoBitLinear):
            theirs.weight.data *= theirs.weight_scale
            theirs.weight_scale.fill_(1)
    assert torch.equal(logits(loaded), expected)


def test_a_bfloat16_student_stays_one(tokenizer: Path, tmp_path: Path) -> None:
    made = student("Llama", dtype=torch.bfloat16)
    export(saved(made, tokenizer), tmp_path / "out", form="packed")
    loaded = load(tmp_path / "out")
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
    expected = logits(made)
    # bfloat16 has 8 bits; the scale is multiplied before the sum by one side and after it by the other.
    assert (logits(loaded) - expected).square().mean().sqrt() < 0.05 * expected.square().mean().sqrt()


def test_checkpoint_has_tokenizer_and_end_token(tokenizer: Path, tmp_path: Path) -> None:
    export(saved(student("Llama"), tokenizer), tmp_path / "out", form="packed")
    assert AutoTokenizer.from_pretrained(tmp_path / "out").eos_token_id == 0
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["eos_token_id"] == 0


@pytest.mark.parametrize("loaded", [False, True], ids=["trained", "loaded"])
def test_sampling_settings_are_kept_as_the_teacher_has_them(
    loaded: bool, tokenizer: Path, tmp_path: Path
) -> None:
    """Llama-2-chat and vicuna have them without `do_sample`, which transformers refuses to save."""
    made: Any = student("Llama")
    made.generation_config.temperature, made.generation_config.top_p = 0.9, 0.6
    if loaded:
        student_folder.save(made, tmp_path / "model", tokenizer=tokenizer, config_sha256="")
        made = student_folder.load(tmp_path / "model").model
    export(saved(made, tokenizer), tmp_path / "out", form="packed")
    written = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert (written["temperature"], written["top_p"], written["eos_token_id"]) == (0.9, 0.6, 0)
    assert "do_sample" not in written


def test_a_configuration_that_transformers_refuses_is_one_line(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = checkpoint.choose

    def with_a_setting_of_generation(made: nn.Module) -> Any:
        target = choose(made)
        target.config.top_k = 3
        return target

    monkeypatch.setattr(checkpoint, "choose", with_a_setting_of_generation)
    with pytest.raises(ExportError, match=r"^transformers refuses BitNetForCausalLM's .*top_k") as caught:
        export(saved(student("Llama"), tokenizer), tmp_path / "out", form="packed")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("out*")), "nothing is left behind"


def test_without_trust_no_wrong_class_is_loaded(tokenizer: Path, tmp_path: Path) -> None:
    export(saved(student("Qwen3"), tokenizer), tmp_path / "out", form="packed")
    with pytest.raises(ValueError, match="trust_remote_code"):
        load(tmp_path / "out", trust_remote_code=False)


@pytest.mark.parametrize(
    "change", [{"hidden_act": "relu"}, {"rms_norm_eps": 1e-3}, {"rope_parameters": None}]
)
def test_class_that_computes_something_else_is_refused(
    change: dict[str, Any], tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = checkpoint.choose

    def wrong(made: nn.Module) -> Any:
        target = choose(made)
        config = type(target.config).from_dict(target.config.to_dict() | change)
        return dataclasses.replace(target, config=config)

    monkeypatch.setattr(checkpoint, "choose", wrong)
    with pytest.raises(ExportError, match=r"^BitNetForCausalLM .*logits"):
        export(saved(student("Llama"), tokenizer), tmp_path / "out", form="packed")
    assert not list(tmp_path.glob("out*")), "nothing is left behind"


def test_changed_weights_are_refused(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = student("Llama")
    tensors = checkpoint.tensors

    def spoilt(*args: Any, **more: Any) -> dict[str, torch.Tensor]:
        found = tensors(*args, **more)
        found["model.layers.1.mlp.up_proj.weight"][0, 0] ^= 1
        return found

    monkeypatch.setattr(checkpoint, "tensors", spoilt)
    with pytest.raises(ExportError, match=r"model\.layers\.1\.mlp\.up_proj"):
        export(saved(made, tokenizer), tmp_path / "out", form="packed")


def test_a_checkpoint_that_lacks_a_tensor_is_not_written(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A norm begins at 1, as that of this student does: its outputs would not show it."""
    tensors, norm = checkpoint.tensors, "model.norm.weight"
    monkeypatch.setattr(
        checkpoint,
        "tensors",
        lambda *args, **more: {name: each for name, each in tensors(*args, **more).items() if name != norm},
    )
    with pytest.raises(ExportError, match=rf"lacks {norm}"):
        export(saved(student("Llama"), tokenizer), tmp_path / "out", form="dense")
    assert not list(tmp_path.glob("out*"))


def test_without_accelerate_it_says_what_to_install(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "find_spec", lambda name: None)
    with pytest.raises(ExportError, match="accelerate"):
        export(saved(student("Llama"), tokenizer), tmp_path / "out", form="packed")
    plain = student("Llama", quant=FORMS["absmean, one scale, none"])  # needs none of it
    assert len(ternary_layers(plain)) == 14
    export(saved(plain, tokenizer), tmp_path / "out", form="dense")
