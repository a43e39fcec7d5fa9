"""Arguments of another type to the functions that docs/how-to/analysis.md shows: an AnalysisError in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from analysis import notebook
from analysis.errors import AnalysisError
from analysis.report.report import render
from analysis.summaries.budget import answer
from analysis.summaries.costs import rate
from analysis.summaries.many_objective import many_objective_front
from analysis.summaries.summary import pareto
from analysis.summaries.summary_line import Objective
from analysis.table import TrialsTable, from_document, read

TABLE = pd.DataFrame({"x": [1.0, 2.0, 3.0, 4.0, 5.0], "y": [3.0, 2.0, 1.5, 1.2, 1.1]})
THREE = [Objective(metric=name, goal="minimize") for name in ("x", "y", "z")]

ODD = {
    "none": None,
    "int": -5,
    "true": True,
    "bytes": b"x",
    "list": [1, 2],
    "object": object(),
    "nan": float("nan"),
    "dict": {"a": 1},
}

CALLS: dict[str, Callable[[Any], object]] = {
    "read": read,
    "open": TrialsTable.open,
    "of": TrialsTable.from_frame,
    "document": from_document,
    "load": notebook.load,
    "pareto": lambda odd: pareto(odd, x="x", y="y"),
    "pareto x": lambda odd: pareto(TABLE, x=odd, y="y"),
    "pareto y": lambda odd: pareto(TABLE, x="x", y=odd),
    "pareto goal": lambda odd: pareto(TABLE, x="x", y="y", y_goal=odd),
    "pareto baseline": lambda odd: pareto(TABLE, x="x", y="y", baseline=odd),
    "answer": lambda odd: answer(odd, x="x", y="y", budget=3.0),
    "answer budget": lambda odd: answer(TABLE, x="x", y="y", budget=odd),
    "front": lambda odd: many_objective_front(odd, THREE),
    "front objectives": lambda odd: many_objective_front(TABLE, odd),
    "rate": rate,
    "render": render,
}


@pytest.mark.parametrize("call", CALLS)
def test_argument_of_another_type_is_one_line(call: str) -> None:
    for name, odd in ODD.items():
        if call == "pareto baseline" and name in ("none", "int"):  # a number, or none, is a baseline
            continue
        with pytest.raises(AnalysisError) as caught:
            CALLS[call](odd)
        assert "\n" not in str(caught.value), name
