"""One reading of results for functions, `Sweep.tell`, `result.json` and Hydra's task functions."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from sweeps.hydra_app.callback import result
from sweeps.programs.result import Completed, check_metrics, parse_result
from sweeps.space.definition import Objective
from sweeps.trials.by_metric import by_metric

FORMS = [
    (0.5, 1, {"a": 0.5}),
    (np.float32(0.5), 1, {"a": 0.5}),
    (np.array(0.5), 1, {"a": 0.5}),
    ((0.5,), 1, {"a": 0.5}),
    ([0.5, 2], 2, {"a": 0.5, "b": 2}),
    ({"b": 2, "a": 0.5}, 2, {"a": 0.5, "b": 2}),
]


@pytest.mark.parametrize(("given", "count", "metrics"), FORMS, ids=lambda part: type(part).__name__)
def test_every_door_reads_the_same(space, given, count, metrics):
    names = ["a", "b"][:count]
    several = replace(space, objectives=tuple(Objective(metric=name) for name in names))
    assert check_metrics(several, given, "here") == Completed(metrics=metrics)
    assert result(given, names)["metrics"] == metrics
    if isinstance(given, int | float | dict):
        document = json.loads(json.dumps(given))
        assert parse_result(several, document, "result.json") == Completed(metrics=metrics)
    if isinstance(given, float | list | dict):
        assert parse_result(several, {"status": "completed", "metrics": given}, "f") == Completed(
            metrics=metrics
        )


@pytest.mark.parametrize(
    ("given", "metrics", "message"),
    [
        ((1, 2), ["a"], "2 values for 1 metric; give one for each of a, or a dict"),
        ([], ["a"], "0 values for 1 metric"),
        (1.0, ["a", "b"], "one value for the metrics a, b; give a tuple or a dict"),
    ],
)
def test_another_number_of_values_is_an_error(given, metrics, message):
    with pytest.raises(ValueError, match=message):
        by_metric(given, metrics)


@pytest.mark.parametrize(
    "given", [None, "0.5", True, object(), {1, 2}], ids=lambda given: type(given).__name__
)
def test_what_is_no_number_is_none(space, given):
    failed = check_metrics(space, given, "here")
    assert failed.failure == "bad_config"
    assert "number" in failed.error
