"""Documents of a packed window, apart: each is computed as if it were alone, by every kind of attention."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from trainer import pipeline
from trainer.api import check
from trainer.config import Config, TinyModelConfig
from trainer.config.run import sha256
from trainer.devices import sdpa, xla_attention
from trainer.devices.device import Device
from trainer.errors import ConfigError
from trainer.losses.attention_relation import relation_divergence
from trainer.losses.distillation import tempered_divergence
from trainer.losses.next_token import NextTokenLoss, next_token_loss
from trainer.models.causal_lm import (
    Outputs,
    build_tiny,
    document_numbers,
    freeze,
    inputs,
    positions,
    run,
    separate_documents,
)
from trainer.models.projections import Projections
from trainer.models.subln import make_student
from trainer.optim.qk_clip import record_logits, recorded_logits
from trainer.preflight.preflight import run_preflight
from trainer.quant.warmup import SharedScalar
from trainer.stages import distill, layerwise, pretrain
from trainer.training.evaluation import held_out_loss

END = 0
DOCUMENTS = ([5, 6, 7, END], [8, END], [9, 10, 11, 12, 13, END], [14, 15])
IDS = torch.tensor([[token for ids in DOCUMENTS for token in ids]])
ON = "data.document_masks=true"
DEVICE = Device(torch_device=torch.device("cpu"), dtype=torch.float32, name="cpu", attention="eager")


def tiny(small: Sequence[str], attention: str = "eager", **changes: Any) -> tuple[Config, nn.Module]:
    config = check([*small, ON, "data.sequence_length=64", "model.heads=2"])
    assert isinstance(config.model, TinyModelConfig)
    torch.manual_seed(0)
    model = build_tiny(config.model, vocab_size=300, sequence_length=64, attention=attention)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.3)  # so that attention matters
    return config, model.double().eval()


def alone(model: nn.Module) -> Outputs:
    """The outputs of each document in a window of its own, put together; `model` must see windows as one."""
    assert "position_ids" not in inputs(model, IDS)
    found = [run(model, torch.tensor([ids]), hidden=True) for ids in DOCUMENTS]
    layers = zip(*(each.hidden for each in found), strict=True)
    return Outputs(
        logits=torch.cat([each.logits for each in found], dim=1),
        hidden=tuple(torch.cat(layer, dim=1) for layer in layers),
    )


def tolerance(attention: str) -> dict[str, float]:
    """Return how far results in float64 may be apart: transformers' eager attention has a float32 softmax."""
    allowed = 1e-5 if attention == "eager" else 1e-10
    return {"rtol": allowed, "atol": allowed}


def no_kernel(*arguments: object) -> Tensor:
    raise AssertionError("flash attention was called for a short text")


@pytest.fixture(autouse=True)
def _registered() -> None:
    sdpa.register()
    xla_attention.register(no_kernel, "")


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20))
def test_positions_start_again_after_each_end(ids: list[int]) -> None:
    model = nn.Linear(1, 1)
    model.document_end = END
    numbers, places, number, place = [], [], 0, 0
    for token in ids:
        numbers.append(number)
        places.append(place)
        number, place = (number + 1, 0) if token == END else (number, place + 1)
    found = document_numbers(model, torch.tensor([ids, ids]))
    assert found is not None
    assert found.tolist() == [numbers] * 2
    assert positions(found).tolist() == [places] * 2


@pytest.mark.parametrize("attention", ["eager", "sdpa", sdpa.NAME, xla_attention.NAME])
def test_a_packed_window_is_computed_as_its_documents_alone(small: tuple[str, ...], attention: str) -> None:
    _, model = tiny(small, attention)
    with torch.no_grad():
        expected, as_one = alone(model), run(model, IDS).logits
        found = run(separate_documents(model, END), IDS, hidden=True)
    assert not torch.allclose(as_one[:, 4:], expected.logits[:, 4:], atol=1e-3)
    torch.testing.assert_close(found.logits, expected.logits, **tolerance(attention))
    for ours, theirs in zip(found.hidden, expected.hidden, strict=True):
        torch.testing.assert_close(ours, theirs, **tolerance(attention))


@pytest.mark.parametrize("attention", ["eager", sdpa.NAME])
def test_a_window_of_attention_stays_within_a_document(attention: str) -> None:
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    model = MistralForCausalLM(
        MistralConfig(
            vocab_size=20,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            sliding_window=3,
            initializer_range=0.5,
            attn_implementation=attention,
        )
    ).double()
    with torch.no_grad():
        expected = alone(model).logits
        found = run(separate_documents(model, END), IDS).logits
    torch.testing.assert_close(found, expected, **tolerance(attention))


