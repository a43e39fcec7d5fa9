"""Comparison of a checkpoint, as it loads, with the student that it was made from. Used by `checkpoint`.

Shapes: B sequences, T tokens, V vocabulary; I inputs of a layer.

Two comparisons. The loaded model rounds differently: transformers multiplies an activation by 127/max where
we divide by max/127, and a value halfway between two of the 255 levels may fall to the other. In a deep model
this grows to some hundredths of the logits, so the first comparison finds only gross errors. The second one
replaces their expressions by ours and keeps all else as it was loaded, so nothing may differ.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sweeps.text.shorten import first_line
from trainer.export import ExportError
from trainer.export.target import Target
from trainer.models import pretrained
from trainer.models.causal_lm import run
from trainer.models.subln import SubLN
from trainer.quant.activations import int8_activation
from trainer.quant.ternary import TernaryLinear
from trainer.quant.weights import ternary_weight

# Largest root mean square of the logits' differences over that of the logits.
LOADED_TOLERANCE = 0.3  # 30 layers of random weights: 0.05 in float32, 0.10 in bfloat16; a wrong class: 1
EXACT_TOLERANCE = 1e-5  # the difference was 0 on every machine so far
PROBE = (2, 64)  # sequences and tokens that are compared


@torch.no_grad()
def read_back(folder: Path, student: nn.Module, target: Target) -> float:
    """Return the difference of the loaded model's logits, over their size.

    Raises:
        ExportError: it cannot be loaded, a weight changed, or it computes something else.
    """
    # Eager, because transformers compiles its quantisers, and they run only once here.
    with quiet(), torch.compiler.set_stance("force_eager"):
        loaded = load_as(folder, target)
        for name, layer in student.named_modules():
            if isinstance(layer, TernaryLinear):
                theirs = loaded.get_submodule(target.module(name))
                if not torch.equal(_weight(theirs), layer.effective_weight()):
                    raise ExportError(f"the weights of {name} came back changed; nothing was written")
        ids_BT = probe(student)
        expected_BTV = run(student, ids_BT).logits.float()
        difference = difference_of(loaded, ids_BT, expected_BTV)
        _use_our_expressions(student, loaded, target)
        exact = difference_of(loaded, ids_BT, expected_BTV)
    if not (difference <= LOADED_TOLERANCE and exact <= EXACT_TOLERANCE):
        raise ExportError(
            f"{target.name} computes something else than the student does: its logits differ by "
            f"{difference:.1e} of their size, and by {exact:.1e} where both round alike; nothing was written"
        )
    return difference


def load_as(folder: Path, target: Target) -> nn.Module:
    """Load a checkpoint as transformers does. Raises ExportError if that fails or tensors do not fit."""
    from transformers import AutoModelForCausalLM

    try:
        loaded, misfits = pretrained.load(
            AutoModelForCausalLM, folder, attn_implementation="eager", trust_remote_code=bool(target.code)
        )
    except (ImportError, KeyError, RuntimeError, ValueError) as error:
        raise ExportError(f"transformers cannot load what was written: {first_line(error)}") from error
    if misfits:
        raise ExportError(f"the checkpoint {misfits}, when transformers loads it; nothing was written")
    return cast(nn.Module, loaded).eval()


def difference_of(model: nn.Module, ids_BT: Tensor, expected_BTV: Tensor) -> float:
    """Return the root mean square of the logits' differences from those expected, over that of these."""
    off_BTV = run(model, ids_BT).logits.float() - expected_BTV
    return float(off_BTV.square().mean().sqrt() / expected_BTV.square().mean().sqrt())


def _weight(linear: nn.Module) -> Tensor:
    """Return the effective weight of an `AutoBitLinear` or a linear layer."""
    if getattr(linear, "online_quant", False):  # master weights
        weight = cast(Tensor, linear.weight)
        return ternary_weight(weight.float(), "absmean", None).to(weight.dtype)
    return cast(Tensor, linear.weight) * cast(Tensor, getattr(linear, "weight_scale", torch.ones(())))


class _OurLinear(nn.Module):
    """An `AutoBitLinear` in our expressions."""

    def __init__(self, theirs: nn.Module) -> None:
        super().__init__()
        self.weight, self.bias = _weight(theirs), cast(Any, theirs).bias

    def forward(self, x_TI: Tensor) -> Tensor:
        return F.linear(int8_activation(x_TI.float()).to(x_TI.dtype), self.weight, self.bias)


def _use_our_expressions(student: nn.Module, loaded: nn.Module, target: Target) -> None:
    for name, ours in student.named_modules():
        if isinstance(ours, TernaryLinear) and ours.config.activations == "int8":
            linear = loaded.get_submodule(target.module(name))
            loaded.set_submodule(target.module(name), _OurLinear(linear))
        elif isinstance(ours, SubLN):
            theirs = cast(Any, loaded.get_submodule(target.module(name)))
            eps = getattr(theirs, "variance_epsilon", None) or theirs.eps
            norm = SubLN(len(theirs.weight), 1.0, theirs.weight, eps=eps)
            norm.weight.copy_(theirs.weight)
            loaded.set_submodule(target.module(name), norm)


def probe(student: nn.Module) -> Tensor:
    """Return token ids [B, T] to compare models on."""
    config = cast(Any, student).config
    sequences, tokens = PROBE
    tokens = min(tokens, getattr(config, "max_position_embeddings", tokens))
    generator = torch.Generator().manual_seed(0)
    return torch.randint(config.vocab_size, (sequences, tokens), generator=generator)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' progress bars and its warning of a missing GPU."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
