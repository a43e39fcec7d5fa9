"""Stage 3 from a cache of the teacher's predictions, and of an anchor's. Used by `distill` and the preflight.

The student's logits are computed at the tokens that were kept, and nowhere else (`losses.sparse`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from trainer.config import CachedTeacherConfig, Stage3Config
from trainer.data import Feed
from trainer.devices.device import Device
from trainer.losses import chunked
from trainer.losses.distillation import bitdistill_loss
from trainer.losses.gathered import candidate_logits
from trainer.losses.next_token import head_inputs
from trainer.losses.sparse import Targets, log_weights, sampled_cross_entropy, sparse_divergence
from trainer.models.causal_lm import embedding_count
from trainer.training.train_step import Objective

if TYPE_CHECKING:
    from trainer.teachers.cached.feed import CachedFeed


def cached_text(
    batches: Feed, config: Stage3Config, teacher: CachedTeacherConfig, *, device: Device
) -> CachedFeed:
    """The batches with what is kept of them. Raises TrainerError: it cannot be read."""
    from trainer.teachers.cached.feed import CachedFeed
    from trainer.teachers.cached.reader import open_cache

    rows = config.max_steps * config.batch_size
    anchor = None
    if teacher.anchored is not None:
        anchor = open_cache(teacher.anchored, rows=rows, preload=teacher.preload)
    kept = open_cache(teacher.path, rows=rows, preload=teacher.preload)
    return CachedFeed(batches, kept, anchor, device=device)


def from_cache(
    student: nn.Module, said: Callable[[int], Targets], config: Stage3Config, teacher: CachedTeacherConfig
) -> Objective:
    """CE + λ·KL(teacher ‖ student) + anchor_weight·KL(anchor ‖ student), each over candidates.

    Args:
        said: gives what is kept of the next so many sequences.
    """
    place, vocabulary = next(student.parameters()).device, embedding_count(student)
    log_w_C = log_weights(teacher.top_k, teacher.negatives, vocabulary=vocabulary, device=place)
    sampled = teacher.cross_entropy == "sampled"

    def losses(ids_BT: Tensor) -> Mapping[str, Tensor]:
        kept = said(len(ids_BT))
        samples = [kept.teacher] if kept.anchor is None else [kept.teacher, kept.anchor]
        reading, _ = head_inputs(student, ids_BT)
        positions = reading.states.shape[:-1]
        labels_N = ids_BT[:, 1:].reshape(positions)
        ids = [sample.ids.reshape(*positions, -1) for sample in samples]
        if sampled:
            ids.append(labels_N.to(ids[0].dtype).unsqueeze(-1))
        # All at once: the head's gradient, which is as large as the head, is made one time.
        gathered = candidate_logits(reading, torch.cat(ids, dim=-1)).flatten(0, -2)
        logits = torch.split(gathered, [each.shape[-1] for each in ids], dim=-1)
        logits_kl, *anchor_kl = (
            sparse_divergence(ours, sample.logits.flatten(0, 1), log_w_C, temperature=config.temperature)
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
            ce = chunked.head_losses(reading, labels_N).total
        total = bitdistill_loss(
            ce=ce,
            logits_kl=logits_kl,
            attention_kl=None,
            logits_weight=config.logits_weight,
            attention_weight=0.0,
        )
        parts = {"loss": total, "ce": ce, "logits_kl": logits_kl}
        if not anchor_kl:
            return parts
        return parts | {"loss": total + teacher.anchor_weight * anchor_kl[0], "anchor_kl": anchor_kl[0]}

    return losses
