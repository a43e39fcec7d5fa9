"""Attention on XLA: SDPA is the model's own, and torch_xla's flash attention keeps no scores.

Its kernels are for TPUs. Here they are lowered for one and not run, or run by jax's interpreter in their place.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stage_runs import SMALL
from torch import Tensor, nn

from trainer.api import check
from trainer.devices import xla_attention
from trainer.devices.device import Device, open_device
from trainer.models.causal_lm import inputs, separate_documents
from trainer.optim import qk_clip

pytestmark = pytest.mark.xla

HEADS, KEY_HEADS, SIZE = 4, 2, 8


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """In bfloat16; whose flash attention may be called."""
    from trainer.devices import xla  # only here: the module needs torch_xla, this file is read without it

    device = open_device(check([*SMALL, "device=xla", "device.dtype=bfloat16"]).device)
    xla_attention.register(xla.flash_attention_kernel(None), "")
    return device


@pytest.fixture
def exact(device: Device) -> Device:
    """The same in float32."""
    return open_device(check([*SMALL, "device=xla", "device.dtype=float32"]).device)


def mistral(implementation: str, window: int | None) -> nn.Module:
    """One layer with fresh weights of seed 0; each key head serves two query heads."""
    from transformers.models.mistral.configuration_mistral import MistralConfig
    from transformers.models.mistral.modeling_mistral import MistralForCausalLM

    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=50,
        hidden_size=HEADS * SIZE,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        sliding_window=window,
        initializer_range=0.5,
        attn_implementation=implementation,
    )
    return MistralForCausalLM(config)


def ids(length: int, rows: int = 2) -> Tensor:
    return torch.randint(50, (rows, length), generator=torch.Generator().manual_seed(0))


def step(device: Device, model: nn.Module, ids_BT: Tensor) -> list[Tensor]:
    """Logits [B, T, V] and the gradients of their mean square, recorded."""
    with device.autocast():
        logits = model(**inputs(model, ids_BT)).logits.float()
    logits.square().mean().backward()
    return [logits.detach(), *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("apart", [False, True], ids=["one text", "documents"])
@pytest.mark.parametrize("window", [None, 5], ids=["causal", "window"])
@pytest.mark.parametrize("heads_shared", [False, True], ids=["sdpa", "einsum"])
def test_attention_is_the_eager_one_in_one_graph_without_the_cpu(
    exact: Device, heads_shared: bool, window: int | None, apart: bool
) -> None:
    """Grouped heads, layers that see the last five tokens, and documents that do not see each other."""
    from trainer.devices import xla

    xla_attention.register(xla.flash_attention_kernel(None), "", heads_shared=heads_shared)
    ours, theirs = exact.move(mistral(exact.attention, window)), mistral("eager", window)
    if apart:
        for model in (ours, theirs):
            separate_documents(model, int(ids(16)[0, 6]))
    ids_BT = exact.place(ids(16))
    exact.end_step()
    before = exact.counters()
    found = exact.fetch(step(exact, ours, ids_BT))
    after = exact.counters()
    assert ours.config._attn_implementation == xla_attention.NAME
    assert after["cpu_fallbacks"] == before["cpu_fallbacks"]
    assert after["compiles"] - before["compiles"] == 1
    cpu = open_device(check([*SMALL, "device=cpu"]).device)
    for one, other in zip(found, step(cpu, theirs, ids(16)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def lowered(kernel: Callable[..., Any], *args: Any, use_cache: bool = False, **more: Any) -> tuple[Any, Any]:
    """As torch_xla traces a kernel, but for a TPU that is not there."""
    import jax
    import torch_xla.experimental.custom_kernel as custom

    static = {name: more.pop(name) for name in ("static_argnums", "static_argnames") if name in more}
    shapes = [custom.to_jax_shape_dtype_struct(arg) if torch.is_tensor(arg) else arg for arg in args]
    traced = jax.jit(kernel, **static).trace(*shapes, **more)
    payload = custom._extract_backend_config(traced.lower(lowering_platforms=("tpu",)).compiler_ir())
    assert payload
    return payload, [arg for arg in args if torch.is_tensor(arg)]


def step_graph(device: Device, model: nn.Module, rows: int) -> str:
    """Of a forward and backward pass over so many sequences of 4,096 tokens."""
    ids_BT = device.place(ids(xla_attention.LONG, rows))
    device.end_step()
    text = device.recorded_graph(step(device, model, ids_BT))
    model.zero_grad()
    return text


def kernels(graph: str) -> list[str]:
    """What each of a TPU's kernels gives first."""
    return re.findall(r"= \(?([^ ]+?\])\S* .*custom-call\(.*tpu_custom_call", graph)


def scores(graph: str) -> list[str]:
    """Shapes with a number for every two tokens."""
    return re.findall(rf"\w+\[[\d,]*{xla_attention.LONG},{xla_attention.LONG}\]", graph)


def one_of(rows: int) -> str:
    return f"bf16[{rows},{HEADS},{xla_attention.LONG},{SIZE}]"


