"""The figure of `sweep plan`."""

from __future__ import annotations

from typing import Any

from analysis.report.plan_figure import plan_figure


def plan(**settings: Any) -> dict[str, Any]:
    """A document of two sources, with these settings beside a learning rate that is followed."""
    line = [[10.0, 0.02, 0.01, 0.04], [40.0, 0.01, 0.008, 0.0125], [160.0, 0.005, 0.002, 0.0125]]
    optima = {
        "a": {"value": 0.02, "low": 0.01, "high": 0.04},
        "b": {"value": 0.01, "low": 0.009, "high": 0.012},
    }
    rate = {"value": 0.005, "log": True, "line": line, "optima": optima}
    return {
        "measure": "model_parameters",
        "size": 160.0,
        "metric": "final_loss",
        "sources": [
            {"url": "a", "size": 10.0, "loss": {"value": 3.0, "low": 2.9, "high": 3.1}},
            {"url": "b", "size": 40.0, "loss": {"value": 2.8, "low": 2.7, "high": 2.9}},
        ],
        "settings": {"lr": rate, **settings},
        "loss": {"value": 2.6, "low": 2.4, "high": 2.9},
        "loss_line": [[10.0, 3.0, 2.9, 3.1], [160.0, 2.6, 2.4, 2.9]],
    }


def test_optima_intervals_line_and_plan_are_drawn():
    rows = [row for data in plan_figure(plan()).data.values() for row in data]
    assert {"x": 40.0, "y": 0.01, "low": 0.009, "high": 0.012} in rows
    assert {"x": 160.0, "y": 0.005, "low": 0.002, "high": 0.0125} in rows
    assert {"x": 160.0, "y": 0.005} in rows
    assert {"x": 10.0, "y": 3.0, "low": 2.9, "high": 3.1} in rows


def test_only_settings_that_are_followed_have_a_part():
    options = {"value": "muon", "log": False, "line": [], "optima": {"a": "muon", "b": "muon"}}
    assert len(plan_figure(plan(optimizer=options)).spec["concat"]) == 2


def test_an_optimum_that_does_not_move_can_be_drawn():
    still = {"value": 4, "log": False, "line": [[10, 4, 4, 4], [160, 4, 4, 4]]}
    optima = {url: {"value": 4, "low": 4, "high": 4} for url in "ab"}
    svg = plan_figure(plan(layers=still | {"optima": optima})).to_svg()
    for word in ("lr", "layers", "final_loss", "model_parameters", "plan"):
        assert f">{word}<" in svg
