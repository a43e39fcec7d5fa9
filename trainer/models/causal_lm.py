"""Causal language models: a tiny Llama, pretrained ones from transformers, and functions that stages need.

With `data.document_masks` a token attends only to tokens of its own document in a packed window, and
positions restart at 0 in each. The losses still cover all tokens: the last one of a document, its end,
predicts the first one of the next.

Shapes: B sequences, T tokens, H hidden size, V vocabulary, L layers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from sweeps.text.shorten import first_line
from trainer.config import HfModelConfig, TrainedHereConfig
from trainer.config.model import MasterDtype
from trainer.devices.lazy_tensor import copy_to_host, is_lazy
from trainer.devices.sdpa import PREFIX, RECORDING
from trainer.errors import ConfigError, TrainerError
from trainer.models import gguf, pretrained
from trainer.models.network import hub_error

ADAPTER = ".lora_"
"""Part of the names of parameters that are of adapters (see `models.adapters`)."""

_MASKS_KEY = "data.document_masks"
_DOCUMENT_END = "document_end"  # an attribute of the model, so that its copies have it; it is saved nowhere
# The settings with which transformers' models cap or scale their logits.
_HEAD_SETTINGS = ("final_logit_softcapping", "logits_scaling", "logit_scale", "lm_head_multiplier")

_Model = TypeVar("_Model", bound=nn.Module)


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Logits [B, T, V] and, if requested, L hidden states [B, T, H].

    As in transformers, these are the outputs of layers 1..L-1, and that of layer L after the final norm.
    """

    logits: Tensor
    hidden: tuple[Tensor, ...] = ()


def import_architectures(config: TrainedHereConfig | HfModelConfig) -> None:
    """Import the modules that building or loading such a model needs, which takes seconds.

    Raises:
        ConfigError: the model's name is a path, and there is nothing.
    """
    if config.kind == "hf":
        if config.name.startswith((".", "/", "~")) and not Path(config.name).exists():
            kind = "file" if config.name.endswith(gguf.SUFFIX) else "folder"
            raise ConfigError(
                f"there is no {kind} {config.name!r} (from {str(Path.cwd())!r}); names on the Hugging Face "
                "hub have no `./`",
                key="model.name",
            )
        from transformers.models.auto import modeling_auto, tokenization_auto  # noqa: F401 - for their effect
    else:
        from transformers.models.llama import modeling_llama  # noqa: F401 - for its effect


def build_tiny(
    config: TrainedHereConfig,
    *,
    vocab_size: int,
    sequence_length: int,
    attention: str,
    end: int | None = None,
) -> nn.Module:
    """Return a Llama with fresh weights, drawn from torch's global random state.

    Args:
        sequence_length: the most positions, in tokens.
        attention: the name of an attention implementation of transformers.
        end: id of the token that ends a text, where whoever loads the student stops generating; None: none.
    """
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
                eos_token_id=end,
                tie_word_embeddings=False,
                attn_implementation=attention,
            )
        ),
    )


def load_tiny(folder: Path, *, attention: str) -> nn.Module:
    """Load a model that `build_tiny` built and `save` saved.

    Raises:
        TrainerError: the folder does not hold all of it.
    """
    from transformers.models.llama.modeling_llama import LlamaForCausalLM

    _silence_progress_bars()
    model, misfits = pretrained.load(LlamaForCausalLM, folder, attn_implementation=attention)
    if misfits:
        raise TrainerError(f"the model in {str(folder)!r} {misfits}; remove the folder, and it is made anew")
    return cast(nn.Module, model)


