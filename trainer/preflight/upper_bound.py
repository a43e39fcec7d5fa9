"""Memory that a run certainly does not need more of, in no time. Used by `preflight.look`.

Estimates run the program on shapes, which takes about a second: more than a small run should wait. Where
twice this bound is free, nobody has to know closer. The factors count copies of each width that a layer may
keep, with a wide margin; a test holds them against the estimates.
"""

from __future__ import annotations

from trainer.config import Config
from trainer.preflight.dimensions import Dimensions
from trainer.preflight.memory import stages, student_dimensions
from trainer.preflight.trace import Stage

_FLOAT = 4
_HIDDEN, _QUERIES, _INNER, _SCORES, _LOGITS = 40, 20, 16, 10, 14
_CHUNKS = 2**30  # of losses that are computed chunk by chunk


def at_most(config: Config, teacher: Dimensions) -> int:
    """Bytes of the tensors of all stages, evaluations and the training of a teacher."""
    student, length = student_dimensions(config, teacher), config.data.sequence_length
    # Weights, gradients, two moments and a passing copy, all in float32; and the teacher's.
    lasting = _FLOAT * (5 * student.parameters + teacher.parameters)
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
