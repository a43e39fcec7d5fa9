"""Compiled steps: taken where they are asked for, the same as eager ones, and done without where they fail."""

from __future__ import annotations

import dataclasses
import logging
import os
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from same_training import BASE
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch._inductor import config as inductor

from benchmarks.equivalence import Stage, Trace, likeness, trace
from trainer.api import check
from trainer.devices.device import Device, open_device
from trainer.errors import DivergedError
from trainer.models.causal_lm import build_tiny
from trainer.optim.build import build_optimizer
from trainer.training import compilation
from trainer.training.compilation import CACHE_VARIABLE, compiled, with_compiled_layers
from trainer.training.context import StagePlan
from trainer.training.train_step import TrainStep

COMPILING = Device(
    torch_device=torch.device("cpu"), dtype=torch.float32, name="CPU", attention="eager", compile=True
)
Compile = Callable[..., Callable[[Tensor], Mapping[str, Tensor]]]


class Line(nn.Module):
    """One matrix, and the two ends that the optimizers ask for."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))

    def get_input_embeddings(self) -> nn.Module | None:
        return None

    get_output_embeddings = get_input_embeddings

    def losses(self, ids_BT: Tensor) -> Mapping[str, Tensor]:
        return {"loss": (ids_BT.float() @ self.weight).square().mean()}


@pytest.fixture
def compile_as(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Compile], None]:
    """Return a function that replaces torch.compile, which takes half a minute."""
    monkeypatch.setenv(CACHE_VARIABLE, tempfile.gettempdir())
    return lambda other: monkeypatch.setattr(torch, "compile", other)


def steps_of(model: Line, device: Device = COMPILING, micro: int | None = None) -> TrainStep:
    stage2 = check(["optimizer@stage2.optimizer=adamw", "stage2.optimizer.max_grad_norm=0"]).stage2
    plan = dataclasses.replace(StagePlan.from_config("toy", stage2), micro_batch_size=micro)
    return TrainStep(plan, model, model.losses, build_optimizer(model, stage2.optimizer), device)


IDS = torch.arange(8).reshape(4, 2)


def test_the_compiled_objective_is_what_a_step_calls(compile_as: Callable[[Compile], None]) -> None:
    batches: list[Tensor] = []

    def compile(objective: object, **settings: object) -> object:
        assert settings == {"dynamic": False}

        def doubled(ids_BT: Tensor) -> Mapping[str, Tensor]:
            batches.append(ids_BT)
            return {"loss": 2 * objective(ids_BT)["loss"]}  # type: ignore[operator]

        return doubled

    compile_as(compile)
    model = Line()
    loss = model.losses(IDS)["loss"].item()
    assert steps_of(model)(IDS, number=1).losses["loss"] == 2 * loss
    assert len(batches) == 1


def failing_forward(objective: object, **_: object) -> object:
    def fail(ids_BT: Tensor) -> Mapping[str, Tensor]:
        raise RuntimeError("no C++ compiler\nand a page of how it was called")

    return fail


def failing_backward(objective: object, **_: object) -> object:
    """In the second micro-batch: the gradient of the first is there already."""
    calls: list[int] = []

    def fail(ids_BT: Tensor) -> Mapping[str, Tensor]:
        calls.append(1)
        losses = dict(objective(ids_BT))  # type: ignore[operator]
        if len(calls) == 2:

            def refuse(gradient: Tensor) -> Tensor:
                raise RuntimeError("no C++ compiler\nand a page of how it was called")

            losses["loss"].register_hook(refuse)
        return losses

    return fail


@pytest.mark.parametrize("failing", [failing_forward, failing_backward])
def test_failed_compilation_is_a_warning(
    failing: Compile, compile_as: Callable[[Compile], None], caplog: pytest.LogCaptureFixture
) -> None:
    compile_as(failing)
    eager, ours = Line(), Line()
    expected, step = (
        steps_of(eager, Device(**{**vars(COMPILING), "compile": False}), 2),
        steps_of(ours, micro=2),
    )
    for number in (1, 2, 3):
        found, wanted = step(IDS, number=number), expected(IDS, number=number)
        assert (found.losses, found.grad_norm) == (wanted.losses, wanted.grad_norm)
    assert torch.equal(ours.weight, eager.weight)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    line = caplog.records[0].getMessage()
    assert line.startswith("torch.compile failed (RuntimeError: no C++ compiler)")
    assert "\n" not in line


def test_the_failed_pass_holds_no_memory_during_the_next(compile_as: Callable[[Compile], None]) -> None:
    compile_as(failing_backward)
    model, made, alive = Line(), list[weakref.ref[Tensor]](), list[int]()
    losses = model.losses

    def noted(ids_BT: Tensor) -> Mapping[str, Tensor]:
        alive.append(sum(each() is not None for each in made))
        computed = losses(ids_BT)
        made.append(weakref.ref(computed["loss"]))
        return computed

    model.losses = noted  # type: ignore[method-assign] # what the step computes
    steps_of(model, micro=2)(IDS, number=1)
    assert len(alive) == 4
    assert alive[2] == 0, "the first micro-batch without the compiler, after two with it"


def test_error_of_the_objective_is_raised(
    compile_as: Callable[[Compile], None], caplog: pytest.LogCaptureFixture
) -> None:
    compile_as(lambda objective, **_: objective)
    model = Line()
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        steps_of(model)(torch.zeros(2, 3), number=1)
    assert not caplog.records


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("none left"), DivergedError(quantity="loss", value=0.0, stage="toy", step=1)],
    ids=["memory", "trainer"],
)
def test_what_is_not_the_compilers_fault_is_not_tried_again(
    error: Exception, compile_as: Callable[[Compile], None]
) -> None:
    def compile(objective: object, **_: object) -> object:
        def fail(ids_BT: Tensor) -> Mapping[str, Tensor]:
            raise error

        return fail

    compile_as(compile)
    with pytest.raises(type(error)):
        steps_of(Line())(IDS, number=1)


@pytest.mark.parametrize(
    ("setting", "expected"), [("auto", False), ("true", True), ("layers", "layers"), ("false", False)]
)
def test_auto_compiles_on_no_cpu(setting: str, expected: object) -> None:
    config = check(["device=cpu", "device.threads=1", f"device.compile={setting}"])
    assert open_device(config.device).compile is expected


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_auto_compiles_layers_on_cuda() -> None:
    assert open_device(check(["device=cuda"]).device).compile == "layers"


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore")  # the compiler's own, about parts of torch
@pytest.mark.parametrize("stage", ["stage1_9", "stage2"])
def test_compiled_layers_have_the_gradient_on_cuda(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """By the device's own kernels. The loss alone says nothing: with a wrong gradient it falls, too."""
    on_device = [*BASE, "device=cuda", f"{stage}.optimizer.lr=0.001"]
    eager = trace([*on_device, "device.compile=false"], stage=stage)
    same = likeness(eager, trace([*on_device, "device.compile=layers"], stage=stage))
    messages = [record for record in caplog.records if record.name == "trainer.training.compilation"]
    assert not messages, "compiling failed, so nothing was compared"
    assert min(same.gradients, same.updates) > 0.98, same


