"""Stricter rules for long runs. Applied by `api.check`, and again by `__main__` once the device is known."""

from __future__ import annotations

from trainer.config import Config
from trainer.errors import ConfigError, joined

LONG_STEPS = 5_000
"""Optimizer steps of all stages from which a run counts as long."""

MEASURED_TOKENS = 16_384
"""Fewest held-out tokens that the loss of a long run may be measured on."""


def total_steps(config: Config) -> int:
    """Return the optimizer steps of all stages, without those of the teacher, which is trained once."""
    stages = (config.stage1_9, config.stage2, config.stage3, config.recovery)
    return sum(stage.max_steps for stage in stages)


def refusals(config: Config, *, device: str | None = None, dtype: str | None = None) -> list[ConfigError]:
    """Return the reasons against a long run, each with the key and the value to write instead.

    Args:
        config: a short run has no reasons against it.
        device: the kind that `device.type` resolved to; None: not known yet.
        dtype: the dtype that `device.dtype` resolved to; None: not known yet.
    """
    if total_steps(config) < LONG_STEPS:
        return []
    long, found = f"a run of {total_steps(config):,} steps is long", []
    if (device or config.device.type) == "cpu":
        problem = f"{long}, and this is a CPU; write device=cuda on a machine that has one"
        found.append(ConfigError(problem, key="device.type"))
    elif (dtype or config.device.dtype) == "float32":
        problem = f"{long}, and float32 is slow and takes twice the memory; write bfloat16"
        found.append(ConfigError(problem, key="device.dtype"))
    every = config.checkpoint.every_steps
    if not config.checkpoint.every_seconds and not 0 < every < total_steps(config):
        key = "every_steps" if every else "every_seconds"
        value = max(1, total_steps(config) // 10) if every else 300.0
        problem = f"{long}, and would write no checkpoint before its end; write {value}"
        found.append(ConfigError(problem, key=f"checkpoint.{key}"))
    window = config.eval.batch_size * config.data.sequence_length
    if (tokens := config.eval.batches * window) < MEASURED_TOKENS:
        enough = -(-MEASURED_TOKENS // window)
        problem = f"{long}, and would be measured on {tokens:,} held-out tokens; write {enough}"
        found.append(ConfigError(problem, key="eval.batches"))
    return found


def refuse(found: list[ConfigError], *, force: bool) -> tuple[str, ...]:
    """Raise all refusals; with `force`, return them as text instead."""
    if found and not force:
        raise joined([type(each)(f"{each.problem} (or force=true)", key=each.key) for each in found])
    return tuple(str(refusal) for refusal in found)
