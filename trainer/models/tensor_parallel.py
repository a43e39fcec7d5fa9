"""The blocks of a model that processes of a tensor group compute in parts. Used by `training.parallel`.

The projections that read a block's input are split by their outputs (heads, or features of the MLP), the one
that returns the block's output by its inputs. They are found by their names, which the Llama family shares.
Ternary weights, their saliency and Muon's matrices stay whole: FSDP shards all parameters over all processes,
a layer gathers its weights as it would without the group, quantises the whole matrix, and multiplies by its
part. What follows from a whole row of activations is summed, or its maximum taken, over the group: SubLN's
mean square and the scale of 8-bit inputs. Between the blocks each process has some of the tokens, from the
first layer to the final norm, and so have the hidden states of all layers. The decoder's output has all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from torch import Tensor, nn

from trainer.config.run import MeshConfig
from trainer.distributed.tensor_group import TensorGroup
from trainer.errors import ConfigError
from trainer.models.causal_lm import is_head
from trainer.models.subln import BEFORE, SHARED_INPUT, SubLN
from trainer.quant.ternary import TernaryLinear

BLOCKS = tuple(zip(SHARED_INPUT, BEFORE, strict=True))
"""The projections that read the input of attention and MLP, and the one that returns the output."""


def check(model: nn.Module, mesh: MeshConfig) -> None:
    """Raise ConfigError if the layers of a model, such as the teacher, cannot be split so."""
    if mesh.tensor == 1:
        return
    inside: set[nn.Module | nn.Parameter] = set()
    for block, reading, returning in _blocks(model):
        linear: Any = {name: getattr(block, name) for name in (*reading, returning)}
        inside |= {part for layer in linear.values() for part in (layer, *layer.parameters())}
        head_size = getattr(block, "head_dim", None)
        if head_size is None:
            sizes = {"features of an MLP": linear["gate_proj"].out_features}
        else:
            # The norms of queries and keys that Qwen3 has work on each head by itself. Other parameters of
            # that size may not, such as DiffLlama's, which subtracts the second half of the heads.
            norms = (each for child in block.children() for each in child.parameters(recurse=False))
            inside |= {parameter for parameter in norms if parameter.shape == (head_size,)}
            if hasattr(block, "num_heads"):
                _refuse(model, "attention that reshapes to its own number of heads")
            outputs = {"query heads": linear["q_proj"], "key heads": linear["k_proj"]}
            sizes = {what: layer.out_features // head_size for what, layer in outputs.items()}
        for error in mesh.check_sizes(sizes):
            raise ConfigError(error.problem, key=f"device.{error.key}")
        inside_too = set(block.parameters()) - inside
        if inside_too:
            name = next(name for name, each in model.named_parameters() if each in inside_too)
            _refuse(model, f"{name}, which is in no block that can be split")
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and module not in inside and not is_head(model, module):
            _refuse(model, f"{name}, which is in no block that can be split")


def _refuse(model: nn.Module, what: str) -> None:
    raise ConfigError(
        f"{type(model).__name__} has {what}; write 1, or take a model of the Llama family",
        key="device.mesh.tensor",
    )


@contextmanager
def in_parts(student: nn.Module, group: TensorGroup) -> Iterator[None]:
    """Within the context, compute the layers of a ternary student in parts."""
    this: Any = student
    decoder, gather, own = this.get_decoder(), partial(group.gather, dim=1), partial(_own_tokens, group)
    handles = [
        decoder.layers[0].register_forward_pre_hook(partial(_change_states, own), with_kwargs=True),
        decoder.register_forward_hook(partial(_change_output, gather)),
    ]
    parts: list[Any] = []
    for block, reading, returning in _blocks(student):
        handles.append(block.register_forward_pre_hook(partial(_change_states, gather), with_kwargs=True))
        parts += [getattr(block, name) for name in reading]
        for part in getattr(block, returning).modules():
            if isinstance(part, TernaryLinear):
                part.splits_inputs = True
                parts += [part, part.quantise_input]
            elif isinstance(part, SubLN):
                parts.append(part)
    try:
        this.tensor_group = group
        for part in parts:
            part.group = group
        yield
    finally:
        this.tensor_group = None
        for part in parts:
            part.group = None
        for handle in handles:
            handle.remove()


def group_of(model: nn.Module) -> TensorGroup | None:
    """Return the group whose processes compute the model in parts; None: this one computes all of it."""
    return getattr(model, "tensor_group", None)


def _own_tokens(group: TensorGroup, x_BTH: Tensor) -> Tensor:
    # A copy, so that the others are not kept, and the first layer is compiled for the strides of all layers.
    return group.own(x_BTH, 1).contiguous()


def is_hook(hook: object) -> bool:
    """Return whether a module's hook is one of `in_parts`."""
    return isinstance(hook, partial) and hook.func in (_change_states, _change_output)


def _change_states(
    change: Callable[[Tensor], Tensor], block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if args:
        return (change(args[0]), *args[1:]), kwargs
    return args, kwargs | {"hidden_states": change(kwargs["hidden_states"])}


def _change_output(
    change: Callable[[Tensor], Tensor], decoder: nn.Module, args: tuple[Any, ...], output: Any
) -> Any:
    output.last_hidden_state = change(output.last_hidden_state)
    return output


def _blocks(model: nn.Module) -> Iterator[tuple[nn.Module, tuple[str, ...], str]]:
    for module in cast(Any, model).get_decoder().layers.modules():
        for reading, returning in BLOCKS:
            if all(isinstance(getattr(module, name, None), nn.Module) for name in (*reading, returning)):
                yield module, reading, returning
