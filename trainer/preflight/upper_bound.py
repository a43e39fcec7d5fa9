"""Upper bound of a run's memory, in closed form. Used by `preflight` and `batch_size_search`.

A trace takes about a second, which is long for a small run; where twice this bound is free it is skipped.
The factors count copies of each width that a layer may keep, with a wide margin that a test compares with
traces.
"""

from __future__ import annotations

from trainer.config import Config
from trainer.preflight.dimensions import Dimensions
from trainer.preflight.memory import average_bytes, stages, student_dimensions, trained_dimensions
from trainer.preflight.optimizer import optimizer_memory
from trainer.preflight.trace import Stage

_FLOAT = 4
_HIDDEN, _QUERIES, _INNER, _SCORES, _LOGITS = 40, 20, 16, 10, 14
_CHUNKS = 2**30  # of losses that are computed in chunks


def memory_upper_bound(config: Config, teacher: Dimensions) -> int:
    """Return a cheap upper bound on memory, in bytes, over stages, evaluations and the teacher's training."""
    student, length = student_dimensions(config, teacher), config.data.sequence_length
    trained = [(stage, trained_dimensions(stage, student)) for _, stage in stages(config)]
    parameters = student.parameters + sum(each.parameters for _, each in trained if each is not student)
    # Weights, gradients, two moments and a temporary copy, all in float32; their average, and the teacher's.
    lasting = _FLOAT * (5 * parameters + teacher.parameters) + average_bytes(config, student)
    optimizers = [optimizer_memory(each, stage.optimizer) for stage, each in trained]
    lasting += max((optimizer.temporary for optimizer in optimizers), default=0)
    sequences = max([config.eval.batch_size, *(_at_once(stage) for _, stage in stages(config))])
    if config.model.kind == "tiny":
        recipe = config.model.teacher
        sequences = max(sequences, recipe.micro_batch_size or recipe.batch_size)
    queries = teacher.heads * teacher.head_size
    layer = _HIDDEN * teacher.hidden + _QUERIES * queries + _INNER * teacher.intermediate
    layer += _SCORES * teacher.heads * length
    token = (teacher.layers + 1) * layer + _LOGITS * teacher.vocabulary
    chunked = _CHUNKS if config.stage1_9.max_steps and config.stage1_9.loss_type == "kl" else 0
    return lasting + _FLOAT * sequences * length * token + chunked


def _at_once(stage: Stage) -> int:
    return stage.micro_batch_size or stage.batch_size
