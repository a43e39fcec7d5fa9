"""Stage 3 of a very small model from caches of a teacher and an anchor, as `stage_runs` trains the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from unittest.mock import patch

import stage_runs
import torch
from stage_runs import LENGTH, VOCABULARY, Ran, run_stage
from torch import Tensor

from trainer.checkpoint.state import State
from trainer.data.feed import Feed
from trainer.losses.sparse import Sample
from trainer.teachers.cached import reader
from trainer.teachers.cached.sampling import draw, uniforms

K, R = 6, 4
CACHED = (
    *("stage3/teacher=cached", "stage3.teacher.path=teacher", "stage3.attention_weight=0.0"),
    *(f"stage3.teacher.top_k={K}", f"stage3.teacher.negatives={R}"),
    *("stage3.teacher.anchor=anchor", "stage3.teacher.anchor_weight=0.5"),
)


class Text(Feed):
    """Random batches whose rows are numbered."""

    def __init__(self, batches: Iterator[Tensor]) -> None:
        self.batches, self.rows = iter(batches), 0

    def __next__(self) -> Tensor:
        ids_BT = next(self.batches)
        self.rows += len(ids_BT)
        return ids_BT

    def state(self) -> State:
        return State(values={"rows": self.rows})

    def restore(self, state: State) -> None:
        raise NotImplementedError  # a stage that is not kept does not ask


class Chance:
    """A cache whose teacher predicts at random, each row otherwise."""

    def __init__(self, path: str, **how: object) -> None:
        self.seed, self.digest = len(path), path

    def rows(self, numbers: Sequence[int], ids_BT: Tensor) -> Sample:
        found = []
        for number in numbers:
            generator = torch.Generator().manual_seed(1000 * self.seed + number)
            logits = torch.randn(LENGTH - 1, VOCABULARY, generator=generator)
            found.append(draw(logits, K, torch.from_numpy(uniforms(self.seed, number, LENGTH - 1, R))))
        return Sample(
            ids=torch.stack([torch.cat([each.topk_idx, each.rand_idx], dim=-1) for each in found]),
            logits=torch.stack([torch.cat([each.topk_logits, each.rand_logits], dim=-1) for each in found]),
        )


def run_cached(kind: str, *overrides: str) -> Ran:
    """Trains on the device `kind`."""
    plain = stage_runs.ids

    def numbered(*given: int) -> Iterator[Tensor]:
        return Text(plain(*given)) if len(given) == 2 else plain(*given)

    with patch.object(reader, "open_cache", Chance), patch.object(stage_runs, "ids", numbered):
        return run_stage("stage3", kind, *CACHED, *overrides)
