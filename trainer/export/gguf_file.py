"""Export of a student as a GGUF file for llama.cpp, with ternary matrices in TQ1_0 or TQ2_0.

A Llama with SubLN is llama.cpp's architecture `bitnet`, one without is `llama`. Both types keep blocks of 256
weights of a row with one scale in float16 (1.69 and 2.06 bits a weight); all blocks of a matrix have the
same scale here. Rows that 256 does not divide, such as those of a hidden size of 576, are kept in Q8_0, whose
blocks are 32 wide: 8.5 bits, and ternary all the same. Embeddings and head are in float16, norms in float32.

llama.cpp quantises activations by blocks of 256 in place of tokens, so its logits are near the student's and
not equal to them. The file is read back: codes must be equal and scales right to float16's precision.

Shapes: O outputs, I inputs, D width of a head; `w_OI`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from pydantic_core import from_json
from torch import Tensor, nn

from trainer.errors import ConfigError
from trainer.export import ExportError
from trainer.export.adapters import refuse_adapters
from trainer.export.target import is_llama
from trainer.export.tensors import FORMAT_KEY
from trainer.models.gguf import require_package
from trainer.models.student_folder import SavedStudent
from trainer.models.subln import SubLN
from trainer.quant.ternary import TernaryLinear, ternary_layers

FORMATS = ("gguf-tq1_0", "gguf-tq2_0")
SCALE_TOLERANCE = 2.0**-10  # float16 has 11 significant bits
_FILE_TYPES = {"gguf-tq1_0": 36, "gguf-tq2_0": 37}  # llama.cpp's `llama_ftype`
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5  # llama.cpp's token types; it shows no control tokens

_LAYER_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj.norm": "attn_sub_norm",
    "mlp.down_proj.norm": "ffn_sub_norm",
    "self_attn.o_proj.projection": "attn_output",
    "mlp.down_proj.projection": "ffn_down",
}
_TOP_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}

# llama.cpp's names of Llama 3's and Qwen2's regular expressions. The contractions are written as in published
# tokenizer.json files, and as llama.cpp itself writes them.
_SPLITS = {
    contractions
    + r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
    + digits
    + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+": name
    for contractions in (
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])",
    )
    for digits, name in ((r"\p{N}{1,3}", "llama-bpe"), (r"\p{N}", "qwen2"))
}


@dataclass(frozen=True, kw_only=True)
class ExportedFile:
    """A GGUF file that was written and read back.

    Args:
        architecture: llama.cpp's.
        ternary: number of ternary matrices in the format that was asked for.
        wide: number of those in Q8_0, as 256 does not divide their rows, or in F16, as not even 32 does.
        weight_bytes: of the file.
    """

    architecture: str
    ternary: int
    wide: int
    weight_bytes: int


def export_file(saved: SavedStudent, out: Path, *, form: str) -> ExportedFile:
    """Write the file, and compare what it holds with the student.

    Args:
        out: file to write, which must be absent.
        form: one of `FORMATS`.

    Raises:
        ConfigError: llama.cpp has no such architecture or tokenizer, or the student has adapters.
        ExportError: the disk refuses the file, or it holds something else.
    """
    require_package(FORMAT_KEY)
    student = saved.model
    refuse_adapters(student, form)
    architecture = _architecture(student)
    groups = {layer.config.group_size or 256 for layer in ternary_layers(student)}
    if any(group % 256 for group in groups):
        raise ConfigError(
            f"blocks of 256 weights share a scale, and quant.group_size={min(groups)} is no "
            f"multiple of that; write {FORMAT_KEY} dense",
            key=FORMAT_KEY,
        )
    temporary = out.with_name(f"{out.name}-{os.getpid()}-unfinished")
    try:
        wide = _write(temporary, saved, architecture, form)
        _read_back(temporary, student)
        size = temporary.stat().st_size
        temporary.replace(out)
    except OSError as error:
        raise ExportError(f"cannot write {str(out)!r}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    ternary = len(ternary_layers(student)) - wide
    return ExportedFile(architecture=architecture, ternary=ternary, wide=wide, weight_bytes=size)


def _architecture(student: nn.Module) -> str:
    kind = type(student).__name__
    if not is_llama(student) or any(layer.bias is not None for layer in ternary_layers(student)):
        raise ConfigError(
            f"llama.cpp has no architecture for a ternary {kind}; write {FORMAT_KEY} packed", key=FORMAT_KEY
        )
    config = cast(Any, student).config
    if config.hidden_act != "silu":
        raise ConfigError(
            f"llama.cpp computes silu in this MLP, and the student {config.hidden_act}; "
            f"write {FORMAT_KEY} packed",
            key=FORMAT_KEY,
        )
    if not any(isinstance(module, SubLN) for module in student.modules()):
        return "llama"
    if not config.tie_word_embeddings:
        raise ConfigError(
            "llama.cpp's bitnet takes the embeddings as the output head, and this student has a head of its "
            f"own; write {FORMAT_KEY} packed",
            key=FORMAT_KEY,
        )
    return "bitnet"


@torch.no_grad()
def _write(path: Path, saved: SavedStudent, architecture: str, form: str) -> int:
    """Write the file; return the number of ternary matrices that are in Q8_0 or F16."""
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import quantize

    config = cast(Any, saved.model).config
    writer = GGUFWriter(str(path), architecture)
    writer.add_name("stagesweep student")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(_FILE_TYPES[form])
    writer.add_quantization_version(2)
    rope = dict(config.rope_parameters)
    if rope.get("rope_type", "default") != "default":
        raise ConfigError(
            f"rotary embeddings of type {rope['rope_type']!r} are not written to GGUF; "
            f"write {FORMAT_KEY} packed",
            key=FORMAT_KEY,
        )
    writer.add_rope_freq_base(float(rope["rope_theta"]))
    _add_tokenizer(writer, saved.tokenizer, config)
    ternary = GGMLQuantizationType[form.removeprefix("gguf-").upper()]
    wide = 0
    for name, values, is_ternary in _tensors(saved.model, architecture):
        if is_ternary:
            fits = values.shape[1] % 256 == 0
            wide += not fits
            kind = ternary if fits else GGMLQuantizationType.Q8_0
            if values.shape[1] % 32:  # not even the blocks of Q8_0 fit
                kind = GGMLQuantizationType.F16
            writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values.astype(np.float32 if values.ndim == 1 else np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return wide


def _tensors(student: nn.Module, architecture: str) -> Iterator[tuple[str, np.ndarray[Any, Any], bool]]:
    """Yield name, values in float32, and whether they are a ternary matrix, for each tensor of the file."""
    config = cast(Any, student).config
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    tied = config.tie_word_embeddings
    for name, module in student.named_modules():
        found = _gguf_name(name)
        if found is None or isinstance(module, nn.Sequential) or (tied and name == "lm_head"):
            continue  # a sequence is a projection with its SubLN, which follow
        is_ternary = isinstance(module, TernaryLinear)
        weight = module.effective_weight() if isinstance(module, TernaryLinear) else module.weight
        values = cast(Tensor, weight).detach().float()
        short = found.rpartition(".")[2]
        if architecture == "llama" and short in heads:
            values = interleaved(values, heads[short])
        yield f"{found}.weight", values.numpy(), is_ternary


def _gguf_name(name: str) -> str | None:
    """Return llama.cpp's name of a module; None for one without tensors of its own."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    if not name.startswith("model.layers."):
        return None
    index, _, inner = name.removeprefix("model.layers.").partition(".")
    short = _LAYER_NAMES.get(inner)
    return None if short is None else f"blk.{index}.{short}"


