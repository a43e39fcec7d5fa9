"""Attention for recorded graphs: SDPA that is the model's own attention, and flash attention where it fits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.tensor_memory import most_bytes
from trainer.api import check
from trainer.devices import sdpa, xla_attention
from trainer.devices.device import Device, open_device
from trainer.models.causal_lm import load_pretrained, run, save, with_supported_attention
from trainer.optim.qk_clip import record_logits, recorded_logits
from trainer.preflight.trace import blueprint
from trainer.stages.pretrain import cross_entropy

IDS = torch.arange(24).reshape(2, 12) % 50
SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.5,
    "tie_word_embeddings": False,
}
WINDOW = 5  # tokens, fewer than there are
FAMILIES = {
    "llama": ("Llama", {}),
    "mistral": ("Mistral", {"sliding_window": WINDOW}),
    # Caps its scores, which SDPA cannot do.
    "gemma2": ("Gemma2", {"sliding_window": WINDOW, "attn_logit_softcapping": 0.5}),
}


def build(family: str, implementation: str, **changes: Any) -> nn.Module:
    """With fresh weights of seed 0, and key heads that are shared."""
    name, own = FAMILIES[family]
    module = import_module(f"transformers.models.{family}.modeling_{family}")
    config = getattr(import_module(f"transformers.models.{family}.configuration_{family}"), f"{name}Config")
    torch.manual_seed(0)
    return getattr(module, f"{name}ForCausalLM")(
        config(**SIZES | own | changes, attn_implementation=implementation)
    )


def logits(model: nn.Module) -> Tensor:
    """Given a mask of ones, as on XLA."""
    return model(IDS, attention_mask=torch.ones_like(IDS), use_cache=False).logits


def by_sdpa(attend: Any, q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, scale: float) -> Tensor:
    """What a kernel promises; refuses key heads that are fewer."""
    assert q_BHTD.shape == k_BHTD.shape == v_BHTD.shape
    return attend(q_BHTD, k_BHTD, v_BHTD, is_causal=True, scale=scale)


def no_kernel(*arguments: object, **keywords: object) -> Tensor:
    raise AssertionError("it was called")


@pytest.fixture(autouse=True)
def _warned_of_nothing() -> Iterator[None]:
    sdpa.register()
    xla_attention.register(no_kernel, "")
    xla_attention.warn_once.cache_clear()
    yield
    xla_attention.warn_once.cache_clear()


@pytest.fixture
def _twelve_tokens_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xla_attention, "LONG", 12)
    monkeypatch.setattr(xla_attention, "BLOCK", 4)


@pytest.mark.parametrize("name", [sdpa.NAME, xla_attention.NAME])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_gradients_equal_the_models_own_attention(family: str, name: str) -> None:
    ours, theirs = with_supported_attention(build(family, name)), build(family, "eager")
    assert ours.config._attn_implementation == ("eager" if family == "gemma2" else name)
    found, expected = logits(ours), logits(theirs)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    for each in (found, expected):
        each.square().mean().backward()
    for (name, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize(("family", "kept"), [("mistral", xla_attention.NAME), ("gemma2", "eager")])
def test_model_without_sdpa_uses_its_own_attention(family: str, kept: str, tmp_path: Path) -> None:
    save(build(family, "eager"), tmp_path)
    loaded = load_pretrained(str(tmp_path), dtype="float32", attention=xla_attention.NAME)
    config = check(["model=hf", f"model.name={tmp_path}", "data.sequence_length=16"])
    device = Device(
        torch_device=torch.device("cpu"), dtype=torch.float32, name="", attention=xla_attention.NAME
    )
    for model in (loaded, blueprint(config, device).build(2)):
        assert model.config._attn_implementation == kept
        assert logits(model).isfinite().all()


@pytest.mark.slow
def test_a_cpu_keeps_no_scores_of_long_sequences() -> None:
    """Short ones have eager attention, which is faster there in bfloat16."""
    device = open_device(check(["device=cpu"]).device)
    assert [device.attention_for(tokens) for tokens in (128, 256)] == ["eager", sdpa.NAME]
    ids_BT = torch.zeros(1, 1024, dtype=torch.long)

    def largest(attention: str) -> int:
        return most_bytes(lambda: run(build("llama", attention), ids_BT).logits.sum().backward()).largest

    scores = 4 * 1024**2
    assert largest("eager") >= scores > 4 * largest(device.attention_for(1024))


class Reads(TorchDispatchMode):
    """Counts the places at which the host waits for a tensor's values."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket is torch.ops.aten._local_scalar_dense
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("name", "reads"), [("sdpa", 1), (sdpa.NAME, 0)])
def test_a_forward_pass_reads_no_tensor(name: str, reads: int) -> None:
    """transformers' own does, to detect packed texts: that this sees it shows that it sees such reads."""
    model = build("llama", name)
    with Reads() as found:
        run(model, IDS)
    assert found.count == reads


def calls(model: nn.Module) -> list[dict[str, Any]]:
    """Return the arguments by name of each attention call in the compiled graph of a training step."""
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    torch.compile(cross_entropy(model), backend=keep, dynamic=False)(IDS)["loss"].backward()
    attend = F.scaled_dot_product_attention
    nodes = [node for graph in graphs for node in graph.graph.nodes if node.target is attend]
    return [dict(node.kwargs) for node in nodes]


