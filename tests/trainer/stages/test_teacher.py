"""The first phase of a run: its teacher."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoConfig, GenerationConfig, PreTrainedTokenizerFast

from trainer.api import check, prepare, quote
from trainer.cache import ROOT_VARIABLE
from trainer.config import Config
from trainer.data.inputs import prepare_inputs
from trainer.outcome import Outcome


def test_tiny_teacher_is_trained_by_the_run_alone(
    run_config: Callable[[Config], Outcome],
    small: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path))
    config = check([*small, "stage1_9.max_steps=1", "stage2.max_steps=0"])
    prepare_inputs(config)
    assert (tmp_path / "corpora").is_dir()
    assert not (tmp_path / "teachers").exists()
    first = run_config(config)
    (teacher,) = (path for path in (tmp_path / "teachers").iterdir() if not path.name.startswith("."))
    trained = (teacher / "model" / "model.safetensors").stat().st_mtime_ns
    assert run_config(config).held_out.reference == first.held_out.reference
    assert (teacher / "model" / "model.safetensors").stat().st_mtime_ns == trained


def test_the_compiler_of_a_run_does_not_reach_the_teacher_that_others_share(
    small: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        pytest.fail("the teacher's steps are compiled")

    def weights(*overrides: str) -> bytes:
        monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path / str(len(overrides))))
        return Path(prepare([*small, *overrides]).teacher, "model.safetensors").read_bytes()

    monkeypatch.setattr(torch, "compile", refuse)
    assert weights("device.compile=layers") == weights()


def test_teacher_has_the_end_of_its_own_tokenizer(
    small: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its student, and what that is exported to, have it from here: `generate` stops there."""
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path / "cache"))
    letters = Tokenizer(BPE({letter: index for index, letter in enumerate(sorted(ByteLevel.alphabet()))}, []))
    letters.pre_tokenizer = ByteLevel(add_prefix_space=False)
    letters.add_special_tokens(["<end>"])
    PreTrainedTokenizerFast(tokenizer_object=letters, eos_token="<end>").save_pretrained(tmp_path / "letters")
    overrides = [f"data.tokenizer={quote(str(tmp_path / 'letters'))}", "model.teacher.max_steps=1"]
    folder = prepare([*small, *overrides, "model.teacher.schedule.warmup_steps=0"]).teacher
    assert AutoConfig.from_pretrained(folder).eos_token_id == 256
    assert GenerationConfig.from_pretrained(folder).eos_token_id == 256
