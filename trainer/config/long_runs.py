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
    found = [_precision(config, device or config.device.type, dtype or config.device.dtype)]
    found += [_saving(config), _measuring(config)]
    return [refusal for refusal in found if refusal is not None]


def refuse(found: list[ConfigError], *, force: bool) -> tuple[str, ...]:
    """Raise all refusals; with `force`, return them as text instead."""
    if found and not force:
        raise joined([type(each)(f"{each.problem} (or force=true)", key=each.key) for each in found])
    return tuple(str(refusal) for refusal in found)


def _long(config: Config) -> str:
    return f"a run of {total_steps(config):,} steps is long"


def _precision(config: Config, device: str, dtype: str) -> ConfigError | None:
    if device == "cpu":
        problem = f"{_long(config)}, and this is a CPU; write device=cuda on a machine that has one"
        return ConfigError(problem, key="device.type")
    if dtype == "float32":
        problem = f"{_long(config)}, and float32 is slow and takes twice the memory; write bfloat16"
        return ConfigError(problem, key="device.dtype")
    return None


def _saving(config: Config) -> ConfigError | None:
    every = config.checkpoint.every_steps
    if config.checkpoint.every_seconds or 0 < every < total_steps(config):
        return None
    key = "every_steps" if every else "every_seconds"
    value = max(1, total_steps(config) // 10) if every else 300.0
    problem = f"{_long(config)}, and would write no checkpoint before its end; write {value}"
    return ConfigError(problem, key=f"checkpoint.{key}")


def _measuring(config: Config) -> ConfigError | None:
    window = config.eval.batch_size * config.data.sequence_length
    if config.eval.batches * window >= MEASURED_TOKENS:
        return None
    problem = (
        f"{_long(config)}, and would be measured on {config.eval.batches * window:,} held-out tokens; "
        f"write {-(-MEASURED_TOKENS // window)}"
    )
    return ConfigError(problem, key="eval.batches")
