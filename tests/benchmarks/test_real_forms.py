"""The table of forms: each is written, loaded by what it is made for, and compared with the student."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.real.forms import HEADER, Row, Workload, difference_of, measured, prompts_of
from trainer.api import check
from trainer.devices.device import Device
from trainer.models.student_folder import SavedStudent
from trainer.models.subln import make_student

with warnings.catch_warnings():
    # It decorates with torch.compile, whose backend uses what torch itself calls deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import transformers.integrations.bitnet  # noqa: F401

PROMPTS = [list(range(1, 20)), list(range(5, 28))]
WORK = Workload(prompts=PROMPTS, generated=3, rounds=2)
CPU = Device(torch_device=torch.device("cpu"), dtype=torch.float32, name="CPU", attention="eager")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[SavedStudent, Path]:
    """A student, and the folder of its teacher."""
    folder = tmp_path_factory.mktemp("teacher")
    letters = {"<|endoftext|>": 0} | {chr(96 + index): index for index in range(1, 27)} | {"Ġ": 27, "ab": 28}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>").save_pretrained(
        folder / "tokenizer"
    )
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = LlamaConfig(
        **sizes,
        vocab_size=32,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        initializer_range=0.2,
        attn_implementation="eager",
    )
    teacher = LlamaForCausalLM(config).eval()
    teacher.save_pretrained(folder / "teacher")
    stage1 = dataclasses.replace(check([]).stage1, subln="ones")
    student, _ = make_student(teacher, stage1, None, quant=check([]).quant, device=CPU)
    return SavedStudent(
        model=student.eval(), tokenizer=folder / "tokenizer", config_sha256=""
    ), folder / "teacher"


def rows_of(written: tuple[SavedStudent, Path], said: list[str]) -> dict[str, Row]:
    with torch.compiler.set_stance("force_eager"):
        return {row.name: row for row in measured(*written, WORK, said.append)}


def test_checkpoints_are_measured_where_llama_cpp_is_not(
    written: tuple[SavedStudent, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    said: list[str] = []
    rows = rows_of(written, said)
    assert list(rows) == ["teacher, float32", "packed", "dense", "master"]
    left_out = [line for line in said if "left out" in line]
    assert [line.partition(":")[0] for line in left_out] == [
        "teacher, GGUF float16",
        "gguf-tq1_0",
        "gguf-tq2_0",
    ]
    assert all("pip install xllamacpp" in line for line in left_out)
    assert rows["teacher, float32"].difference < 1e-4
    for name in ("packed", "dense", "master"):
        row = rows[name]
        assert row.difference < 0.05  # activations are rounded a little otherwise
        assert (len(row.prompts), len(row.generations)) == (2, 2)
        assert min(row.prompts + row.generations) > 0
        assert len(row.line().split("|")) == len(HEADER.splitlines()[0].split("|"))
    ternary = 4 * 256 * 256 + 3 * 256 * 256
    assert rows["dense"].size - rows["packed"].size == pytest.approx(ternary * (4 - 1 / 4), rel=0.01)


def test_llama_cpp_computes_nearly_what_the_student_does(written: tuple[SavedStudent, Path]) -> None:
    pytest.importorskip("xllamacpp")
    rows = rows_of(written, [])
    assert list(rows)[-2:] == ["gguf-tq1_0", "gguf-tq2_0"]
    assert rows["teacher, GGUF float16"].difference < 0.02
    for name in ("gguf-tq1_0", "gguf-tq2_0"):
        assert rows[name].difference < 0.2
        assert min(rows[name].prompts + rows[name].generations) > 0


def test_a_difference_by_hand() -> None:
    class Off:
        name = "off"

        def likeliest(self, prompt: Sequence[int]) -> dict[int, float]:
            return {0: -1.0, 2: -2.0} if prompt == [1] else {1: -3.0}

        def speed(self, prompt: Sequence[int], generated: int) -> tuple[float, float]:
            raise NotImplementedError

    expected = [torch.tensor([-1.3, 0.0, -2.4]), torch.tensor([0.0, -3.0, 0.0])]
    found = difference_of(Off(), [[1], [2]], expected)
    assert found == pytest.approx(math.sqrt((0.3**2 + 0.4**2) / 3))


def test_prompts_begin_long_documents(written: tuple[SavedStudent, Path], tmp_path: Path) -> None:
    text = tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps({"text": each}) + "\n" for each in ("ab", "abcabc", "cc", "bcdefg")))
    prompts = prompts_of(text, written[0].tokenizer, number=2, tokens=4)
    assert prompts == [[28, 3, 28, 3], [2, 3, 4, 5]]
    with pytest.raises(ValueError, match="3 documents of 4"):
        prompts_of(text, written[0].tokenizer, number=3, tokens=4)
