"""Scores in tasks of lm-evaluation-harness: the hook `lm_eval`, with a metric for each task and measure.

https://github.com/EleutherAI/lm-evaluation-harness; the metric of a task's `acc,none` is `lm_eval_TASK_acc`.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Mapping
from typing import Any

from sweeps.text.installation import install_command
from trainer.config import Config
from trainer.errors import MachineError
from trainer.evaluations.student import FinishedStudent


def evaluate(student: FinishedStudent) -> Mapping[str, float]:
    """Return the scores of the tasks, by task and measure, without standard errors."""
    import lm_eval  # type: ignore[import-not-found]  # an extra
    from lm_eval.tasks import TaskManager  # type: ignore[import-not-found]  # an extra

    asked = student.config.hooks.lm_eval
    found = lm_eval.simple_evaluate(
        model=_adapter(student),
        tasks=list(asked.tasks),
        limit=asked.limit,
        task_manager=TaskManager(include_path=asked.include_path),
        bootstrap_iters=0,  # no standard errors: the harness resamples some in a process for each CPU
        log_samples=False,
    )
    return scores(found["results"])


def check_package(config: Config) -> None:
    """Raise MachineError if the package is not installed."""
    if importlib.util.find_spec("lm_eval") is None:
        raise MachineError(f"needs lm-evaluation-harness: {install_command('eval')}", key="hooks.names")


evaluate.check = check_package  # type: ignore[attr-defined]  # read by `check_hooks`


def scores(results: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the finite numbers in the harness's results as `TASK_MEASURE`, the filter `none` left out."""
    found: dict[str, float] = {}
    for task, measures in results.items():
        for key, value in measures.items():
            measure, _, chosen = key.partition(",")
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if chosen and number:
                words = (task, measure, *([] if chosen == "none" else [chosen]))
                found[re.sub(r"\W", "_", "_".join(words), flags=re.ASCII)] = float(value)
    return found


def _adapter(student: FinishedStudent) -> Any:
    """Return the student as a model of the harness."""
    from lm_eval.api.model import TemplateLM  # type: ignore[import-not-found]  # an extra

    class Student(TemplateLM):  # type: ignore[misc]  # its base is untyped
        @property
        def eot_token_id(self) -> int:
            return student.end or 0

        def tok_encode(self, string: str, **options: Any) -> list[int]:
            return student.encode(string)

        def _loglikelihood_tokens(self, requests: Any, **options: Any) -> list[tuple[float, bool]]:
            return [student.log_likelihood(context, target) for _, context, target in requests]

        def loglikelihood_rolling(self, requests: Any, **options: Any) -> list[float]:
            return [text_log_likelihood(student, *request.args) for request in requests]

        def generate_until(self, requests: Any, **options: Any) -> list[str]:
            return [until_stop(student, *request.args) for request in requests]

    return Student()


def text_log_likelihood(student: FinishedStudent, text: str) -> float:
    """Return the log probability of a text of any length, in nats, in windows as the harness's own models do.

    Each token is predicted once, after the end of a text or after all tokens before it that fit.
    """
    ids, size = [student.end or 0, *student.encode(text)], student.positions
    starts = range(1, len(ids), size)
    return sum(student.log_likelihood(ids[:at], ids[at : at + size])[0] for at in starts)


def until_stop(student: FinishedStudent, prompt: str, settings: Mapping[str, Any]) -> str:
    """Return a continuation up to the first of its stops; of a long prompt, of the last tokens that fit.

    At least half of the positions are the prompt's: a task may ask for more tokens than there are.
    """
    until = settings.get("until") or []
    stops = [until] if isinstance(until, str) else list(until)
    tokens = int(settings.get("max_gen_toks", 256))
    ids, room = student.encode(prompt), max(student.positions // 2, student.positions - tokens)
    if len(ids) > room:
        prompt = student.decode(ids[-room:])
    (text,) = student.continuations([prompt], tokens, done=lambda text: any(stop in text for stop in stops))
    return text[: min((text.index(stop) for stop in stops if stop in text), default=len(text))]
