"""Stand-ins for pretrained models: their architecture, random weights, a tokenizer. Used by tests of `hf`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

END = "<|endoftext|>"
SIZE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}


def save_stand_in(folder: Path, architecture: str) -> Path:
    """Save a model in bfloat16 with tied embeddings and a byte-level tokenizer, and return its folder.

    Args:
        folder: to save in.
        architecture: `qwen3` (query and key norms, heads of a size of their own) or `smollm2` (a Llama).
    """
    vocabulary = _save_tokenizer(folder)
    torch.manual_seed(0)
    if architecture == "qwen3":
        model: Any = Qwen3ForCausalLM(Qwen3Config(vocab_size=vocabulary, head_dim=24, **SIZE))
    else:
        model = LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, rms_norm_eps=1e-5, **SIZE))
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


def _save_tokenizer(folder: Path) -> int:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=280, initial_alphabet=alphabet, special_tokens=[END], show_progress=False
    )
    tokenizer.train_from_iterator(["def f(x):\n    return x\n"], trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)
    wrapped.save_pretrained(folder)
    return len(wrapped)
