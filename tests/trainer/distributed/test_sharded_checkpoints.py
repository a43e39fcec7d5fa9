"""Checkpoints of which each process writes its own part, and any number of processes reads what it needs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from shared_runs import Started, assert_the_same
from test_parts_of_matrices import STEPS, optimizers_over, train
from test_shared_checkpoints import LONG, wait_for_line
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.optim import Optimizer

from benchmarks.tensor_memory import peak_bytes
from trainer.checkpoint import sharded, writer
from trainer.checkpoint.checkpoints import Checkpoints
from trainer.checkpoint.layout import Found, listing, newest
from trainer.checkpoint.parts import BATCHES, MODEL, RANDOM, Buffers, OptimizerState, Random, Weights
from trainer.checkpoint.policy import Parts
from trainer.checkpoint.run_folder import open_checkpoint
from trainer.checkpoint.state import State, StateError
from trainer.config import CheckpointConfig
from trainer.config.training import AverageConfig
from trainer.distributed.ranks import ALONE, Ranks
from trainer.distributed.tensors import full_tensor, local_tensor
from trainer.training.weight_average import WeightAverage

pytestmark = pytest.mark.timeout(600)  # several processes, each of which loads torch

Together = Callable[..., list[Any]]
Start = Callable[..., Started]
KINDS = ("muon", "adamw", "apollo")
SHAPES = {"tall": (70, 40), "wide": (50, 80), "square": (60, 60), "thin": (1, 60)}


def ranks(parallel: str = "fsdp") -> Ranks:
    world = torch.distributed.get_world_size()
    return Ranks(rank=torch.distributed.get_rank(), world=world, parallel=parallel)


def model(world: int, seed: int = 1, *, parts: bool = True) -> nn.Module:
    """Matrices of uneven parts, one of which is empty, and a buffer of a stage as the saliency has it."""
    generator = torch.Generator().manual_seed(seed)
    weights = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    if world > 1 and parts:
        mesh = init_device_mesh("cpu", (world,))
        weights = {name: distribute_tensor(each, mesh, [Shard(0)]) for name, each in weights.items()}
    module: nn.Module = nn.ParameterDict({name: nn.Parameter(each) for name, each in weights.items()})
    module.register_buffer("norms", torch.full((80,), float(seed)), persistent=False)
    return module


class Run:
    """A run of one stage whose steps a test takes itself, with all parts that have tensors."""

    def __init__(
        self, folder: Path, kind: str, found: Found | None = None, *, how: str = "auto", **options: Any
    ):
        self.ranks = ALONE
        if torch.distributed.is_initialized():
            self.ranks = ranks(options.get("parallel", "fsdp"))
        self.folder, self.warnings = folder, list[str]()
        self.model = model(self.ranks.world, 2 if found else 1, parts=self.ranks.parallel == "fsdp")
        self.optimizer: Optimizer = optimizers_over(self.model)[kind]
        self.average = WeightAverage(
            self.model, AverageConfig(type="ema", decay=0.5, steps=1), stage="stage", steps=9
        )
        self.average.begin()
        if self.ranks.first:
            (folder / "metrics.jsonl").touch()
        self.checkpoints = Checkpoints(
            folder / "checkpoints",
            metrics=folder / "metrics.jsonl",
            config=CheckpointConfig(every_steps=1, every_seconds=0.0, keep=9, format=how, notice_seconds=0),
            config_sha256="0",
            found=found,
            peak_memory=lambda: 0,
            warn=self.warnings.append,
            ranks=self.ranks,
        )

    def parts(self) -> dict[str, Any]:
        return {
            MODEL: Weights(self.model),
            RANDOM: Random(torch.device("cpu")),
            "average": self.average,
            "buffers": Buffers(self.model),
            "optimizer": OptimizerState([self.optimizer], self.model),
            BATCHES: Lanes(self.ranks),
        }

    def go(self, steps: int, each: Callable[[int], None] = lambda step: None) -> None:
        parts = self.parts()
        lasting = {name: parts.pop(name) for name in (MODEL, RANDOM, "average")}
        made = Parts(lasting=lasting, passing=parts, trace=Trace())
        with self.checkpoints, self.checkpoints.stage("stage", STEPS, lambda: made) as kept:
            for step in range(kept.done + 1, steps + 1):
                train(self.model, self.optimizer, range(step, step + 1))
                self.average.after(step)
                self.checkpoints._writer.wait()
                each(step)
                kept.after(step, {})

    def content(self) -> dict[str, Tensor]:
        """All tensors, whole, and those of plain values that a step changes."""
        states = {name: part.state() for name, part in self.parts().items() if name != RANDOM}
        found = {
            f"{part}/{name}": full_tensor(tensor.detach()).clone()
            for part, state in states.items()
            for name, tensor in state.tensors.items()
        }
        return found | {"count": torch.tensor(self.average.state().values["count"])}


class Lanes:
    """Positions in a text, of which each process has its own, as streamed text has them."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def state(self) -> State:
        own = {str(self._ranks.rank): [self._ranks.rank, 7]}
        return State(values={"rows": 4, "lanes": own}, per_process=("lanes",))

    def restore(self, state: State) -> None:
        pass