def pair(small: Sequence[str], *overrides: str) -> tuple[Config, nn.Module, nn.Module]:
    """A teacher that keeps documents apart, and the ternary student made of it."""
    config, teacher = tiny([*small, *overrides])
    separate_documents(freeze(teacher), END)
    student, _ = make_student(teacher, config.stage1, [IDS], quant=config.quant, device=DEVICE)
    with torch.no_grad():  # another one than its teacher, by more than its rounding
        student.get_output_embeddings().weight.mul_(0.9)
    return config, student.double(), teacher


def as_one_text(model: nn.Module) -> nn.Module:
    """The model, which sees each window as one text from now on."""
    del model.document_end
    return model


def test_objectives_equal_those_of_separate_documents(small: tuple[str, ...]) -> None:
    config, student, teacher = pair(small, "stage3.max_steps=2", "stage3.schedule.warmup_steps=1")
    weights = SharedScalar(1.0)
    stage2 = dataclasses.replace(config.stage2.distill, weight=1.0, temperature=2.0)
    with ExitStack() as stack, torch.no_grad():
        found = {
            "stage1_9": layerwise.alignment(student, teacher, weights, config.stage1_9)(IDS),
            "stage2": pretrain.distillation(student, teacher, stage2)(IDS),
            "stage3": distill.from_teacher(student, teacher, config.stage3, stack)(IDS),
        }
        ours, theirs = (alone(as_one_text(model)) for model in (student, teacher))
        relations = [relation(config, student, teacher, ids) for ids in DOCUMENTS]
    ce = next_token_loss(ours.logits.double(), IDS)
    for losses in found.values():
        torch.testing.assert_close(losses["ce"].double(), ce.double(), rtol=1e-5, atol=0)
    expected = [tempered_divergence(ours.logits, theirs.logits, temperature=t) for t in (1.0, 2.0, 5.0)]
    computed = [found["stage1_9"]["kl"], found["stage2"]["kl"], found["stage3"]["logits_kl"]]
    torch.testing.assert_close(computed, expected, rtol=1e-6, atol=0)  # eager attention: see `tolerance`
    by_document = sum(len(ids) * part for ids, part in zip(DOCUMENTS, relations, strict=True)) / IDS.numel()
    torch.testing.assert_close(found["stage3"]["attention_kl"], by_document, rtol=1e-6, atol=0)


def relation(config: Config, student: nn.Module, teacher: nn.Module, ids: list[int]) -> Tensor:
    """Stage 3's divergence of attention relations in one document."""
    taken = []
    for model in (student, teacher):
        with Projections(model, -1) as projections:
            projections.begin()
            run(model, torch.tensor([ids]))
            taken.append(projections.take())
    return relation_divergence(*taken, heads=2, relation=config.stage3.attention_relation)


def test_hidden_states_are_compared_document_by_document(small: tuple[str, ...]) -> None:
    config, student, teacher = pair(small, "stage1_9.loss_type=mse")
    aligned = layerwise.alignment(student, teacher, SharedScalar(1.0), config.stage1_9)
    with torch.no_grad():
        found = aligned(IDS)["distill_layer"]
        ours, theirs = (alone(as_one_text(model)).hidden for model in (student, teacher))
    expected = [nn.functional.mse_loss(o, t) for o, t in zip(ours, theirs, strict=True)]
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-5, atol=0, check_dtype=False)


def test_the_gradient_of_a_token_stays_in_its_document(small: tuple[str, ...]) -> None:
    _, model = tiny(small, sdpa.NAME)
    separate_documents(model, END)
    embedded = model.get_input_embeddings()
    states: list[Tensor] = []
    embedded.register_forward_hook(lambda module, given, output: states.append(output) or output)
    run(model, IDS).logits[0, 8].sum().backward(inputs=[embedded.weight])
    used = embedded.weight.grad.abs().sum(dim=1).nonzero().flatten().tolist()
    assert used == [9, 10, 11]


def test_held_out_loss_counts_all_tokens(small: tuple[str, ...]) -> None:
    """The same tokens count as without masks, the first one of the next document among them."""
    _, model = tiny(small)
    with torch.no_grad():
        expected = next_token_loss(alone(model).logits, IDS).item()
    separate_documents(model, END)
    found = held_out_loss(model, [IDS, IDS], device=DEVICE, stage="test")
    assert found.mean == pytest.approx(expected, rel=1e-6)


