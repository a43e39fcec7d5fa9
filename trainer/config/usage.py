"""Output of `python -m trainer --help` and `--cfg job`. Used by `__main__`."""

from __future__ import annotations

from collections.abc import Sequence

from omegaconf import OmegaConf

from trainer.config.compose import compose_tree, groups, keys, validate
from trainer.errors import ConfigError

_HEAD = """\
usage: python -m trainer [OVERRIDE …] run_dir=DIR
       python -m trainer [OVERRIDE …] --cfg job     print the composed configuration, compute nothing
       python -m trainer [OVERRIDE …] --preflight   print what the run would take, compute nothing

Trains a ternary student in two stages and writes DIR/result.json and DIR/metrics.jsonl.
An override is key=value, or group=option. Exit status: 0 finished; 2 configuration refused before any
compute; 70 diverged; 75 stopped by SIGTERM or SIGINT; 1 anything else.
"""
CFG = "--cfg"
_PER_STAGE = "the optimizer is chosen per stage: optimizer@stage2.optimizer=adamw"


def usage() -> str:
    """Return the help: usage, groups with their options, keys with their defaults."""
    options = "".join(f"  {name}: {', '.join(choices)}\n" for name, choices in groups().items())
    defaults = "".join(f"  {key}={_value(value)}\n" for key, value in keys().items())
    return f"{_HEAD}\ngroups ({_PER_STAGE})\n{options}\nkeys\n{defaults}"


def composed(arguments: Sequence[str]) -> str:
    """Return the configuration that the overrides around `--cfg job` compose, as YAML. Raises ConfigError."""
    words = [word for argument in arguments for word in _split(argument)]
    position = words.index(CFG)
    if words[position + 1 : position + 2] != ["job"]:
        raise ConfigError("--cfg takes one word here: --cfg job")
    tree = compose_tree([*words[:position], *words[position + 2 :]])
    validate(OmegaConf.to_container(tree, resolve=True))
    return OmegaConf.to_yaml(tree)


def _split(argument: str) -> list[str]:
    """Read `--cfg=job` as `--cfg job`."""
    return argument.split("=", 1) if argument.startswith(f"{CFG}=") else [argument]


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)
