"""A mesh of data and tensor dimensions: layers computed in parts are the layers of one process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from shared_runs import Started, assert_the_same, lines
from test_shared_checkpoints import LONG, wait_for_line
from test_shared_training import ALL_STAGES
from torch import Tensor, nn

from trainer.api import check as checked
from trainer.config.run import MeshConfig
from trainer.devices.device import Device
from trainer.distributed.ranks import Ranks
from trainer.distributed.tensors import full_tensor
from trainer.errors import ConfigError
from trainer.losses.chunked import ChunkLogits, ChunkLosses, chunk_losses, computing_chunks
from trainer.losses.hidden_distances import mse
from trainer.losses.next_token import NextTokenLoss
from trainer.models import tensor_parallel
from trainer.models.subln import normalised_projections, quantise
from trainer.quant.saliency import ColumnSaliency, Share
from trainer.quant.ternary import ternary_layers
from trainer.quant.warmup import Lambda
from trainer.training.parallel import FSDPStrategy

pytestmark = pytest.mark.timeout(600)  # several processes, each of which loads torch

Start = Callable[..., Started]
Alone = Callable[..., Path]
MESH = ("device.parallel=fsdp", "device.mesh.tensor=2")
IDS = torch.arange(24).reshape(2, 12) % 50
FIRST_STEPS = 3


def teacher(architecture: str, **changes: Any) -> nn.Module:
    """A model with grouped queries and biases: not of the output (`Qwen2`), or of it, too, and norms (`Qwen3`)."""
    import transformers

    size = {"vocab_size": 51, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "attention_bias": True}
    config = getattr(transformers, f"{architecture}Config")(**size | heads | changes)
    torch.manual_seed(0)
    model: nn.Module = getattr(transformers, f"{architecture}ForCausalLM")(config)
    for parameter in model.parameters():
        if parameter.ndim == 1:  # not all alike, as they would be in a fresh model
            nn.init.normal_(parameter, 0.5, 0.2)
    return model


def student(architecture: str, lambda_: float) -> nn.Module:
    """At lambda 1 a student in float32 with SubLN and salient columns; at 0 one in float64 without."""
    model = teacher(architecture)
    gains = dict.fromkeys(normalised_projections(model), 0.7) if lambda_ else {}
    quantise(model, Lambda(lambda_), checked([]).quant, gains, blended=False)
    if not lambda_:
        return model.double()
    for layer in ternary_layers(model):
        layer.saliency = ColumnSaliency(layer.weight, Share(0.3), 0.9)
    return model


def objective(model: nn.Module) -> Callable[[Tensor], dict[str, Tensor]]:
    """From logits with a teacher's, from hidden states, and from logits that the model makes by itself."""
    pattern = teacher("Llama").to(next(model.parameters()).dtype)
    predict = NextTokenLoss(model, pattern, factor=0.5, temperature=2.0, hidden=True)

    def losses(ids: Tensor) -> dict[str, Tensor]:
        found = predict(ids)
        pairs = zip(found.hidden, found.teacher_hidden, strict=True)
        distances = torch.stack([mse(ours, theirs) for ours, theirs in pairs])
        whole = model(input_ids=ids, labels=ids, use_cache=False).loss
        return {"loss": found.total + distances.mean() + whole, **found.parts, "distances": distances}

    return losses


CASES = [(architecture, lambda_) for architecture in ("Qwen2", "Qwen3") for lambda_ in (0.0, 1.0)]


def in_parts() -> list[tuple[dict[str, Tensor], dict[str, Tensor], bool, set[tuple[str, int]]]]:
    """Losses and gradients of each case, whether all layers are computed whole again afterwards, and the sizes."""
    found = []
    for case in CASES:
        model = student(*case)
        ranks = Ranks(rank=torch.distributed.get_rank(), world=2, parallel="fsdp", tensor=2)
        cpu = torch.device("cpu")
        strategy = FSDPStrategy(
            model, Device(torch_device=cpu, dtype=torch.float32, name="CPU", attention="eager", ranks=ranks)
        )
        sizes = set[tuple[str, int]]()
        with strategy.running():
            computed = objective(model)

        def count_logits(logits: ChunkLogits, *arguments: Any, sizes: set[Any] = sizes) -> ChunkLosses:
            sizes |= {("logits", part.shape[-1]) for part in (logits.ours, logits.theirs) if part is not None}
            return chunk_losses(logits, *arguments)

        for name, norm in model.named_modules():
            if name.endswith(("layernorm", "model.norm")):
                norm.register_forward_hook(lambda m, x, y, sizes=sizes: sizes.add(("tokens", y.shape[1])))
        strategy.begin()
        with strategy, computing_chunks(count_logits):
            losses = strategy(computed, IDS)
            losses["loss"].backward()
            gradients = {name: full_tensor(p.grad) for name, p in model.named_parameters()}
        parts, in_parts = strategy.mean(losses), set(sizes)
        with strategy.running(), torch.no_grad():
            whole = computed(IDS)["loss"]  # of this process alone
        found.append((parts, gradients, abs(whole.item() - parts["loss"].item()) < 1e-6, in_parts))
    return found


