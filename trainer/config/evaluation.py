"""Configuration of samples and evaluation hooks. Read by `trainer.evaluations`. No part of training."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from trainer.config.fields import STRICT, AboveZero, Checked, FieldError, Positive, Text

BUILT_IN = ("cpp", "lm_eval")
_FUNCTION = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CppConfig:
    """Completions of C++ functions, compiled and run (the hook `cpp`).

    Args:
        problems: JSON lines, each with `name`, `prompt` and `tests`; null: the problems that come along.
        tokens: longest completion.
        compiler: a program in the PATH that takes g++'s options.
        seconds: limit on each compilation, and on each run, by the clock.
        memory_mib: limit on the memory of each.
        sandbox: `bwrap`: isolated by bubblewrap, or refused; `machine`: this machine itself is the sandbox,
            and only the limits and the filter of system calls hold.
    """

    problems: Text | None
    tokens: Positive
    compiler: Text
    seconds: AboveZero
    memory_mib: Positive
    sandbox: Literal["bwrap", "machine"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LmEvalConfig:
    """Scores in tasks of lm-evaluation-harness (the hook `lm_eval`; extra `eval`).

    Args:
        tasks: names of tasks.
        include_path: a folder with tasks of one's own, in YAML.
        limit: so many examples of each task; null: all.
    """

    tasks: tuple[Text, ...]
    include_path: Text | None
    limit: Positive | None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SamplesConfig:
    """Continuations of fixed prompts by the finished student, in `samples.json` of the run's folder.

    Args:
        enabled: write them; XLA devices and sharded students (`device.parallel=fsdp`) have none.
        prompts: texts that are continued, greedily.
        tokens: that are added to each.
    """

    enabled: bool
    prompts: Annotated[tuple[Text, ...], Field(min_length=1)]
    tokens: Positive


@dataclass(frozen=True, kw_only=True, config=STRICT)
class HooksConfig(Checked):
    """Functions that score the finished student (docs/how-to/evaluation.md).

    Args:
        names: of them, in order: `cpp`, `lm_eval`, or one's own as `package.module:function`.
        timeout_s: seconds that each of them may take.
    """

    names: tuple[Text, ...]
    timeout_s: AboveZero
    cpp: CppConfig
    lm_eval: LmEvalConfig

    def contradictions(self) -> Iterator[FieldError]:
        for hook in self.names:
            if hook not in BUILT_IN and not _FUNCTION.fullmatch(hook):
                yield FieldError(
                    f"{hook!r} is no hook; write {', '.join(BUILT_IN)}, or package.module:function",
                    key="names",
                )
        if len(set(map(hook_name, self.names))) < len(self.names):
            yield FieldError("two hooks have one name, and so would their metrics", key="names")
        if "lm_eval" in self.names and not self.lm_eval.tasks:
            yield FieldError("the hook lm_eval needs the names of tasks", key="lm_eval.tasks")


def hook_name(hook: str) -> str:
    """Return the name with which a hook's metrics begin: `cpp`, or the name of the function."""
    return hook.rpartition(":")[2]