def interleaved(w_OI: Tensor, heads: int) -> Tensor:
    """Return rows of queries or keys in the order of llama.cpp's `llama`, whose rotation pairs neighbours.

    transformers pairs row i of a head with row i + D/2.
    """
    rows = w_OI.view(heads, 2, w_OI.shape[0] // heads // 2, w_OI.shape[1])
    return rows.transpose(1, 2).reshape(w_OI.shape).contiguous()


def _add_tokenizer(writer: Any, folder: Path, config: Any) -> None:
    """Write a byte-level BPE. Raises ConfigError for another kind of tokenizer."""
    document = from_json((folder / "tokenizer.json").read_bytes())
    model = document["model"]
    if model.get("type") != "BPE" or (kind := _pre_tokenizer(document.get("pre_tokenizer"))) is None:
        raise ConfigError(
            "llama.cpp has no name for this tokenizer, which is no byte-level BPE of a known kind; "
            f"write {FORMAT_KEY} packed",
            key=FORMAT_KEY,
        )
    entries: dict[int, str] = {index: token for token, index in model["vocab"].items()}
    added: list[dict[str, Any]] = document["added_tokens"]
    entries |= {each["id"]: each["content"] for each in added}
    kinds = dict.fromkeys(entries, _NORMAL)
    kinds |= {each["id"]: _CONTROL if each["special"] else _USER_DEFINED for each in added}
    tokens = [entries.get(index, f"[unused{index}]") for index in range(config.vocab_size)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(kind)
    writer.add_token_list(tokens)
    writer.add_token_types([kinds.get(index, _UNUSED) for index in range(len(tokens))])
    merges = model["merges"]
    writer.add_token_merges([each if isinstance(each, str) else " ".join(each) for each in merges])
    if isinstance(config.bos_token_id, int):
        writer.add_bos_token_id(config.bos_token_id)
    if isinstance(config.eos_token_id, int):
        writer.add_eos_token_id(config.eos_token_id)
    writer.add_add_bos_token(False)


def _pre_tokenizer(found: Mapping[str, Any] | None) -> str | None:
    """Return llama.cpp's name of a pre-tokenizer of tokenizer.json; None for one without a name here."""
    if found is None:
        return None
    steps = found["pretokenizers"] if found["type"] == "Sequence" else [found]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"] and steps[0].get("use_regex", True):
        return "gpt-2"
    if kinds == ["Digits", "ByteLevel"] and steps[0].get("individual_digits"):
        return "smollm"
    if kinds == ["Split", "ByteLevel"]:
        # The whole expression counts: Tekken's and o200k's have the same parts for digits. Line ends may be
        # written as themselves.
        pattern = str(steps[0]["pattern"].get("Regex", ""))
        return _SPLITS.get(pattern.replace("\r", r"\r").replace("\n", r"\n"))
    return None


@torch.no_grad()
def _read_back(path: Path, student: nn.Module) -> None:
    """Raise ExportError if a ternary matrix in the file is not the student's."""
    from gguf import GGUFReader
    from gguf.quants import dequantize

    stored = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    architecture = "bitnet" if any("sub_norm" in name for name in stored) else "llama"
    for name, values, is_ternary in _tensors(student, architecture):
        tensor = stored[name]
        got = dequantize(tensor.data, tensor.tensor_type).reshape(values.shape)
        same = np.array_equal(np.sign(got), np.sign(values)) if is_ternary else True
        limit = SCALE_TOLERANCE * np.abs(values) + 1e-7
        if not same or not bool((np.abs(got - values) <= limit).all()):
            raise ExportError(f"{name} came back changed from the GGUF file; nothing was written")
