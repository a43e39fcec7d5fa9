"""Output of `python -m trainer … --preflight`. Called by `__main__`."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from trainer.config import Config
from trainer.preflight.preflight import Preflight, summary_line
from trainer.text import byte_size


def show(found: Preflight, config: Config) -> None:
    """Print the table of memory, the other estimates and the refusals."""
    console = Console(highlight=False, soft_wrap=True)
    if found.stages:
        console.print(_table(found))
    console.print(summary_line(found), markup=False)
    for refusal in found.refusals:
        word = "forced" if config.force else "refused"
        console.print(f"{word}: {refusal}", markup=False)


def _table(found: Preflight) -> Table:
    # Narrow enough for 80 columns: a wider one is cut off.
    table = Table(title="estimated memory", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for name in ("at once", "weights", "gradients", "optimizer", "activations", "peak"):
        table.add_column(name, justify="right")
    for stage in found.stages:
        sizes = (stage.weights, stage.gradients, stage.optimizer, stage.activations, stage.peak)
        table.add_row(stage.name, str(stage.micro_batch), *(byte_size(size) for size in sizes))
    return table
