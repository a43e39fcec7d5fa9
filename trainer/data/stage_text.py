"""The training text of one stage of a run. Called by `pipeline`, and ahead of it by `teachers.cached`."""

from __future__ import annotations

import hashlib

from trainer.config import Config
from trainer.data.corpus import Corpus
from trainer.data.feed import Feed
from trainer.distributed.ranks import ALONE, Ranks


def stage_text(corpus: Corpus, config: Config, stage: str, batch_size: int, ranks: Ranks = ALONE) -> Feed:
    """Return a feed shuffled by the run's seed and the stage's name, which the caller closes.

    Args:
        corpus: the run's text.
        config: of the run.
        stage: its name.
        batch_size: rows of all ranks together.
        ranks: the processes that share each batch; the feed has the rows of this one.
    """
    digest = hashlib.sha256(f"{config.seed}/{stage}".encode()).digest()
    return corpus.batches(
        batch_size=batch_size,
        sequence_length=config.data.sequence_length,
        seed=int.from_bytes(digest[:4], "big"),
        rank=ranks.rank,
        world=ranks.world,
    )
