"""A family of models of one shape: its rungs, their teachers, and shapes that it has not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from trainer.api import check
from trainer.cache import ROOT_VARIABLE
from trainer.config import Config
from trainer.errors import ConfigError
from trainer.models.causal_lm import build_tiny, depth, parameter_count
from trainer.outcome import Outcome

RUNGS = {(64, 2): 0.24e6, (128, 4): 1.1e6, (192, 6): 3.3e6, (288, 9): 10.3e6}
OF_THE_TINY_MODEL = ("model.hidden_size", "model.intermediate_size", "model.layers", "model.heads")


def rung(width: int, layers: int) -> Config:
    return check(["model=ladder", f"model.width={width}", f"model.depth={layers}"])


@pytest.mark.parametrize(("width", "layers"), RUNGS)
def test_rungs_have_one_shape_in_several_sizes(width: int, layers: int) -> None:
    config = rung(width, layers)
    assert config.model.kind == "ladder"
    built = build_tiny(config.model, vocab_size=config.data.vocab_size, sequence_length=16, attention="eager")
    assert parameter_count(built) == pytest.approx(RUNGS[width, layers], rel=0.02)
    assert depth(built) == layers
    shape = cast(Any, built).config
    assert shape.hidden_size / shape.num_attention_heads == 32
    assert shape.intermediate_size / shape.hidden_size == 3


def test_second_rung_is_the_tiny_model() -> None:
    ladder, tiny = rung(128, 4).model, check([]).model
    assert ladder.kind == "ladder"
    assert tiny.kind == "tiny"
    for name in ("hidden_size", "intermediate_size", "layers", "heads", "teacher", "master_dtype"):
        assert getattr(ladder, name) == getattr(tiny, name)


def test_each_rung_trains_its_own_teacher_once(
    run_config: Callable[[Config], Outcome],
    small: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path))
    common = ["model=ladder", *(each for each in small if not each.startswith(OF_THE_TINY_MODEL))]

    def run(width: int, layers: int) -> tuple[Outcome, set[str]]:
        outcome = run_config(check([*common, f"model.width={width}", f"model.depth={layers}"]))
        return outcome, {path.name for path in (tmp_path / "teachers").iterdir() if path.name[0] != "."}

    first, teachers = run(32, 1)
    again, same = run(32, 1)
    assert len(teachers) == 1
    assert same == teachers
    assert again.held_out == first.held_out
    wider, both = run(64, 2)
    assert len(both) == 2
    assert both > teachers
    assert wider.held_out.reference != first.held_out.reference
    assert parameter_count(wider.student) > 2 * parameter_count(first.student)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.width=48"], "model.width: heads of size 32 do not divide 48; write 32 or 64"),
        (["model.width=10"], "model.width: heads of size 32 do not divide 10; write 32"),
        (["model.width=0"], "model.width: input should be greater than or equal to 1 (got 0)"),
        (["model.width=null"], "model.width: input should be a valid integer (got None)"),
        (["model.depth=0"], "model.depth: input should be greater than or equal to 1 (got 0)"),
        (["model.depth=1.5"], "model.depth: input should be a valid integer (got 1.5)"),
        (["model.hidden_size=64"], "model.hidden_size: there is no such key here; it belongs to model=tiny"),
        (["stage1.keep_layers=5"], "stage1.keep_layers: the teacher has only 4 layers"),
    ],
)
def test_other_shapes_are_refused_in_a_line(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check(["model=ladder", *overrides])
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)
