"""Stage 3 from a cache of the teacher's predictions, and of an anchor's. Used by `distill` and the preflight.

The student's logits are computed at the cached candidates, and nowhere else (`losses.sparse`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from trainer.config import CachedTeacherConfig, Stage3Config
from trainer.data import Feed
from trainer.devices.device import Device
from trainer.losses import chunked
from trainer.losses.gathered import candidate_logits
from trainer.losses.next_token import GraphInput, head_inputs
from trainer.losses.sparse import Sample, Targets, log_weights, sampled_cross_entropy, sparse_divergence
from trainer.models.causal_lm import embedding_count
from trainer.training.train_step import Objective

if TYPE_CHECKING:
    from trainer.teachers.cached.feed import CachedFeed


def cached_text(
    batches: Feed, config: Stage3Config, teacher: CachedTeacherConfig, *, device: Device
) -> CachedFeed:
    """Return the batches with the cached predictions of their tokens.

    Raises:
        TrainerError: a cache cannot be read.
    """
    from trainer.teachers.cached.feed import CachedFeed
    from trainer.teachers.cached.reader import open_cache

    rows = config.max_steps * config.batch_size
    anchor = None
    if teacher.anchored is not None:
        anchor = open_cache(teacher.anchored, rows=rows, preload=teacher.preload)
    cache = open_cache(teacher.path, rows=rows, preload=teacher.preload)
    return CachedFeed(batches, cache, anchor, device=device)


def from_cache(
    student: nn.Module, take: Callable[[int], Targets], config: Stage3Config, teacher: CachedTeacherConfig
) -> Objective:
    """Return the objective CE + λ·KL(teacher ‖ student) + anchor_weight·KL(anchor ‖ student) over candidates.

    Args:
        student: the model to train.
        take: returns the cached predictions of the next so many sequences.
        config: the stage.
        teacher: the cache's part of it.
    """
    device, vocabulary = next(student.parameters()).device, embedding_count(student)
    log_w_C = log_weights(teacher.top_k, teacher.negatives, vocabulary=vocabulary, device=device)
    sampled = teacher.cross_entropy == "sampled"
    logits_weight, temperature = (
        GraphInput(config.logits_weight, student),
        GraphInput(config.temperature, student),
    )
    anchor_weight = GraphInput(teacher.anchor_weight, student)

    def losses(ids_BT: Tensor) -> Mapping[str, Tensor]:
        targets = take(len(ids_BT))
        samples = [targets.teacher] if targets.anchor is None else [targets.teacher, targets.anchor]
        inputs, _ = head_inputs(student, ids_BT)
        labels_N = ids_BT[:, 1:].reshape(inputs.states.shape[:-1])
        ids, logits = _at_candidates(inputs, samples, labels_N if sampled else None)
        logits_kl, *anchor_kl = (
            sparse_divergence(ours, sample.logits.flatten(0, 1), log_w_C, temperature=temperature())
            for ours, sample in zip(logits, samples, strict=False)  # the true tokens' come last
        )
        if sampled:
            ce = sampled_cross_entropy(
                logits[-1].squeeze(-1),
                logits[0],
                log_w_C,
                ids_NC=ids[0].flatten(0, -2),
                labels_N=labels_N.flatten(),
            )
        else:
            ce = chunked.head_losses(inputs, labels_N).total
        total = ce + logits_weight() * logits_kl
        parts = {"loss": total, "ce": ce, "logits_kl": logits_kl}
        if not anchor_kl:
            return parts
        return parts | {"loss": total + anchor_weight() * anchor_kl[0], "anchor_kl": anchor_kl[0]}

    return losses


def _at_candidates(
    inputs: chunked.HeadInputs, samples: Sequence[Sample], labels_N: Tensor | None
) -> tuple[list[Tensor], Sequence[Tensor]]:
    """Return the token ids of each sample [N, C] or [B, T, C], and the student's logits there, [N, C].

    The labels, where they are given, are one more sample. All logits are computed at once, so that the head's
    gradient, which is as large as the head, is made one time.
    """
    positions = inputs.states.shape[:-1]
    ids = [sample.ids.reshape(*positions, -1) for sample in samples]
    if labels_N is not None:
        ids.append(labels_N.to(ids[0].dtype).unsqueeze(-1))
    gathered = candidate_logits(inputs, torch.cat(ids, dim=-1)).flatten(0, -2)
    return ids, torch.split(gathered, [each.shape[-1] for each in ids], dim=-1)
