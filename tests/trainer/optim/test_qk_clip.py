"""QK-clip: which weights are scaled and how much, and regressions for faults of the public MuonClip package."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from trainer.config import QuantConfig
from trainer.errors import ConfigError
from trainer.optim.build import build_optimizer
from trainer.optim.qk_clip import QkClip, recorded_logits
from trainer.quant.ternary import TernaryLinear
from trainer.quant.warmup import Lambda

IDS = torch.arange(24).reshape(2, 12) % 50
Build = Callable[..., nn.Module]


def attention_of(model: nn.Module) -> nn.Module:
    return model.get_submodule("model.layers.0.self_attn")


def largest(model: nn.Module) -> Tensor:
    """The largest logits [H] of a forward pass of a model that records; they stay recorded."""
    model(input_ids=IDS, use_cache=False)
    return recorded_logits(attention_of(model)).clone()


def factors(before: Tensor, after: Tensor) -> list[float]:
    """The factor by which each head's rows were scaled."""
    return (after / before).reshape(-1, 8 * before.shape[1]).mean(dim=1).tolist()


@pytest.mark.parametrize(
    ("key_heads", "logits", "query", "key"),
    [
        # tau 1: gamma 1/4, 1, 1/2, 1/16. One key head each: the root of gamma on either side.
        (4, [4, 1, 2, 16], [0.5, 1, 0.5**0.5, 0.25], [0.5, 1, 0.5**0.5, 0.25]),
        # Two query heads to a key head, which takes the root of the larger gamma.
        (2, [4, 1, 4, 16], [0.25, 1, 0.5, 0.125], [1, 0.5]),
        (1, [4, 16, 4, 8], [0.5, 0.125, 0.5, 0.25], [0.5]),
        (2, [0.5, -3, 1, -math.inf], [1, 1, 1, 1], [1, 1]),
    ],
    ids=["multi-head", "grouped", "multi-query", "within bounds"],
)
def test_each_head_is_scaled_by_its_own_gamma(
    llama: Build, key_heads: int, logits: list[float], query: list[float], key: list[float]
) -> None:
    model = llama(num_key_value_heads=key_heads)
    attention = attention_of(model)
    clip = QkClip(model, 1.0, key="optimizer")
    before = attention.q_proj.weight.detach().clone(), attention.k_proj.weight.detach().clone()
    recorded_logits(attention).copy_(torch.tensor(logits))
    clip.clip()
    assert factors(before[0], attention.q_proj.weight.detach()) == pytest.approx(query)
    assert factors(before[1], attention.k_proj.weight.detach()) == pytest.approx(key)


@pytest.mark.parametrize("key_heads", [4, 2, 1])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_clipped_heads_reach_tau_on_the_same_text(llama: Build, key_heads: int, implementation: str) -> None:
    model = llama(num_key_value_heads=key_heads, attn_implementation=implementation).train()
    clip = QkClip(model, 1.0, key="optimizer")
    before = largest(model)
    tau = before.median().item()
    clip.tau = tau
    clip.clip()
    assert (before > tau).sum() == 2
    torch.testing.assert_close(largest(model), before.clamp(max=tau), rtol=1e-5, atol=1e-6)


def test_the_biases_of_the_projections_are_scaled_too() -> None:
    from transformers.models.qwen2.configuration_qwen2 import Qwen2Config
    from transformers.models.qwen2.modeling_qwen2 import Qwen2ForCausalLM

    torch.manual_seed(0)
    options = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "vocab_size": 50}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16}
    model = Qwen2ForCausalLM(Qwen2Config(**options, **heads, initializer_range=0.5)).train()
    attention = attention_of(model)
    nn.init.normal_(attention.q_proj.bias)
    nn.init.normal_(attention.k_proj.bias)
    clip = QkClip(model, 0.7, key="optimizer")
    before = largest(model)
    clip.clip()
    assert (before > 0.7).any()
    torch.testing.assert_close(largest(model), before.clamp(max=0.7), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("group_size", "clips"), [(None, 12), (8, 1)], ids=["one scale", "scales per row"])
def test_ternary_layers_are_clipped_through_their_master_weights(
    llama: Build, group_size: int | None, clips: int
) -> None:
    """One scale for all heads lets a head shrink only as its weights round to zero, which takes some steps."""
    model, lambda_ = llama().train(), Lambda()
    attention = attention_of(model)
    form = QuantConfig(weight_scale="absmean", group_size=group_size, activations="int8")
    for name in ("q_proj", "k_proj"):
        setattr(attention, name, TernaryLinear(getattr(attention, name), lambda_, form))
    clip = QkClip(model, 0.5, key="optimizer")
    reached = [bool((largest(model) <= 0.5001).all())]
    for _ in range(clips):
        clip.clip()
        reached.append(bool((largest(model) <= 0.5001).all()))
    assert reached[-1]
    assert not any(reached[: 1 if clips == 1 else 2])


