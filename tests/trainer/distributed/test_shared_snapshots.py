"""Processes that share a run write one snapshot, and start from one together, or all of them from scratch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shared_runs import Started, assert_the_same, metrics
from trainer_outcomes import TIMES, lines_without_times

from trainer.api import METRICS_FILE, MODEL_FOLDER, RESULT_FILE
from trainer.layout import SNAPSHOTS_FOLDER
from trainer.models.student_folder import WEIGHTS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # several processes, each of which loads torch

Start = Callable[..., Started]

SHORT = (
    *("stage1_9.max_steps=3", "stage1_9.saliency.enabled=true", "stage1_9.saliency.update_interval=1"),
    *("stage2.max_steps=3", "stage2.lambda_warmup.warmup_steps=2", "eval.at=[0.5,1.0]", "save_model=true"),
)


def outcome(folder: Path) -> tuple[bytes, dict[str, Any], list[dict[str, Any]]]:
    numbers = {name: value for name, value in metrics(folder).items() if name not in TIMES}
    return (folder / MODEL_FOLDER / WEIGHTS).read_bytes(), numbers, lines_without_times(folder / METRICS_FILE)


@pytest.mark.parametrize(
    ("parallel", "more"),
    [("ddp", ()), ("fsdp", ()), ("ddp", ("eval.batches=3",))],
    ids=["ddp", "fsdp", "ddp with other held-out text"],
)
def test_two_processes_from_a_snapshot_end_as_from_scratch(
    parallel: str, more: tuple[str, ...], start: Start, tmp_path: Path
) -> None:
    def run(name: str, *overrides: str) -> tuple[Path, str]:
        started = start(tmp_path / name, *SHORT, f"device.parallel={parallel}", *overrides)
        assert started.end() == [0, 0], started.output(0) + started.output(1)
        assert started.output(1) == ""
        return tmp_path / name, started.output(0)

    publisher, _ = run("publisher", "stage2.max_steps=0", "snapshots.write=true")
    scratch, _ = run("scratch", *more)
    for name in ("reused", "damaged"):
        shutil.copytree(publisher / SNAPSHOTS_FOLDER, tmp_path / name / SNAPSHOTS_FOLDER)
    (tmp_path / "damaged" / SNAPSHOTS_FOLDER / "stage1_9" / "model.safetensors").write_bytes(b"")
    reused, said = run("reused", *more)
    assert said.count("going on after stage1_9, from its snapshot") == 1
    ours, theirs = outcome(reused), outcome(scratch)
    assert ours[:2] == theirs[:2]
    assert [line for line in ours[2] if "loss" in line] == [line for line in theirs[2] if "loss" in line]
    if not more:
        assert ours[2] == theirs[2]
    assert json.loads((reused / RESULT_FILE).read_text())["stages"][0]["reused"] is True
    if parallel == "ddp" and not more:
        damaged, said = run("damaged", *more)
        assert said.count("the snapshot of stage1_9 cannot be used (model.safetensors has 0 bytes") == 1
        assert outcome(damaged) == theirs


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_from_a_point_end_as_from_scratch(parallel: str, start: Start, tmp_path: Path) -> None:
    """Each has a shard of the optimizer's state under FSDP, and its own rows of the text."""

    def run(name: str, *overrides: str) -> Path:
        given = (*SHORT, "eval.at=[]", f"device.parallel={parallel}", *overrides)
        started = start(tmp_path / name, *given)
        assert started.end() == [0, 0], started.output(0) + started.output(1)
        assert started.output(1) == ""
        return tmp_path / name

    publisher = run("publisher", "stage2.trunk_every=2", "save_model=false")
    scratch = run("scratch", "stage2.max_steps=4")
    shutil.copytree(publisher / SNAPSHOTS_FOLDER, tmp_path / "branch" / SNAPSHOTS_FOLDER)
    branch = run("branch", "stage2.max_steps=4")
    assert outcome(branch) == outcome(scratch)
    reused, continued = json.loads((branch / RESULT_FILE).read_text())["stages"]
    assert (reused["reused"], continued["branched_at"], continued["saved"]) == (True, 2, 2)


FSDP, TENSOR = ("device.parallel=fsdp",), ("device.parallel=fsdp", "device.mesh.tensor=2")


@pytest.mark.parametrize(
    ("published", "mesh", "world"),
    [(TENSOR, TENSOR, 2), (TENSOR, TENSOR, 4), (TENSOR, FSDP, 2), (FSDP, TENSOR, 2)],
    ids=["1 x 2 again", "1 x 2 on 2 x 2", "1 x 2 on 2 x 1", "2 x 1 on 1 x 2"],
)
def test_end_and_point_serve_their_mesh_to_the_bit_and_more_processes_to_rounding(
    published: tuple[str, ...], mesh: tuple[str, ...], world: int, start: Start, tmp_path: Path
) -> None:
    """The key has the mesh as it is configured, and not the number of processes: a run of another mesh uses neither."""

    def run(name: str, *overrides: str, world: int = world) -> Path:
        started = start(tmp_path / name, *SHORT, "eval.at=[]", *overrides, world=world)
        assert started.end() == [0] * world, "".join(map(started.output, range(world)))
        return tmp_path / name

    # It writes both: the second copy into host memory has other parts than the first.
    left = run("publisher", *published, "snapshots.write=true", "stage2.trunk_every=2", world=2)
    scratch = run("scratch", *mesh, "stage2.max_steps=4")
    for thing, branched_at in {"stage1_9": None, "stage2@2": 2}.items():
        shutil.copytree(left / SNAPSHOTS_FOLDER / thing, tmp_path / thing / SNAPSHOTS_FOLDER / thing)
        reused = run(thing, *mesh, "stage2.max_steps=4")
        alignment, training = json.loads((reused / RESULT_FILE).read_text())["stages"]
        found = (alignment["reused"], training.get("branched_at"))
        assert found == ((True, branched_at) if published == mesh else (False, None))
        if world == 2:
            assert outcome(reused) == outcome(scratch)
        else:
            assert_the_same(reused, scratch)
