"""A result in any of the forms that programs give it, as values by metric.

A number is the value of the only objective, a tuple or a list has one for each, in their order. Python
functions, `Sweep.tell`, `result.json` and the task functions of Hydra applications are all read by this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sweeps.text.counted import counted


def by_metric(result: Any, metrics: Sequence[str]) -> Mapping[Any, Any]:
    """Return the values by metric, unchecked.

    Args:
        result: a mapping, a list or tuple with a value for each metric, or the value of the only one.

    Raises:
        ValueError: the number of values is wrong; the message follows "returned".
    """
    if isinstance(result, Mapping):
        return result
    names = ", ".join(metrics)
    if isinstance(result, tuple | list):
        if len(result) != len(metrics):
            values, of = counted(len(result), "value"), counted(len(metrics), "metric")
            raise ValueError(f"{values} for {of}; give one for each of {names}, or a dict")
        return dict(zip(metrics, result, strict=True))
    if len(metrics) != 1:
        raise ValueError(f"one value for the metrics {names}; give a tuple or a dict")
    return {metrics[0]: result}
