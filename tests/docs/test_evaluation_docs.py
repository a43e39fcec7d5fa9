"""docs/how-to/evaluation.md: its commands are configurations, its hook scores, and its space names the hook's metric."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from trainer.api import check
from trainer.config.evaluation import hook_name
from trainer.evaluations.cpp import Problem
from trainer.evaluations.student import FinishedStudent

TEXT = (Path(__file__).parents[2] / "docs" / "how-to" / "evaluation.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^python -m trainer (.+)$", TEXT, re.MULTILINE)


def block(language: str) -> str:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)[-1]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_a_configuration_with_hooks(command: str) -> None:
    assert check(shlex.split(command)).hooks.names


def test_the_example_returns_the_share_of_right_answers() -> None:
    names: dict[str, Any] = {}
    exec(block("python"), names)
    student = SimpleNamespace(
        continuations=lambda prompts, tokens: [f"{'Paris' * ('France' in p)}" for p in prompts]
    )
    assert names["capitals"](student) == {"accuracy": 0.5}


def test_the_other_example_compares_ids() -> None:
    names: dict[str, Any] = {}
    exec(block("python"), names)

    def log_likelihood(context: list[int], continuation: list[int]) -> tuple[float, bool]:
        assert all(isinstance(token, int) for token in (*context, *continuation))
        return -float(len(continuation)), True

    student = SimpleNamespace(encode=lambda text: list(text.encode()), log_likelihood=log_likelihood)
    assert names["margin"](student) == {"nats": -1.0}


def test_the_page_names_what_a_student_has() -> None:
    has = {name for name in (*FinishedStudent.__dataclass_fields__, *vars(FinishedStudent)) if name[0] != "_"}
    (paragraph,) = re.findall(r"^A `FinishedStudent` has (.*?)\n\n", TEXT, re.DOTALL | re.MULTILINE)
    assert has <= set(re.findall(r"`(\w+)", paragraph))


def test_the_space_optimises_a_metric_of_its_hook() -> None:
    space = yaml.safe_load(block("yaml"))
    (hook,) = check(space["program"]["trainer"]["overrides"]).hooks.names
    assert space["objectives"][0]["metric"].startswith(f"{hook_name(hook)}_")


def test_the_problem_has_the_fields_that_are_read() -> None:
    problem = Problem(**json.loads(block("json")))
    assert problem.prompt.endswith("{\n")
