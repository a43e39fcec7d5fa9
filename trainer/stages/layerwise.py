"""Stage 1.9: the student's hidden states are pulled towards the teacher's, layer by layer.

The student is fully quantised from the first step (lambda = 1): what is aligned is what will be deployed. The
saliency curriculum, where it is enabled, softens the start; it ends with the stage. The loss is
`losses.hidden_state_loss`, of distances between hidden states and of `losses.next_token`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from torch import Tensor, nn

from trainer.config import SaliencyConfig, Stage19Config
from trainer.devices.device import Device
from trainer.losses import hidden_distances
from trainer.losses.hidden_state_loss import (
    combined_loss,
    distill_weight_at,
    hidden_loss,
    layer_weights,
)
from trainer.losses.next_token import GraphInput, NextTokenLoss
from trainer.models.causal_lm import depth
from trainer.models.depth import matched_layers
from trainer.quant.saliency import ColumnSaliency, Share, k_at, observe
from trainer.quant.ternary import ternary_layers
from trainer.quant.warmup import Lambda, SharedScalar
from trainer.training.context import StageContext, StagePlan
from trainer.training.loop import Objective, StageTrace, train

NAME = "stage1_9"


def align(
    student: nn.Module,
    teacher: nn.Module,
    lambda_: Lambda,
    config: Stage19Config,
    batches: Iterator[Tensor],
    context: StageContext,
) -> StageTrace:
    """Train the student in place. Raises as `loop.train` does."""
    lambda_.set(1.0)
    distill_weight = SharedScalar(config.distill_schedule.initial).to(context.device.torch_device)
    curriculum = None
    if config.saliency.enabled:
        curriculum = _curriculum(student, config.saliency, config.max_steps, context.device)

    def prepare(step: int) -> Mapping[str, float]:
        # First, as it may end a graph: what is set for a step is to be in the step's.
        salient = curriculum(step) if curriculum else {}
        weight = distill_weight_at(config.distill_schedule, step, config.max_steps)
        distill_weight.set(weight)
        return {"lambda": 1.0, "distill_weight": weight} | salient

    try:
        objective = alignment(student, teacher, distill_weight, config)
        plan = StagePlan.from_config(NAME, config)
        return train(plan, student, objective, batches, context, prepare=prepare, teacher=teacher)
    finally:
        for layer in ternary_layers(student):
            layer.saliency = None


def alignment(
    student: nn.Module, teacher: nn.Module, distill_weight: SharedScalar, config: Stage19Config
) -> Objective:
    """Return the objective (1-a)·w·distillation + a·(CE + KL)/2 of token ids [B, T].

    a is the weight of the language model's losses, w that of the distillation.
    """
    layers = depth(student)
    matched = matched_layers(layers, depth(teacher))
    weights = [GraphInput(weight, student) for weight in layer_weights(config.layer_weights, layers)]
    lm_loss_weight = GraphInput(config.lm_loss_weight, student)
    distances = hidden_distances.layer_distances(config.loss_type, teacher, layers)
    predict = NextTokenLoss(student, teacher, hidden=True)

    def losses(ids_BT: Tensor) -> Mapping[str, Tensor]:
        predicted = predict(ids_BT)
        theirs = [predicted.teacher_hidden[layer] for layer in matched]
        hidden = hidden_loss(
            predicted.hidden, theirs, distances=distances, weights=[weight() for weight in weights]
        )
        total = combined_loss(
            distill=hidden.total,
            predictions=predicted.total,
            lm_loss_weight=lm_loss_weight(),
            distill_weight=distill_weight.value,
        )
        parts = {"distill": hidden.total, **predicted.parts, "distill_layer": hidden.by_layer}
        return {"loss": total, **parts}

    return losses


def _curriculum(
    student: nn.Module, config: SaliencyConfig, steps: int, device: Device
) -> Callable[[int], dict[str, float]]:
    layers = ternary_layers(student)
    share = Share(config.initial_k).to(layers[0].weight.device)
    salient = [ColumnSaliency(layer.weight, share, config.ema_decay) for layer in layers]
    for layer, columns in zip(layers, salient, strict=True):
        layer.saliency = columns

    def prepare(step: int) -> dict[str, float]:
        # At step 0 the norms are those of these very weights, which an update leaves as they are.
        if step % config.update_interval == 0:
            with device.separate_graph():
                observe(salient, [layer.weight for layer in layers])
        k = k_at(config, step, steps)
        share.set(k)
        return {"saliency_k": k}

    return prepare
