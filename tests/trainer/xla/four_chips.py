"""Four chips of XLA's CPU, in a process of their own: how a process sees its devices is settled when it starts.

Tests call `in_four`, which runs this file: stages, each by chips that share the batches alone and by chips
that share the weights too, some in a mesh of two dimensions; or a full run of the last kind.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOUR, FSDP = "device.num_chips=4", "device.parallel=fsdp"
PARALLEL = {"replicated": (), "fsdp": (FSDP,), "mesh": (FSDP, "device.mesh={data: 2, tensor: 2}")}
CACHED = "stage3 cached"
# By stage: both kinds of optimizers, and what else depends on full weights. At the size of Stage 2 XLA would
# rather exchange activations than weights, unless its outputs are annotated. Its lambda begins at 0, where a weight
# near a rounding edge counts for nothing yet: at 0.75 some processors are 1.9e-4 off in the third step.
RUNS = {
    "stage1_9": ("optimizer@stage1_9.optimizer=muon", "stage1_9.saliency.enabled=true"),
    "stage2": (
        "optimizer@stage2.optimizer=adamw",
        "stage2.lambda_warmup.start=0.0",
        "model.hidden_size=256",
        "model.intermediate_size=768",
    ),
    "stage3": ("optimizer@stage3.optimizer=muonclip", "stage3.optimizer.muonclip.tau=0.01"),
    CACHED: (
        "optimizer@stage3.optimizer=apollo",
        "stage3.optimizer.apollo.rank=8",
        "stage3.optimizer.apollo.update_interval=2",
    ),
}
STEP = 5


def of_stage(stage: str) -> tuple[str, ...]:
    """The overrides of a stage's run, whatever computes it: of one layer, in two micro-batches of four."""
    name = stage.split()[0]
    shared = (f"{name}.batch_size=8", f"{name}.micro_batch_size=4")
    return ("model.layers=1", "stage1.subln=ones", *shared, *RUNS[stage])


def strategies(stage: str) -> list[str]:
    """How the chips share the stage: graphs take long to compile, and with FSDP the batch is sharded as well."""
    return {"stage2": ["replicated", "fsdp"], "stage1_9": ["fsdp", "mesh"]}.get(stage, ["fsdp"])


def trained(stage: str, *overrides: str) -> Any:
    """What comes of the stage in this process."""
    from stage_runs import run_stage
    from xla_cached_runs import run_cached

    given = (*of_stage(stage), *overrides)
    return run_cached("xla", *given) if stage == CACHED else run_stage(stage, "xla", *given)


def in_four(folder: Path, *stages: str, run: Sequence[str] = ()) -> dict[str, Any]:
    """What came of stages by either kind; of a run with the overrides `run`, `folder / "full"` is left, and
    `folder / "middle"`, which is what would be left had it been killed in its STEP of Stage 2, and
    `folder / "again"`, where it went on from there. `compiled` tells what was compiled in its steps then."""
    own = Path(__file__)
    done = subprocess.run(
        [sys.executable, str(own), str(folder), json.dumps(stages), json.dumps(run)],
        capture_output=True,
        text=True,
        cwd=own.parent,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(own.parent), os.environ.get("PYTHONPATH", "")]),
        },
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _main(folder: Path, stages: Sequence[str], run: Sequence[str]) -> None:
    import conftest  # noqa: F401 - for its effect: XLA's CPU, compiled quickly

    graphs = folder / "graphs"
    os.environ["XLA_FLAGS"] += f" --xla_dump_to={graphs} --xla_dump_hlo_as_text" * bool(stages)

    from trainer.losses import chunked

    found: dict[str, Any] = {}
    for stage in stages:
        # As any real vocabulary is: each micro-batch in some four chunks. One chip needs no chunks.
        chunked._ELEMENTS = 2**14 if stage == CACHED else 2**10
        for how in strategies(stage):
            ran = trained(stage, FOUR, *PARALLEL[how])
            fields = ("parts", "compiled", "launched", "chips", "rows", "kept")
            found[f"{stage} {how}"] = {field: getattr(ran, field) for field in fields} | {
                "clipped": [float(step.details.get("qk_clipped_heads", 0)) for step in ran.steps],
                "exchanges": _exchanges(graphs),
            }
    if stages:
        found["odd"] = _odd_shapes()
    if run:
        found["compiled"] = _run(folder, [*run, FOUR, *PARALLEL["mesh"]])
    print(json.dumps(found))


def _exchanges(graphs: Path) -> dict[str, int]:
    """How often chips exchange something, by kind, in the largest of the graphs that were compiled; they are
    removed."""
    compiled = [path.read_text() for path in graphs.glob("*after_optimizations.txt")]
    shutil.rmtree(graphs)
    kinds = ("all-gather", "all-reduce", "all-to-all", "collective-permute")
    return {kind: max(compiled, key=len).count(f" {kind}(") for kind in kinds}


def _odd_shapes() -> list[list[list[int]]]:
    """What each chip has of matrices whose rows, and whose rows and columns, four do not divide."""
    import torch
    from stage_runs import on_each

    from trainer.api import check
    from trainer.devices.device import open_device

    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = torch.nn.Parameter(torch.zeros(6, 8))
            self.both = torch.nn.Parameter(torch.zeros(6, 7))
            self.layers = torch.nn.ModuleList()

        def get_decoder(self) -> torch.nn.Module:
            return self

    moved = open_device(check(["device=xla", FOUR, FSDP]).device).move(Odd())
    return [on_each(parameter) for parameter in moved.parameters()]


def _run(folder: Path, overrides: Sequence[str]) -> list[int]:
    import torch_xla.debug.metrics as met

    from trainer import __main__ as program
    from trainer.api import check
    from trainer.distributed import tpu_host
    from trainer.training.preemption import StopSignal
    from trainer.training.train_step import TrainStep

    step, compiled = TrainStep.__call__, list[int]()

    def watched(self: TrainStep, batch: Any, *, number: int) -> Any:
        if self.plan.name == "stage2":
            compiled.append(met.counter_value("UncachedCompile") or 0)
            if number == STEP and not (folder / "middle").exists():
                shutil.copytree(folder / "full", folder / "middle", ignore=shutil.ignore_patterns("*.tmp"))
        return step(self, batch, number=number)

    TrainStep.__call__ = watched  # type: ignore[method-assign]  # to observe it
    tpu_host.uses_xla = lambda *args: True
    for name in ("full", "again"):
        compiled.clear()
        program.train_in(folder / name, check([*overrides, f"run_dir={folder / name}"]), StopSignal())
        if name == "full":
            shutil.copytree(folder / "middle", folder / "again")
    return [count - compiled[0] for count in compiled]


if __name__ == "__main__":
    _main(Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3]))
