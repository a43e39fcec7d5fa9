"""Language models: a tiny Llama, pretrained ones through transformers, and what stages ask of both.

Shapes: B sequences, T tokens, H hidden size, V vocabulary, L layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from trainer.config import HfModelConfig, TinyModelConfig
from trainer.devices.lazy_tensor import copied, is_lazy
from trainer.devices.xla_attention import suited
from trainer.errors import ConfigError

# With which transformers' models cap or scale their logits.
_HEAD_SETTINGS = ("final_logit_softcapping", "logits_scaling", "logit_scale", "lm_head_multiplier")


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Logits [B, T, V], and L hidden states [B, T, H] where they were asked for: the outputs of layers
    1..L-1, and that of layer L after the final norm, as transformers returns them."""

    logits: Tensor
    hidden: tuple[Tensor, ...] = ()


def import_architectures(config: TinyModelConfig | HfModelConfig) -> None:
    """Imports ahead what building or loading such a model imports; seconds, in which signals should wait."""
    if config.kind == "hf":
        from transformers.models.auto import modeling_auto, tokenization_auto  # noqa: F401 - for their effect
    else:
        from transformers.models.llama import modeling_llama  # noqa: F401 - for its effect


def build_tiny(
    config: TinyModelConfig, *, vocab_size: int, sequence_length: int, attention: str
) -> nn.Module:
    """A Llama with fresh weights, from torch's global random state."""
    # The submodules, not `transformers`: its Auto classes take a second more to import.
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaForCausalLM

    return cast(
        nn.Module,
        LlamaForCausalLM(
            LlamaConfig(
                vocab_size=vocab_size,
                hidden_size=config.hidden_size,
                intermediate_size=config.intermediate_size,
                num_hidden_layers=config.layers,
                num_attention_heads=config.heads,
                max_position_embeddings=sequence_length,
                bos_token_id=None,
                eos_token_id=0,  # the end of a text, first in the tokenizer that is trained for it
                tie_word_embeddings=False,
                attn_implementation=attention,
            )
        ),
    )


def load_tiny(folder: Path, *, attention: str) -> nn.Module:
    """What `build_tiny` built and `save` saved."""
    from transformers.models.llama.modeling_llama import LlamaForCausalLM

    _silence_progress_bars()
    return cast(nn.Module, LlamaForCausalLM.from_pretrained(folder, attn_implementation=attention))


def load_pretrained(name: str, *, dtype: str, attention: str) -> nn.Module:
    """Any causal language model, from a folder or the hub.

    Raises:
        ConfigError: there is none, it cannot be read, or its weights are float16.
    """
    from safetensors import SafetensorError
    from transformers.models.auto.modeling_auto import AutoModelForCausalLM

    _silence_progress_bars()
    try:
        model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, attn_implementation=attention)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ConfigError(f"cannot load {name!r}: {first}", key="model.name") from error
    if any(parameter.dtype == torch.float16 for parameter in model.parameters()):
        raise ConfigError(
            "the checkpoint is in float16, whose range is too small to train in; "
            "write model.dtype=bfloat16 or model.dtype=float32",
            key="model.dtype",
        )
    return suited(cast(nn.Module, model))


def save(model: nn.Module, folder: Path) -> None:
    """As a transformers checkpoint."""
    _silence_progress_bars()
    cast(Any, home(model)).save_pretrained(folder)


def home(model: nn.Module) -> nn.Module:
    """The model, on the CPU if its weights have no memory that a file could be written from. It is moved, not
    copied; tied weights stay tied."""
    if any(is_lazy(parameter) for parameter in model.parameters()):
        # What `model.to("cpu")` does, but for tensors that chips have in parts. torch has no annotation here.
        model = model._apply(  # type: ignore[no-untyped-call]
            lambda tensor: copied(torch.empty(tensor.shape, dtype=tensor.dtype), tensor.detach())
        )
        if callable(tie := getattr(model, "tie_weights", None)):
            tie()
    return model


def run(model: nn.Module, ids_BT: Tensor, *, hidden: bool = False) -> Outputs:
    """The model's predictions; no key-value cache is kept."""
    outputs = model(**inputs(ids_BT), output_hidden_states=hidden)
    return Outputs(logits=outputs.logits, hidden=tuple(outputs.hidden_states[1:]) if hidden else ())


