"""Models in GGUF files."""

from __future__ import annotations

import json
import re
import struct
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize

from sweeps.text.installation import install_command
from trainer.api import check
from trainer.cache import artifact
from trainer.data.remote import local_folder
from trainer.errors import ConfigError, MachineError
from trainer.models import gguf

HIDDEN, WIDE, LAYERS, HEADS = 64, 96, 2, 4
TOKENS = ["<|endoftext|>", *(chr(code) for code in range(ord("a"), ord("z") + 1)), "Ġ", "ab", "Ġa"]
MERGES = ["a b", "Ġ a"]
Spoil = Callable[[dict[str, np.ndarray[Any, Any]]], object]


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


def write(path: Path, *, architecture: str = "llama", spoil: Spoil = len) -> dict[str, np.ndarray[Any, Any]]:
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
    spoil(stored)
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
    first = gguf.convert(path)
    written = (first / "model.safetensors").stat().st_mtime_ns
    assert gguf.convert(path) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == written
    path.write_bytes(path.read_bytes() + b"\0" * 32)
    assert gguf.convert(path) != first


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
        gguf.convert(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.key == "model.name"


def test_half_a_file_is_refused_and_leaves_nothing_in_the_cache(tmp_path: Path):
    path = tmp_path / "model.gguf"
    write(path)
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(ConfigError, match="cannot load"):
        gguf.convert(path)
    assert not list((tmp_path / "cache").glob("gguf/[!.]*"))


def test_unknown_architectures_and_split_files_are_refused(tmp_path: Path):
    write(tmp_path / "other.gguf", architecture="rwkv7")
    with pytest.raises(ConfigError, match="architecture 'rwkv7'"):
        gguf.convert(tmp_path / "other.gguf")
    write(tmp_path / "big-00001-of-00002.gguf")
    with pytest.raises(ConfigError, match="parts"):
        gguf.convert(tmp_path / "big-00001-of-00002.gguf")


def test_the_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path / "small.gguf")

    def missing(name: str) -> str:
        raise gguf.PackageNotFoundError(name)

    monkeypatch.setattr(gguf, "version", missing)
    with pytest.raises(ConfigError, match=re.escape(install_command("gguf"))):
        gguf.convert(tmp_path / "small.gguf")


def test_the_command_line_takes_a_file_as_a_model(tmp_path: Path):
    assert check(["model=hf", f"model.name={tmp_path / 'small.gguf'}"]).model.kind == "hf"


def without_layer(tensors: dict[str, np.ndarray[Any, Any]]) -> None:
    for name in [name for name in tensors if name.startswith("blk.1.")]:
        del tensors[name]


MATRIX = np.ones((WIDE, HIDDEN), np.float32)
DIFFERENT: dict[str, tuple[Spoil, str]] = {
    "a matrix": (
        lambda t: t.pop("blk.1.ffn_down.weight"),
        r"lacks blk\.1\.ffn_down\.weight \(model\.layers\.1\.mlp\.down_proj\.weight\);",
    ),
    "a norm": (lambda t: t.pop("output_norm.weight"), r"lacks output_norm\.weight \("),
    "the embeddings": (lambda t: t.pop("token_embd.weight"), r"lacks .*token_embd\.weight \("),
    "a layer": (without_layer, r"lacks blk\.1\.attn_norm\.weight .* and 6 more;"),
    "a layer more": (
        lambda t: t.update({"blk.2.ffn_up.weight": MATRIX}),
        r"no place in the model, blk\.2\.ffn_up\.weight;",
    ),
    "an unknown tensor": (lambda t: t.update({"v_head": np.ones(32, np.float32)}), r"no place .* v_head;"),
    "another shape": (
        lambda t: t.update({"output_norm.weight": np.ones(32, np.float32)}),
        r"another shape model\.norm\.weight \[32\], not \[64\];",
    ),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_other_tensors_are_refused_and_not_cached(what: str, tmp_path: Path):
    spoil, problem = DIFFERENT[what]
    path = tmp_path / "small.gguf"
    write(path, spoil=spoil)
    with pytest.raises(ConfigError, match=problem) as caught:
        gguf.convert(path)
    assert caught.value.key == "model.name"
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "cache").glob("gguf/[!.]*"))