def load_pretrained(name: str, *, dtype: str, attention: str) -> nn.Module:
    """Load any causal language model from a folder or the hub.

    Raises:
        ConfigError: it does not exist, cannot be read, has other tensors than the model of its
            configuration, or has float16 weights.
        MachineError: HF_HUB_OFFLINE is set, and it is not here.
        UnreachableError: the hub does not answer.
    """
    from safetensors import SafetensorError
    from transformers.models.auto.modeling_auto import AutoModelForCausalLM

    _silence_progress_bars()
    try:
        model, misfits = pretrained.load(
            AutoModelForCausalLM, name, dtype=dtype, attn_implementation=attention
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        if (unreached := hub_error(error, f"cannot load {name!r}")) is not None:
            raise unreached from error
        raise ConfigError(f"cannot load {name!r}: {first_line(error)}", key="model.name") from error
    if misfits:
        raise ConfigError(
            f"cannot load {name!r}: the checkpoint {misfits}; name a complete checkpoint with its own "
            "config.json",
            key="model.name",
        )
    if any(parameter.dtype == torch.float16 for parameter in model.parameters()):
        raise ConfigError(
            "the checkpoint is in float16, whose range is too small to train in; "
            "write model.dtype=bfloat16 or model.dtype=float32",
            key="model.dtype",
        )
    return with_supported_attention(cast(nn.Module, model))


def with_supported_attention(model: _Model) -> _Model:
    """Return the model, with its own eager attention if SDPA cannot compute it, as with capped scores."""
    this = cast(Any, model)
    # Before transformers 5.21 a model that caps its scores claims to support SDPA, which does not cap them.
    caps = getattr(this.config, "attn_logit_softcapping", None) is not None
    if ignores_padding(model) and (caps or not getattr(this, "_supports_sdpa", False)):
        this.set_attn_implementation("eager")
    return model


def save(model: nn.Module, folder: Path) -> None:
    """Save a model as a transformers checkpoint."""
    _silence_progress_bars()
    cast(Any, xla_to_cpu(model)).save_pretrained(folder)


def xla_to_cpu(model: nn.Module) -> nn.Module:
    """Move an XLA model to the CPU, in place, so that files can be written from it; return the model.

    A model on another device stays there. Tied weights stay tied.
    """
    if any(is_lazy(parameter) for parameter in model.parameters()):
        # Like `model.to("cpu")`, but also for tensors sharded over chips. torch has no annotation here.
        model = model._apply(  # type: ignore[no-untyped-call]
            lambda tensor: copy_to_host(torch.empty(tensor.shape, dtype=tensor.dtype), tensor.detach())
        )
        if callable(tie := getattr(model, "tie_weights", None)):
            tie()
    return model


def run(model: nn.Module, ids_BT: Tensor, *, hidden: bool = False) -> Outputs:
    """Run a forward pass without a key-value cache.

    Args:
        ids_BT: token ids, int64.
    """
    outputs = model(**inputs(model, ids_BT), output_hidden_states=hidden)
    return Outputs(logits=outputs.logits, hidden=tuple(outputs.hidden_states[1:]) if hidden else ())


def inputs(model: nn.Module, ids_BT: Tensor) -> dict[str, Any]:
    """Return the keyword arguments for a transformers model or its decoder; `ids_BT` is int64."""
    arguments = {"input_ids": ids_BT, "use_cache": False}
    # Without a mask transformers reads the positions to detect packed texts: `devices.sdpa`.
    if is_lazy(ids_BT) or ignores_padding(model):
        arguments["attention_mask"] = torch.ones_like(ids_BT)
    numbers_BT = document_numbers(model, ids_BT)
    if numbers_BT is not None:
        arguments["position_ids"] = positions(numbers_BT)
        if ignores_padding(model):  # otherwise transformers finds the documents by their positions
            # `devices.sdpa` knows it by its three dimensions.
            arguments["attention_mask"] = numbers_BT.unsqueeze(1)
    return arguments


def ignores_padding(model: nn.Module) -> bool:
    """Return whether the model's attention takes its mask from `attention_mask`."""
    name = str(getattr(getattr(model, "config", None), "_attn_implementation", ""))
    return name.removeprefix(RECORDING).startswith(PREFIX)


def separate_documents(model: _Model, end: int | None) -> _Model:
    """Have the model's forward passes keep documents apart, and return it.

    Args:
        model: of transformers, on its device. Copies of it do the same.
        end: id of the token that ends a document; None: the tokenizer has none.

    Raises:
        ConfigError: the model cannot keep documents apart, or nothing says where they end.
    """
    if end is None:
        raise ConfigError(
            "the tokenizer has no end-of-text token to tell documents by; write false, or name a "
            "data.tokenizer that has one",
            key=_MASKS_KEY,
        )
    setattr(model, _DOCUMENT_END, end)
    weight = next(model.parameters())
    if isinstance(weight, FakeTensor):  # of `trainer.preflight`: there are no numbers to compare
        return model
    apart = ignores_padding(model) or not is_lazy(weight)
    if not apart or not _keeps_apart(model, end, weight.device):
        raise ConfigError(
            f"{type(model).__name__} lets tokens read other documents of their window on this device; "
            "write false",
            key=_MASKS_KEY,
        )
    return model


def document_numbers(model: nn.Module, ids_BT: Tensor) -> Tensor | None:
    """Return the number of each token's document in its window [B, T], from 0; None: no masks are used."""
    end: int | None = getattr(model, _DOCUMENT_END, None)
    if end is None:
        return None
    ended_BT: Tensor = (ids_BT == end).long()  # sums of booleans are booleans on XLA
    return ended_BT.cumsum(dim=-1) - ended_BT  # the end is the last token of its own document


def positions(numbers_BT: Tensor) -> Tensor:
    """Return the position of each token in its document, or the part of it in the window, [B, T]."""
    index_T = torch.arange(numbers_BT.shape[-1], device=numbers_BT.device)
    begins_BT = torch.diff(numbers_BT, dim=-1, prepend=numbers_BT[:, :1]) != 0
    # The running maximum of the indices of first tokens is where the present document began.
    return index_T - (begins_BT * index_T).cummax(dim=-1).values


@torch.no_grad()
def _keeps_apart(model: nn.Module, end: int, device: torch.device) -> bool:
    """Return whether another first document leaves what the model computes of the second one as it is."""
    first, other, *second = (token for token in range(6) if token != end)
    ids_BT = torch.tensor([[each, each, end, *second] for each in (first, other)], device=device)
    try:
        # A model may refuse the positions, or fail on them.
        with _evaluating(model), _first_layers(model) as decoder:
            if decoder is None:
                found = run(model, ids_BT).logits.float()
            else:
                found = decoder(**inputs(model, ids_BT)).last_hidden_state.float()
    except (TypeError, ValueError):
        return False
    return torch.allclose(found[0, 3:], found[1, 3:], rtol=1e-3, atol=1e-3)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Have the model in evaluation mode within the context, and each module as it was behind it."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def _first_layers(model: nn.Module) -> Iterator[Any]:
    """Leave a model its first layers within the context, one of each kind among them, and yield its decoder.

    What keeps documents apart is the same in layers of a kind, and a teacher that is to be sharded may be too
    large to be computed, or read, by one process. None, with all layers, for a model that has no list of
    them, or whose layers are copied to the device one after another (`host_layers`).
    """
    decoder: Any = getattr(model, "get_decoder", lambda: None)()
    layers = getattr(decoder, "layers", None)
    if not isinstance(layers, nn.ModuleList) or any(layer._forward_pre_hooks for layer in layers):
        yield None
        return
    types = getattr(decoder.config, "layer_types", None) or [""] * len(layers)
    kinds = [(kind, *map(type, layer.modules())) for kind, layer in zip(types, layers, strict=False)]
    decoder.layers = layers[: 1 + max(map(kinds.index, kinds))]
    try:
        yield decoder
    finally:
        decoder.layers = layers


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """Return the trainable 2-D weights between the embeddings and the head, which Muon is made for."""
    return [p for p in _matrices(model) if p.requires_grad]


def matmul_parameters(model: nn.Module) -> int:
    """Return the number of weights that each token is multiplied by, of hidden matrices and head.

    Adapters are not counted.
    """
    adapters = {id(p) for name, p in model.named_parameters() if ADAPTER in name}
    return sum(p.numel() for p in _matrices(model) if id(p) not in adapters) + head_parameters(model)


def head_parameters(model: nn.Module) -> int:
    """Return the number of weights of the language-model head."""
    return int(cast(Any, model).get_output_embeddings().weight.numel())


def attention_width(model: nn.Module) -> int:
    """Return heads times head size, summed over layers: the cost of attention per pair of tokens."""
    config = cast(Any, model).config
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(head * config.num_attention_heads * config.num_hidden_layers)


def depth(model: nn.Module) -> int:
    """Return the number of decoder layers."""
    return int(cast(Any, model).config.num_hidden_layers)


def key_heads(model: nn.Module) -> int:
    """Return the number of key-value heads, which the query heads share."""
    config = cast(Any, model).config
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)


