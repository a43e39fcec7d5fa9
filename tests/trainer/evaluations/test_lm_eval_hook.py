"""The hook of lm-evaluation-harness: the student as its model, on a task of one's own; absent, one line."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from sweeps.text.installation import install_command
from trainer.api import check
from trainer.errors import MachineError
from trainer.evaluations import lm_eval

INSTALLED = importlib.util.find_spec("lm_eval") is not None
TASK = """
task: colours
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}]
"""


class Spelling:
    """A student to whom shorter continuations are likelier."""

    end, tokenizer_folder = 0, None

    def __init__(self, *overrides: str) -> None:
        self.config = check(["hooks.names=[lm_eval]", "hooks.lm_eval.tasks=[colours]", *overrides])

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def log_likelihood(self, context: list[int], target: list[int]) -> tuple[float, bool]:
        return -float(len(target)), False


@pytest.mark.skipif(not INSTALLED, reason="needs lm-evaluation-harness")
@pytest.mark.slow
def test_a_task_of_ones_own_is_scored(tmp_path: Path) -> None:
    rows = [
        {"question": "sky", "choices": ["blue", "yellow"], "answer": 0},
        {"question": "sun", "choices": ["blue", "yellow"], "answer": 1},
        {"question": "sea", "choices": ["blue", "orange"], "answer": 0},
    ]
    (tmp_path / "rows.json").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "colours.yaml").write_text(TASK.replace("FILE", str(tmp_path / "rows.json")))
    student: Any = Spelling(f"hooks.lm_eval.include_path={tmp_path}")
    assert lm_eval.evaluate(student)["colours_acc"] == pytest.approx(2 / 3)
    some: Any = Spelling(f"hooks.lm_eval.include_path={tmp_path}", "hooks.lm_eval.limit=1")
    assert lm_eval.evaluate(some)["colours_acc"] == 1.0


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MachineError, match=re.escape(install_command("eval"))):
        lm_eval.check_package(check([]))


class Letters:
    """A student of eight positions that notes what it is asked for; its tokens are letters."""

    end, positions = 0, 8

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))

    def log_likelihood(self, context: list[int], target: list[int]) -> tuple[float, bool]:
        self.asked.append((context[-(9 - len(target)) :], target))
        return -float(len(target)), False

    def continuations(self, prompts: list[str], tokens: int, done: Any) -> list[str]:
        self.asked += prompts
        return [f"{prompts[0]} b\n\nc"[:tokens]]


def test_a_generation_ends_before_its_first_stop() -> None:
    student: Any = Letters()
    assert lm_eval.until_stop(student, "a", {"until": ["\n\n", "zzz"]}) == "a b"
    assert lm_eval.until_stop(student, "a", {"until": "b"}) == "a "
    assert lm_eval.until_stop(student, "a", {"max_gen_toks": 2}) == "a "


def test_a_long_prompt_keeps_its_end_and_room_for_the_continuation() -> None:
    student: Any = Letters()
    for prompt in ("01234", "0123456789"):
        lm_eval.until_stop(student, prompt, {"max_gen_toks": 3})
    assert student.asked == ["01234", "56789"]
    lm_eval.until_stop(student, "0123", {})  # 256 tokens, of a model of eight positions
    assert student.asked[-1] == "0123"


def test_a_long_text_is_scored_in_windows_of_the_positions() -> None:
    """Each token once; the windows are those of lm_eval.utils.get_rolling_token_windows, made disjoint."""
    student: Any = Letters()
    text = "abcdefghijklmnopqrs"
    assert lm_eval.text_log_likelihood(student, text) == -19
    windows = [(student.decode(context), student.decode(target)) for context, target in student.asked]
    assert windows == [("\0", "abcdefgh"), ("h", "ijklmnop"), ("klmnop", "qrs")]
    assert lm_eval.text_log_likelihood(student, "") == 0
