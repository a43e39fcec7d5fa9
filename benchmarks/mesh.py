"""Four processes beside one, in each way that they can share a run: `python -m benchmarks.mesh`.

Each takes steps of Stage 2 with a teacher over a student of about ten million parameters. Counted are seconds
a step, the median, and what a process keeps of a forward pass for the backward pass, each storage once and
without weights: that is what a tensor dimension is to save. Prints a row of a Markdown table for each way.
"""

from __future__ import annotations

import argparse
import copy
import os
import socket
import statistics
import time

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from benchmarks.run import TEN_MILLION
from trainer.api import check
from trainer.config import TinyModelConfig
from trainer.devices.device import Device
from trainer.distributed.ranks import Ranks
from trainer.models.causal_lm import build_tiny, freeze
from trainer.models.subln import make_student
from trainer.optim.build import build_optimizer
from trainer.stages.pretrain import distillation
from trainer.training.context import StagePlan
from trainer.training.parallel import strategy_for
from trainer.training.train_step import TrainStep

WAYS = {
    "one": Ranks(),
    "ddp": Ranks(world=4, parallel="ddp"),
    "fsdp": Ranks(world=4, parallel="fsdp"),
    "fsdp, 2 x 2": Ranks(world=4, parallel="fsdp", tensor=2),
    "fsdp, 1 x 4": Ranks(world=4, parallel="fsdp", tensor=4),
}


def _run(rank: int, way: str, port: int, steps: int) -> None:
    torch.set_num_threads(1)
    ranks = Ranks(rank=rank, world=WAYS[way].world, parallel=WAYS[way].parallel, tensor=WAYS[way].tensor)
    if not ranks.alone:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        dist.init_process_group("gloo", rank=rank, world_size=ranks.world)
    config = check([*TEN_MILLION, "stage2.distill.weight=1.0"])
    assert isinstance(config.model, TinyModelConfig)
    cpu = torch.device("cpu")
    device = Device(torch_device=cpu, dtype=torch.float32, name="CPU", attention="sdpa", ranks=ranks)
    torch.manual_seed(0)
    length, vocabulary = config.data.sequence_length, config.data.vocab_size
    teacher = build_tiny(config.model, vocab_size=vocabulary, sequence_length=length, attention="sdpa")
    teacher = freeze(teacher)
    student, _ = make_student(teacher, config.stage1, None, quant=config.quant, device=device)
    plan, strategy = StagePlan.from_config("stage2", config.stage2), strategy_for(student, device)
    with strategy.running():  # it tries the model
        objective = distillation(student, copy.deepcopy(teacher), config.stage2.distill)
    strategy.begin()
    step = TrainStep(
        plan,
        student,
        objective,
        build_optimizer(student, plan.optimizer, ranks=ranks),
        device,
        strategy=strategy,
    )
    rows = config.stage2.batch_size // ranks.data_world
    weights = {parameter.shape for parameter in student.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.shape not in weights:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    seconds = []
    with strategy:
        for number in range(1, steps + 1):
            ids_BT = torch.randint(vocabulary, (config.stage2.batch_size, length))[ranks.data_rank * rows :]
            began = time.perf_counter()
            step(ids_BT[:rows], number=number)
            seconds.append(time.perf_counter() - began)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            step.accumulate(ids_BT[:rows])
    if ranks.first:
        print(
            f"| {way} | {statistics.median(seconds[1:]):.2f} | {sum(kept.values()) / 2**20:.0f} |", flush=True
        )
    if not ranks.alone:
        dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    arguments = parser.parse_args()
    print("| processes | seconds a step | MiB kept for the backward pass |\n|---|---|---|")
    for way in arguments.ways:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        spawn(_run, (way, port, arguments.steps), nprocs=WAYS[way].world)


if __name__ == "__main__":
    main()