def test_a_folder_of_an_earlier_release_is_not_taken(tmp_path: Path):
    """It may hold random weights."""
    path = tmp_path / "small.gguf"
    write(path, spoil=lambda t: t.pop("output_norm.weight"))
    earlier = {
        "format": 1,
        "path": str(path.resolve()),
        "size": path.stat().st_size,
        "mtime_ns": path.stat().st_mtime_ns,
        "gguf": version("gguf"),
        "transformers": version("transformers"),
    }
    artifact("gguf", earlier, lambda folder: (folder / "config.json").write_text("{}") and None)
    with pytest.raises(ConfigError, match="lacks output_norm"):
        gguf.convert(path)


def test_files_beside_it_are_not_read(tmp_path: Path):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    write(tmp_path / "small.gguf")
    assert (gguf.convert(tmp_path / "small.gguf") / "model.safetensors").exists()


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def header(*values: tuple[bytes, int, bytes], tensors: int = 0, keys: int | None = None) -> bytes:
    """Return a GGUF file of these keys, types and values."""
    count = len(values) if keys is None else keys
    body = b"".join(text(key) + struct.pack("<I", kind) + value for key, kind, value in values)
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, count) + body


def array(kind: int, count: int, content: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + content


def tensor(name: bytes, *sizes: int, kind: int = 0, offset: int = 0, dimensions: int | None = None) -> bytes:
    count = len(sizes) if dimensions is None else dimensions
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", count, *sizes, kind, offset)


UINT8, UINT32, STRING, ARRAY = 0, 4, 8, 9
LLAMA = (b"general.architecture", STRING, text(b"llama"))
NESTED = array(ARRAY, 1) * 1000
BEYOND: dict[str, tuple[bytes, str]] = {
    "architecture not UTF-8": (
        header((b"general.architecture", STRING, text(b"ll\xff"))),
        "general.architecture at byte 64 is not UTF-8",
    ),
    "architecture that is a number": (
        header((b"general.architecture", UINT32, struct.pack("<I", 1))),
        "general.architecture is no text",
    ),
    "key not UTF-8": (header((b"\xff", UINT32, b"")), "a key at byte 32 is not UTF-8"),
    "architecture of 1 MB": (header((b"general.architecture", STRING, text(b"x" * 10**6))), "architecture 'xxxx"),
    "key of 1 MB": (header((b"x" * 10**6, UINT8, b"\0")), "a key at byte 32 has 1,000,000 bytes"),
    "text beyond the file": (header((b"k", STRING, struct.pack("<Q", 2**20))), "ends within its header"),
    "text beyond the limit": (header((b"k", STRING, struct.pack("<Q", 2**60))), "k at byte .* is the most"),
    "nested arrays": (header((b"k", ARRAY, NESTED)), "k is an array of type 9; only scalars and strings"),
    "array of 10^8 bytes": (
        header(LLAMA, (b"k", ARRAY, array(UINT8, 10**8, bytes(10**8)))),
        "its arrays have 100,000,000 items up to k; 2,097,152 is the most",
    ),
    "many arrays": (
        header(LLAMA, *((b"k%d" % n, ARRAY, array(UINT8, 2**18, bytes(2**18))) for n in range(9))),
        "its arrays have 2,359,296 items up to k8;",
    ),
    "unknown type": (header((b"k", 99, b"")), "k has a value of type 99"),
    "2^31 layers": (
        header(LLAMA, (b"llama.block_count", UINT32, struct.pack("<I", 2**31))),
        "announces 2,147,483,648 layers; 4,096 is the most",
    ),
    "more layers than tensors": (
        header(LLAMA, (b"llama.block_count", UINT32, struct.pack("<I", 7))),
        "announces 7 layers; .* and it has 0 tensors",
    ),
    "2^60 keys": (header(keys=2**60), "announces 1,152,921,504,606,846,976 keys; 65,536 is the most"),
    "2^60 tensors": (header(tensors=2**60), "announces .* tensors; 65,536 is the most"),
    "2^31 dimensions": (
        header(tensors=1) + tensor(b"a", dimensions=2**31),
        "a has 2,147,483,648 dimensions; 4 is the most",
    ),
    "tensor of an unknown type": (header(tensors=1) + tensor(b"a", 1, kind=999), "a is of type 999"),
    "tensor beyond the file": (header(tensors=1) + tensor(b"a", 2**40), "it ends at byte 57, and tensor a at"),
    "tensors that share bytes": (
        header(tensors=2) + tensor(b"a", 8) + tensor(b"b", 8) + bytes(64),
        "tensors a and b share bytes",
    ),
    "odd alignment": (
        header((b"general.alignment", UINT32, struct.pack("<I", 0))),
        "general.alignment is 0, which is no power of two",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BEYOND)
def test_header_beyond_the_limits_is_refused_fast(what: str, tmp_path: Path):
    content, problem = BEYOND[what]
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    begun = time.process_time()
    with pytest.raises(ConfigError, match=problem) as caught:
        gguf.convert(path)
    assert time.process_time() - begun < 5
    assert caught.value.key == "model.name"
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_model_far_larger_than_its_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Loading it would allocate what the header describes."""
    write(tmp_path / "small.gguf")
    content = (tmp_path / "small.gguf").read_bytes()
    key = b"llama.feed_forward_length" + struct.pack("<I", UINT32)
    assert content.count(key + struct.pack("<I", WIDE)) == 1
    large = content.replace(key + struct.pack("<I", WIDE), key + struct.pack("<I", 2**30))
    (tmp_path / "large.gguf").write_bytes(large)
    with pytest.raises(ConfigError, match=r"412,3.* parameters.* 7"):
        gguf.convert(tmp_path / "large.gguf")


def divisors(factor: float) -> np.ndarray[Any, Any]:
    """Return what llama.cpp's converter writes for Llama 3's scaling (`LlamaModel.generate_extra_tensors`)."""
    width = HIDDEN // HEADS
    found = []
    for frequency in 10000.0 ** -(np.arange(0, width, 2) / width):
        turns = 8192 * frequency / (2 * np.pi)  # within the positions of the first training
        smooth = min(max((turns - 1) / 3, 0), 1)
        found.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(found, np.float32)


@pytest.mark.parametrize("factor", [1.0, 32.0])
def test_the_rotary_scaling_of_llama_3_is_kept(factor: float, tmp_path: Path):
    from transformers import AutoConfig

    write(tmp_path / "small.gguf", spoil=lambda t: t.update({gguf.ROTARY: divisors(factor)}))
    rope = AutoConfig.from_pretrained(gguf.convert(tmp_path / "small.gguf")).rope_parameters
    assert rope["rope_theta"] == 10000.0
    assert (rope["rope_type"], rope.get("factor", 1.0)) == ("default" if factor == 1 else "llama3", factor)


def test_another_rotary_scaling_is_refused(tmp_path: Path):
    other = divisors(32.0)
    other[3] += 1
    write(tmp_path / "small.gguf", spoil=lambda t: t.update({gguf.ROTARY: other}))
    with pytest.raises(ConfigError, match=r"rope_freqs\.weight"):
        gguf.convert(tmp_path / "small.gguf")


def test_machine_without_the_package_hands_the_trial_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    gguf.require_package("model.name")
    monkeypatch.setattr(gguf, "version", version)
    with pytest.raises(MachineError, match=rf"^model\.name: .*{re.escape(install_command('gguf'))}$"):
        gguf.require_package("model.name")
