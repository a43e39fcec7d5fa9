"""Recorded logits are the softmax's inputs, and recording changes nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainer.optim import qk_clip
from trainer.optim.qk_clip import (
    largest_logits,
    record_logits,
    recorded_logits,
    reset,
    stop_recording,
)

IDS = torch.arange(24).reshape(2, 12) % 50
Build = Callable[..., nn.Module]


def attention_of(model: nn.Module) -> nn.Module:
    return model.get_submodule("model.layers.0.self_attn")


def by_hand(model: nn.Module, ids_BT: Tensor) -> Tensor:
    """The same from the rotated outputs of the projections, with all products in one float64 tensor."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb, repeat_kv

    attention, caught = attention_of(model), {}
    hooks = [
        attention.get_submodule(name).register_forward_hook(
            lambda module, inputs, output, name=name: caught.__setitem__(name, output)
        )
        for name in ("q_proj", "k_proj")
    ]
    model(input_ids=ids_BT, use_cache=False)
    for hook in hooks:
        hook.remove()
    q, k = (caught[name].unflatten(-1, (-1, 8)).transpose(1, 2) for name in ("q_proj", "k_proj"))
    positions = torch.arange(ids_BT.shape[1])[None]
    q, k = apply_rotary_pos_emb(q, k, *model.model.rotary_emb(q, positions))
    logits = q.double() @ repeat_kv(k, 2).double().transpose(2, 3) / math.sqrt(8)
    visible = torch.ones(ids_BT.shape[1], ids_BT.shape[1], dtype=torch.bool).tril()
    return logits.masked_fill(~visible, -torch.inf).amax(dim=(0, 2, 3))


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_it_records_what_the_softmax_sees(llama: Build, implementation: str) -> None:
    model = llama(attn_implementation=implementation).train()
    expected = by_hand(model, IDS)
    plain = model(input_ids=IDS).logits
    record_logits(model, {attention_of(model): 4})
    assert torch.equal(model(input_ids=IDS).logits, plain)
    torch.testing.assert_close(recorded_logits(attention_of(model)).double(), expected, rtol=1e-5, atol=1e-6)
    assert expected.max() > 1.5 * expected.min()  # the heads differ, so that their order is tested


def test_largest_logit_over_passes_until_reset(llama: Build) -> None:
    model = llama().train()
    attention = attention_of(model)
    record_logits(model, {attention: 4})
    one, other = by_hand(model, IDS[:1]), by_hand(model, IDS[1:])
    torch.testing.assert_close(
        recorded_logits(attention).double(), torch.maximum(one, other), rtol=1e-5, atol=1e-6
    )
    reset(attention)
    assert recorded_logits(attention).tolist() == [-math.inf] * 4


def test_only_training_passes_are_recorded(llama: Build) -> None:
    model = llama().train()
    attention = attention_of(model)
    record_logits(model, {attention: 4})
    model.eval()
    model(input_ids=IDS)
    assert recorded_logits(attention).tolist() == [-math.inf] * 4
    model.train()
    model(input_ids=IDS)
    assert recorded_logits(attention).isfinite().all()


def test_recomputed_activations_are_recorded_as_the_same(llama: Build) -> None:
    model = llama().train()
    attention = attention_of(model)
    record_logits(model, {attention: 4})
    model(input_ids=IDS)
    once = recorded_logits(attention).clone()
    reset(attention)
    loss = checkpoint(lambda: model(input_ids=IDS, labels=IDS).loss, use_reentrant=False)
    loss.backward()
    assert torch.equal(recorded_logits(attention), once)


def test_compiled_model_records_after_an_evaluation(llama: Build) -> None:
    """Compiled with fullgraph: a graph break would be an error."""
    model = llama(attn_implementation="sdpa").train()
    attention = attention_of(model)
    record_logits(model, {attention: 4})
    model(input_ids=IDS)
    plain = recorded_logits(attention).clone()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for training in (True, False, True):
        reset(attention)
        model.train(training)
        compiled(input_ids=IDS, use_cache=False)
        assert torch.equal(recorded_logits(attention), plain if training else torch.full((4,), -math.inf))


def test_stop_recording_restores_the_model(llama: Build) -> None:
    model = llama(attn_implementation="sdpa").train()
    buffers = [name for name, _ in model.named_buffers()]
    record_logits(model, {attention_of(model): 4})
    record_logits(model, {attention_of(model): 4})  # as a second stage does
    stop_recording(model)
    stop_recording(model)
    assert model.config._attn_implementation == "sdpa"
    assert [name for name, _ in model.named_buffers()] == buffers


def test_another_model_of_the_kind_records_nothing(llama: Build) -> None:
    watched, other = llama().train(), llama().train()
    record_logits(watched, {attention_of(watched): 4})
    other(input_ids=IDS)
    assert other.config._attn_implementation == "eager"
    assert recorded_logits(attention_of(watched)).tolist() == [-math.inf] * 4


def test_recorded_logits_are_no_state_and_have_no_graph(llama: Build) -> None:
    model = llama().train()
    names = set(model.state_dict())
    record_logits(model, {attention_of(model): 4})
    model(input_ids=IDS)
    assert set(model.state_dict()) == names
    assert recorded_logits(attention_of(model)).grad_fn is None


@pytest.fixture
def queries_and_keys() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 4, 9, 8, generator=generator), torch.randn(2, 2, 9, 8, generator=generator)


def test_rows_are_taken_in_parts_to_the_same_effect(
    queries_and_keys: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = largest_logits(*queries_and_keys, None, 0.5)
    monkeypatch.setattr(qk_clip, "MAX_LOGITS", 2 * 4 * 9 * 2)  # two rows at a time
    torch.testing.assert_close(largest_logits(*queries_and_keys, None, 0.5), at_once, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", ["boolean", "additive"])
def test_keys_that_a_mask_hides_do_not_count(queries_and_keys: tuple[Tensor, Tensor], kind: str) -> None:
    """A sliding window of 3: transformers passes it as a mask."""
    q, k = queries_and_keys
    visible = torch.ones(9, 9, dtype=torch.bool).tril().triu(-2)
    mask = visible[None, None]
    if kind == "additive":
        mask = torch.zeros(1, 1, 9, 9).masked_fill(~mask, torch.finfo(torch.float32).min)
    logits = torch.einsum("bhid,bhjd->bhij", q, k.repeat_interleave(2, dim=1))
    expected = logits.masked_fill(~visible, -torch.inf).amax(dim=(0, 2, 3))
    torch.testing.assert_close(largest_logits(q, k, mask, 1.0), expected)
    assert (largest_logits(q, k, None, 1.0) > expected).any()


def test_products_are_float32_under_autocast(queries_and_keys: tuple[Tensor, Tensor]) -> None:
    q, k = (tensor.bfloat16() for tensor in queries_and_keys)
    exact = largest_logits(q.float(), k.float(), None, 1.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(largest_logits(q, k, None, 1.0), exact)
