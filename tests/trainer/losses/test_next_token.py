"""Predictions: in chunks where logits would be large, whole where the model does more to them."""

from __future__ import annotations

import pytest
import torch
from same_training import BASE, assert_same
from torch import nn
from torch._dynamo.testing import CompileCounter
from transformers import Gemma2Config, Gemma2ForCausalLM, GraniteConfig, GraniteForCausalLM

from benchmarks.equivalence import likeness, trace
from trainer.api import check
from trainer.devices.device import open_device
from trainer.losses import chunked
from trainer.losses.next_token import NextTokenLoss
from trainer.models.causal_lm import build_tiny, freeze, plain_head
from trainer.training.evaluation import held_out_loss

IDS = torch.randint(300, (4, 16), generator=torch.Generator().manual_seed(0))
SMALL = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 16,
}


def tiny(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return build_tiny(check(list(BASE)).model, vocab_size=300, sequence_length=16, attention="eager")


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks so small that these logits are large: 4 x 15 x 300."""
    monkeypatch.setattr(chunked, "_CPU_ELEMENTS", 3000)


@pytest.mark.parametrize("stage", ["stage1_9", "stage2", "stage3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_stage_in_chunks_is_the_stage(stage: str, dtype: str, request: pytest.FixtureRequest) -> None:
    distilled = "stage2.distill.weight=0.5"
    settings = [*BASE, f"device.dtype={dtype}", *([distilled] if stage == "stage2" else [])]
    plain = trace(settings, stage=stage)
    request.getfixturevalue("large")
    chunks = trace(settings, stage=stage)
    if dtype == "float32":
        assert_same(plain, chunks)
    else:
        ours = likeness(plain, chunks)
        assert ours.losses < 1e-3, ours
        assert min(ours.gradients, ours.weights, ours.updates) > 0.99, ours


def test_large_logits_are_chunked_and_small_ones_are_not(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks: list[int] = []
    compute = chunked.head_losses

    def counting(student: chunked.HeadInputs, *args: object, **kwargs: object) -> object:
        chunks.append(len(student.states))
        return compute(student, *args, **kwargs)  # type: ignore[arg-type]

    model = tiny(0)
    monkeypatch.setattr(chunked, "head_losses", counting)
    small = NextTokenLoss(model)(IDS)
    assert not chunks
    monkeypatch.setattr(chunked, "_CPU_ELEMENTS", 3000)
    torch.testing.assert_close(NextTokenLoss(model)(IDS).total, small.total)
    assert chunks == [4 * 15]


def test_chunked_parts_and_hidden_states_are_equal(request: pytest.FixtureRequest) -> None:
    student, teacher = tiny(0), freeze(tiny(1))
    predict = NextTokenLoss(student, teacher, factor=2.0, temperature=3.0, hidden=True)
    plain = predict(IDS)
    request.getfixturevalue("large")
    ours = predict(IDS)
    for name in ("total", "ce", "kl", "hidden", "teacher_hidden"):
        torch.testing.assert_close(getattr(ours, name), getattr(plain, name))
    assert set(ours.parts) == {"ce", "kl"}


@pytest.mark.usefixtures("large")
def test_the_held_out_loss_is_chunked_too() -> None:
    model, device = tiny(0), open_device(check(list(BASE)).device)
    measured = held_out_loss(model, [IDS[:2], IDS[2:]], device=device, stage="the end")
    with torch.no_grad():
        logits = model(input_ids=IDS).logits
    expected = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), IDS[:, 1:].flatten())
    assert measured.mean == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(
    "model",
    [
        lambda: Gemma2ForCausalLM(Gemma2Config(**SMALL, head_dim=16, final_logit_softcapping=30.0)),
        lambda: GraniteForCausalLM(GraniteConfig(**SMALL, logits_scaling=8.0)),
    ],
    ids=["capped", "scaled"],
)
def test_processed_logits_are_not_chunked(model: object) -> None:
    torch.manual_seed(0)
    this = model()  # type: ignore[operator]
    assert plain_head(this) is None
    logits = this(input_ids=IDS).logits
    expected = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), IDS[:, 1:].flatten())
    torch.testing.assert_close(NextTokenLoss(this)(IDS).total, expected)


@pytest.mark.slow
@pytest.mark.usefixtures("large")
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_chunks_compile_into_one_graph() -> None:
    student, teacher = tiny(0), freeze(tiny(1))
    predict = NextTokenLoss(student, teacher)
    counter = CompileCounter()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = torch.compile(lambda ids: predict(ids).total, backend=counter, fullgraph=True)(IDS)
        torch.testing.assert_close(ours, predict(IDS).total)
    assert counter.frame_count == 1
