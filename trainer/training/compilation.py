"""torch.compile over a stage's objective, its cache, and the warning when it fails. Used by `train_step`.

Each new graph of a layer is compared with the layer's eager gradient before training goes on with it: torch
2.11 compiled ternary layers to a wrong one, and the loss fell all the same.

What is compiled is the function from token ids to losses, student, teacher and loss together; or the forward
pass of a decoder layer, whose graph serves all layers that are alike ("regional compilation" in torch's
tutorials), and what is done to each logit. Modules keep their parameters and names, so checkpoints do not
know of it. mode="default" is the only one: with reduce-overhead and max-autotune the notebook's runs broke on
the head.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from trainer.cache import cache_root
from trainer.losses import chunked
from trainer.models.tensor_parallel import is_hook
from trainer.quant.ternary import Quantise, effective_weights

CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
_GRAPHS = 32  # of a layer's code in a run: student and teacher, of each stage with its shapes
_WRONG = 0.25  # of a gradient's norm: bfloat16 took 0.004 at most, and torch 2.11's fault up to 1
_SMALL = 0.01  # of the largest gradient of a layer, for a number

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
        graphs = _graph_count()
        result = self._forward(*arguments, **options)
        if _graph_count() != graphs:
            refuse_wrong_gradient(self._layer, self._eager, self._forward, arguments, options)
        return result


class WrongGradientError(RuntimeError):
    """A compiled layer has another gradient than its eager forward pass."""


def _graph_count() -> int:
    """Return how many graphs this process has compiled; another number after a call: it made a new one."""
    from torch._dynamo.utils import counters  # torch.compiler has no public count

    return int(counters["stats"]["unique_graphs"])


def refuse_wrong_gradient(
    layer: nn.Module,
    eager: Callable[..., Any],
    compiled: Callable[..., Any],
    arguments: Sequence[Any],
    options: Mapping[str, Any],
) -> None:
    """Compare the gradient of a layer's compiled forward pass with the eager one, of random output gradients.

    Nothing is compared where no gradient is computed, or where the layer draws random numbers, as dropout
    does. Gradients of parameters stay as they are, and so do the states of the generators.

    Raises:
        WrongGradientError: the gradient of a parameter or an input is off by more than `_WRONG` of its norm.
    """
    leaves, structure = tree_flatten((arguments, options))
    inputs = [each for each in leaves if isinstance(each, Tensor) and each.requires_grad]
    trained = {name: each for name, each in layer.named_parameters() if each.requires_grad}
    if not torch.is_grad_enabled() or not (inputs or trained):
        return

    def gradients(forward: Callable[..., Any], seed: int) -> list[Tensor]:
        copies = [
            each.detach().requires_grad_() if isinstance(each, Tensor) and each.requires_grad else each
            for each in leaves
        ]
        own = [each for each in copies if isinstance(each, Tensor) and each.requires_grad]
        given, named = tree_unflatten(copies, structure)
        torch.manual_seed(seed)
        results = [each for each in tree_leaves(forward(*given, **named)) if isinstance(each, Tensor)]
        outputs = [each for each in results if each.requires_grad]
        torch.manual_seed(0)
        above = [torch.randn_like(each) for each in outputs]
        wanted = [*trained.values(), *own]
        with torch.autocast(wanted[0].device.type, enabled=False):  # as around the backward pass of a step
            return [*torch.autograd.grad(outputs, wanted, above, materialize_grads=True)]

    devices = sorted({each.get_device() for each in (*inputs, *trained.values()) if each.is_cuda})
    # Hooks of activation checkpointing would take what is saved here for the layer's own.
    with torch.random.fork_rng(devices), saved_tensors_hooks(_as_it_is, _as_it_is):
        expected = gradients(eager, seed=0)
        if max(_differences(expected, gradients(eager, seed=1))) > _WRONG:
            return  # it draws, or is not finite
        found = gradients(compiled, seed=0)
    names = [*trained, *(f"input {number}" for number in range(len(inputs)))]
    name, worst = max(zip(names, _differences(expected, found), strict=True), key=lambda each: each[1])
    if worst > _WRONG:
        raise WrongGradientError(
            f"the compiled gradient of {name} is off by {worst:.0%} of the eager one, with torch "
            f"{torch.__version__}"
        )


def _as_it_is(x: Tensor) -> Tensor:
    return x


def _differences(expected: Sequence[Tensor], found: Sequence[Tensor]) -> list[float]:
    """Return the root mean square of each difference over that of the expected gradient.

    A gradient below `_SMALL` of the largest may be rounding: its difference is over that. What is not finite
    is infinite.
    """
    sizes = [_root_mean_square(each) for each in expected]
    least = _SMALL * torch.stack(sizes).max()
    differences = [
        _root_mean_square(a.float() - b.float()) / size.clamp(min=least)
        for a, b, size in zip(expected, found, sizes, strict=True)
    ]
    return torch.stack(differences).nan_to_num(nan=math.inf).tolist()


def _root_mean_square(x: Tensor) -> Tensor:
    return x.float().square().mean().sqrt()


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
