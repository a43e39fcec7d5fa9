"""Makes a cache, or goes on with one. Called by `__main__`.

Predictions are computed a chunk of positions at a time, so that nothing of the size [B, T, V] exists here
either. A shard is written when it is full, then the index that names it: whatever moment a builder is killed
at, the cache is whole as far as its index goes, and the next builder goes on from there.

Shapes: b sequences at once, T tokens, P = T - 1 predicted ones, N = b·P, R negatives, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer.checkpoint.state import State
from trainer.config import CachedTeacherConfig, Config
from trainer.data import Corpus, Feed
from trainer.data.stage_text import stage_text
from trainer.devices.device import Device, dtype_name
from trainer.losses.chunked import suitable_elements
from trainer.losses.next_token import head_inputs
from trainer.losses.sparse import DTYPES
from trainer.result import code_version
from trainer.teachers.cached.compatibility import (
    STAGE,
    read_index,
    refuse_another,
    require_candidates,
    spec,
)
from trainer.teachers.cached.index import INDEX, Index, Shard, encode
from trainer.teachers.cached.location import Place
from trainer.teachers.cached.reader import IDS, PARTS
from trainer.teachers.cached.request import Asked
from trainer.teachers.cached.sampling import Drawn, chances, draw
from trainer.training.preemption import StopSignal

SHARD_BYTES = 64 * 2**20

Tell = Callable[[float], None]
"""Told which share of the rows is there."""


@dataclass(frozen=True, kw_only=True)
class Built:
    """The finished cache, and how many of its rows this builder has computed."""

    index: Index
    computed: int


def build(
    config: Config,
    corpus: Corpus,
    model: nn.Module,
    asked: Asked,
    *,
    device: Device,
    stop: StopSignal,
    tell: Tell,
    shard_bytes: int = SHARD_BYTES,
) -> Built:
    """Computes what is missing of the rows that the configuration's Stage 3 takes.

    Args:
        model: whose predictions are kept, on the device.

    Raises:
        ConfigError: the folder holds a cache of something else.
        PreemptedError: a signal came; what is written stays.
        TrainerError: the place cannot be written to.
    """
    require_candidates(asked.teacher, model)
    ours, place = spec(config, asked.teacher, corpus, model), Place(asked.path)
    made_with = {
        "model": config.model.name if config.model.kind == "hf" else config.model.kind,
        "device": device.name,
        "dtype": dtype_name(device.dtype),
        "torch": torch.__version__,
        "code": code_version(),
    }
    with place.builder():
        index = read_index(place, asked.path, key=asked.key) or Index(spec=ours, made_with=made_with)
        refuse_another(index, ours, asked.path, key=asked.key)
        index = _sound(index, place)
        before = index.rows
        at_once = config.stage3.micro_batch_size or config.stage3.batch_size
        with stage_text(corpus, config, STAGE, at_once) as text:
            if index.shards:
                text.restore(State(values=index.shards[-1].after))
            predict = _Predictor(model, asked.teacher, device, seed=config.seed)
            for tensors, after in _shards(index.rows, asked.rows, text, predict, stop, shard_bytes):
                shard = _write(place, index.rows, tensors, after)
                index = dataclasses.replace(index, shards=(*index.shards, shard))
                place.write(INDEX, encode(index))
                tell(min(1.0, index.rows / asked.rows))
    return Built(index=index, computed=index.rows - before)


def _sound(index: Index, place: Place) -> Index:
    """Without what follows a shard that is missing, or is not what was written."""

    def holds(shard: Shard) -> bool:
        return place.holds(shard.file, size=shard.size, sha256=shard.sha256)

    return dataclasses.replace(index, shards=tuple(takewhile(holds, index.shards)))


def _write(place: Place, first: int, tensors: dict[str, Tensor], after: State) -> Shard:
    from safetensors.torch import save

    data = save(tensors)
    digest = hashlib.sha256(data).hexdigest()
    # Its digest in its name: what another builder writes meanwhile never stands in for it.
    name = f"rows-{first:08d}-{digest[:12]}.safetensors"
    place.write(name, data)
    rows = len(tensors[IDS])
    return Shard(file=name, first=first, rows=rows, size=len(data), sha256=digest, after=dict(after.values))


def _shards(
    first: int, wanted: int, text: Feed, predict: _Predictor, stop: StopSignal, shard_bytes: int
) -> Iterator[tuple[dict[str, Tensor], State]]:
    """The tensors of each shard from a row on, and the text's state behind it."""
    pieces: list[dict[str, Tensor]] = []
    rows = size = 0
    while first + rows < wanted:
        text.wait()
        with stop.hold(f"row {first + rows} of the cache"):
            ids_bT = next(text)
            pieces.append(predict(ids_bT, first=first + rows))
        rows += len(ids_bT)
        size += sum(tensor.nbytes for tensor in pieces[-1].values())
        if size >= shard_bytes or first + rows >= wanted:
            yield {name: torch.cat([piece[name] for piece in pieces]) for name in (IDS, *PARTS)}, text.state()
            first, rows, size, pieces = first + rows, 0, 0, []


class _Predictor:
    """What is kept of a model's predictions."""

    def __init__(self, model: nn.Module, config: CachedTeacherConfig, device: Device, *, seed: int) -> None:
        self._model, self._config, self._device, self._seed = model, config, device, seed

    @torch.no_grad()
    def __call__(self, ids_bT: Tensor, *, first: int) -> dict[str, Tensor]:
        """Of the rows from `first` on, on the CPU."""
        config, shape = self._config, (len(ids_bT), ids_bT.shape[1] - 1)
        chance = [chances(self._seed, first + row, shape[1], config.negatives) for row in range(shape[0])]
        chance_NR = torch.from_numpy(np.concatenate(chance)).to(self._device.torch_device)
        with self._device.autocast():
            reading, _ = head_inputs(self._model, self._device.place(ids_bT))
        states_NH, head_VH = reading.states.flatten(0, -2), reading.head.to(reading.states.dtype)
        size = max(1, suitable_elements(states_NH.device) // len(head_VH))
        drawn: list[Drawn] = []
        for start in range(0, len(states_NH), size):
            logits_nV = F.linear(states_NH[start : start + size], head_VH)
            drawn.append(draw(logits_nV, config.top_k, chance_NR[start : start + size]))
        kept = {
            name: torch.cat([getattr(each, name) for each in drawn]).reshape(*shape, -1).cpu()
            for name in PARTS
        }
        logits = {name: kept[name].to(DTYPES[config.dtype]) for name in PARTS if name.endswith("logits")}
        return {IDS: ids_bT.int(), **kept, **logits}