def embedding_count(model: nn.Module) -> int:
    """Return the number of embeddings; every token id must be smaller."""
    return int(cast(Any, model).get_input_embeddings().weight.shape[0])


@dataclass(frozen=True, kw_only=True)
class OutputHead:
    """The layers between the last decoder layer and the logits: the final norm and a linear layer H → V."""

    norm: nn.Module
    linear: nn.Linear


def output_head(model: nn.Module) -> OutputHead:
    """Return the model's head.

    Raises:
        ConfigError: the logits are not just the linear layer's outputs (but capped or scaled, say).
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
    """Return the model's head, verified on four tokens; None if it has no norm or processes its logits."""
    decoder = getattr(model, "get_decoder", lambda: None)()
    norm, linear = getattr(decoder, "norm", None), getattr(model, "get_output_embeddings", lambda: None)()
    if not isinstance(norm, nn.Module) or not isinstance(linear, nn.Linear):
        return None
    if isinstance(linear.weight, FakeTensor):  # of `trainer.preflight`: there are no numbers to compare
        processed = any(getattr(cast(Any, model).config, name, None) for name in _HEAD_SETTINGS)
        return None if processed else OutputHead(norm=norm, linear=linear)
    ids = torch.arange(4, device=linear.weight.device).unsqueeze(0)  # several: one may be padding
    # Scaled up, so that a cap shows even where logits are small.
    handle = linear.register_forward_hook(lambda module, inputs, logits: 1e4 * logits)
    try:
        with _evaluating(model):
            outputs = run(model, ids, hidden=True)
            expected = linear(outputs.hidden[-1])
    finally:
        handle.remove()
    same = torch.allclose(expected.float(), outputs.logits.float(), rtol=1e-3, atol=1e-3)
    return OutputHead(norm=norm, linear=linear) if same else None