class Trace:
    """Losses so far, as a stage has them."""

    losses = torch.ones(3, dtype=torch.float64)

    def state(self) -> State:
        return State(tensors={"loss": self.losses}, values={"tokens": 7})

    def restore(self, state: State) -> None:
        assert state.values == {"tokens": 7}
        torch.testing.assert_close(state.tensors["loss"], self.losses)


def found_in(folder: Path) -> Found:
    found = newest(folder / "checkpoints", "0", pytest.fail)
    assert found is not None
    return found


def left_in(folder: Path) -> Found:
    """Return the last checkpoint, in any process: only the first of a run looks for the newest, which tidies up."""
    return open_checkpoint(folder, listing(folder / "checkpoints")[0].name)


def save(root: Path, how: str = "auto", parallel: str = "fsdp") -> dict[str, dict[str, Tensor]]:
    contents = {}
    for kind in KINDS:
        (root / kind).mkdir(exist_ok=True)
        torch.distributed.barrier()
        torch.manual_seed(torch.distributed.get_rank())
        run = Run(root / kind, kind, how=how, parallel=parallel)
        run.go(STEPS - 1)
        assert run.warnings == []
        contents[kind] = run.content()
    return contents


def resume(root: Path, *, parallel: str = "fsdp") -> dict[str, tuple[dict[str, Tensor], Tensor]]:
    contents = {}
    for kind in KINDS:
        run = Run(root / kind, kind, left_in(root / kind), parallel=parallel)
        run.go(STEPS - 1)  # restores, and takes no step
        contents[kind] = run.content(), torch.get_rng_state()
    return contents


