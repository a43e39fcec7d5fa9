"""Two stages over a small model with dropout, ended after any steps in any way: the same weights, bit for bit.

Without the pipeline and its teacher, so that many histories can be tried.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kept_runs import KilledError, kill, names, terminate
from torch import Tensor, nn

from trainer.api import check
from trainer.checkpoint.checkpoints import Checkpoints
from trainer.checkpoint.layout import newest
from trainer.checkpoint.state import State
from trainer.config import CheckpointConfig
from trainer.devices.device import Device
from trainer.errors import PreemptedError
from trainer.training.context import StageContext
from trainer.training.loop import StagePlan, StageTrace, Step, train
from trainer.training.preemption import StopSignal

DEVICE = Device(torch_device=torch.device("cpu"), dtype=torch.float32, name="CPU", attention="eager")
LENGTHS = {"first": 7, "second": 5}
CONFIG = check([]).stage2


class Toy(nn.Module):
    """A bigram model with dropout, a tied end, a buffer that is kept and one that passes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        self.head.weight = self.embedding.weight
        self.middle, self.dropout = nn.Linear(4, 4), nn.Dropout(0.3)
        self.register_buffer("observed", torch.zeros((), dtype=torch.int64))
        self.register_buffer("average", torch.zeros(4), persistent=False)

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def losses(self, ids_BT: Tensor) -> dict[str, Tensor]:
        hidden = self.dropout(self.middle(self.embedding(ids_BT[:, :-1])))
        with torch.no_grad():
            self.observed += 1
            self.average.lerp_(hidden.mean(dim=(0, 1)), 0.1)
        logits = self.head(hidden - self.average)
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), ids_BT[:, 1:].flatten())}


class Numbered(Iterator[Tensor]):
    """Batches that follow from their number."""

    def __init__(self, seed: int) -> None:
        self.seed, self.position = seed, 0

    def __next__(self) -> Tensor:
        self.position += 1
        generator = torch.Generator().manual_seed(1000 * self.seed + self.position)
        return torch.randint(8, (2, 6), generator=generator)

    def state(self) -> State:
        return State(values={"position": self.position})

    def restore(self, state: State) -> None:
        self.position = state.values["position"]


def run(folder: Path, every: int, keep: int, watch: Callable[[Step], None]) -> list[object]:
    """Both stages in a folder, and all that came of them."""
    metrics = folder / "metrics.jsonl"
    metrics.touch()
    toy, traces = Toy(), list[StageTrace]()
    stop = StopSignal()
    stop.install()
    checkpoints = Checkpoints(
        folder / "checkpoints",
        metrics=metrics,
        config=CheckpointConfig(
            every_steps=every, every_seconds=0, keep=keep, format="auto", notice_seconds=0
        ),
        config_sha256="0",
        found=newest(folder / "checkpoints", "0", pytest.fail),
        peak_memory=lambda: 0,
        warn=pytest.fail,
    )
    with checkpoints:
        for number, (name, steps) in enumerate(LENGTHS.items()):

            def prepare(step: int) -> dict[str, float]:
                toy.average.mul_(1.1**step)
                return {"pace": 1.1**step}

            trace = train(
                StagePlan(name=name, steps=steps, optimizer=CONFIG.optimizer, schedule=CONFIG.schedule),
                toy,
                toy.losses,
                Numbered(number),
                StageContext(device=DEVICE, stop=stop, watch=watch, checkpoints=checkpoints),
                prepare=prepare,
            )
            traces.append(trace)
            checkpoints.once(f"after {name}", lambda: {"weight": toy.middle.weight.sum().item()})
    weights = {name: value.tolist() for name, value in toy.state_dict().items()}
    return [
        weights,
        [trace.losses for trace in traces],
        checkpoints.once("after first", dict),
    ]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    return run(tmp_path_factory.mktemp("uninterrupted"), every=0, keep=1, watch=lambda step: None)


ends = st.lists(st.tuples(st.sampled_from([kill, terminate]), st.integers(1, 12)), min_size=1, max_size=4)


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(every=st.integers(0, 5), keep=st.integers(1, 3), ends=ends)
def test_any_history_comes_to_the_same(every, keep, ends, expected, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # no power is cut here
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    for end, at in ends:
        taken = []

        def watch(step: Step, end=end, at=at, taken=taken) -> None:
            taken.append(step)
            if len(taken) == at:
                end()

        try:
            came = run(folder, every, keep, watch)
        except (KilledError, PreemptedError):
            assert len(names(folder)) <= keep
            continue
        break
    else:
        came = run(folder, every, keep, lambda step: None)
    assert came == expected
