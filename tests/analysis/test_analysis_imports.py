"""`sweep pareto` pays for pandas, not for figures and pages."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module", ["analysis.summaries.summary", "analysis.table", "analysis.statistics.pareto"]
)
def test_pareto_imports_neither_figures_nor_pages_nor_torch(module: str) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"altair", "vl_convert", "jinja2", "torch", "ax"} & set(ran.stdout.split())
    assert _packages_of_sweeps(ran.stdout) <= {"text"}


def test_dollars_cost_status_neither_pandas_nor_numpy() -> None:
    code = "import sys; from analysis.summaries.costs import cost, rate; rate('v6e-4'); cost([], 3); print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"pandas", "numpy", "altair", "vl_convert", "torch", "ax"} & set(ran.stdout.split())
    assert _packages_of_sweeps(ran.stdout) <= {"text"}


def _packages_of_sweeps(modules: str) -> set[str]:
    return {name.split(".")[1] for name in modules.split() if name.startswith("sweeps.")}
