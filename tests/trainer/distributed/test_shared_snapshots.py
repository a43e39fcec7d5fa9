"""Processes that share a run write one snapshot, and start from one together, or all of them from scratch."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from shared_runs import Started, assert_the_same, metrics, outcome
from streamed_parquet import streamed, write_parts
from trainer_precision import FLOAT32

from trainer.api import RESULT_FILE
from trainer.layout import SNAPSHOTS_FOLDER

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # several processes, each of which loads torch

Start = Callable[..., Started]

SHORT = (
    *("stage1_9.max_steps=3", "stage1_9.saliency.enabled=true", "stage1_9.saliency.update_interval=1"),
    *("stage2.max_steps=3", "stage2.lambda_warmup.warmup_steps=2", "eval.at=[0.5,1.0]", "save_model=true"),
)


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


@pytest.mark.parametrize(
    ("parallel", "text"), [("ddp", "in memory"), ("fsdp", "in memory"), ("ddp", "streamed")]
)
def test_two_processes_from_a_point_end_as_from_scratch(
    parallel: str, text: str, start: Start, small: tuple[str, ...], tmp_path: Path
) -> None:
    """Each has a shard of the optimizer's state under FSDP, and its own rows of the text."""
    if text == "streamed":
        write_parts(tmp_path)
        small = streamed(small, tmp_path)

    def run(name: str, *overrides: str) -> Path:
        given = (*SHORT, "eval.at=[]", f"device.parallel={parallel}", *overrides)
        started = start(tmp_path / name, *given, common=small)
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
MESHES = {
    "one": (1, ()),
    "ddp": (2, ("device.parallel=ddp",)),
    "2 x 1": (2, (*FSDP, "device.teacher=sharded")),
    "1 x 2": (2, TENSOR),
    "2 x 2": (4, TENSOR),
}
"""Numbers of processes, and how they share a run."""


@pytest.fixture
def run_on(start: Start) -> Callable[..., Path]:
    """Return `run_on(mesh, folder, *overrides)`, which runs on one of MESHES to the end and returns the folder."""

    def run_on(mesh: str, folder: Path, *overrides: str) -> Path:
        world, how = MESHES[mesh]
        common = (*SHORT, *FLOAT32, "eval.at=[]", "stage2.max_steps=4")
        started = start(folder, *common, *how, *overrides, world=world)
        assert started.end() == [0] * world, "".join(map(started.output, range(world)))
        return folder

    return run_on


@pytest.fixture
def published_run(
    run_on: Callable[..., Path], remembered: Callable[[str, Callable[[], str]], str], session_folder: Path
) -> Callable[..., Path]:
    """Return `published_run(mesh, *overrides)`: a run from scratch that has left its end of Stage 1.9 and a point."""

    def publish(mesh: str, *overrides: str) -> str:
        folder = session_folder / uuid.uuid4().hex
        # It writes both: the second copy into host memory has other parts than the first.
        return str(run_on(mesh, folder, "snapshots.write=true", "stage2.trunk_every=2", *overrides))

    def published_run(mesh: str, *overrides: str) -> Path:
        return Path(remembered(f"published on {mesh} {overrides}", lambda: publish(mesh, *overrides)))

    return published_run


def run_continued_from(
    run_on: Callable[..., Path], mesh: str, folder: Path, thing: Path, *overrides: str
) -> Path:
    """Run on a mesh from what another run has published, and check that it did begin there."""
    shutil.copytree(thing, folder / SNAPSHOTS_FOLDER / thing.name)
    run_on(mesh, folder, *overrides)
    alignment, training = json.loads((folder / RESULT_FILE).read_text())["stages"]
    step = thing.name.partition("@")[2]
    assert (alignment["reused"], training.get("branched_at")) == (True, int(step) if step else None)
    return folder


END, POINT = "stage1_9", "stage2@2"


@pytest.mark.parametrize(
    ("mesh", "left"),
    [
        ("one", (("2 x 2", END), ("1 x 2", POINT))),
        ("ddp", (("one", POINT),)),
        ("2 x 1", (("1 x 2", END),)),
        ("1 x 2", (("2 x 1", POINT), ("1 x 2", END), ("1 x 2", POINT))),
        ("2 x 2", (("ddp", END),)),
    ],
)
def test_end_and_point_of_a_mesh_serve_others(
    mesh: str,
    left: tuple[tuple[str, str], ...],
    run_on: Callable[..., Path],
    published_run: Callable[..., Path],
    tmp_path: Path,
) -> None:
    """To rounding on other meshes, and to the bit on their own: of those without tensor groups see above."""
    scratch = published_run(mesh)
    for publisher, thing in left:
        source = published_run(publisher) / SNAPSHOTS_FOLDER / thing
        reused = run_continued_from(run_on, mesh, tmp_path / f"{thing} of {publisher}", source)
        assert_the_same(reused, scratch)
        if publisher == mesh:
            assert outcome(reused) == outcome(scratch)


def test_stochastic_rounding_goes_on_from_another_mesh(
    run_on: Callable[..., Path], published_run: Callable[..., Path], tmp_path: Path
) -> None:
    """Each process draws for its own shard, and on another mesh others: a rounding of bfloat16 apart."""
    rounded = (
        *("model.master_dtype=bfloat16", "device.dtype=bfloat16"),
        *(f"{stage}.optimizer.stochastic_rounding=true" for stage in ("stage1_9", "stage2")),
    )
    point = published_run("2 x 1", *rounded) / SNAPSHOTS_FOLDER / "stage2@2"
    assert outcome(run_continued_from(run_on, "2 x 1", tmp_path / "again", point, *rounded)) == outcome(
        published_run("2 x 1", *rounded)
    )
    run = run_continued_from(run_on, "one", tmp_path / "one", point, *rounded)
    ours, theirs = metrics(run), metrics(published_run("one", *rounded))
    for name in ("final_loss", "stage2_train_loss"):
        assert ours[name] == pytest.approx(theirs[name], rel=1e-2), name
