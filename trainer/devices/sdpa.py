"""Causal attention without a mask tensor, by transformers' SDPA.

Used on CUDA, for long sequences on a CPU, and by `xla_attention`.

Without a mask, transformers searches the positions for packed texts. Eagerly, the host then waits for the
device once per forward pass. In a compiled step positions cannot be read, so a mask tensor is built, with
which SDPA can use neither its flash kernel nor grouped heads. So models are called with a mask of ones, which
`attention_mask` ignores: no text is padded here, and only windows are masked. With masks between documents
(`data.document_masks`) the argument has three dimensions, and transformers passes it on unchanged.

Shapes: B sequences, T tokens.
"""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor

PREFIX = "stagesweep_"
"""Prefix of the names of attention implementations whose mask function is `attention_mask`."""
RECORDING = "recording_"
"""Prefix of the name of an implementation that records logits and then calls the one named after it."""

NAME = f"{PREFIX}causal"  # with "sdpa" in it, transformers would refuse models that cap their scores


def register() -> str:
    """Register the attention with transformers and return its name."""
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

    sdpa: Any = ALL_ATTENTION_FUNCTIONS["sdpa"]
    AttentionInterface.register(NAME, sdpa)
    AttentionMaskInterface.register(NAME, attention_mask)
    return NAME


def attention_mask(**arguments: Any) -> Tensor | None:
    """Return a boolean mask [B, 1, T, T] of the keys that each query attends to; None: plain causal.

    It reads no tensor and ignores transformers' padding mask [B, T], as no text is padded here. A mask
    [B, 1, T] has the numbers of documents instead, whose tokens attend to each other alone.
    """
    from transformers.masking_utils import and_masks, packed_sequence_mask_function, sdpa_mask

    numbers = arguments.get("attention_mask")
    if numbers is not None and numbers.ndim == 3:
        alone = packed_sequence_mask_function(numbers.squeeze(1))
        masks = {"mask_function": and_masks(alone, arguments["mask_function"]), "attention_mask": None}
        return cast(Tensor, sdpa_mask(**arguments | masks | {"allow_is_causal_skip": False}))
    window = arguments.get("local_size")
    if arguments.get("allow_is_causal_skip", True) and (window is None or arguments["kv_length"] <= window):
        return None
    full = {"allow_is_causal_skip": False, "attention_mask": None}
    return cast(Tensor | None, sdpa_mask(**arguments | full))