def test_losses_in_chunks_keep_documents_apart(
    small: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, model = tiny(small)
    separate_documents(model, END)
    in_full = NextTokenLoss(model).by_sequence(IDS)
    monkeypatch.setattr("trainer.losses.chunked._CPU_ELEMENTS", 900)
    assert NextTokenLoss(model).chunks(IDS)
    torch.testing.assert_close(NextTokenLoss(model).by_sequence(IDS), in_full, check_dtype=False)


def test_the_largest_logits_are_those_within_documents(small: tuple[str, ...]) -> None:
    """QK-clip looks at what is attended to."""
    found = []
    for attention in ("eager", sdpa.NAME):
        _, model = tiny(small, attention)
        separate_documents(model, END)
        attentions = {module: 2 for name, module in model.named_modules() if name.endswith("self_attn")}
        record_logits(model, attentions)
        run(model.train(), IDS)
        found.append(torch.stack([recorded_logits(each) for each in attentions]))
        as_one_text(model)
    torch.testing.assert_close(found[0], found[1])


def test_a_compiled_forward_pass_has_no_break(small: tuple[str, ...]) -> None:
    _, model = tiny(small, sdpa.NAME)
    separate_documents(model, END)
    graphs: list[torch.fx.GraphModule] = []

    def capture(graph: torch.fx.GraphModule, example: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(lambda ids: run(model, ids).logits, backend=capture, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(IDS), run(model, IDS).logits)
        compiled(IDS.flip(1))  # documents elsewhere are no other graph
    assert len(graphs) == 1
    calls = [n for n in graphs[0].graph.nodes if "scaled_dot_product" in str(n.target)]
    assert len(calls) == 2
    assert all(call.kwargs["attn_mask"] is not None and not call.kwargs["is_causal"] for call in calls)


def test_run_masks_documents_from_the_teacher_on(
    run_config: Callable[..., pipeline.Outcome], small: tuple[str, ...], tmp_path: Path
) -> None:
    lines = (json.dumps({"text": f"def f_{n}(x):\n    return x * {n * n}\n"}) for n in range(3000))
    (tmp_path / "lines.jsonl").write_text("\n".join(lines))
    text = ("data=text", f"data.files={tmp_path}/lines.jsonl", "data.text_key=text", "data.lanes=2")
    kept = [each for each in small if not each.startswith("data.max_bytes")]

    def outcome(*more: str) -> pipeline.Outcome:
        config = check([*kept, *text, "data.held_out_tokens=2000", "data.test_tokens=400", *more])
        return run_config(config)

    off, on = outcome(), outcome(ON)
    assert on.held_out.reference.mean != off.held_out.reference.mean
    assert on.held_out.final.mean != off.held_out.final.mean
    assert on.student.document_end == 0


def test_run_without_masks_is_unchanged() -> None:
    off, on = check([]), check([ON])
    assert off.data.document_masks is False
    assert sha256(off) == sha256(check(["data.document_masks=false"])) != sha256(on)


def test_other_teachers_may_be_asked() -> None:
    http = ("stage3/teacher=http", "stage3.teacher.url=http://a:1", "stage3.teacher.model=m")
    check([ON, *http, "stage3.attention_weight=0"])  # no step asks it
    check(
        [
            ON,
            "stage3/teacher=cached",
            "stage3.teacher.path=x",
            "stage3.max_steps=9",
            "stage3.attention_weight=0",
        ]
    )


def test_a_tokenizer_without_an_end_is_refused(small: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"^data\.document_masks: .*end-of-text"):
        separate_documents(tiny(small)[1], None)


def test_a_model_that_takes_no_mask_is_refused(small: tuple[str, ...]) -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

    AttentionInterface.register("maskless", ALL_ATTENTION_FUNCTIONS["sdpa"])
    _, model = tiny(small, "maskless")
    with pytest.raises(ConfigError, match=r"^data\.document_masks: LlamaForCausalLM "):
        separate_documents(model, END)


@pytest.mark.slow
def test_the_preflight_counts_the_masks(small: tuple[str, ...]) -> None:
    def peak(*overrides: str) -> int:
        config = check([*small, "data.sequence_length=256", *overrides])
        device = dataclasses.replace(DEVICE, attention=sdpa.NAME)
        found = run_preflight(config, device, None, detailed=True)
        assert not found.unknown
        return found.peak or 0

    assert peak(ON) >= peak() + 4 * 256 * 256  # a boolean for each pair of tokens of four sequences


@pytest.mark.parametrize("types", [["full_attention"] * 3, ["sliding_attention", "full_attention"] * 2])
def test_only_the_first_layers_of_each_kind_are_computed(types: list[str]) -> None:
    """A sharded teacher may be larger than a process's memory; layers on `meta` cannot be computed."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    size = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": len(types)}
    heads = {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "use_sliding_window": True,
        "sliding_window": 3,
    }
    model = Qwen2ForCausalLM(
        Qwen2Config(**size | heads, layer_types=types, attn_implementation="eager", tie_word_embeddings=False)
    )
    layers = model.get_decoder().layers
    for layer in (*layers[len(set(types)) :], model.lm_head):
        layer.to("meta")
    separate_documents(model, END)
    assert list(model.get_decoder().layers) == list(layers)
    model.get_decoder().layers[len(set(types)) - 1].to("meta")
    # Which of the two depends on the operator that torch meets first.
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        separate_documents(model, END)
