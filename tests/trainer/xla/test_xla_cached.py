"""Stage 3 from caches of a teacher and an anchor on XLA: one graph without [B, T, V], and the CPU's losses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import stage_runs
import torch
from stage_runs import BATCH, LENGTH, SMALLEST, VOCABULARY, run_stage
from torch import Tensor

from trainer.checkpoint.state import State
from trainer.data import Feed
from trainer.losses.sparse import Sample
from trainer.teacher_cache import read
from trainer.teacher_cache.draw import chances, draw

pytestmark = pytest.mark.xla

K, R = 6, 4
CACHED = (
    *SMALLEST,
    *("stage3/teacher=cached", "stage3.teacher.path=teacher", "stage3.attention_weight=0.0"),
    *(f"stage3.teacher.top_k={K}", f"stage3.teacher.negatives={R}", "optimizer@stage3.optimizer=adamw"),
    *("stage3.teacher.anchor=anchor", "stage3.teacher.anchor_weight=0.5"),
)
TOLERANCE = 2e-3  # as in test_xla_steps


class Text(Feed):
    """Random batches whose rows are numbered."""

    def __init__(self, batches: Iterator[Tensor]) -> None:
        self.batches, self.rows = list(batches), 0

    def __next__(self) -> Tensor:
        self.rows += BATCH
        return self.batches[self.rows // BATCH - 1]

    def state(self) -> State:
        return State(values={"rows": self.rows})

    def restore(self, state: State) -> None:
        raise NotImplementedError


class Chance:
    """A cache whose teacher predicts at random, each row otherwise."""

    def __init__(self, path: str, **how: object) -> None:
        self.seed, self.digest = len(path), path

    def rows(self, numbers: Sequence[int], ids_BT: Tensor) -> Sample:
        found = []
        for number in numbers:
            generator = torch.Generator().manual_seed(1000 * self.seed + number)
            logits = torch.randn(LENGTH - 1, VOCABULARY, generator=generator)
            found.append(draw(logits, K, torch.from_numpy(chances(self.seed, number, LENGTH - 1, R))))
        return Sample(
            ids=torch.stack([torch.cat([each.topk_idx, each.rand_idx], dim=-1) for each in found]),
            logits=torch.stack([torch.cat([each.topk_logits, each.rand_logits], dim=-1) for each in found]),
        )


@pytest.mark.parametrize("cross_entropy", ["sampled", "exact"])
def test_a_cached_step_is_one_graph_that_is_compiled_once_and_computes_what_a_cpu_does(
    cross_entropy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two micro-batches a step: the rows that each takes of its batch are no reason for another graph."""
    monkeypatch.setattr(read, "open_cache", Chance)
    plain = stage_runs.ids
    monkeypatch.setattr(
        stage_runs, "ids", lambda *given: Text(plain(*given)) if len(given) == 2 else plain(*given)
    )
    overrides = (*CACHED, f"stage3.teacher.cross_entropy={cross_entropy}", "stage3.micro_batch_size=2")
    xla, cpu = (run_stage("stage3", kind, *overrides) for kind in ("xla", "cpu"))
    assert xla.compiled[3:] == [0] * 4
    assert xla.launched[1:] == [1] * 6
    assert xla.fallen_back[1:] == [0] * 6
    assert xla.parts.keys() == cpu.parts.keys() == {"loss", "ce", "logits_kl", "anchor_kl"}
    for name, losses in cpu.parts.items():
        assert xla.parts[name] == pytest.approx(losses, rel=TOLERANCE), name
