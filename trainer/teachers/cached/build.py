"""Construction of a cache, which resumes an interrupted one. Called by `trainer.teacher_cache`.

Predictions are computed a chunk of positions at a time, so that no tensor [B, T, V] exists. A full shard is
written before the index that names it: whenever a builder is killed, the cache is complete as far as its
index goes, and the next builder continues from there.

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
from trainer.config.distill import CacheRequest
from trainer.data.corpus import Corpus, stage_text
from trainer.data.feed import Feed
from trainer.devices.device import Device
from trainer.devices.dtypes import dtype_name
from trainer.losses.chunked import suitable_elements
from trainer.losses.next_token import head_inputs
from trainer.losses.sparse import DTYPES
from trainer.result import code_version
from trainer.teachers.cached.index import (
    INDEX,
    STAGE,
    Index,
    Location,
    Shard,
    encode,
    read_index,
    require_candidates,
    require_same_spec,
    spec,
)
from trainer.teachers.cached.reader import IDS, PARTS
from trainer.teachers.cached.sampling import Drawn, draw, uniforms
from trainer.training.preemption import StopSignal

SHARD_BYTES = 64 * 2**20


@dataclass(frozen=True, kw_only=True)
class BuildResult:
    """The finished cache, and the number of its rows that this builder computed."""

    index: Index
    computed: int


def build(
    config: Config,
    corpus: Corpus,
    model: nn.Module,
    request: CacheRequest,
    *,
    device: Device,
    stop: StopSignal,
    notify: Callable[[float], None],
    shard_bytes: int = SHARD_BYTES,
) -> BuildResult:
    """Compute the missing rows of those that the configuration's Stage 3 takes.

    Args:
        model: the teacher, or the anchor, on the device.
        stop: polled between batches.
        notify: called with the fraction of the rows that are stored, after each shard.
        shard_bytes: the least size of a shard, but for the last.

    Raises:
        ConfigError: the folder holds a cache with another spec.
        PreemptedError: a signal came; shards that are written stay.
        TrainerError: the location cannot be written to.
    """
    require_candidates(request.teacher, model)
    ours, location = spec(config, request.teacher, corpus, model), Location(request.path)
    made_with = {
        "model": config.model.name if config.model.kind == "hf" else config.model.kind,
        "device": device.name,
        "dtype": dtype_name(device.dtype),
        "torch": torch.__version__,
        "code": code_version(),
    }
    with location.lock():
        index = read_index(location, request.path, key=request.key) or Index(spec=ours, made_with=made_with)
        require_same_spec(index, ours, request.path, key=request.key)
        index = _without_damaged(index, location)
        before = index.rows
        at_once = config.stage3.micro_batch_size or config.stage3.batch_size
        with stage_text(corpus, config, STAGE, at_once) as text:
            if index.shards:
                text.restore(State(values=index.shards[-1].after))
            predict = _Predictor(model, request.teacher, device, seed=config.seed)
            for tensors, after in _shards(index.rows, request.rows, text, predict, stop, shard_bytes):
                shard = _write(location, index.rows, tensors, after)
                index = dataclasses.replace(index, shards=(*index.shards, shard))
                location.write(INDEX, encode(index))
                notify(min(1.0, index.rows / request.rows))
    return BuildResult(index=index, computed=index.rows - before)


def _without_damaged(index: Index, location: Location) -> Index:
    """Drop the first shard that is missing or damaged, and all that follow it."""

    def intact(shard: Shard) -> bool:
        return location.is_intact(shard.file, size=shard.size, sha256=shard.sha256)

    return dataclasses.replace(index, shards=tuple(takewhile(intact, index.shards)))


def _write(location: Location, first: int, tensors: dict[str, Tensor], after: State) -> Shard:
    from safetensors.torch import save

    data = save(tensors)
    digest = hashlib.sha256(data).hexdigest()
    # The digest in the name: a concurrent builder's file never replaces this one.
    name = f"rows-{first:08d}-{digest[:12]}.safetensors"
    location.write(name, data)
    rows = len(tensors[IDS])
    return Shard(file=name, first=first, rows=rows, size=len(data), sha256=digest, after=dict(after.values))


def _shards(
    first: int, wanted: int, text: Feed, predict: _Predictor, stop: StopSignal, shard_bytes: int
) -> Iterator[tuple[dict[str, Tensor], State]]:
    """Yield the tensors of each shard from row `first` on, and the state of the text after it."""
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
    """Computation of the part of a model's predictions that is stored."""

    def __init__(self, model: nn.Module, config: CachedTeacherConfig, device: Device, *, seed: int) -> None:
        self._model, self._config, self._device, self._seed = model, config, device, seed

    @torch.no_grad()
    def __call__(self, ids_bT: Tensor, *, first: int) -> dict[str, Tensor]:
        """Return the tensors of the rows from `first` on, on the CPU."""
        config, shape = self._config, (len(ids_bT), ids_bT.shape[1] - 1)
        uniform = [uniforms(self._seed, first + row, shape[1], config.negatives) for row in range(shape[0])]
        uniform_NR = torch.from_numpy(np.concatenate(uniform)).to(self._device.torch_device)
        with self._device.autocast():
            reading, _ = head_inputs(self._model, self._device.place(ids_bT))
        states_NH, head_VH = reading.states.flatten(0, -2), reading.head.to(reading.states.dtype)
        size = max(1, suitable_elements(states_NH.device) // len(head_VH))
        drawn: list[Drawn] = []
        for start in range(0, len(states_NH), size):
            logits_nV = F.linear(states_NH[start : start + size], head_VH)
            drawn.append(draw(logits_nV, config.top_k, uniform_NR[start : start + size]))
        tensors = {
            name: torch.cat([getattr(each, name) for each in drawn]).reshape(*shape, -1).cpu()
            for name in PARTS
        }
        logits = {name: tensors[name].to(DTYPES[config.dtype]) for name in PARTS if name.endswith("logits")}
        return {IDS: ids_bT.int(), **tensors, **logits}
