"""The distance through the teacher's head: torch's own divergence, its gradient, and what it keeps in memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForCausalLM, LlamaRMSNorm

from trainer.errors import ConfigError
from trainer.losses import hidden_distances
from trainer.losses.hidden_distances import HeadKl
from trainer.models.causal_lm import output_head, run

B, T, H, V = 2, 5, 8, 37


@pytest.fixture
def states() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(B, T, H, requires_grad=True), torch.randn(B, T, H)


@pytest.fixture
def head() -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(H, V, bias=False).requires_grad_(False)


@pytest.fixture
def norm() -> nn.Module:
    made = LlamaRMSNorm(H)
    with torch.no_grad():
        made.weight.copy_(torch.linspace(0.5, 2.0, H))
    return made.requires_grad_(False)


def by_torch(student: Tensor, teacher: Tensor, head: nn.Linear, norm: nn.Module | None) -> Tensor:
    if norm is not None:
        student, teacher = norm(student), norm(teacher)
    ours, theirs = (head(h).flatten(0, 1).log_softmax(-1) for h in (student, teacher))
    return F.kl_div(ours, theirs, log_target=True, reduction="batchmean")


@pytest.mark.parametrize("tokens_at_once", [1, 3, 10, 1000])
@pytest.mark.parametrize("inner", [True, False])
def test_loss_and_gradient_equal_torchs_in_any_chunks(
    inner: bool, tokens_at_once: int, states: tuple[Tensor, Tensor], head: nn.Linear, norm: nn.Module
) -> None:
    student, teacher = states
    used = norm if inner else None
    measured = HeadKl(head, used, chunk_elements=tokens_at_once * V)(student, teacher)
    (gradient,) = torch.autograd.grad(3 * measured, student)
    expected = by_torch(student, teacher, head, used)
    (expected_gradient,) = torch.autograd.grad(3 * expected, student)
    torch.testing.assert_close(measured, expected)
    torch.testing.assert_close(gradient, expected_gradient)


def test_a_bias_of_the_head_counts(states: tuple[Tensor, Tensor]) -> None:
    head = nn.Linear(H, V).requires_grad_(False)
    torch.testing.assert_close(HeadKl(head, None)(*states), by_torch(*states, head, None))


def test_equal_states_are_no_distance_apart(states: tuple[Tensor, Tensor], head: nn.Linear) -> None:
    student, _ = states
    measured = HeadKl(head, None)(student, student.detach())
    (gradient,) = torch.autograd.grad(measured, student)
    assert measured.item() == 0
    assert gradient.abs().max() == 0


def test_under_autocast_it_is_near_float32(states: tuple[Tensor, Tensor], head: nn.Linear) -> None:
    student, teacher = states
    expected = HeadKl(head, None)(student, teacher)
    (expected_gradient,) = torch.autograd.grad(expected, student)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        measured = HeadKl(head, None)(student, teacher)
    (gradient,) = torch.autograd.grad(measured, student)
    assert (measured.dtype, gradient.dtype) == (torch.float32, torch.float32)
    torch.testing.assert_close(measured, expected, rtol=0.02, atol=0)
    assert F.cosine_similarity(gradient.flatten(), expected_gradient.flatten(), dim=0) > 0.999


def test_weights_in_bfloat16_give_a_gradient_in_bfloat16(head: nn.Linear) -> None:
    torch.manual_seed(0)
    student, teacher = (torch.randn(B, T, H, dtype=torch.bfloat16) for _ in range(2))
    student.requires_grad_(True)
    (gradient,) = torch.autograd.grad(HeadKl(head.to(torch.bfloat16), None)(student, teacher), student)
    assert gradient.dtype == torch.bfloat16


class Largest(TorchDispatchMode):
    """The most elements that any result of an operation had."""

    elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for each in result if isinstance(result, list | tuple) else [result]:
            if isinstance(each, Tensor):
                self.elements = max(self.elements, each.numel())
        return result


def test_logits_of_all_tokens_never_exist_and_none_are_kept() -> None:
    head = nn.Linear(4, 1000, bias=False).requires_grad_(False)
    student, teacher = torch.randn(4, 50, 4, requires_grad=True), torch.randn(4, 50, 4)
    kept: list[int] = []

    def pack(saved: Tensor) -> Tensor:
        kept.append(saved.numel())
        return saved

    with Largest() as largest, torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        HeadKl(head, None, chunk_elements=20 * 1000)(student, teacher).backward()
    assert largest.elements == 20 * 1000  # against 200 * 1000 for all tokens
    assert sum(kept) == student.numel()


def llama(**config: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": V, "hidden_size": H, "intermediate_size": 12, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=3, **config)).requires_grad_(False)


@pytest.mark.parametrize("tied", [True, False])
def test_last_layer_compares_the_models_predictions(tied: bool) -> None:
    """There the distance is the divergence of the logits; at inner layers, that behind the norm and the head."""
    teacher, student = llama(tie_word_embeddings=tied), llama(tie_word_embeddings=tied)
    for parameter in student.model.layers.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    ids = torch.randint(V, (B, T))
    ours, theirs = (run(model, ids, hidden=True) for model in (student, teacher))
    first, _, last = hidden_distances.layer_distances("kl", teacher, 3)
    expected = F.kl_div(
        ours.logits.flatten(0, 1).log_softmax(-1),
        theirs.logits.flatten(0, 1).log_softmax(-1),
        log_target=True,
        reduction="batchmean",
    )
    torch.testing.assert_close(last(ours.hidden[2], theirs.hidden[2]), expected)
    inner = by_torch(ours.hidden[0], theirs.hidden[0], teacher.lm_head, teacher.model.norm)
    torch.testing.assert_close(first(ours.hidden[0], theirs.hidden[0]), inner)


def test_scaled_logits_are_refused_by_the_losss_key() -> None:
    from transformers.models.granite.configuration_granite import GraniteConfig
    from transformers.models.granite.modeling_granite import GraniteForCausalLM

    sizes = {"vocab_size": V, "hidden_size": H, "intermediate_size": 12, "num_attention_heads": 2}
    model = GraniteForCausalLM(GraniteConfig(**sizes, num_hidden_layers=1, logits_scaling=8.0))
    with pytest.raises(ConfigError, match=r"^stage1_9.loss_type: kl needs .* Granite.*mse_normalized$"):
        output_head(model)
