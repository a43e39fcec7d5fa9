"""What fields that do not go together are refused with: one line that says what to write, and that is taken."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import golden_messages
import pytest

from trainer import api
from trainer.api import check
from trainer.errors import ConfigError

HTTP = (
    "stage3/teacher=http",
    "stage3.teacher.url=http://host:1",
    "stage3.teacher.model=m",
    "stage3.attention_weight=0",
)

# Name: overrides, the key that is refused, and the overrides that the line tells to write: each alone is taken.
TABLE: dict[str, tuple[tuple[str, ...], str, tuple[str, ...]]] = {
    "warmup of stage1_9": (
        ("stage1_9.max_steps=3",),
        "stage1_9.schedule.warmup_steps",
        ("stage1_9.schedule.warmup_steps=3", "stage1_9.max_steps=5"),
    ),
    "warmup of stage2": (
        ("stage2.max_steps=4", "stage2.lambda_warmup.warmup_steps=2"),
        "stage2.schedule.warmup_steps",
        ("stage2.schedule.warmup_steps=4", "stage2.max_steps=5"),
    ),
    "warmup of stage3": (
        ("stage3.max_steps=2",),
        "stage3.schedule.warmup_steps",
        ("stage3.schedule.warmup_steps=2", "stage3.max_steps=5"),
    ),
    "warmup of the teacher": (
        ("model.teacher.max_steps=3",),
        "model.teacher.schedule.warmup_steps",
        ("model.teacher.schedule.warmup_steps=3", "model.teacher.max_steps=10"),
    ),
    "lambda's warmup": (
        ("stage2.max_steps=10", "stage2.lambda_warmup.warmup_steps=20"),
        "stage2.lambda_warmup.warmup_steps",
        ("stage2.lambda_warmup.warmup_steps=9", "stage2.max_steps=21"),
    ),
    "saliency's warmup": (
        ("stage1_9.max_steps=5", "stage1_9.saliency.enabled=true", "stage1_9.saliency.warmup_steps=4"),
        "stage1_9.saliency.warmup_steps",
        ("stage1_9.saliency.warmup_steps=3", "stage1_9.max_steps=6"),
    ),
    "micro-batches": (
        ("stage2.batch_size=16", "stage2.micro_batch_size=5"),
        "stage2.micro_batch_size",
        ("stage2.micro_batch_size=4", "stage2.batch_size=15"),
    ),
    "saliency's end": (
        ("stage1_9.saliency.initial_k=0.1", "stage1_9.saliency.final_k=0.5"),
        "stage1_9.saliency.final_k",
        ("stage1_9.saliency.final_k=0.1",),
    ),
    "layers": (("stage1.keep_layers=99",), "stage1.keep_layers", ("stage1.keep_layers=4", "stage1.keep_layers=null")),
    "heads": (("model.heads=3",), "model.hidden_size", ("model.hidden_size=126",)),
    "patience with a teacher's server": (
        (*HTTP, "stage3.teacher.timeout_s=30", "stage3.teacher.patience_s=1"),
        "stage3.teacher.patience_s",
        ("stage3.teacher.patience_s=30",),
    ),
    "heads of the attention term": (
        ("stage3.max_steps=5", "stage3.attention_heads=7"),
        "stage3.attention_heads",
        ("stage3.attention_heads=128", "stage3.attention_heads=4"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_what_a_refusal_tells_to_write_is_taken(name: str) -> None:
    overrides, key, instead = TABLE[name]
    with pytest.raises(ConfigError) as refused:
        check(overrides)
    assert [error.key for error in refused.value.errors] == [key]
    for override in instead:
        check([*overrides, override])


def test_messages_are_those_of_the_page() -> None:
    messages = []
    for overrides, _, _ in TABLE.values():
        with pytest.raises(ConfigError) as refused:
            check(overrides)
        messages.append((f"`{shlex.join(overrides)}`", str(refused.value)))
    golden_messages.compare("Fields of the trainer that do not go together", messages)


SPACE = """\
name: short
objectives: [{metric: final_loss, goal: minimize}]
program: {trainer: {overrides: [model=tiny, data=stdlib]}}
parameters:
  seed: {values: [0, 1]}
  stage1_9.max_steps: LENGTHS
"""


@pytest.mark.parametrize(
    "lengths",
    ["{min: 2, max: 40}", pytest.param("{values: [40, 2, 60]}", marks=pytest.mark.slow)],
    ids=["range", "values"],
)
def test_length_below_the_warmup_is_refused(lengths: str, tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(SPACE.replace("LENGTHS", lengths))
    command = [sys.executable, "-m", "sweeps", "init", "space.yaml", "--storage", "store"]
    environment = dict(os.environ, PYTHONPATH=str(Path(api.__file__).parents[1]))
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "stage1_9.schedule.warmup_steps: 5 " in done.stderr
    assert "max_steps (2)" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["space.yaml"]
