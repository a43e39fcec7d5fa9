"""Text that is streamed while training: `data=text`, `parquet`, `hub`. Called by `inputs`.

Row i of all the rows of a run comes from lane i mod L, and each lane reads its own share of the blocks of
every epoch. If W divides L, each of W processes has lanes of its own: it reads and tokenises only its part,
and all processes together have the batches of a single one.
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
from trainer.data.corpus import TRAIN, Corpus
from trainer.data.encoder import Encoder, tokenizer_sha256
from trainer.data.feed import Feed, rank_rows, rows_before, state_at
from trainer.data.held_out import document_side, held_out, side_settings, training_sample
from trainer.data.near_copies import NearCopies
from trainer.data.prefetch import Prefetched
from trainer.data.shards import FORMAT, Order, Shards, open_shards
from trainer.data.stream_reader import Lane
from trainer.data.tokenizer import import_tokenizer, train_tokenizer
from trainer.errors import DataError

AHEAD_BYTES = 2**28
"""Most bytes of batches that are made ahead of the training."""
PIECES_PER_LANE = 16  # at least, or fewer lanes are used: with few pieces a lane may have no text


@dataclass(frozen=True, kw_only=True, eq=False)
class StreamCorpus(Corpus):
    """A corpus whose training text is read from its files during training.

    Args:
        shards: the files of all sides.
        copies: the measured documents; what nearly copies one is not trained on.
    """

    shards: Shards
    copies: NearCopies

    @property
    def order_sha256(self) -> str:
        config = self.shards.config
        covers = [FORMAT, self.shards.blocks, self.sha256, config.lanes, config.shuffle_windows]
        return hashlib.sha256(json.dumps(covers).encode()).hexdigest()

    def batches(
        self, *, batch_size: int, sequence_length: int, seed: int, rank: int = 0, world: int = 1
    ) -> Feed:
        feed = StreamFeed(
            self, batch_size=batch_size, sequence_length=sequence_length, seed=seed, rank=rank, world=world
        )
        # As many as lie between two lanes' reads: with four ahead, steps waited 36 % of the time, now 1 %.
        batch_bytes = 8 * (batch_size // world) * sequence_length
        ahead = max(1, min(feed.burst + 2, AHEAD_BYTES // batch_bytes))
        return Prefetched(feed, ahead=ahead, folder=self.shards.folder)


class StreamFeed(Feed):
    """The feed of `StreamCorpus.batches` without prefetching.

    Attributes:
        burst: number of batches between one lane's reading of a chunk and the next lane's; so many must be
            prefetched to hide the reading.

    Raises:
        DataError: the processes cannot share the lanes evenly.
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
        config, self._shards = corpus.shards.config, corpus.shards
        own_rows = rank_rows(batch_size, rank, world)
        lanes = _shared_lanes(self._shards.pieces, config.lanes, world)
        self._text, self._batch_size = corpus.order_sha256, batch_size
        self._rows, self._own_rows = 0, range(batch_size)[own_rows]
        self._count, self._seed, self._config, self._copies = lanes, seed, config, corpus.copies
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
        self.burst = -(-chunk // len(self._own_rows))

    def state(self) -> State:
        lanes = {str(number): lane.state() for number, lane in self._lanes.items()}
        return state_at(self._text, self._rows, lanes=lanes)

    def restore(self, state: State) -> None:
        rows, lanes = rows_before(state, self._text), state.values.get("lanes")
        if not isinstance(lanes, dict) or not {str(number) for number in self._lanes} <= lanes.keys():
            raise DataError(
                "the checkpoint lacks positions of this process in the text, as earlier versions wrote those "
                "of a run's first process alone; delete the run's checkpoints/ to start anew"
            )
        before = {number: lane.state() for number, lane in self._lanes.items()}
        try:
            for number, lane in self._lanes.items():
                lane.restore(lanes[str(number)])
        except StateError:
            for number, lane in self._lanes.items():
                lane.restore(before[number])
            raise
        self._rows = rows

    def __next__(self) -> torch.Tensor:
        windows = [next(self._lanes[(self._rows + row) % self._count]) for row in self._own_rows]
        self._rows += self._batch_size
        return torch.from_numpy(np.stack(windows))

    def close(self) -> None:
        self._reader.close()

    def _documents(self, block: int) -> list[str]:
        texts = self._reader.texts(block)
        # A function of seed and block alone, so that the position of a document in it can be restored.
        order = np.random.default_rng([self._seed, block]).permutation(len(texts))
        shuffled = (texts[index] for index in order)
        return [
            text
            for text in shuffled
            if document_side(text, self._config) == TRAIN and not self._copies.has(text)
        ]

    def _order(self, lane: int, epoch: int) -> Order:
        if self._epoch is None or self._epoch[0] != epoch:  # lanes are rarely in different epochs
            self._epoch = epoch, self._shards.epoch_order(self._seed, epoch)
        return self._epoch[1][lane :: self._count]


def lane_count(pieces: int, most: int) -> int:
    """Return the largest divisor of `most` that leaves every lane enough pieces of the text, or 1."""
    enough = [lanes for lanes in range(1, most + 1) if not most % lanes and lanes * PIECES_PER_LANE <= pieces]
    return max(enough, default=1)


def _shared_lanes(pieces: int, most: int, world: int) -> int:
    """Return the number of lanes, or raise DataError if `world` processes cannot share them evenly."""
    lanes = lane_count(pieces, most)
    if most % world:
        raise DataError(
            f"{world} processes read data.lanes={most} places of the text, which they must divide; write "
            f"data.lanes={world * max(1, most // world)}"
        )
    if lanes % world:
        raise DataError(
            f"the text is too small for {world} processes that read different parts of it: it has {pieces} "
            "files, row groups of Parquet, or pieces of 4 MiB of JSON lines; use at least "
            f"{PIECES_PER_LANE * world}, or fewer processes"
        )
    return lanes


def load(config: StreamConfig, own_tokenizer: str | Path | None = None) -> StreamCorpus:
    """Load the text that `inputs.load` describes."""
    shards = open_shards(config)
    if name := config.tokenizer or own_tokenizer:
        tokenizer = import_tokenizer(name)
    else:
        text_id = f"{shards.sha256}/{shards.blocks}/{config.held_out_fraction!r}/{config.test_fraction!r}"
        tokenizer = train_tokenizer(lambda: training_sample(shards), text_id, config.vocab_size)
    evaluation = held_out(shards, tokenizer)
    covers = [shards.sha256, tokenizer_sha256(tokenizer), side_settings(config)]
    return StreamCorpus(
        held_out=evaluation.tokens,
        test=evaluation.test,
        vocab_size=Encoder.open(tokenizer).vocab_size,
        sha256=hashlib.sha256(json.dumps(covers).encode()).hexdigest(),
        tokenizer_dir=tokenizer,
        bytes_per_token=evaluation.bytes_per_token,
        shards=shards,
        copies=evaluation.copies,
    )