def test_the_graph_of_flash_attention_has_no_scores(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward and a backward pass of 4,096 tokens: three kernels, and nothing with a number for every two tokens.
    SDPA shows that one could see it."""
    import torch_xla.experimental.custom_kernel as custom

    assert max(custom.FlashAttention.DEFAULT_BLOCK_SIZES.values()) == xla_attention.BLOCK
    monkeypatch.setattr(custom, "trace_pallas", lowered)
    model = device.move(mistral(device.attention, window=None))
    flash = step_graph(device, model, 2)
    assert kernels(flash) == [one_of(2)] * 3  # forward; the gradients of keys and values; those of queries
    assert not scores(flash)
    xla_attention.register(lambda *given: pytest.fail("it was called"), "it is not to be used")
    sdpa = step_graph(device, model, 2)
    assert not kernels(sdpa)
    assert scores(sdpa)


def test_muonclip_measures_long_texts_in_few_pieces(exact: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones would be many operations, which take long to compile: 100,000 in a layer of 16,384 tokens."""
    monkeypatch.setattr(qk_clip, "MAX_LOGITS", 1)
    monkeypatch.setattr(qk_clip, "MAX_CHUNKS", 3)
    generator = torch.Generator().manual_seed(0)
    q_BHTD, k_BGTD = (torch.randn(2, heads, 16, SIZE, generator=generator) for heads in (HEADS, KEY_HEADS))
    on_device = exact.place(q_BHTD), exact.place(k_BGTD)
    exact.end_step()
    found_H = qk_clip.largest_logits(*on_device, None, 0.3)
    assert len(re.findall(r"= \S+ dot\(", exact.recorded_graph([found_H]))) == 3
    expected_H = qk_clip.largest_logits(q_BHTD, k_BGTD, None, 0.3)
    torch.testing.assert_close(*exact.fetch([found_H]), expected_H)


# How a process sees its devices is settled when it starts, so the chips have one of their own.
IN_FOUR = """
import json
import conftest
import torch_xla.experimental.custom_kernel as custom
from test_xla_attention import SMALL, check, kernels, lowered, mistral, open_device, scores, step_graph, xla_attention
from trainer.devices import xla
device = open_device(check([*SMALL, "device=xla", "device.dtype=bfloat16", "device.num_chips=4"]).device)
xla_attention.register(xla.flash_attention_kernel(device.mesh), "")
custom.trace_pallas = lowered
model = device.move(mistral(device.attention, window=None))
graphs = [step_graph(device, model, rows) for rows in (8, 6)]
print(json.dumps([[kernels(graph), scores(graph)] for graph in graphs]))
"""


def test_four_chips_compute_their_rows_or_all() -> None:
    folder = str(Path(__file__).parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", IN_FOUR]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [[[one_of(2)] * 3, []], [[one_of(6)] * 3, []]]


def interpreted(monkeypatch: pytest.MonkeyPatch, block: int) -> list[str]:
    """From here on jax's interpreter runs what torch_xla would give to a TPU, in blocks of so many tokens;
    returns the names of the kernels as they are called."""
    import jax
    import torch_xla
    import torch_xla.experimental.custom_kernel as custom
    from jax.experimental import pallas

    names = []
    monkeypatch.setattr(pallas, "pallas_call", partial(pallas.pallas_call, interpret=True))
    blocks = dict.fromkeys(custom.FlashAttention.DEFAULT_BLOCK_SIZES, block) | {"block_b": 2}
    monkeypatch.setattr(custom.FlashAttention, "DEFAULT_BLOCK_SIZES", blocks)

    def trace(kernel: Callable[..., Any], *args: Any, **more: Any) -> tuple[Any, Any]:
        for setting in ("static_argnums", "static_argnames", "use_cache"):
            more.pop(setting, None)
        return partial(run, kernel, args, more), []

    def run(kernel: Callable[..., Any], args: Sequence[Any], more: dict[str, Any]) -> list[Any]:
        names.append(kernel.__name__)
        given = [
            jax.numpy.asarray(arg.detach().cpu().numpy()) if torch.is_tensor(arg) else arg for arg in args
        ]
        found = kernel(*given, **more)
        return list(found) if isinstance(found, tuple) else [found]

    def call(
        tensors: Sequence[Tensor],
        payload: Callable[[], list[Any]],
        shapes: Sequence[Any],
        dtypes: Sequence[Any],
    ) -> list[Tensor]:
        outputs = [torch.from_numpy(np.array(each)) for each in payload() if each is not None]
        # The kernel has a sum of each row 128 times; jax's function, which is asked here, takes one of them.
        wide = [
            each if each.ndim == len(shape) else each[..., None].expand(*shape)
            for each, shape in zip(outputs, shapes, strict=True)
        ]
        assert [each.dtype for each in wide] == list(dtypes)
        return [each.to(tensors[0].device) for each in wide]

    monkeypatch.setattr(custom, "trace_pallas", trace)
    monkeypatch.setattr(torch_xla._XLAC, "_xla_tpu_custom_call", call)
    return names


def test_flash_attention_computes_what_eager_attention_does(
    exact: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits and gradients, by the kernels that a TPU would run, in several blocks."""
    from trainer.devices import xla

    length = 256
    xla_attention.register(xla.flash_attention_kernel(None), "")
    monkeypatch.setattr(xla_attention, "LONG", length)
    monkeypatch.setattr(xla_attention, "BLOCK", length)
    names = interpreted(monkeypatch, length // 2)
    found = exact.fetch(step(exact, exact.move(mistral(exact.attention, None)), exact.place(ids(length))))
    assert names == ["_flash_attention_impl", "_flash_attention_bwd_dq", "_flash_attention_bwd_dkv"]
    cpu = open_device(check([*SMALL, "device=cpu"]).device)
    for one, other in zip(found, step(cpu, mistral("eager", None), ids(length)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    with torch.no_grad():  # as a teacher, which keeps nothing for a backward pass
        teacher = exact.move(mistral(exact.attention, None))
        (logits,) = exact.fetch([teacher(**inputs(teacher, exact.place(ids(length)))).logits])
    torch.testing.assert_close(logits, found[0], rtol=1e-5, atol=1e-5)
