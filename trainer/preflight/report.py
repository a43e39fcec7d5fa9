"""What `python -m trainer … --preflight` prints. Called by `__main__`."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from trainer.config import Config
from trainer.preflight.look import Look, line

_GIB = 2**30


def show(found: Look, config: Config) -> None:
    """The table and what speaks against the run, on standard output."""
    console = Console(highlight=False, soft_wrap=True)
    if found.stages:
        console.print(_table(found))
    console.print(line(found), markup=False)
    for refusal in found.refusals:
        word = "forced" if config.force else "refused"
        console.print(f"{word}: {refusal}", markup=False)


def _table(found: Look) -> Table:
    table = Table(title="estimated memory, GiB")
    table.add_column("")
    for name in ("at once", "weights", "gradients", "optimizer", "activations", "peak"):
        table.add_column(name, justify="right")
    for stage in found.stages:
        sizes = (stage.weights, stage.gradients, stage.optimizer, stage.activations, stage.peak)
        table.add_row(stage.name, str(stage.micro_batch), *(f"{size / _GIB:.2f}" for size in sizes))
    return table
