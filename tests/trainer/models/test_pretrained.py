"""Checkpoints whose tensors are not those of their model are refused by name."""

from __future__ import annotations

import ast
import json
import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import trainer
from trainer.errors import ConfigError, TrainerError
from trainer.models.causal_lm import load_pretrained, load_tiny

UP, NORM, HEAD, EMBEDDINGS = (
    "model.layers.1.mlp.up_proj.weight",
    "model.norm.weight",
    "lm_head.weight",
    "model.embed_tokens.weight",
)
Spoil = Callable[[dict[str, Tensor]], object]


def saved(folder: Path, spoil: Spoil = len, *, tied: bool = False, layers: int = 2) -> Path:
    """Save a small Llama whose tensors were spoilt, and return its folder."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2}
    config = LlamaConfig(**sizes, num_hidden_layers=layers, tie_word_embeddings=tied)
    LlamaForCausalLM(config).save_pretrained(folder)
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    spoil(tensors)
    save_file(tensors, weights, metadata={"format": "pt"})
    return folder


def load(folder: Path) -> torch.nn.Module:
    return load_pretrained(str(folder), dtype="auto", attention="eager")


def without_layer(tensors: dict[str, Tensor]) -> None:
    for name in [name for name in tensors if name.startswith("model.layers.1.")]:
        del tensors[name]


NINE = "model.layers.1.input_layernorm.weight, model.layers.1.mlp.down_proj.weight, "
DIFFERENT: dict[str, tuple[Spoil, bool, str]] = {
    "a matrix": (lambda t: t.pop(UP), False, f"lacks {UP};"),
    "a layer": (without_layer, False, f"lacks {NINE}model.layers.1.mlp.gate_proj.weight and 6 more;"),
    "a norm": (lambda t: t.pop(NORM), False, f"lacks {NORM};"),
    "an untied head": (lambda t: t.pop(HEAD), False, f"lacks {HEAD};"),
    "both of two tied": (lambda t: t.pop(EMBEDDINGS), True, f"lacks {HEAD}, {EMBEDDINGS};"),
    "a tensor more": (
        lambda t: t.update({"model.layers.2.mlp.up_proj.weight": torch.ones(12, 8)}),
        False,
        "has, with no place in the model, model.layers.2.mlp.up_proj.weight;",
    ),
    "another shape": (lambda t: t.update({NORM: torch.ones(4)}), False, f"has in another shape {NORM} [4], not [8];"),
    "another name": (
        lambda t: t.update({"v_head.weight": t.pop(NORM)}),
        False,
        f"lacks {NORM}, has, with no place in the model, v_head.weight;",
    ),
    "a long name": (lambda t: t.update({"x" * 10**6: torch.ones(1)}), False, "x" * 120 + "…;"),
}  # fmt: skip


@pytest.mark.parametrize("what", DIFFERENT)
def test_other_tensors_are_refused_by_name(what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    spoil, tied, problem = DIFFERENT[what]
    logging.getLogger("transformers").addHandler(caplog.handler)
    with pytest.raises(ConfigError, match=re.escape(problem)) as caught:
        load(saved(tmp_path, spoil, tied=tied))
    logging.getLogger("transformers").removeHandler(caplog.handler)
    assert caught.value.key == "model.name"
    assert "\n" not in str(caught.value)
    assert not caplog.messages, "transformers' own table came as well"


@pytest.mark.parametrize(
    ("spoil", "tied"),
    [
        (len, False),
        (len, True),
        # Stored under the other name of two that are tied.
        (lambda t: t.update({HEAD: t.pop(EMBEDDINGS)}), True),
        # Buffers that earlier releases wrote.
        (lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}), False),
        (lambda t: t.update({"model.rotary_emb.original_inv_freq": torch.ones(2)}), False),
        (lambda t: t.update({"transformer.h.0.attn.attention.masked_bias": torch.ones(())}), False),
    ],
    ids=["untied", "tied", "tied the other way", "frequencies", "own buffer", "causal mask"],
)
def test_harmless_differences_are_none(spoil: Spoil, tied: bool, tmp_path: Path):
    assert load(saved(tmp_path, spoil, tied=tied)).config.tie_word_embeddings == tied


def test_what_an_architecture_ignores_is_no_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = saved(tmp_path, lambda t: t.update({"mtp.head.weight": torch.ones(1)}))
    with pytest.raises(ConfigError, match=r"mtp\.head"):
        load(folder)
    monkeypatch.setattr(LlamaForCausalLM, "_keys_to_ignore_on_load_unexpected", [r"^mtp\."])
    load(folder)


def test_a_configuration_of_fewer_layers_is_refused(tmp_path: Path):
    folder = saved(tmp_path, layers=3)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    with pytest.raises(ConfigError, match=r"model\.layers\.2\..* and 6 more"):
        load(folder)


@pytest.mark.parametrize("within", [False, True], ids=["alone", "in the model's folder"])
def test_adapters_in_place_of_a_model_are_refused(within: bool, tmp_path: Path):
    """Loaded with them, a model that lacks a tensor would not be found out."""
    from peft import LoraConfig

    base = saved(tmp_path / "base", lambda t: t.pop(UP))
    folder = base if within else tmp_path / "adapters"
    LoraConfig(target_modules=["q_proj"], base_model_name_or_path=str(base)).save_pretrained(folder)
    with pytest.raises(ConfigError, match=r"adapters of peft .*merge_and_unload"):
        load(folder)


def test_a_cached_teacher_that_lost_a_tensor_is_refused(tmp_path: Path):
    folder = saved(tmp_path / "model", lambda t: t.pop(UP))
    with pytest.raises(TrainerError, match=rf"lacks {re.escape(UP)}; "):
        load_tiny(folder, attention="eager")


def test_models_are_loaded_in_one_place():
    """Elsewhere nobody would ask what transformers filled in. The adapters of an export compare all names."""
    root = Path(trainer.__file__).parents[1]
    files = [path for folder in ("trainer", "sweeps", "benchmarks") for path in (root / folder).rglob("*.py")]
    found = {
        path.relative_to(root).as_posix()
        for path in files
        if ".from_pretrained" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and re.search(r"(?<!Config)(?<!Tokenizer)\.from_pretrained$", ast.unparse(node.func))
    }
    assert found == {"trainer/models/pretrained.py", "trainer/export/adapters.py"}
