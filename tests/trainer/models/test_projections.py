"""Capturing queries, keys and values with shared heads and wrapped layers, and leaving no hooks behind."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from trainer.config.quant import QuantConfig
from trainer.errors import ConfigError
from trainer.models.causal_lm import run
from trainer.models.projections import Projections, attention_layers, widths
from trainer.quant.ternary import TernaryLinear
from trainer.quant.warmup import Lambda

BITNET = QuantConfig(weight_scale="absmean", group_size=None, activations="int8")
IDS = torch.arange(12).reshape(2, 6)


def llama(layers: int = 3) -> nn.Module:
    """Four query heads of 4 features share two key-value heads."""
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=16,
            hidden_size=16,
            intermediate_size=8,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            attn_implementation="eager",
        )
    )


def hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) for module in model.modules())


@pytest.mark.parametrize(("layer", "index"), [(0, 0), (1, 1), (-1, 2), (-3, 0)])
def test_captures_the_outputs_of_projections(layer: int, index: int) -> None:
    model = llama()
    attention = model.get_submodule(f"model.layers.{index}.self_attn")
    with Projections(model, layer) as projections:
        projections.begin()
        hidden = run(model, IDS, hidden=True)
        caught = projections.take()
    into = [model.get_submodule("model.embed_tokens")(IDS), *hidden.hidden][index]
    normed = model.get_submodule(f"model.layers.{index}.input_layernorm")(into)
    for name, states in zip(("q_proj", "k_proj", "v_proj"), caught, strict=True):
        torch.testing.assert_close(states, attention.get_submodule(name)(normed))
    assert [states.shape for states in caught] == [(2, 6, 16), (2, 6, 8), (2, 6, 8)]


def test_the_gradient_reaches_the_projections() -> None:
    model = llama()
    with Projections(model, -1) as projections:
        projections.begin()
        run(model, IDS)
        sum(states.sum() for states in projections.take()).backward()  # type: ignore[union-attr]
    weight = model.get_submodule("model.layers.2.self_attn.q_proj").weight
    assert weight.grad is not None
    assert weight.grad.abs().sum() > 0


def test_captures_ternary_and_wrapped_projections() -> None:
    model = llama(layers=1)
    attention = model.get_submodule("model.layers.0.self_attn")
    ternary = TernaryLinear(attention.q_proj, Lambda(), BITNET)
    attention.q_proj = nn.Sequential(OrderedDict(norm=nn.LayerNorm(16), projection=ternary))
    attention.k_proj = TernaryLinear(attention.k_proj, Lambda(), BITNET)
    assert widths(attention_layers(model)[0]) == (16, 8, 8)
    outputs = []
    ternary.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    with Projections(model, 0) as projections:
        projections.begin()
        run(model, IDS)
        queries, keys, _ = projections.take()
    torch.testing.assert_close(queries, outputs[0])
    assert keys.shape == (2, 6, 8)


def test_hooks_are_removed_after_the_block_or_a_failure() -> None:
    model = llama()
    with Projections(model, -1):
        assert hooks(model) == 3
    assert hooks(model) == 0
    with pytest.raises(RuntimeError, match="the forward pass"), Projections(model, -1):
        raise RuntimeError("the forward pass")
    assert hooks(model) == 0


def test_what_was_taken_is_not_kept() -> None:
    model = llama()
    with Projections(model, -1) as projections:
        projections.begin()
        run(model, IDS)
        projections.take()
        with pytest.raises(KeyError):
            projections.take()


def test_forward_pass_without_begin_captures_nothing() -> None:
    """As an evaluation within the stage: it would keep tensors, and compile the next step again."""
    model = llama()
    with Projections(model, -1) as projections:
        run(model, IDS)
        with pytest.raises(KeyError):
            projections.take()


def test_a_model_without_such_projections_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^stage3.attention_weight: Linear .*q_proj"):
        attention_layers(nn.Linear(2, 2))


def test_a_layer_that_lacks_one_is_refused() -> None:
    model = llama()
    attention = model.get_submodule("model.layers.1.self_attn")
    attention.qk_proj = attention.q_proj
    del attention.q_proj
    with pytest.raises(ConfigError, match="has no q_proj"):
        attention_layers(model)
