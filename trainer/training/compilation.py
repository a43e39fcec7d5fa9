"""torch.compile over a stage's objective, its cache, and the warning when it fails. Used by `train_step`.

What is compiled is the function from token ids to losses, student, teacher and loss together; or the forward
pass of a decoder layer, whose graph serves all layers that are alike ("regional compilation" in torch's
tutorials), and what is done to each logit. Modules keep their parameters and names, so checkpoints do not
know of it. mode="default" is the only one: with reduce-overhead and max-autotune the notebook's runs broke on
the head.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from trainer.cache import cache_root
from trainer.losses import chunked
from trainer.models.tensor_parallel import is_hook
from trainer.quant.ternary import Quantise, effective_weights

CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
_GRAPHS = 32  # of a layer's code in a run: student and teacher, of each stage with its shapes

F = TypeVar("F", bound=Callable[..., object])

_log = logging.getLogger(__name__)


Losses = Callable[[Tensor], Mapping[str, Tensor]]


def compiled(objective: Losses) -> Losses:
    """Return the function, compiled when it is first called and again for each new shape of its argument."""
    _prepare()
    return torch.compile(objective, dynamic=False)


def with_compiled_layers(objective: Losses, models: Iterable[nn.Module]) -> Losses:
    """Return the function, during which the decoder layers of the models compute by compiled forward passes.

    Layers are compiled when they are first called, once for all that are alike: their weights, lambda and the
    like are inputs of the graph. So are the losses of a chunk of logits, without the products around them.

    Args:
        models: of transformers; a model without a decoder stays as it is.
    """
    _prepare()
    import torch._dynamo.config as dynamo

    dynamo.optimize_ddp = False  # it splits graphs at DDP's buckets, and a layer's is small enough
    dynamo.recompile_limit = max(dynamo.recompile_limit, _GRAPHS)
    decoders = [getattr(model, "get_decoder", lambda: None)() for model in models]
    found = (layer for decoder in decoders for layer in getattr(decoder, "layers", ()))
    layers: list[nn.Module] = list(dict.fromkeys(found))  # a student may be its own teacher
    forwards, chunk_losses = [_CompiledForward(layer) for layer in layers], _compiled_chunk_losses()

    def losses(ids_BT: Tensor) -> Mapping[str, Tensor]:
        # In the instances alone, and during training alone: evaluations have other shapes.
        for layer, forward in zip(layers, forwards, strict=True):
            layer.__dict__["forward"] = forward
        try:
            with chunked.computing_chunks(chunk_losses):
                return objective(ids_BT)
        finally:
            for layer in layers:
                del layer.__dict__["forward"]

    return losses


class _CompiledForward:
    """The forward pass of a layer, without its own hooks: those of FSDP and transformers run around it.

    A layer whose parts have hooks stays as it is. A graph does not check for hooks, so that it would serve
    layers with and without them alike.
    """

    def __init__(self, layer: nn.Module) -> None:
        self._layer, self._eager = layer, layer.forward
        self._forward: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if self._forward is None:  # by now transformers has its hooks, which it adds in a forward pass
            hooked = _hooks_inside(self._layer)
            self._forward = self._eager if hooked else torch.compile(self._eager, dynamic=False)
        return self._forward(*arguments, **options)


def _compiled_chunk_losses() -> chunked.ComputeChunk:
    """Return `chunk_losses`, compiled when it is first called and again for another shape.

    Its numbers are inputs of the graph, so that the trials of a sweep share its kernels.
    """
    compute = torch.compile(chunked.chunk_losses, dynamic=False)

    def losses(
        logits: chunked.ChunkLogits, factor: float | Tensor, temperature: float | Tensor, count: int | None
    ) -> chunked.ChunkLosses:
        if logits.theirs is None:
            return compute(logits, 1.0, 1.0, count)
        device = logits.ours.device
        factor, temperature = (
            x if isinstance(x, Tensor) or x == 1 else torch.full((), x, device=device)
            for x in (factor, temperature)
        )
        return compute(logits, factor, temperature, count)

    return losses


def _hooks_inside(layer: nn.Module) -> bool:
    """Return whether parts of a layer have hooks, but for those that capture attention weights.

    These are removed: transformers adds them with those for hidden states, and nobody asks for the weights.
    Those of a tensor group do not count: all layers of a student have them while it is trained, and of no
    other model.
    """
    parts = [part for part in layer.modules() if part is not layer]
    for part in parts:
        for key, hook in [*part._forward_hooks.items()]:
            if getattr(hook, "__module__", "") == "transformers.utils.output_capturing":
                del part._forward_hooks[key]
    hooks = [
        hook for part in parts for hook in (*part._forward_hooks.values(), *part._forward_pre_hooks.values())
    ]
    return not all(is_hook(hook) for hook in hooks)


def _prepare() -> None:
    """Keep kernels in the trainer's cache, where the next run and other workers of the machine find them."""
    os.environ.setdefault(CACHE_VARIABLE, str(cache_root() / "inductor"))
    import torch._inductor.config as inductor  # slow to load, and not needed by runs that do not compile

    # Kernels are made for a number of threads; set here, it is part of their cache key.
    inductor.cpp.threads = torch.get_num_threads()


def uncompiled(function: F) -> F:
    """Return a function at which graphs break, so that nothing in it becomes a constant."""
    disabled: F = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return disabled


def compiled_quantiser() -> Quantise:
    """Return `effective_weights`, compiled once for all blocks that are alike."""
    _prepare()
    return torch.compile(effective_weights, dynamic=False)


def failure_reason(error: Exception) -> str:
    """Return in one line why the compiler failed."""
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first[:200]}"


def warn_of_failure(reason: str) -> None:
    """Log in one line that the compiler failed and training goes on without it."""
    _log.warning(
        "torch.compile failed (%s); training goes on without it; device.compile=false does not try", reason
    )
