"""What must not stand in the code of a training step, as XLA would break its graph at it, or crash."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import trainer

ROOT = Path(trainer.__file__).parent
HOT = sorted(
    path
    for place in ("losses", "quant", "stages", "optim", "training/train_step.py", "models/depth.py")
    for path in ((ROOT / place).rglob("*.py") if (ROOT / place).is_dir() else [ROOT / place])
)
READS = {"item", "tolist", "cpu", "numpy"}
"""Each waits for the device, and compiles whatever was recorded until then as a graph of its own."""


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node.func.attr, node


@pytest.mark.parametrize("path", HOT, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_tensor_is_read_in_a_step(path: Path) -> None:
    assert [f"{name}, line {call.lineno}" for name, call in calls(path) if name in READS] == []


def test_the_divergence_that_xla_has_no_gradient_for_is_not_used() -> None:
    """`aten::kl_div: autograd kernel not registered for dispatch key XLA`."""
    used = [path for path in ROOT.rglob("*.py") for name, _ in calls(path) if name in ("kl_div", "KLDivLoss")]
    assert used == []


REFUSED_ON_XLA = {"stochastic_rounding.py"}  # before the first step


def test_every_generator_lives_on_the_cpu() -> None:
    """`torch.Generator(device=xla)` crashes."""
    made = [
        (path.name, call.lineno)
        for path in ROOT.rglob("*.py")
        if path.name not in REFUSED_ON_XLA
        for name, call in calls(path)
        if name == "Generator" and (call.args or call.keywords)
    ]
    assert made == []


def test_the_search_would_find_them(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(
        "def f(x):\n    F.kl_div(x)\n    return x.sum().item(), torch.Generator(d)\n"
    )
    assert {name for name, _ in calls(tmp_path / "x.py")} == {"kl_div", "sum", "item", "Generator"}
