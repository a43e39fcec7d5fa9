"""Runs of several processes that share the work: what torchrun starts, without the price of torchrun.

The processes are forked off a server that has loaded torch once, so that each starts in a fraction of a second.
`test_torchrun.py` has the same through torchrun itself.
"""

from __future__ import annotations

import signal
import socket
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from shared_runs import Started, contribute, take_part

from trainer import __main__ as program

Target = Callable[[list[str], dict[str, str], Path], None]


@pytest.fixture
def start(
    forkserver: ForkServerContext, small: tuple[str, ...], cache_folder: Path, tmp_path: Path
) -> Iterator[Callable[..., Started]]:
    """`start(folder, *overrides, world=2, common=small, target=take_part)`: the processes of one run, under way."""
    running: list[BaseProcess] = []

    def start(
        folder: Path,
        *overrides: str,
        world: int = 2,
        common: tuple[str, ...] = small,
        target: Target = take_part,
    ) -> Started:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        outputs = [tmp_path / f"{folder.name}.{world}.{rank}.txt" for rank in range(world)]
        processes: list[BaseProcess] = []
        for rank in range(world):
            environment = {
                "STAGESWEEP_CACHE": str(cache_folder),
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
            argv = [*common, *overrides, f"run_dir={folder}"]
            processes.append(forkserver.Process(target=target, args=(argv, environment, outputs[rank])))
        for process in processes:
            process.start()
        running.extend(processes)
        return Started(processes, outputs)

    yield start
    for process in running:
        if process.is_alive():
            process.kill()
        process.join()


@pytest.fixture
def together(forkserver: ForkServerContext, tmp_path: Path) -> Callable[..., list[Any]]:
    """`together(function, *arguments, world=2)`: what a function of a test module gives in each process of a group.

    With `dying=True` their exit statuses.
    """

    def together(
        function: Callable[..., Any], *arguments: Any, world: int = 2, dying: bool = False
    ) -> list[Any]:
        name = f"{function.__name__}.{uuid.uuid4().hex}"
        outs = [tmp_path / f"{name}.{rank}" for rank in range(world)]
        places = [
            (partial(function, *arguments), (rank, world), tmp_path / f"{name}.meeting", outs[rank])
            for rank in range(world)
        ]
        processes = [forkserver.Process(target=contribute, args=place) for place in places]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        statuses = [process.exitcode for process in processes]
        if dying:
            return statuses
        assert statuses == [0] * world
        return [torch.load(out, weights_only=False) for out in outs]

    return together


@pytest.fixture
def in_two(together: Callable[..., list[Any]]) -> Callable[[Callable[[], Any]], list[Any]]:
    """`in_two(function)`: what a function of a test module gives in each of two processes that have joined."""
    return together


@pytest.fixture
def alone(small: tuple[str, ...]) -> Iterator[Callable[..., Path]]:
    """A run of one process, this one."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def alone(folder: Path, *overrides: str, common: tuple[str, ...] = small) -> Path:
        assert program.main([*common, *overrides, f"run_dir={folder}"]) == 0
        return folder

    yield alone
    for number, handler in handlers.items():
        signal.signal(number, handler)