def inputs(ids_BT: Tensor) -> dict[str, Any]:
    """What a transformers model, or its decoder, is called with."""
    given = {"input_ids": ids_BT, "use_cache": False}
    # Without a mask transformers looks into the positions for packed texts, and that look ends a graph.
    return given | {"attention_mask": torch.ones_like(ids_BT)} if is_lazy(ids_BT) else given


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """The trained 2-D weights between the embeddings and the head: those that Muon is made for."""
    return [p for p in _matrices(model) if p.requires_grad]


def matmul_parameters(model: nn.Module) -> int:
    """Weights that each token is multiplied with: hidden matrices and head, not the embedding table."""
    return sum(p.numel() for p in _matrices(model)) + head_parameters(model)


def head_parameters(model: nn.Module) -> int:
    """Weights of the language-model head."""
    return int(cast(Any, model).get_output_embeddings().weight.numel())


def attention_width(model: nn.Module) -> int:
    """Heads times their size, summed over layers: what attention costs per pair of tokens."""
    config = cast(Any, model).config
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(head * config.num_attention_heads * config.num_hidden_layers)


def depth(model: nn.Module) -> int:
    """Decoder layers."""
    return int(cast(Any, model).config.num_hidden_layers)


def key_heads(model: nn.Module) -> int:
    """Heads of the keys and values; the query heads share them."""
    config = cast(Any, model).config
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)


def embedding_count(model: nn.Module) -> int:
    """Token ids from here on have no embedding."""
    return int(cast(Any, model).get_input_embeddings().weight.shape[0])


@dataclass(frozen=True, kw_only=True)
class OutputHead:
    """What stands between the last decoder layer and the logits: the final norm, and a linear layer H → V."""

    norm: nn.Module
    linear: nn.Linear


def output_head(model: nn.Module) -> OutputHead:
    """The model's own.

    Raises:
        ConfigError: the logits are something else than the linear layer's outputs, such as capped or scaled.
    """
    head = plain_head(model)
    if head is not None:
        return head
    raise ConfigError(
        f"kl needs a model whose logits are a linear layer's, behind a final norm; {type(model).__name__} "
        "has another output head; take mse_normalized",
        key="stage1_9.loss_type",
    )


@torch.no_grad()
def plain_head(model: nn.Module) -> OutputHead | None:
    """The model's own, checked on four tokens; None where more is done to the logits, or there is no norm."""
    decoder = getattr(model, "get_decoder", lambda: None)()
    norm, linear = getattr(decoder, "norm", None), getattr(model, "get_output_embeddings", lambda: None)()
    if not isinstance(norm, nn.Module) or not isinstance(linear, nn.Linear):
        return None
    if isinstance(linear.weight, FakeTensor):  # of `trainer.preflight`: there are no numbers to compare
        more = any(getattr(cast(Any, model).config, name, None) for name in _HEAD_SETTINGS)
        return None if more else OutputHead(norm=norm, linear=linear)
    ids = torch.arange(4, device=linear.weight.device).unsqueeze(
        0
    )  # one may be padding, which reads as zeros
    # Made large, so that a cap cannot look like none where logits are small.
    handle = linear.register_forward_hook(lambda module, inputs, logits: 1e4 * logits)
    modes = [(module, module.training) for module in model.modules()]
    try:
        outputs = run(model.eval(), ids, hidden=True)
        expected = linear(outputs.hidden[-1])
    finally:
        handle.remove()
        for module, training in modes:
            module.training = training
    same = torch.allclose(expected.float(), outputs.logits.float(), rtol=1e-3, atol=1e-3)
    return OutputHead(norm=norm, linear=linear) if same else None


def freeze(model: nn.Module) -> nn.Module:
    """The model as a teacher: evaluated, never trained."""
    return model.eval().requires_grad_(False)


def is_head(model: nn.Module, module: nn.Module) -> bool:
    """Whether the module is the language-model head, which stays in full precision."""
    return module is cast(Any, model).get_output_embeddings()


def _matrices(model: nn.Module) -> list[nn.Parameter]:
    ends = {id(parameter) for parameter in _ends(model)}
    return [p for p in model.parameters() if p.ndim == 2 and id(p) not in ends]


def _ends(model: nn.Module) -> list[nn.Parameter]:
    ends = [cast(Any, model).get_input_embeddings(), cast(Any, model).get_output_embeddings()]
    return [end.weight for end in ends if end is not None]


def _silence_progress_bars() -> None:
    """Loading a checkpoint is no news; the bars would land between a worker's lines."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()


def parameter_count(model: nn.Module) -> int:
    """All parameters, tied ones once."""
    return sum(p.numel() for p in model.parameters())


def seed_everything(seed: int) -> None:
    """torch's global random state, which fresh weights come from."""
    torch.manual_seed(seed)
