"""Choice of the class that computes what a student computes. Used by `checkpoint`.

A student without SubLN has its teacher's class, with other linear layers. A Llama with SubLN is a BitNet:
transformers' `BitNetForCausalLM` is a Llama with a normalisation before `o_proj` and `down_proj`. For all
others there is no class, and the checkpoint contains one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from trainer.models.subln import BEFORE, EPS, SubLN

BITNET = "BitNetForCausalLM"
MODULE = "modeling_subln"

# Fields that mean the same in the configurations of Llama and BitNet.
_SHARED = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "hidden_act", "max_position_embeddings", "initializer_range", "rms_norm_eps"),
    *("pad_token_id", "bos_token_id", "eos_token_id", "tie_word_embeddings", "attention_bias"),
    *("attention_dropout", "rope_parameters"),
)

_SOURCE = '''"""{base} with an RMS normalisation (SubLN) before each {before}. Written by stagesweep.

    AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)
"""

from collections import OrderedDict

import torch
from torch import nn
from transformers import {base}, {base_config}


class {own_config}({base_config}):
    model_type = "{model_type}"


class SubLN(nn.Module):
    def __init__(self, features, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x):
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (normed * self.weight.float()).to(x.dtype)


class {own}({base}):
    config_class = {own_config}

    def __init__(self, config):
        super().__init__(config)
        eps = getattr(config, "rms_norm_eps", {eps})
        for name, module in list(self.named_modules()):
            if isinstance(module, nn.Linear) and name.rpartition(".")[2] in {names}:
                norm = SubLN(module.in_features, eps)
                self.set_submodule(name, nn.Sequential(OrderedDict(norm=norm, projection=module)))
'''


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
    return _own_class(student)


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


def _own_class(student: nn.Module) -> Target:
    """Return the class of the student's teacher with SubLN, whose source code goes into the checkpoint.

    Its configuration has a `model_type` of its own: under the teacher's, transformers would silently load the
    teacher's class without the normalisations wherever `trust_remote_code` is not set.
    """
    theirs = cast(Any, student).config
    base, base_config = type(student).__name__, type(theirs).__name__
    own, own_config = f"SubLN{base}", f"SubLN{base_config}"
    model_type = f"subln_{theirs.model_type}"
    # transformers writes the class's `model_type` and ignores that of the dictionary.
    subclass: Any = type(own_config, (type(theirs),), {"model_type": model_type})
    named = {
        "model_type": model_type,
        "architectures": [own],
        "auto_map": {"AutoConfig": f"{MODULE}.{own_config}", "AutoModelForCausalLM": f"{MODULE}.{own}"},
    }
    source = _SOURCE.format(
        base=base,
        base_config=base_config,
        own=own,
        own_config=own_config,
        model_type=model_type,
        eps=EPS,
        before=" and ".join(BEFORE),
        names=BEFORE,
    )
    config = subclass.from_dict(theirs.to_dict() | named)
    return Target(name=own, config=config, rename=str, code={f"{MODULE}.py": source})
