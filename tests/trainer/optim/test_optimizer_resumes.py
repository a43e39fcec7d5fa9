"""Every type resumes bit for bit from a checkpoint and from torch's own state dicts."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from trainer.checkpoint.parts import OptimizerState
from trainer.checkpoint.state import State
from trainer.optim.build import OptimizerSet, build_optimizer

TYPES = ["muon", "muonclip", "adamw", "adamw_8bit", "apollo", "apollo_mini"]
IDS = torch.arange(24).reshape(2, 12) % 50


@pytest.fixture
def begin(llama: Callable[..., nn.Module], configure):
    """A model with its optimizer, with fresh weights or a copy of another's."""

    def begun(
        kind: str, dtype: torch.dtype, like: nn.Module | None = None, *, rounding: bool = False
    ) -> tuple[nn.Module, OptimizerSet]:
        changes = {"muonclip": {"tau": 0.5}, "apollo": {"rank": 4, "update_interval": 3}}
        changes |= {"stochastic_rounding": rounding}
        model = llama(hidden_size=64).to(dtype).train()  # 64 x 64: a matrix that is kept in 8 bits
        if like is not None:
            model.load_state_dict(like.state_dict())
        return model, build_optimizer(model, configure(kind, **changes))

    return begun


def train(model: nn.Module, optimizer: OptimizerSet, steps: range) -> None:
    for step in steps:
        optimizer.scale_lr(1 / (1 + step))
        model(input_ids=(IDS + step) % 50, labels=(IDS + step) % 50).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def through_a_checkpoint(
    original: nn.Module, ours: OptimizerSet, model: nn.Module, folder: Path
) -> OptimizerState:
    state = OptimizerState(ours.optimizers, original).state()
    tensors = {name: tensor.contiguous().clone() for name, tensor in state.tensors.items()}
    save_file(tensors, folder / "state.safetensors")
    return State(
        tensors=load_file(folder / "state.safetensors"), values=json.loads(json.dumps(dict(state.values)))
    )


KINDS = [(kind, dtype, False) for kind in TYPES for dtype in (torch.float32, torch.bfloat16)]
KINDS += [(kind, torch.bfloat16, True) for kind in TYPES if kind != "adamw_8bit"]


@pytest.mark.parametrize(("kind", "dtype", "rounding"), KINDS, ids=str)
def test_it_goes_on_bit_for_bit(kind: str, dtype: torch.dtype, rounding: bool, begin, tmp_path: Path) -> None:
    """From a checkpoint, and from torch's own state dict."""
    original, ours = begin(kind, dtype, rounding=rounding)
    train(original, ours, range(4))
    torch.manual_seed(99)  # Apollo's projections and the rounding follow the seed that they began with
    resumed, theirs = begin(kind, dtype, like=original, rounding=rounding)
    kept = through_a_checkpoint(original, ours, resumed, tmp_path)
    OptimizerState(theirs.optimizers, resumed).restore(kept)
    copied, of_copy = begin(kind, dtype, like=original, rounding=rounding)
    for mine, yours in zip(ours.optimizers, of_copy.optimizers, strict=True):
        yours.load_state_dict(copy.deepcopy(mine.state_dict()))
    for model, optimizer in ((original, ours), (resumed, theirs), (copied, of_copy)):
        train(model, optimizer, range(4, 9))
    for way, model in (("checkpoint", resumed), ("state dict", copied)):
        for (name, mine), yours in zip(original.named_parameters(), model.parameters(), strict=True):
            assert torch.equal(mine, yours), (way, name)


@pytest.mark.parametrize("kind", TYPES)
def test_without_its_state_it_would_not(kind: str, begin) -> None:
    """The test above would pass if states did not matter; they do."""
    original, ours = begin(kind, torch.float32)
    train(original, ours, range(4))
    resumed, theirs = begin(kind, torch.float32, like=original)
    train(original, ours, range(4, 6))
    train(resumed, theirs, range(4, 6))
    assert not torch.equal(original.lm_head.weight, resumed.lm_head.weight)
