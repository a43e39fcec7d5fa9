"""Students of several architectures, small, with gains and weights that are all different."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from quant_forms import BITNET
from torch import nn

from trainer.api import check
from trainer.config import QuantConfig
from trainer.devices.device import Device
from trainer.models.subln import make_student

VOCABULARY, LENGTH = 96, 32
DEVICE = Device(torch_device=torch.device("cpu"), dtype=torch.float32, name="CPU", attention="eager")

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LENGTH,
    "initializer_range": 0.3,
    "rms_norm_eps": 1e-5,
    "bos_token_id": None,
    "eos_token_id": 0,
    "attn_implementation": "eager",
}
_CONFIGS: dict[str, dict[str, Any]] = {
    "Llama": {"tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 5e4}},
    "Mistral": {"sliding_window": None, "hidden_act": "gelu"},
    "Qwen2": {},  # biases in the projections of the attention
    "Qwen3": {
        "head_dim": 16,
        "tie_word_embeddings": True,
    },  # norms of queries and keys; heads wider than the model
}


def student(
    architecture: str,
    *,
    subln: str = "calibrated",
    quant: QuantConfig = BITNET,
    dtype: torch.dtype = torch.float32,
    **config: Any,
) -> nn.Module:
    """An evaluated student at lambda 1, as after training."""
    import transformers

    torch.manual_seed(0)
    theirs = getattr(transformers, f"{architecture}Config")(**_SIZES | _CONFIGS[architecture] | config)
    teacher = getattr(transformers, f"{architecture}ForCausalLM")._from_config(theirs, dtype=dtype)
    stage1 = dataclasses.replace(check([]).stage1, subln=subln)
    made, _ = make_student(teacher, stage1, [ids()], quant=quant, device=DEVICE)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if parameter.ndim == 1:  # gains and biases
                parameter.mul_(torch.rand_like(parameter) + 0.5) if "norm" in name else parameter.normal_()
    return made.eval()


def ids() -> torch.Tensor:
    return torch.randint(VOCABULARY, (4, LENGTH), generator=torch.Generator().manual_seed(1))
