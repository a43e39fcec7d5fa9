"""GGUF files hold the student's codes and scales, under the names that llama.cpp reads."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFReader, TokenType
from gguf.quants import dequantize
from quant_forms import BITNET
from students import VOCABULARY, student
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX as QWEN2

from trainer.errors import ConfigError
from trainer.export import ExportError
from trainer.export.gguf_file import FORMATS, export_file, interleaved
from trainer.models.gguf import convert
from trainer.models.student_folder import SavedStudent
from trainer.quant.ternary import TernaryLinear

SIZES = {"hidden_size": 256, "intermediate_size": 512}


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a byte-level BPE with fewer entries than the students have embeddings."""
    folder = tmp_path_factory.mktemp("bpe")
    letters = {"<|endoftext|>": 0} | {chr(96 + index): index for index in range(1, 27)} | {"Ġ": 27, "ab": 28}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_tokens(["<call>"])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>").save_pretrained(folder)
    return folder


LLAMA3 = QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|")
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LETTERS_BY_CASE = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+END"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*END"
    r"|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def splitting(pattern: str, bpe: Path, folder: Path) -> Path:
    """A folder of `bpe` with another pre-tokenizer."""
    tokenizer = Tokenizer.from_file(str(bpe / "tokenizer.json"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def saved(model: nn.Module, tokenizer: Path) -> SavedStudent:
    return SavedStudent(model=model, tokenizer=tokenizer, config_sha256="")


def read(path: Path) -> dict[str, Any]:
    return {tensor.name: tensor for tensor in GGUFReader(path).tensors}


@pytest.mark.parametrize("form", FORMATS)
def test_a_llama_with_subln_is_a_bitnet(form: str, bpe: Path, tmp_path: Path):
    made = student("Llama", **SIZES)
    done = export_file(saved(made, bpe), tmp_path / "out.gguf", form=form)
    assert (done.architecture, done.ternary, done.wide) == ("bitnet", 14, 0)
    assert done.weight_bytes == (tmp_path / "out.gguf").stat().st_size
    stored = read(tmp_path / "out.gguf")
    assert stored["blk.1.ffn_down.weight"].tensor_type.name == form.removeprefix("gguf-").upper()
    layers = {"q_proj": "attn_q", "o_proj.projection": "attn_output", "down_proj.projection": "ffn_down"}
    for name, module in made.named_modules():
        ours = next((theirs for suffix, theirs in layers.items() if name.endswith(suffix)), None)
        if ours and isinstance(module, TernaryLinear):
            tensor = stored[f"blk.{name.split('.')[2]}.{ours}.weight"]
            weight = dequantize(tensor.data, tensor.tensor_type)
            expected = module.effective_weight().detach().numpy()
            np.testing.assert_array_equal(np.sign(weight), np.sign(expected))
            np.testing.assert_allclose(weight, expected, rtol=2**-11)
    gain = made.get_submodule("model.layers.1.mlp.down_proj.norm").weight.detach().numpy()
    np.testing.assert_array_equal(stored["blk.1.ffn_sub_norm.weight"].data, gain)
    assert "output.weight" not in stored  # tied


def test_gguf_has_the_students_settings_and_tokenizer(bpe: Path, tmp_path: Path):
    export_file(saved(student("Llama", **SIZES), bpe), tmp_path / "out.gguf", form="gguf-tq2_0")
    reader = GGUFReader(tmp_path / "out.gguf")

    def value(key: str) -> Any:
        field = reader.get_field(key)
        assert field is not None, key
        return field.contents()

    assert value("general.architecture") == "bitnet"
    assert value("bitnet.attention.head_count_kv") == 2
    assert value("bitnet.rope.freq_base") == 5e4
    assert value("tokenizer.ggml.pre") == "gpt-2"
    tokens = value("tokenizer.ggml.tokens")
    assert (len(tokens), tokens[:2], tokens[-1]) == (VOCABULARY, ["<|endoftext|>", "a"], "[unused95]")
    assert value("tokenizer.ggml.merges") == ["a b"]
    kinds = [TokenType(kind).name for kind in value("tokenizer.ggml.token_type")]
    assert kinds == ["CONTROL", *["NORMAL"] * 28, "USER_DEFINED", *["UNUSED"] * (VOCABULARY - 30)]
    assert value("tokenizer.ggml.eos_token_id") == 0


def test_a_llama_without_subln_computes_the_same_in_transformers(
    bpe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """transformers reads llama's files itself, and so undoes the order of queries and keys."""
    monkeypatch.setenv("STAGESWEEP_CACHE", str(tmp_path / "cache"))
    plain = dataclasses.replace(BITNET, activations="none")
    made = student("Llama", subln="none", quant=plain, tie_word_embeddings=False, **SIZES)
    done = export_file(saved(made, bpe), tmp_path / "out.gguf", form="gguf-tq1_0")
    assert done.architecture == "llama"
    loaded = AutoModelForCausalLM.from_pretrained(convert(tmp_path / "out.gguf"), attn_implementation="eager")
    ids = torch.arange(24).view(2, 12)
    with torch.no_grad():
        expected, got = made(input_ids=ids).logits, loaded.eval()(input_ids=ids).logits
    off = (got - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    assert off < 2e-3  # scales, embeddings and head are in float16


def test_rows_not_divisible_by_256_use_q8_0(bpe: Path, tmp_path: Path):
    made = student("Llama", hidden_size=64, intermediate_size=256, num_attention_heads=4)
    done = export_file(saved(made, bpe), tmp_path / "out.gguf", form="gguf-tq1_0")
    assert (done.ternary, done.wide) == (2, 12)
    stored = read(tmp_path / "out.gguf")
    assert stored["blk.0.attn_q.weight"].tensor_type.name == "Q8_0"
    assert stored["blk.0.ffn_down.weight"].tensor_type.name == "TQ1_0"


def test_rows_of_queries_are_interleaved():
    rows = torch.arange(8.0).view(8, 1)  # two heads of width 4
    assert interleaved(rows, 2).flatten().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


@pytest.mark.parametrize(
    ("architecture", "more", "problem"),
    [
        ("Qwen3", {}, "no architecture for a ternary Qwen3ForCausalLM"),
        ("Llama", {"tie_word_embeddings": False}, "has a head of its own"),
        ("Llama", {"hidden_act": "gelu"}, "computes silu"),
        ("Llama", {"quant": dataclasses.replace(BITNET, group_size=16)}, "quant.group_size=16 is no multiple"),
        (
            "Llama",
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
            "rotary embeddings of type 'linear'",
        ),
    ],
)  # fmt: skip
def test_what_llama_cpp_cannot_compute_is_refused(
    architecture: str, more: dict[str, Any], problem: str, bpe: Path, tmp_path: Path
):
    with pytest.raises(ConfigError, match=problem) as caught:
        export_file(saved(student(architecture, **more), bpe), tmp_path / "out.gguf", form="gguf-tq1_0")
    assert caught.value.key == "--format"
    assert not list(tmp_path.iterdir())


def test_unknown_tokenizer_is_refused_and_no_file_left(
    tokenizer: Path, bpe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made = student("Llama", **SIZES)
    with pytest.raises(ConfigError, match="no byte-level BPE"):
        export_file(saved(made, tokenizer), tmp_path / "out.gguf", form="gguf-tq1_0")
    import gguf.quants

    right = gguf.quants.quantize
    monkeypatch.setattr(gguf.quants, "quantize", lambda values, kind: right(values * 1.01, kind))
    with pytest.raises(ExportError, match="came back changed"):
        export_file(saved(made, bpe), tmp_path / "out.gguf", form="gguf-tq1_0")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("pattern", "name"), [(LLAMA3, "llama-bpe"), (QWEN2, "qwen2")])
@pytest.mark.parametrize("spelling", ["(?i:", "[sS]", "line ends"])
def test_the_expressions_of_llama_3_and_qwen2_are_known(
    pattern: str, name: str, spelling: str, bpe: Path, tmp_path: Path
):
    """The second spelling is llama.cpp's own."""
    if spelling == "[sS]":
        pattern = pattern.replace(CONTRACTIONS, "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])")
    elif spelling == "line ends":
        pattern = pattern.replace(r"\r\n", "\r\n")
    folder = splitting(pattern, bpe, tmp_path / "tokenizer")
    export_file(saved(student("Llama", **SIZES), folder), tmp_path / "out.gguf", form="gguf-tq2_0")
    field = GGUFReader(tmp_path / "out.gguf").get_field("tokenizer.ggml.pre")
    assert field is not None
    assert field.contents() == name


@pytest.mark.parametrize(
    "pattern",
    [
        LETTERS_BY_CASE.replace("END", "").replace("DIGITS", r"\p{N}"),
        LETTERS_BY_CASE.replace("END", f"{CONTRACTIONS}?").replace("DIGITS", r"\p{N}{1,3}"),
        QWEN2.replace(r"\p{L}+|", r"[\p{L}\p{M}]+|").replace(r"[^\s\p{L}", r"[^\s\p{L}\p{M}"),
    ],
    ids=["Tekken", "o200k", "Qwen3.5"],
)
def test_other_expressions_with_the_same_digits_are_refused(pattern: str, bpe: Path, tmp_path: Path):
    """llama.cpp would split words elsewhere than the student's tokenizer."""
    folder = splitting(pattern, bpe, tmp_path / "tokenizer")
    with pytest.raises(ConfigError, match="no byte-level BPE of a known kind"):
        export_file(saved(student("Llama", **SIZES), folder), tmp_path / "out.gguf", form="gguf-tq2_0")
    assert not (tmp_path / "out.gguf").exists()