def train(model: nn.Module, config, steps: int = 3, *, evaluate: bool = False) -> list[dict[str, float]]:
    optimizer, readings = build_optimizer(model, config), []
    for _ in range(steps):
        model(input_ids=IDS, labels=IDS).loss.backward()
        readings.append({name: float(value) for name, value in optimizer.readings().items()})
        optimizer.step()
        optimizer.zero_grad()
        if evaluate:
            model.eval()
            with torch.no_grad():
                model(input_ids=IDS)
            model.train()
    optimizer.close()
    return readings


def test_within_bounds_muonclip_is_muon_bit_for_bit(llama: Build, configure) -> None:
    ended = []
    for kind in ("muon", "muonclip"):
        model = llama().train()
        train(model, configure(kind, muonclip={"tau": 1e6}))
        ended.append(dict(model.named_parameters()))
    assert all(torch.equal(value, ended[1][name]) for name, value in ended[0].items())


def test_bounds_growing_logits_in_training(llama: Build, configure) -> None:
    logits = {}
    for tau in (3.0, 1e6):
        readings = train(llama().train(), configure("muonclip", lr=0.05, muonclip={"tau": tau}), 30)
        logits[tau] = [each["qk_max_logit"] for each in readings][10:]
        assert any(each["qk_clipped_heads"] for each in readings) == (tau == 3.0)
    assert max(logits[1e6]) > 2 * 3.0
    assert max(logits[3.0]) < 1.5 * 3.0  # one step may go above; the clip after it brings it back


@pytest.mark.parametrize("kind", ["muon", "adamw", "apollo"])
def test_nothing_is_computed_for_other_types(llama: Build, configure, kind: str) -> None:
    model = llama().train()
    buffers = [name for name, _ in model.named_buffers()]
    optimizer = build_optimizer(model, configure(kind))
    assert optimizer.readings() == {}
    assert model.config._attn_implementation == "eager"
    assert [name for name, _ in model.named_buffers()] == buffers


def test_nothing_is_computed_once_it_is_closed(llama: Build, configure) -> None:
    model = llama().train()
    train(model, configure("muonclip"))
    assert model.config._attn_implementation == "eager"
    assert not hasattr(attention_of(model), "max_logit_H")


class TestFaultsOfThePublicPackage:
    """Faults found in the public MuonClip package."""

    def test_hooks_not_reregistered_after_eval(self, llama: Build, configure) -> None:
        """There, the first evaluation ended the clipping for good, in silence."""
        ended, readings = [], []
        for evaluate in (False, True):
            model = llama().train()
            config = configure("muonclip", lr=0.05, muonclip={"tau": 1.0})
            readings.append(train(model, config, 6, evaluate=evaluate))
            ended.append(attention_of(model).q_proj.weight.detach())
        assert torch.equal(*ended)
        assert readings[0] == readings[1]
        assert all(each["qk_clipped_heads"] > 0 for each in readings[1])

    def test_a_writer_that_was_never_set(self, run_small, tmp_path: Path) -> None:
        """There, logging asked for a writer that nothing had set. Here the log line has the numbers."""
        run_small("stage2.optimizer.type=muonclip", "stage2.optimizer.muonclip.tau=0.001")
        lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
        stage2 = [line for line in lines if line["stage"] == "stage2"]
        assert len(stage2) == 6
        assert all(line["qk_max_logit"] > 0 for line in stage2)
        assert any(line["qk_clipped_heads"] > 0 for line in stage2)
        assert not any("qk_max_logit" in line for line in lines if line["stage"] == "stage1_9")

    @pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16], ids=str)
    def test_fp32_and_bf16_mismatch(self, llama: Build, configure, weights: torch.dtype) -> None:
        """There, factors of float32 met weights of bfloat16. Here the arithmetic is float32, weights keep theirs."""
        model = llama().to(weights).train()
        optimizer = build_optimizer(model, configure("muonclip", lr=1e-4, muonclip={"tau": 1.0}))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model(input_ids=IDS, labels=IDS).loss.backward()
        before = recorded_logits(attention_of(model)).clone()
        optimizer.step()
        assert before.dtype == torch.float32
        assert (before > 1.0).any()
        assert {parameter.dtype for parameter in model.parameters()} == {weights}
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.testing.assert_close(largest(model), before.clamp(max=1.0), rtol=0.03, atol=0.03)


def test_a_model_that_normalises_queries_and_keys_is_refused() -> None:
    from transformers.models.qwen3.configuration_qwen3 import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "vocab_size": 50}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 16}
    model = Qwen3ForCausalLM(Qwen3Config(**sizes, **heads))
    with pytest.raises(ConfigError, match=r"^stage2\.optimizer\.type: Qwen3\w+ .* muon$"):
        QkClip(model, 1.0, key="stage2.optimizer")
    assert model.config._attn_implementation == "sdpa"


def test_a_model_without_such_attention_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Linear .*q_proj and k_proj"):
        QkClip(nn.Linear(2, 2), 1.0, key="stage2.optimizer")
