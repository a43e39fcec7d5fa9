"""Keys that earlier versions did not have, and the values with which a run does what it did then.

At these values they are no part of what a run folder is pinned to, so that a run of the version before goes
on, bit for bit. Used by `run.decisive`, and by `checkpoint.config_pin` to say what to write. A new key that
can change a result belongs here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Document = Mapping[str, Any]


def _master_dtypes(document: Document) -> tuple[Any, ...]:
    tiny = _at(document, "model.kind") == "tiny"
    return ("float32",) if tiny else ("auto", _at(document, "model.dtype"))


def _lambda_starts(document: Document) -> tuple[Any, ...]:
    """Return 0, with which lambda began before; and where nothing warms up, whatever is written there."""
    warmup = _at(document, "stage2.lambda_warmup") or {}
    is_read = warmup.get("enabled") and _at(document, "stage2.max_steps")
    return (0.0,) if is_read else (0.0, warmup.get("start"))


_LOGITS_WEIGHT_BEFORE = 1.0
_TRAINED = ("model.teacher", "stage1_9", "stage2", "stage3")

# By dotted key, the values that mean what runs did before, the best to write first.
_VALUES: Mapping[str, Callable[[Document], tuple[Any, ...]]] = {
    "model.master_dtype": _master_dtypes,
    "data.document_masks": lambda document: (False,),
    "stage2.lambda_warmup.start": _lambda_starts,
    **{f"{part}.optimizer.weight_decay_until": lambda document: (1.0,) for part in _TRAINED},
    **{f"{part}.optimizer.stochastic_rounding": lambda document: (False,) for part in _TRAINED},
}

# Groups that nothing reads, as nothing did before there were any, and what makes them so.
_OFF = {
    "recovery": "recovery.max_steps=0",
    "average": "average.type=none",
    "stage2.fp8_recipe": "stage2.fp8=false",
}
_IDLE: Mapping[str, Callable[[Document], bool]] = {
    "recovery": lambda document: not _at(document, "recovery.max_steps"),
    "average": lambda document: _at(document, "average.type") == "none",
    "stage2.fp8_recipe": lambda document: not _at(document, "stage2.fp8"),
}


def without_added(document: Document) -> dict[str, Any]:
    """Return a configuration as plain values without the keys that came later and change nothing."""
    unchanged = {
        key
        for key, values in _VALUES.items()
        if (present := _at(document, key)) is not None and present in values(document)
    }
    found = _without(document, unchanged | {key for key, idle in _IDLE.items() if idle(document)})
    # Its default has changed; a folder of the version before may have the old one, which nothing reads.
    if _at(found, "stage3.max_steps") == 0 and "logits_weight" in found["stage3"]:
        found["stage3"]["logits_weight"] = _LOGITS_WEIGHT_BEFORE
    return found


def as_before(key: str, document: Document) -> str | None:
    """Return the override with which a run does what it did before there was the key; None: it is not new."""
    off = next((text for group, text in _OFF.items() if key.startswith(f"{group}.")), None)
    return f"{key}={_VALUES[key](document)[0]}" if key in _VALUES else off


def _at(document: Document, key: str) -> Any:
    node: Any = document
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def _without(node: Document, keys: set[str], prefix: str = "") -> dict[str, Any]:
    """Return the tree without the leaves and groups of these dotted keys."""
    return {
        name: _without(child, keys, f"{prefix}{name}.") if isinstance(child, Mapping) else child
        for name, child in node.items()
        if f"{prefix}{name}" not in keys
    }
