"""Text that is read while training: `data=text`, `parquet`, `hub`. Called by `corpus`.

Row i of all the rows that a run ever takes comes from lane i mod L, and each lane reads its own share of the
blocks of every epoch. The rows of one of W processes come from lanes of its own, if W divides L: each reads,
tokenises and keeps only its part, and all together have the batches of one process.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from trainer.checkpoint.state import State, StateError
from trainer.config.data import StreamConfig
from trainer.data.corpus import Corpus
from trainer.data.encoder import Encoder, tokenizer_sha256
from trainer.data.errors import DataError
from trainer.data.feed import BATCHES, Feed, rows_before, rows_of, state_at
from trainer.data.held_out import held_out, is_held_out, training_sample
from trainer.data.prefetch import Prefetched
from trainer.data.shards import Order, Shards, open_shards
from trainer.data.stream_reader import Lane
from trainer.data.tokenizer import adopted, trained
from trainer.text import counted

BLOCKS_PER_LANE = 16  # at least, or fewer lanes are used: with too few blocks one lane may have no text


@dataclass(frozen=True, kw_only=True, eq=False)
class StreamCorpus(Corpus):
    """A corpus whose training text stays where it is."""

    shards: Shards

    @property
    def order_sha256(self) -> str:
        config = self.shards.config
        decides = [self.sha256, config.lanes, config.shuffle_windows]
        return hashlib.sha256(json.dumps(decides).encode()).hexdigest()

    def batches(
        self, *, batch_size: int, sequence_length: int, seed: int, rank: int = 0, world: int = 1
    ) -> Feed:
        feed = StreamFeed(
            self, batch_size=batch_size, sequence_length=sequence_length, seed=seed, rank=rank, world=world
        )
        return Prefetched(feed, ahead=feed.burst + 2)


class StreamFeed(Feed):
    """As `StreamCorpus.batches`, made when they are asked for.

    Attributes:
        burst: batches from one lane's reading of a chunk to the next lane's: so many must be there already
            for nobody to wait meanwhile.

    Raises:
        DataError: an argument is out of range, or there are not lanes for so many processes.
    """

    def __init__(
        self,
        corpus: StreamCorpus,
        *,
        batch_size: int,
        sequence_length: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        if sequence_length < 1 or seed < 0:
            raise DataError(f"sequence_length is {sequence_length} and seed {seed}: neither may be so small")
        config, self._shards = corpus.shards.config, corpus.shards
        mine = rows_of(batch_size, rank, world)
        lanes = lanes_for(self._shards.blocks, config.lanes)
        if lanes % world:
            raise DataError(
                f"{world} processes cannot share {counted(lanes, 'lane')} (data.lanes={config.lanes}, "
                f"{counted(self._shards.blocks, 'block')}); make it a multiple, with "
                f"{BLOCKS_PER_LANE} blocks each"
            )
        self._text, self._batch_size = corpus.order_sha256, batch_size
        self._rows, self._mine = 0, range(mine.start, mine.stop, mine.step)
        self._count, self._seed = lanes, seed
        self._fraction = config.held_out_fraction
        self._reader = self._shards.reader()
        self._epoch: tuple[int, Order] | None = None
        encode = Encoder.open(corpus.tokenizer_dir)
        chunk = max(1, config.shuffle_windows // lanes)
        self._lanes = {
            number: Lane(
                partial(self._order, number),
                self._documents,
                encode,
                number=number,
                seed=seed,
                window=sequence_length,
                chunk=chunk,
                first=max(1, chunk * (number + 1) // lanes),
            )
            for number in range(rank, lanes, world)
        }
        self.burst = -(-chunk // len(self._mine))

    def state(self) -> State:
        places = {str(number): lane.state() for number, lane in self._lanes.items()}
        return state_at(self._text, self._rows, lanes=places)

    def restore(self, state: State) -> None:
        rows, places = rows_before(state, self._text), state.values.get("lanes")
        if not isinstance(places, dict) or not {str(number) for number in self._lanes} <= places.keys():
            raise StateError(BATCHES, "it is that of another process's share of the text")
        before = {number: lane.state() for number, lane in self._lanes.items()}
        try:
            for number, lane in self._lanes.items():
                lane.restore(places[str(number)])
        except StateError:
            for number, lane in self._lanes.items():
                lane.restore(before[number])
            raise
        self._rows = rows

    def __next__(self) -> torch.Tensor:
        windows = [next(self._lanes[(self._rows + row) % self._count]) for row in self._mine]
        self._rows += self._batch_size
        return torch.from_numpy(np.stack(windows))

    def close(self) -> None:
        self._reader.close()

    def _documents(self, block: int) -> list[str]:
        return [text for text in self._reader.texts(block) if not is_held_out(text, self._fraction)]

    def _order(self, lane: int, epoch: int) -> Order:
        if self._epoch is None or self._epoch[0] != epoch:  # lanes are seldom in two epochs at once
            self._epoch = epoch, self._shards.epoch_order(self._seed, epoch)
        return self._epoch[1][lane :: self._count]


def lanes_for(blocks: int, most: int) -> int:
    """The largest divisor of `most` that leaves every lane enough blocks; 1 at least."""
    enough = [lanes for lanes in range(1, most + 1) if not most % lanes and lanes * BLOCKS_PER_LANE <= blocks]
    return max(enough, default=1)


def load(config: StreamConfig, own_tokenizer: str | Path | None = None) -> StreamCorpus:
    """As `corpus.load`."""
    shards = open_shards(config)
    if given := config.tokenizer or own_tokenizer:
        tokenizer = adopted(given)
    else:
        text_id = f"{shards.sha256}/{config.held_out_fraction!r}"
        tokenizer = trained(lambda: training_sample(shards), text_id, config.vocab_size)
    aside = held_out(shards, tokenizer)
    covers = [shards.sha256, tokenizer_sha256(tokenizer), config.held_out_fraction, config.held_out_tokens]
    return StreamCorpus(
        held_out=aside.tokens,
        vocab_size=Encoder.open(tokenizer).vocab_size,
        sha256=hashlib.sha256(json.dumps(covers).encode()).hexdigest(),
        tokenizer_dir=tokenizer,
        bytes_per_token=aside.bytes_per_token,
        shards=shards,
    )
