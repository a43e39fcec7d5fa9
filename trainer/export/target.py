"""Choice of the class that computes what a student computes. Used by `checkpoint`.

A student without SubLN has its teacher's class, with other linear layers. A Llama with SubLN is a BitNet:
transformers' `BitNetForCausalLM` is a Llama with a normalisation before `o_proj` and `down_proj`. For all
others there is no class, and the checkpoint contains one (`own_class`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from trainer.export.own_class import with_subln
from trainer.models.subln import SubLN

BITNET = "BitNetForCausalLM"

# Fields that mean the same in the configurations of Llama and BitNet.
_SHARED = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "hidden_act", "max_position_embeddings", "initializer_range", "rms_norm_eps"),
    *("pad_token_id", "bos_token_id", "eos_token_id", "tie_word_embeddings", "attention_bias"),
    *("attention_dropout", "rope_parameters"),
)


@dataclass(frozen=True, kw_only=True)
class Target:
    """A class to load the student with.

    Args:
        config: transformers' configuration of it.
        rename: maps the student's tensor names to the class's.
        code: source code of the class by file name; {} for a class of transformers.
    """

    name: str
    config: Any
    rename: Callable[[str], str]
    code: dict[str, str]

    def module(self, name: str) -> str:
        """Return the class's name of a module of the student."""
        return self.rename(f"{name}.").removesuffix(".")


def choose(student: nn.Module) -> Target:
    """Return the class for the student, one of transformers if it has one."""
    theirs = cast(Any, student).config
    if not any(isinstance(module, SubLN) for module in student.modules()):
        return Target(
            name=type(student).__name__, config=type(theirs).from_dict(theirs.to_dict()), rename=str, code={}
        )
    if is_llama(student):
        from transformers import BitNetConfig

        shared = {name: getattr(theirs, name) for name in _SHARED if hasattr(theirs, name)}
        bitnet = BitNetConfig(**shared, architectures=[BITNET])
        return Target(name=BITNET, config=bitnet, rename=_bitnet_name, code={})
    own = with_subln(student)
    return Target(name=own.name, config=own.config, rename=str, code=own.files)


def is_llama(student: nn.Module) -> bool:
    """Return whether the student is a Llama that transformers' BitNet can express, apart from SubLN.

    Its MLP has no biases, its heads fill the hidden size, and its attention has no sliding window.
    """
    config = cast(Any, student).config
    kind = type(student).__name__
    if kind == "MistralForCausalLM":
        plain = config.sliding_window is None
    else:
        plain = kind == "LlamaForCausalLM" and not config.mlp_bias
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return plain and head * config.num_attention_heads == config.hidden_size


def _bitnet_name(name: str) -> str:
    for ours, bitnets in (("o_proj.norm.", "attn_sub_norm."), ("down_proj.norm.", "ffn_sub_norm.")):
        name = name.replace(ours, bitnets)
    return name.replace(".projection.", ".")