def test_gradients_are_those_of_whole_layers(in_two: Callable[[Callable[[], Any]], list[Any]]) -> None:
    """Norms have half of the tokens, and losses half of the 51 words: 25 in one process, 26 in the other."""
    for rank, found in enumerate(in_two(in_parts)):
        for case, (losses, gradients, whole, sizes) in zip(CASES, found, strict=True):
            model = student(*case)
            expected = objective(model)(IDS)
            expected["loss"].backward()
            assert losses.keys() == expected.keys()
            for name, loss in losses.items():
                # In float32 a small divergence is the difference of large numbers.
                close = pytest.approx(expected[name].tolist(), rel=1e-6, abs=1e-6 if case[1] else 0)
                assert loss.tolist() == close, (case, name)
            assert whole, case
            assert sizes == {("tokens", 6), ("logits", 25 + rank)}, case
            for name, parameter in model.named_parameters():
                apart = (gradients[name] - parameter.grad).norm() / parameter.grad.norm()
                # Where a sum rounds differently, an 8-bit number may become its neighbour.
                assert apart < (1e-3 if case[1] else 1e-6), (case, name, apart)


def assert_first_steps_are_the_same(folder: Path, expected: Path) -> None:
    for ours, theirs in zip(lines(folder), lines(expected), strict=True):
        if ours["step"] <= FIRST_STEPS and ours["stage"] == "stage1_9" and "loss" in ours:
            assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-6)


@pytest.mark.parametrize(
    ("world", "overrides"),
    [
        (2, ("stage2.optimizer.type=adamw",)),
        pytest.param(
            4,
            (
                "stage1_9.optimizer.type=muonclip",
                "stage1_9.optimizer.muonclip.tau=0.001",
                "stage1.subln=blended",
            ),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            4,
            ("device.mesh.data=2", "device.recompute=true", "stage1_9.optimizer.type=adamw"),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["two", "muonclip", "recompute"],
)
def test_mesh_comes_to_what_one_process_comes_to(
    world: int, overrides: tuple[str, ...], start: Start, alone: Alone, tmp_path: Path
) -> None:
    """In all stages, with Muon, AdamW, saliency, and Stage 3's relations of attention."""
    started = start(tmp_path / "mesh", *ALL_STAGES, *MESH, *overrides, world=world)
    own = [each for each in overrides if not each.startswith("device.mesh")]
    expected = alone(tmp_path / "one", *ALL_STAGES, *own)
    assert started.end() == [0] * world, started.output(1)
    assert_the_same(tmp_path / "mesh", expected)
    assert_first_steps_are_the_same(tmp_path / "mesh", expected)


@pytest.mark.slow
@pytest.mark.parametrize("mesh_first", [True, False])
def test_checkpoint_moves_between_mesh_and_process(
    mesh_first: bool, start: Start, alone: Alone, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    worlds = [(2, MESH), (1, ())]
    (world, how), (other_world, other) = worlds if mesh_first else reversed(worlds)
    started = start(folder, *LONG, *how, world=world)
    wait_for_line(started, folder, 9)
    os.kill(started.processes[-1].pid or 0, signal.SIGTERM)
    assert started.end() == [75] * world, started.output(0)
    again = start(folder, *LONG, *other, world=other_world)
    assert again.end() == [0] * other_world, again.output(0)
    assert "going on after step " in again.output(0)
    assert_the_same(folder, alone(tmp_path / "whole", *LONG))


@pytest.mark.slow
@pytest.mark.parametrize("reached", [4, 12], ids=["stage1_9", "stage2"])
def test_a_killed_process_ends_the_other_and_the_run_goes_on(
    reached: int, start: Start, alone: Alone, tmp_path: Path
) -> None:
    folder, overrides = tmp_path / "run", (*LONG, *MESH, "checkpoint.every_steps=2")
    started = start(folder, *overrides)
    wait_for_line(started, folder, reached)
    killed, other = started.processes[1], started.processes[0]
    killed.kill()
    other.join(30)
    assert other.exitcode == 1, started.output(0)
    last = started.output(0).splitlines()[-1]
    assert last.startswith("trainer: error: the connection to another process of this run was lost")
    assert "Traceback" not in started.output(0)
    again = start(folder, *overrides)
    assert again.end() == [0, 0], again.output(0) + again.output(1)
    assert "going on after step " in again.output(0)
    assert_the_same(folder, alone(tmp_path / "whole", *LONG))


@pytest.mark.parametrize(
    ("architecture", "changes", "tensor", "match"),
    [
        ("Qwen3", {}, 4, "2 key heads cannot .* 4"),
        ("Qwen3", {"intermediate_size": 49}, 2, "49 features of an MLP"),
        ("Olmo2", {}, 2, r"Olmo2ForCausalLM has model\.layers\.0\.self_attn\.q_norm\.weight"),
        ("GPTNeoX", {}, 2, r"GPTNeoXForCausalLM has .*layers\.0\."),
        ("DiffLlama", {"num_key_value_heads": 4}, 2, r"DiffLlamaForCausalLM has .*self_attn\.lambda_q1"),
        ("StableLm", {}, 2, "StableLmForCausalLM has attention that reshapes"),
    ],
)
def test_models_that_cannot_be_split_are_refused(
    architecture: str, changes: dict[str, Any], tensor: int, match: str
) -> None:
    model = teacher(architecture, **changes)
    tensor_parallel.check(model, MeshConfig(data=None, tensor=1))
    with pytest.raises(ConfigError, match=rf"^device\.mesh\.tensor: {match}"):
        tensor_parallel.check(model, MeshConfig(data=None, tensor=tensor))
