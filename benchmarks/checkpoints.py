"""Memory and time of a checkpoint, per process, of each format: `python -m benchmarks.checkpoints`.

Matrices that AdamW trains, in parts as FSDP has them; no model, as nothing here depends on one. Counted is
anonymous memory beyond what the process had before, sampled every millisecond; mapped files, which can be
dropped, are not in it.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

from trainer.checkpoint.checkpoints import Checkpoints
from trainer.checkpoint.layout import newest
from trainer.checkpoint.parts import MODEL, OPTIMIZER, OptimizerState, Weights
from trainer.checkpoint.policy import Parts
from trainer.checkpoint.state import State
from trainer.config import CheckpointConfig
from trainer.distributed.ranks import Ranks

MIB = 2**20


class _Nothing:
    def state(self) -> State:
        return State()

    def restore(self, state: State) -> None:
        pass


def _anonymous() -> int:
    with open("/proc/self/status", encoding="ascii") as file:  # noqa: PTH123 - it is no file of anybody's
        (line,) = (line for line in file if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024


def _peak(work: Callable[[], object]) -> tuple[int, float]:
    """Return the most bytes beyond those before, and seconds."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed, and would be used again without being counted
    before, top, done = _anonymous(), [0], threading.Event()

    def watch() -> None:
        while not done.is_set():
            top[0] = max(top[0], _anonymous())
            time.sleep(0.001)

    thread, began = threading.Thread(target=watch), time.perf_counter()
    thread.start()
    work()
    seconds = time.perf_counter() - began
    done.set()
    thread.join()
    return max(top[0], _anonymous()) - before, seconds


def _run(rank: int, world: int, port: int, how: str, root: str, matrices: int, side: int) -> None:
    torch.set_num_threads(1)
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    dist.init_process_group("gloo", rank=rank, world_size=world)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, zeros

    mesh = init_device_mesh("cpu", (world,))
    weights: dict[str, Tensor] = {
        f"w{n}": zeros(side, side, device_mesh=mesh, placements=[Shard(0)]) for n in range(matrices)
    }
    model = nn.ParameterDict({name: nn.Parameter(each) for name, each in weights.items()})
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    folder = Path(root)
    if rank == 0:
        (folder / "metrics.jsonl").touch()
    ranks, found = Ranks(rank=rank, world=world, parallel="fsdp"), None

    def checkpoints() -> Checkpoints:
        return Checkpoints(
            folder / "checkpoints",
            metrics=folder / "metrics.jsonl",
            config=CheckpointConfig(every_steps=1, every_seconds=0, keep=1, format=how, notice_seconds=0),  # type: ignore[arg-type] # `how` is a str
            config_sha256="0",
            found=found,
            peak_memory=lambda: 0,
            warn=print,
            ranks=ranks,
        )

    parts = Parts(
        lasting={MODEL: Weights(model)},
        passing={OPTIMIZER: OptimizerState([optimizer], model)},
        trace=_Nothing(),
    )
    waited = [0.0]

    def save() -> None:
        with checkpoints() as saving, saving.stage("stage", 2, lambda: parts) as stage:
            began = time.perf_counter()
            stage.after(1, {})
            waited[0] = time.perf_counter() - began

    saved, save_seconds = _peak(save)
    dist.barrier()
    found = newest(folder / "checkpoints", "0", print)
    optimizer.state.clear()
    dist.barrier()

    def load() -> None:
        with checkpoints() as loading, loading.stage("stage", 2, lambda: parts):
            pass

    loaded, load_seconds = _peak(load)
    row = {
        "format": how,
        "world": world,
        "rank": rank,
        "mib": round(3 * 4 * matrices * side**2 / MIB),
        "save_mib": round(saved / MIB),
        "load_mib": round(loaded / MIB),
        "step_waits_s": round(waited[0], 2),
        "save_s": round(save_seconds, 2),
        "load_s": round(load_seconds, 2),
    }
    for number in range(world):
        if number == rank:
            print(json.dumps(row), flush=True)
        dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Print a JSON line for each format, number of processes and process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--matrices", type=int, default=24)
    parser.add_argument("--side", type=int, default=1024)
    arguments = parser.parse_args()
    for how in ("whole", "sharded"):
        for world in arguments.worlds:
            with socket.socket() as probe, tempfile.TemporaryDirectory() as root:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
                probe.close()
                spawn(_run, (world, port, how, root, arguments.matrices, arguments.side), nprocs=world)


if __name__ == "__main__":
    main()