class DetachedGraph:
    """A compiler whose graphs compute the outputs and lose the gradient of what `loses` names, as torch 2.11 did."""

    def __init__(self, loses: str) -> None:
        self._loses = loses

    def __call__(self, graph: torch.fx.GraphModule, inputs: object) -> Callable[..., object]:
        nodes = [node for node in graph.graph.nodes if node.op == "placeholder" and self._loses in node.name]
        for node in nodes:
            with graph.graph.inserting_after(node):
                detached = graph.graph.call_method("detach", (node,))
            node.replace_all_uses_with(detached, delete_user_cb=lambda user, own=detached: user is not own)
        graph.recompile()
        return graph.forward


def layers_trained(
    compile: str, loses: str, compile_as: Callable[[Compile], None], *more: str, stage: Stage = "stage2"
) -> Trace:
    original = torch.compile
    torch.compiler.reset()
    compile_as(lambda forward, **settings: original(forward, backend=DetachedGraph(loses), **settings))
    trained = trace([*BASE, f"device.compile={compile}", *more], stage=stage)
    compile_as(original)
    return trained


@pytest.mark.filterwarnings("ignore")  # as above
@pytest.mark.parametrize(
    ("loses", "more"),
    [
        ("v_proj", ()),
        ("v_proj", ("device.recompute=true",)),
        # One of 32 numbers, whose gradient is small beside those of the matrices.
        ("input_layernorm", ()),
    ],
)
def test_layers_with_a_wrong_gradient_are_trained_eagerly(
    loses: str,
    more: tuple[str, ...],
    compile_as: Callable[[Compile], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    eager = trace([*BASE, *more])
    ours = layers_trained("layers", loses, compile_as, *more)
    messages = [each.getMessage() for each in caplog.records if each.name == "trainer.training.compilation"]
    assert [loses in each and "off by 100% of the eager one" in each for each in messages] == [True]
    assert ours.losses == eager.losses
    assert torch.equal(ours.gradient, eager.gradient)
    assert torch.equal(ours.after, eager.after)


@pytest.mark.filterwarnings("ignore")  # as above
def test_the_comparison_of_gradients_changes_no_bit(
    compile_as: Callable[[Compile], None], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights and the random numbers drawn are those of a training without it."""
    states, compared = list[Tensor](), list[int]()
    refuse = compilation.refuse_wrong_gradient

    def count_and_compare(*arguments: Any) -> None:
        compared.append(1)
        refuse(*arguments)

    for check_gradient in (count_and_compare, lambda *_: None):
        monkeypatch.setattr(compilation, "refuse_wrong_gradient", check_gradient)
        trained = layers_trained("layers", "none of them", compile_as)
        states.append(
            torch.cat([torch.tensor(trained.losses), trained.gradient, trained.after, torch.get_rng_state()])
        )
    assert compared
    assert torch.equal(*states)
    assert not [record for record in caplog.records if record.name == "trainer.training.compilation"]


class Dropping(nn.Module):
    """A layer with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(self.inner(x), 0.5)


def test_a_layer_with_dropout_has_no_gradient_to_compare() -> None:
    layer, x = Dropping(), torch.randn(8, 64, requires_grad=True)
    before = torch.get_rng_state()
    compilation.refuse_wrong_gradient(layer, layer.forward, lambda x: layer.inner(x).detach() + x, (x,), {})
    assert torch.equal(torch.get_rng_state(), before)
    assert x.grad is None
    assert layer.inner.weight.grad is None


def test_kernels_are_in_the_trainers_cache(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda objective, **_: objective)
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    compiled(Line().losses)
    assert os.environ[CACHE_VARIABLE] == str(cache_folder / "inductor")
    monkeypatch.setenv(CACHE_VARIABLE, "elsewhere")
    compiled(Line().losses)
    assert os.environ[CACHE_VARIABLE] == "elsewhere"


@pytest.mark.filterwarnings("ignore")  # the compiler's own, about parts of torch
@pytest.mark.slow
@pytest.mark.parametrize("stage", ["stage1_9", "stage2", "stage3"])
def test_one_graph_serves_a_whole_stage(stage: str, compile_as: Callable[[Compile], None]) -> None:
    """Lambda, saliency and the weights of losses change in every step, and compile nothing again."""
    counter, compile = CompileCounter(), torch.compile
    compile_as(lambda objective, **settings: compile(objective, backend=counter, fullgraph=True, **settings))
    torch.compiler.reset()
    salient = ["stage1_9.saliency.enabled=true", "stage1_9.distill_schedule.type=linear"]
    small = [*BASE, "model.layers=1", *(salient if stage == "stage1_9" else [])]
    same = likeness(trace(small, stage=stage), trace([*small, "device.compile=true"], stage=stage))
    assert counter.frame_count == 1
    assert min(same.logits, same.gradients, same.weights, same.updates) > 0.9999, same


class Stacked(nn.Module):
    """Two layers, and the decoder that `with_compiled_layers` looks for them in."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])

    def get_decoder(self) -> nn.Module:
        return self

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_layers_of_a_model_that_is_given_twice_are_compiled_once(
    compile_as: Callable[[Compile], None],
) -> None:
    calls: list[int] = []

    def compile(forward: Callable[..., Tensor], **_: object) -> Callable[..., Tensor]:
        def counted(x: Tensor) -> Tensor:
            calls.append(1)
            return forward(x)

        return counted

    compile_as(compile)
    model = Stacked()
    losses = with_compiled_layers(lambda ids_BT: {"loss": model(ids_BT.float()).sum()}, [model, model])
    assert losses(IDS)["loss"] == model(IDS.float()).sum()
    assert len(calls) == 2
    assert not any("forward" in layer.__dict__ for layer in model.layers)


GRAPHS = {"stage1_9": 2, "stage2": 1, "stage3": 2}
"""Of the decoder layers: the student's, and the teacher's."""


def graphs_of(stage: Stage, overrides: Sequence[str], compiled: str = "layers") -> tuple[Trace, list[str]]:
    """A training whose layers, or steps, are compiled, and the code of each graph."""
    codes, compile = list[str](), torch.compile

    def keep(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., object]:
        codes.append(graph.print_readable(print_output=False))
        return graph.forward

    torch.compiler.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, tempfile.gettempdir())
        patch.setattr(torch, "compile", partial(compile, backend=keep, fullgraph=True))
        return trace([*BASE, f"device.compile={compiled}", *overrides], stage=stage), codes


@pytest.mark.filterwarnings("ignore")  # as above
@pytest.mark.slow
@pytest.mark.parametrize("stage", ["stage1_9", "stage2", "stage3"])
def test_one_graph_serves_all_layers_that_are_alike(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """In Stage 3 a layer has hooks, and stays as it is. Nothing of it is left in the model."""
    overrides = ["model.layers=3", f"{stage}.micro_batch_size=8"]
    ours, codes = graphs_of(stage, overrides)
    same = likeness(trace([*BASE, *overrides], stage=stage), ours)
    messages = [record for record in caplog.records if record.name == "trainer.training.compilation"]
    assert not messages, "compiling failed, so nothing was compared"
    assert len(codes) == GRAPHS[stage] + 1, "and one quantises the held weights of a layer"
    assert min(same.logits, same.gradients, same.weights, same.updates) > 0.999, same


@pytest.mark.filterwarnings("ignore")  # as above
@pytest.mark.parametrize(
    ("stage", "others"),
    [
        pytest.param(
            "stage1_9",
            ("stage1_9.lm_loss_weight=0.25", "stage1_9.layer_weights=uniform", "model.layers=3"),
            marks=pytest.mark.slow,
        ),
        ("stage2", ("stage2.lambda_warmup.warmup_steps=0", "stage2.optimizer.lr=0.01", "model.layers=3")),
    ],
)
def test_layer_graph_has_no_swept_constants(stage: Stage, others: tuple[str, ...]) -> None:
    """So that the kernels of one trial are those of the next."""
    _, codes = graphs_of(stage, ["model.layers=2"])
    assert graphs_of(stage, others)[1] == codes


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # as above
def test_chunked_losses_are_compiled_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One graph of all that is done to each logit, with no product in it, and none of a sweep's numbers."""
    monkeypatch.setattr("trainer.losses.chunked._CPU_ELEMENTS", 2**14)
    one, other = ([*each, "model.layers=1"] for each in NUMBERS["stage2"])
    (ours, graphs), (_, others) = graphs_of("stage2", one), graphs_of("stage2", other)
    assert not [record for record in caplog.records if record.name == "trainer.training.compilation"]
    assert others == graphs
    losses = [graph for graph in graphs if "log_softmax" in graph]
    assert losses
    assert not any(product in graph for graph in losses for product in ("linear", "matmul", " @ "))
    same = likeness(trace([*BASE, *one], stage="stage2"), ours)
    assert min(same.logits, same.gradients, same.weights, same.updates) > 0.999, same


NUMBERS: dict[Stage, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "stage1_9": (
        ("stage1_9.layer_weights=progressive", "stage1_9.lm_loss_weight=0.5"),
        (
            *("stage1_9.layer_weights=[3,1]", "stage1_9.lm_loss_weight=0.25"),
            *("stage1_9.distill_schedule.initial=0.3", "stage1_9.optimizer.lr=0.01"),
        ),
    ),
    "stage2": (
        ("stage2.distill.weight=0.5", "stage2.distill.temperature=2"),
        ("stage2.distill.weight=0.25", "stage2.distill.temperature=3", "stage2.lambda_warmup.start=0.5"),
    ),
    "stage3": (
        ("stage3.logits_weight=1", "stage3.attention_weight=1", "stage3.temperature=5"),
        ("stage3.logits_weight=3", "stage3.attention_weight=7", "stage3.temperature=2"),
    ),
}


@pytest.mark.filterwarnings("ignore")  # as above
@pytest.mark.slow
@pytest.mark.parametrize("stage", NUMBERS)
def test_step_graph_has_no_swept_constants(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are its inputs: another trial has other losses of the same graph."""
    if stage != "stage1_9":
        monkeypatch.setattr("trainer.losses.chunked._CPU_ELEMENTS", 2**14)
    (one, other), layers = NUMBERS[stage], [f"model.layers={2 if stage == 'stage1_9' else 1}"]
    (first, graphs), (second, others) = (graphs_of(stage, [*layers, *each], "true") for each in (one, other))
    assert not [record for record in caplog.records if record.name == "trainer.training.compilation"]
    assert len(graphs) == 1
    assert others == graphs
    assert first.losses != second.losses
    eager = trace([*BASE, *layers, *other], stage=stage)
    assert second.losses == pytest.approx(eager.losses, rel=1e-5)


def test_a_layer_is_compiled_while_it_is_trained_alone(compile_as: Callable[[Compile], None]) -> None:
    calls = list[str]()
    compile_as(
        lambda function, **_: lambda *given, **more: (calls.append("layer"), function(*given, **more))[1]
    )
    config = check([*BASE])
    model = build_tiny(config.model, vocab_size=300, sequence_length=16, attention="eager")
    losses = with_compiled_layers(lambda ids_BT: {"loss": model(ids_BT).logits.sum()}, [model])
    ids_BT = torch.zeros(1, 4, dtype=torch.long)
    assert torch.equal(losses(ids_BT)["loss"], model(ids_BT).logits.sum())
    assert calls == ["layer"] * 2
    with pytest.raises(IndexError):
        losses(torch.full((1, 4), 300))
    model(ids_BT)
    assert calls == ["layer"] * 2


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore")  # as above
@pytest.mark.parametrize(
    ("compile", "backend", "more"),
    [
        ("true", "aot_eager", ()),
        ("layers", "inductor", ("device.recompute=true", "stage2.micro_batch_size=8")),
    ],
)
def test_compiled_steps_are_eager_ones(
    compile: str,
    backend: str,
    more: tuple[str, ...],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Stage 2 alone, and kernels of the layers alone: each graph more is a minute of a C++ compiler.

    `aot_eager` computes what Inductor would make kernels of, forward and backward, without them. The student's
    weights keep their names. Stage 1.9 is compared without kernels above.
    """
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    torch.compiler.reset()
    # All matrices of a layer have one shape, and kernels of the same code are compiled once.
    small = [*BASE, "model.layers=1", "model.intermediate_size=32", *more]
    eager = trace(small, stage="stage2")
    # Trying out vector instructions, and a precompiled header that no kernel is faster with, took 16 s of 100.
    # The kernels of a graph in one file with what calls them: 25 files, each with the same headers, took 45 s of 56.
    options = {"cpp.vec_isa_ok": True, "cpp_cache_precompile_headers": False, "cpp_wrapper": True}
    with inductor.patch(options):
        ours = trace([*small, f"device.compile={compile}"], stage="stage2")
    messages = [
        record.getMessage() for record in caplog.records if record.name == "trainer.training.compilation"
    ]
    assert not messages, "compiling failed, so nothing was compared"
    assert bool(list(tmp_path.iterdir())) == (backend == "inductor"), "kernels are kept where there are any"
    same = likeness(eager, ours)
    assert same.losses < 1e-4
    assert min(same.logits, same.gradients, same.weights, same.updates) > 0.999, same
    assert ours.parameters == eager.parameters