def assert_equal(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


@pytest.mark.parametrize("parallel", ["fsdp", "ddp"])
def test_sharded_checkpoint_is_read_on_any_mesh(parallel: str, together: Together, tmp_path: Path) -> None:
    """By as many processes, by more, by one, and by those that have whole weights; the bits are the same."""
    saved = together(save, tmp_path, "sharded", parallel)
    for kind in KINDS:
        names = {path.name for path in found_in(tmp_path / kind).path.iterdir()}
        shards = {f"shard-{number:05d}-model-00001-of-00001.safetensors" for number in (1, 2)}
        assert names == {"state.json", "metrics.copy", *shards}
    again = [together(resume, tmp_path, world=world) for world in (2, 4)] if parallel == "fsdp" else []
    for readers in (*again, [resume(tmp_path)]):
        for each in readers:
            for kind, (content, random) in each.items():
                assert_equal(content, saved[0][kind])
                torch.manual_seed(0)
                assert torch.equal(random, torch.get_rng_state())  # of the first process


def test_whole_checkpoint_of_one_process_is_read_in_parts(together: Together, tmp_path: Path) -> None:
    expected = {}
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        run = Run(tmp_path / kind, kind)
        run.go(STEPS - 1)
        expected[kind] = run.content()
        assert (found_in(tmp_path / kind).path / "model.safetensors").exists()
    for each in together(resume, tmp_path):
        for kind, (content, _) in each.items():
            assert_equal(content, expected[kind])


def test_processes_write_whole_files_when_asked_to(together: Together, tmp_path: Path) -> None:
    saved = together(save, tmp_path, "whole")
    for kind in KINDS:
        assert not found_in(tmp_path / kind).manifest.sharded
        assert_equal(resume(tmp_path)[kind][0], saved[0][kind])


def save_once(root: Path, how: str, parallel: str) -> None:
    Run(root, "adamw", how=how, parallel=parallel).go(1)


@pytest.mark.parametrize(("how", "parallel"), [("whole", "ddp"), ("sharded", "fsdp")])
def test_checkpoint_has_the_positions_of_all_processes(
    how: str, parallel: str, together: Together, tmp_path: Path
) -> None:
    together(save_once, tmp_path, how, parallel)
    values = found_in(tmp_path).manifest.values[BATCHES]
    assert values == {"rows": 4, "lanes": {"0": [0, 7], "1": [1, 7]}}


def bytes_of_a_save_and_a_load(root: Path, how: str) -> tuple[int, int, int, int]:
    """Bytes in host copies, most that a load makes, of this process's weights, and of its optimizer's state."""
    run = Run(root, "adamw", how=how)
    run.go(STEPS - 1)
    torch.distributed.barrier()
    held = sum(copies.nbytes for copies in run.checkpoints._copies.values())
    weights = sum(local_tensor(each.detach()).nbytes for each in run.model.parameters())
    again = Run(root, "adamw", left_in(root), how=how)
    return held, peak_bytes(lambda: again.go(STEPS - 1)), weights, 2 * weights


def test_no_process_holds_more_than_its_own_part(together: Together, tmp_path: Path) -> None:
    """Weights, average and two moments: four times the weights; a little more for what is not in parts."""
    small = 16_000  # random states and buffers, of the first process
    whole = 4 * 4 * sum(rows * columns for rows, columns in SHAPES.values())
    for held, made, weights, moments in together(bytes_of_a_save_and_a_load, tmp_path, "sharded", world=4):
        assert held <= 4 * weights + small
        assert held < whole / 2
        assert made <= moments + small  # the moments; all else is read into what is there
    other = tmp_path / "whole"
    other.mkdir()
    first, *rest = together(bytes_of_a_save_and_a_load, other, "whole", world=4)
    assert first[0] >= whole
    assert all(held == 0 for held, *_ in rest)


# ---- processes that die, and disks that are full


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_in_a_save(root: Path, moment: str, rank: int, fatal: int = 2) -> None:
    """Take two steps; one process is killed at a moment of the second checkpoint's writing."""
    run, calls = Run(root, "muon"), [0]
    where = {
        "the draft": (writer.layout, "draft_in"),
        "its part": (sharded, "save_file"),
        "its digest": (writer, "file_digest"),
        "the manifest": (writer, "encode"),
        "the name": (writer.layout, "point_to"),
    }
    module, name = where[moment]
    really = getattr(module, name)

    def dying(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == fatal and torch.distributed.get_rank() == rank:
            _die()
        return really(*arguments, **options)

    setattr(module, name, dying)
    run.go(2)


MOMENTS = [
    ("the draft", 0),
    ("its part", 0),
    ("its part", 1),
    ("its digest", 1),
    ("the manifest", 0),
    ("the name", 0),
]


@pytest.mark.parametrize(("moment", "rank"), MOMENTS)
def test_killed_process_leaves_an_earlier_checkpoint(
    moment: str, rank: int, together: Together, tmp_path: Path
) -> None:
    statuses = together(die_in_a_save, tmp_path, moment, rank, dying=True)
    assert statuses[rank] == -signal.SIGKILL
    complete = moment == "the name"
    assert found_in(tmp_path).manifest.step == (2 if complete else 1)
    assert all(not path.name.startswith(".") for path in (tmp_path / "checkpoints").iterdir())
    run = Run(tmp_path, "muon", found_in(tmp_path))
    run.go(3)  # one process goes on
    assert found_in(tmp_path).manifest.step == 3


def full_disk(root: Path) -> tuple[list[str], int | None]:
    """The second process's disk is full at the second of three checkpoints."""
    run, calls, really = Run(root, "muon"), [0], sharded.save_file

    def full(*arguments: Any, **options: Any) -> None:
        calls[0] += 1
        if calls[0] == 2 and torch.distributed.get_rank() == 1:
            raise OSError(28, "No space left on device")
        really(*arguments, **options)

    sharded.save_file = full
    run.go(3)
    return run.warnings, run.checkpoints._writer.last


def test_full_disk_of_one_process_leaves_all_as_it_was(together: Together, tmp_path: Path) -> None:
    (warnings, last), (none, other) = together(full_disk, tmp_path)
    (warning,) = warnings
    assert warning.startswith(
        "the checkpoint after 2 steps could not be written (in process 1: No space left"
    )
    assert none == []
    assert last == other == 3
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "00000001",
        "00000003",
        "latest",
    ]


def test_damaged_part_is_recognised(together: Together, tmp_path: Path) -> None:
    together(die_in_a_save, tmp_path, "its part", 1, 99)  # nobody dies
    shard = found_in(tmp_path).path / "shard-00002-model-00001-of-00001.safetensors"
    content = bytearray(shard.read_bytes())
    content[-3] ^= 1
    shard.write_bytes(content)
    warnings = list[str]()
    found = newest(tmp_path / "checkpoints", "0", warnings.append)
    assert found is not None
    assert found.manifest.step == 1
    assert f"{shard.name} does not match its checksum" in warnings[0]


def test_checkpoint_of_another_model_is_refused_before_it_is_read(together: Together, tmp_path: Path) -> None:
    together(die_in_a_save, tmp_path, "its part", 1, 99)
    run = Run(tmp_path, "muon", found_in(tmp_path))
    run.model.tall = nn.Parameter(torch.zeros(3, 4))
    before = [weight.detach().clone() for weight in run.model.parameters()]
    with pytest.raises(StateError, match=r"\(model: tall is \(70, 40\)"):
        run.go(3)
    assert all(map(torch.equal, before, run.model.parameters()))


# ---- whole runs


@pytest.mark.slow
@pytest.mark.parametrize("kept", ["whole", "sharded"])
def test_run_moves_from_two_processes_to_a_mesh_and_to_one(
    kept: str, start: Start, alone: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    worlds = [(2, "device.mesh.data=2", 9), (4, "device.mesh={data: 2, tensor: 2}", 15)]
    for world, mesh, line in worlds:
        started = start(folder, *LONG, "device.parallel=fsdp", f"checkpoint.format={kept}", mesh, world=world)
        wait_for_line(started, folder, line)
        os.kill(started.processes[-1].pid or 0, signal.SIGTERM)
        assert started.end() == [75] * world, started.output(0)
        shards = list(max((folder / "checkpoints").glob("0*")).glob("shard-*"))
        assert len(shards) == (world if kept == "sharded" else 0)
    alone(folder, *LONG)
    assert_the_same(folder, alone(tmp_path / "whole", *LONG))
