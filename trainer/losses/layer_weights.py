"""How much each layer counts in the distillation of hidden states. Used by `stages.layerwise`.

Later layers count more by default, because that is where distillation helps most (BitDistill,
arXiv:2510.13998 §3.3, for attention relations; the research notebook took it over for hidden states).
"""

from __future__ import annotations

from collections.abc import Sequence

from trainer.counted import counted


def layer_weights(kind: str | Sequence[float], layers: int) -> list[float]:
    """Weights of layers 1..L, summing to 1.

    Args:
        kind: `uniform`; `progressive` (1, 2, …, L); `exponential` (2, 4, …, 2^L); or L numbers, of which
            only the ratios count.
        layers: L.

    Raises:
        ValueError: there are not L numbers.
    """
    if not isinstance(kind, str):
        raw = [float(weight) for weight in kind]
        if len(raw) != layers:
            raise ValueError(f"{counted(len(raw), 'weight')} for {counted(layers, 'layer')}")
    else:
        raw = {
            "uniform": [1.0] * layers,
            "progressive": [float(layer) for layer in range(1, layers + 1)],
            "exponential": [2.0 ** (layer - layers) for layer in range(1, layers + 1)],
        }[kind]
    return [weight / sum(raw) for weight in raw]