@pytest.mark.parametrize("family", ["llama", pytest.param("mistral", marks=pytest.mark.slow)])
def test_compiled_attention_is_causal_without_a_mask(family: str) -> None:
    found = calls(
        build(family, sdpa.NAME, sliding_window=None) if family == "mistral" else build(family, sdpa.NAME)
    )
    assert len(found) == 2  # layers
    assert all(call["is_causal"] and call["enable_gqa"] and call.get("attn_mask") is None for call in found)


def test_a_window_is_masked_in_compiled_steps_too() -> None:
    found = calls(build("mistral", sdpa.NAME))
    assert all(call["attn_mask"] is not None and not call["is_causal"] for call in found)
    assert len(found) == 2


def test_float32_queries_and_keys_are_cast() -> None:
    ours, theirs = build("llama", xla_attention.NAME), build("llama", "eager")
    exact = logits(theirs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, expected = logits(ours), logits(theirs)
    assert found.dtype == torch.bfloat16
    assert (found - exact).abs().mean() < 1.1 * (expected - exact).abs().mean() < 0.1 * exact.abs().mean()


def test_windowed_layers_get_a_mask_without_reading_tensors() -> None:
    padding = torch.ones(2, 12, dtype=torch.bool, device="meta")  # a tensor without numbers
    arguments = {"batch_size": 2, "q_length": 12, "kv_length": 12, "attention_mask": padding, "device": "cpu"}
    assert sdpa.attention_mask(**arguments, allow_is_causal_skip=True, local_size=None) is None
    assert sdpa.attention_mask(**arguments, allow_is_causal_skip=True, local_size=12) is None
    for more in ({"allow_is_causal_skip": False}, {"local_size": 11}):
        assert torch.equal(sdpa.attention_mask(**arguments, **more)[1, 0], torch.ones(12, 12).tril().bool())


@pytest.mark.usefixtures("_twelve_tokens_are_long")
def test_long_texts_use_the_kernel_with_equal_results(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With each key head repeated for the query heads that share it; muonclip finds the same logits."""
    xla_attention.register(partial(by_sdpa, F.scaled_dot_product_attention), "")
    ours, theirs = build("llama", xla_attention.NAME), build("llama", "eager")
    expected = logits(theirs)
    monkeypatch.setattr(F, "scaled_dot_product_attention", no_kernel)
    torch.testing.assert_close(logits(ours), expected, rtol=1e-5, atol=1e-5)
    heads = [{layer.self_attn: 4 for layer in model.model.layers} for model in (ours, theirs)]
    for model, attentions in zip((ours, theirs), heads, strict=True):
        record_logits(model.train(), attentions)
        logits(model)
    for one, other in zip(*heads, strict=True):
        torch.testing.assert_close(recorded_logits(one), recorded_logits(other), rtol=1e-5, atol=1e-5)
    assert not caplog.messages


@pytest.mark.usefixtures("_twelve_tokens_are_long")
def test_sdpa_replaces_a_missing_kernel_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    xla_attention.register(no_kernel, "jax is not installed; pip install jax==0.9.0")
    expected = logits(build("llama", "eager"))
    for _ in range(2):  # student and teacher, with two layers each
        torch.testing.assert_close(logits(build("llama", xla_attention.NAME)), expected, rtol=1e-5, atol=1e-5)
    (message,) = caplog.messages
    assert "pip install jax==0.9.0" in message


def test_nothing_is_said_of_short_texts(caplog: pytest.LogCaptureFixture) -> None:
    xla_attention.register(no_kernel, "jax is not installed")
    logits(build("llama", xla_attention.NAME))
    assert not caplog.messages


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, ""),
        ({"length": 8192, "size": 64}, ""),
        ({"size": 256}, ""),
        ({"options": {"dropout": 0.0, "is_causal": None, "position_bias": None, "sliding_window": 9000}}, ""),
        ({"length": 5000}, "5000 tokens are no multiple of 1024; write data.sequence_length=4096"),
        ({"size": 192}, "its kernel has no heads of 192"),
        ({"size": 128, "value_size": 64}, "its kernel has no heads of 128"),
        ({"mask": torch.ones(1)}, "the model's layers see other tokens than all before, such as a window"),
        ({"options": {"is_causal": False}}, "the model's layers see other tokens than all before"),
        ({"causal": False}, "the model's layers see other tokens than all before"),
        ({"options": {"dropout": 0.1}}, "the model changes its attention's scores"),
        ({"options": {"position_bias": torch.ones(1)}}, "the model changes its attention's scores"),
    ],
)
def test_what_the_kernel_computes(changed: dict[str, Any], reason: str) -> None:
    case = {"length": 4096, "size": 128, "mask": None, "causal": True, "options": {}} | changed
    q_BHTD = torch.empty(1, 2, case["length"], case["size"], device="meta")
    v_BGTD = torch.empty(1, 2, case["length"], case.get("value_size", case["size"]), device="meta")
    module = SimpleNamespace(is_causal=case["causal"])
    found = xla_attention.unsupported_reason(module, q_BHTD, v_BGTD, case["mask"], case["options"])
    assert found.startswith(reason)
    assert bool(found) is bool(reason)