def freeze(model: nn.Module) -> nn.Module:
    """Put the model into evaluation mode without gradients, and return it."""
    return model.eval().requires_grad_(False)


@torch.no_grad()
def cast_weights(model: nn.Module, dtype: MasterDtype) -> nn.Module:
    """Return the model with all parameters in this dtype, cast in place; `auto` leaves them as they are.

    These are the master weights, which the optimizer updates and each forward pass quantises. An update is
    lost where it is smaller than half the distance of two numbers: in bfloat16, which has 8 significant bits,
    2^-9 of the weight. Buffers keep their dtype: the frequencies of rotary embeddings are float32 whatever
    the weights are. Tied weights stay tied.
    """
    if dtype == "auto":
        return model
    wanted: torch.dtype = getattr(torch, dtype)
    if any(parameter.dtype != wanted for parameter in model.parameters()):
        for parameter in model.parameters():
            parameter.data = parameter.data.to(wanted)
        cast(Any, model).config.dtype = wanted
    return model


def computes_in_bfloat16(teacher: nn.Module, dtype: MasterDtype) -> bool:
    """Return whether a student of this teacher computes products in bfloat16 even on a float32 device."""
    if dtype == "auto":
        return any(parameter.dtype == torch.bfloat16 for parameter in teacher.parameters())
    return dtype == "bfloat16"


def weights_sha256(model: nn.Module) -> str:
    """Return the digest of a model's parameters, names, shapes and dtypes; takes seconds for billions."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(f"{name}:{tuple(parameter.shape)}:{parameter.dtype}:".encode())
        digest.update(parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def is_head(model: nn.Module, module: nn.Module) -> bool:
    """Return whether the module is the language-model head, which stays in full precision."""
    return module is cast(Any, model).get_output_embeddings()


def _matrices(model: nn.Module) -> list[nn.Parameter]:
    embeddings = cast(Any, model).get_input_embeddings(), cast(Any, model).get_output_embeddings()
    excluded = {id(module.weight) for module in embeddings if module is not None}
    return [p for p in model.parameters() if p.ndim == 2 and id(p) not in excluded]


def _silence_progress_bars() -> None:
    """Disable transformers' progress bars, which would garble a worker's log."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()


def parameter_count(model: nn.Module) -> int:
    """Return the number of all parameters, tied ones counted once."""
    return sum(p.numel() for p in model.parameters())
