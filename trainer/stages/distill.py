"""Stage 3: the ternary student learns from its teacher's predictions and from how one layer relates tokens.

BitDistill's third stage (arXiv:2510.13998 §3.3). The student is fully quantised (lambda = 1). The teacher is
in this process, behind a server, or in a cache of its predictions; then the student's logits are computed at
the cached candidates, and nowhere else (`losses.sparse`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from trainer.config import CachedTeacherConfig, HttpTeacherConfig, Stage3Config
from trainer.config.distill import check_attention_heads
from trainer.data.feed import Feed, L, LabelledFeed
from trainer.devices.device import Device
from trainer.errors import ConfigError
from trainer.losses import chunked
from trainer.losses.attention_relation import relation_divergence
from trainer.losses.candidates import Candidates, candidate_divergence, candidate_losses
from trainer.losses.gathered import candidate_logits
from trainer.losses.next_token import GraphInput, NextTokenLoss, head_inputs, next_token_loss
from trainer.losses.sparse import Sample, Targets, log_weights, sampled_cross_entropy, sparse_divergence
from trainer.models.causal_lm import depth, document_numbers, embedding_count, key_heads, run
from trainer.models.depth import matched_layers
from trainer.models.projections import Projections, attention_layers, widths
from trainer.quant.warmup import Lambda
from trainer.training.compilation import uncompiled
from trainer.training.context import StageContext, StagePlan
from trainer.training.loop import Objective, StageTrace, train
from trainer.training.preemption import StopSignal

if TYPE_CHECKING:
    from trainer.teachers.cached.reader import CachedFeed
    from trainer.teachers.http.feed import HttpFeed


NAME = "stage3"


def require_trainable(
    student: nn.Module, config: Stage3Config, sample_BT: Tensor, *, stop: StopSignal
) -> None:
    """Refuse a stage that cannot be trained, before any other stage is.

    Args:
        sample_BT: token ids to ask a teacher's server about.
        stop: ends that request at a signal.

    Raises:
        ConfigError: the configuration does not go with the student.
        UnreachableError: the teacher's server does not answer.
        TeacherServerError: its answer is invalid.
    """
    if config.compares_attention:
        for error in check_attention_heads(
            config, widths=widths(attention_layers(student)[-1]), key_heads=key_heads(student)
        ):
            raise ConfigError(error.problem, key=error.key)
    if config.max_steps and config.teacher.kind == "http":
        # Only here: an HTTP client takes a second to import.
        from trainer.teachers.http.feed import RequestThread, check_teacher

        vocab_size = embedding_count(student)
        with RequestThread(config.teacher, vocab_size=vocab_size, stop=stop) as requests:
            check_teacher(requests, config.teacher, sample_BT, vocab_size=vocab_size)


def distill(
    student: nn.Module,
    teacher: nn.Module,
    lambda_: Lambda,
    config: Stage3Config,
    batches: Feed,
    context: StageContext,
) -> StageTrace:
    """Train the student in place. Raises as `loop.train` and `HttpFeed` do."""
    lambda_.set(1.0)
    with ExitStack() as stack:
        if config.teacher.kind == "http":
            batches = labelled = _server_feed(batches, student, config.teacher, stack, context)
            objective = from_answers(student, _labels(labelled, context), config)
        elif config.teacher.kind == "cached":
            batches = cached = cached_text(batches, config, config.teacher, device=context.device)
            objective = from_cache(student, _labels(cached, context), config, config.teacher)
        else:
            objective = from_teacher(student, teacher, config, stack)
        plan = StagePlan.from_config(NAME, config)
        return train(
            plan, student, objective, batches, context, prepare=lambda step: {"lambda": 1.0}, teacher=teacher
        )


def _labels(feed: LabelledFeed[L], context: StageContext) -> Callable[[int], L]:
    """Return `feed.take`. Without compiled steps torch's compiler, seconds to import, is not asked."""
    return uncompiled(feed.take) if context.device.compiles else feed.take


