"""Models in GGUF files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize

from trainer.api import check
from trainer.data import local_folder
from trainer.errors import ConfigError
from trainer.models import gguf

HIDDEN, WIDE, LAYERS, HEADS = 64, 96, 2, 4
TOKENS = ["<|endoftext|>", *(chr(code) for code in range(ord("a"), ord("z") + 1)), "Ġ", "ab", "Ġa"]
MERGES = ["a b", "Ġ a"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGESWEEP_CACHE", str(tmp_path / "cache"))


def weights() -> dict[str, np.ndarray[Any, Any]]:
    """Return a Llama's weights by their names in GGUF."""
    rng = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> np.ndarray[Any, Any]:
        return rng.normal(0, 0.1, (rows, columns)).astype(np.float32)

    found = {
        "token_embd.weight": matrix(len(TOKENS), HIDDEN),
        "output_norm.weight": np.ones(HIDDEN, np.float32),
    }
    for layer in range(LAYERS):
        for name, rows, columns in (
            *((f"attn_{each}", HIDDEN, HIDDEN) for each in ("q", "k", "v", "output")),
            *(("ffn_gate", WIDE, HIDDEN), ("ffn_up", WIDE, HIDDEN), ("ffn_down", HIDDEN, WIDE)),
        ):
            found[f"blk.{layer}.{name}.weight"] = matrix(rows, columns)
        for name in ("attn_norm", "ffn_norm"):
            found[f"blk.{layer}.{name}.weight"] = np.ones(HIDDEN, np.float32)
    return found


def write(path: Path, *, architecture: str = "llama") -> dict[str, np.ndarray[Any, Any]]:
    """Write a small Llama with matrices in Q8_0, and return its weights as they are in the file."""
    writer = GGUFWriter(str(path), architecture)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_merges(MERGES)
    writer.add_token_types([3, *[1] * (len(TOKENS) - 1)])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)
    stored = weights()
    for name, values in stored.items():
        if values.ndim == 1:
            writer.add_tensor(name, values)
            continue
        packed = quantize(values, GGMLQuantizationType.Q8_0)
        writer.add_tensor(name, packed, raw_dtype=GGMLQuantizationType.Q8_0)
        stored[name] = dequantize(packed, GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored


def test_a_file_becomes_a_folder_with_its_weights_and_tokenizer(tmp_path: Path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    stored = write(tmp_path / "small.gguf")
    folder = local_folder(str(tmp_path / "small.gguf"))
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert (model.config.num_hidden_layers, model.config.hidden_size) == (LAYERS, HIDDEN)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    state = model.state_dict()
    assert torch.equal(state["model.embed_tokens.weight"], torch.from_numpy(stored["token_embd.weight"]))
    for ours, theirs in (("mlp.down_proj", "ffn_down"), ("self_attn.v_proj", "attn_v")):
        for layer in range(LAYERS):
            expected = torch.from_numpy(stored[f"blk.{layer}.{theirs}.weight"])
            assert torch.equal(state[f"model.layers.{layer}.{ours}.weight"], expected)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.decode(tokenizer("ab cab")["input_ids"]) == "ab cab"
    assert tokenizer.eos_token == "<|endoftext|>"


def test_a_file_is_converted_once_and_again_when_it_changes(tmp_path: Path):
    path = tmp_path / "small.gguf"
    write(path)
    first = gguf.converted(path)
    written = (first / "model.safetensors").stat().st_mtime_ns
    assert gguf.converted(path) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == written
    path.write_bytes(path.read_bytes() + b"\0" * 32)
    assert gguf.converted(path) != first


def test_a_file_at_a_url_is_copied_first(tmp_path: Path):
    from fsspec import filesystem

    write(tmp_path / "small.gguf")
    filesystem("memory").pipe_file("/models/small.gguf", (tmp_path / "small.gguf").read_bytes())
    assert (Path(local_folder("memory://models/small.gguf")) / "config.json").exists()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "there is no file"),
        (b"PK\3\4", "is no GGUF file"),
        (b"GGUF\3\0\0\0", "cannot load"),
        (b"GGUF" + b"\xff" * 64, "cannot load"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path: Path, content: bytes | None, problem: str):
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=problem) as caught:
        gguf.converted(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.key == "model.name"


def test_half_a_file_is_refused_and_leaves_nothing_in_the_cache(tmp_path: Path):
    path = tmp_path / "model.gguf"
    write(path)
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(ConfigError, match="cannot load"):
        gguf.converted(path)
    assert not list((tmp_path / "cache").glob("gguf/[!.]*"))


def test_another_architecture_and_a_part_of_several_are_refused(tmp_path: Path):
    write(tmp_path / "other.gguf", architecture="rwkv7")
    with pytest.raises(ConfigError, match="architecture 'rwkv7'"):
        gguf.converted(tmp_path / "other.gguf")
    write(tmp_path / "big-00001-of-00002.gguf")
    with pytest.raises(ConfigError, match="one of several parts"):
        gguf.converted(tmp_path / "big-00001-of-00002.gguf")


def test_the_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path / "small.gguf")

    def missing(name: str) -> str:
        raise gguf.PackageNotFoundError(name)

    monkeypatch.setattr(gguf, "version", missing)
    with pytest.raises(ConfigError, match=r"pip install 'stagesweep\[gguf\]'"):
        gguf.converted(tmp_path / "small.gguf")


def test_the_command_line_takes_a_file_as_a_model(tmp_path: Path):
    assert check(["model=hf", f"model.name={tmp_path / 'small.gguf'}"]).model.kind == "hf"
