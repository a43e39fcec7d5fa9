"""A cache of streamed text, whose state has many lanes: resumed, and read by a resumed run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from cached_runs import Prepared, cached

from trainer.api import check, quote
from trainer.config import Config
from trainer.config.distill import cache_request
from trainer.data.corpus import stage_text
from trainer.data.inputs import prepare_inputs
from trainer.devices.device import open_device
from trainer.teachers.cached.build import BuildResult, build
from trainer.teachers.cached.reader import CachedFeed, open_cache
from trainer.training.preemption import StopSignal


def test_streamed_cache_is_extended(small: Sequence[str], prepared: Prepared, tmp_path: Path) -> None:
    texts = [" ".join(f"{number * step % 97}" for step in range(1, 21)) for number in range(120)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "text.parquet", row_group_size=2)
    source = [
        "data=parquet",
        f"data.files={quote(str(tmp_path))}",
        "data.lanes=2",
        "data.held_out_tokens=200",
    ]
    others = [override for override in small if not override.startswith("data.max_bytes")]

    def config_of(name: str, steps: int) -> Config:
        return check([*source, *others, *cached(tmp_path / name), f"stage3.max_steps={steps}"])

    corpus = prepare_inputs(config_of("at_once", 5)).corpus

    def made(name: str, steps: int) -> BuildResult:
        config = config_of(name, steps)
        return build(
            config,
            corpus,
            prepared.teacher,
            cache_request(config.stage3),
            device=open_device(config.device),
            stop=StopSignal(),
            notify=lambda fraction: None,
            shard_bytes=1,
        )

    at_once = made("at_once", 5).index
    made("parts", 2)
    parts = made("parts", 5)
    assert (parts.computed, parts.index.rows) == (12, 20)
    assert parts.index.digest(20) == at_once.digest(20)

    config = config_of("parts", 5)
    assert config.stage3.teacher.kind == "cached"
    cache = open_cache(config.stage3.teacher.path, rows=20, preload=False)
    with stage_text(corpus, config, "stage3", 4) as text, stage_text(corpus, config, "stage3", 4) as again:
        feed, later = (
            CachedFeed(each, cache, None, device=open_device(config.device)) for each in (text, again)
        )
        next(feed)
        later.restore(feed.state())
        for _ in range(4):
            assert torch.equal(next(feed), next(later))
            assert torch.equal(feed.take(4).teacher.ids, later.take(4).teacher.ids)