def _server_feed(
    batches: Feed, student: nn.Module, config: HttpTeacherConfig, stack: ExitStack, context: StageContext
) -> HttpFeed:
    """Return the batches with a teacher server's answers, which it is asked for until the stack is closed."""
    from trainer.teachers.http.feed import HttpFeed, RequestThread

    requests = stack.enter_context(
        RequestThread(config, vocab_size=embedding_count(student), stop=context.stop)
    )
    feed = HttpFeed(batches, requests, prefetch=config.prefetch, device=context.device.torch_device)
    stack.enter_context(feed)
    return feed


def from_answers(student: nn.Module, take: Callable[[int], Candidates], config: Stage3Config) -> Objective:
    """Return the objective with a teacher's answers, which `take` returns for the next so many sequences."""
    alone = NextTokenLoss(student)
    logits_weight, temperature = (
        GraphInput(config.logits_weight, student),
        GraphInput(config.temperature, student),
    )

    def losses(ids_BT: Tensor) -> Mapping[str, Tensor]:
        answers = take(len(ids_BT))
        if alone.chunks(ids_BT):
            inputs, _ = head_inputs(student, ids_BT)
            labels_N = ids_BT[:, 1:].reshape(inputs.states.shape[:-1])
            ce, logits_kl = candidate_losses(inputs, labels_N, answers, temperature=temperature())
        else:
            logits_BTV = run(student, ids_BT).logits
            ce = next_token_loss(logits_BTV, ids_BT)
            logits_kl = candidate_divergence(logits_BTV, answers, temperature=temperature())
        return {"loss": ce + logits_weight() * logits_kl, "ce": ce, "logits_kl": logits_kl}

    return losses


def from_teacher(student: nn.Module, teacher: nn.Module, config: Stage3Config, stack: ExitStack) -> Objective:
    """Return the objective with the teacher in this process, whose hooks live until the stack is closed."""
    ours = theirs = None
    if config.attention_weight:
        layer = config.attention_layer
        source = matched_layers(depth(student), depth(teacher))[layer]
        ours = stack.enter_context(Projections(student, layer))
        theirs = stack.enter_context(Projections(teacher, source))
    heads = config.attention_heads or key_heads(student)
    attention_weight = GraphInput(config.attention_weight, student)
    predict = NextTokenLoss(student, teacher, factor=config.logits_weight, temperature=config.temperature)

    def losses(ids_BT: Tensor) -> Mapping[str, Tensor]:
        """Return eq. 13 of BitDistill, CE (eq. 7) + λ·L_LD (eq. 8, 9) + γ·L_AD, and its parts."""
        for projections in (ours, theirs):
            if projections is not None:
                projections.begin()
        predicted = predict(ids_BT)
        total, parts = predicted.total, {"ce": predicted.ce}
        if predicted.kl is not None:
            parts["logits_kl"] = predicted.kl
        if ours is not None and theirs is not None:
            attention_kl = relation_divergence(
                ours.take(),
                theirs.take(),
                heads=heads,
                relation=config.attention_relation,
                documents_BT=document_numbers(student, ids_BT),
            )
            total = total + attention_weight() * attention_kl
            parts["attention_kl"] = attention_kl
        return {"loss": total, **parts}

    return losses


def cached_text(
    batches: Feed, config: Stage3Config, teacher: CachedTeacherConfig, *, device: Device
) -> CachedFeed:
    """Return the batches with the cached predictions of their tokens.

    Raises:
        TrainerError: a cache cannot be read.
    """
    from trainer.teachers.cached.reader import CachedFeed, open_cache

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
        take: returns the cached predictions of the next so many sequences.
        teacher: the cache's part of it.
    """
    device, vocabulary = next(student.parameters()).device, embedding_count(student)
    log_w_C = log_weights(teacher.top_k, teacher.negatives, vocabulary=vocabulary, device=device)
    sampled = teacher.cross_entropy == "sampled"
    logits_weight = GraphInput(config.logits_weight, student)
    temperature = GraphInput(config.temperature, student)
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
