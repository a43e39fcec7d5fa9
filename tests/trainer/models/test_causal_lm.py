"""`model=hf` on a checkpoint that the test saves itself: Auto classes, its own tokenizer, its own dtype."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pretrained import save_stand_in
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from trainer import api
from trainer.errors import ConfigError, UnreachableError
from trainer.pipeline import Outcome
from trainer.quant.ternary import ternary_layers

TINY_ONLY = ("model.hidden", "model.inter", "model.layers", "model.heads", "model.teacher", "data.vocab_size")

STAGE3 = ("stage3.max_steps=2", "stage3.batch_size=4", "stage3.schedule.warmup_steps=1")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 (tied embeddings, query and key norms) in bfloat16, with a byte-level tokenizer."""
    return save_stand_in(tmp_path_factory.mktemp("checkpoint"), "qwen3")


@pytest.fixture
def run_hf(
    run_config: Callable[..., Outcome], small: tuple[str, ...], checkpoint: Path
) -> Callable[..., Outcome]:
    common = [override for override in small if not override.startswith(TINY_ONLY)]

    def run(*overrides: str, name: Path = checkpoint) -> Outcome:
        config = api.check([*common, "model=hf", f"model.name={api.quote(str(name))}", *overrides])
        return run_config(config)

    return run


def test_saved_checkpoint_trains_in_its_own_dtype(run_hf: Callable[..., Outcome]) -> None:
    outcome = run_hf("model.master_dtype=auto")
    metrics = outcome.result.metrics
    assert 0 < metrics.final_loss < 10
    # Its tokenizer has hardly any merges: a token is little more than a byte.
    assert metrics.bits_per_byte is not None
    assert 0.6 < metrics.bits_per_byte / (metrics.final_loss / math.log(2)) < 1
    assert {p.dtype for p in outcome.student.parameters()} == {torch.bfloat16}
    assert outcome.result.provenance.dtype == "bfloat16"  # of the products, whatever `device.dtype` came to
    layers = ternary_layers(outcome.student)
    assert len(layers) == 2 * 7
    assert all(layer.effective_weight().unique().numel() == 3 for layer in layers)


def test_the_weights_dtype_can_be_chosen(run_hf: Callable[..., Outcome]) -> None:
    outcome = run_hf("model.dtype=float32", "model.master_dtype=auto", "stage1_9.max_steps=0")
    assert {p.dtype for p in outcome.student.parameters()} == {torch.float32}
    assert outcome.result.provenance.dtype == "float32"


def test_stage_3_compares_projections_of_different_widths(
    run_hf: Callable[..., Outcome], tmp_path: Path
) -> None:
    """By default as many heads as there are key-value heads, which divide all widths."""
    run_hf("stage1_9.max_steps=0", *STAGE3)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [0 < line["attention_kl"] < 10 for line in lines if line["stage"] == "stage3"] == [True, True]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "stage3.attention_heads=5",
            r"stage3.attention_heads: 5 does not divide the widths .* \(48, 24, 24\)",
        ),
        ("stage3.attention_layer=2", "stage3.attention_layer: there is no layer 2: the student has 2"),
    ],
)
def test_stage_3_requirements_are_checked_before_training(
    override: str, message: str, run_hf: Callable[..., Outcome], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        run_hf(*STAGE3, override)
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_tied_embeddings_are_trained_once_and_stay_tied(run_hf: Callable[..., Outcome]) -> None:
    student = run_hf("stage1_9.max_steps=0").student
    assert student.get_input_embeddings().weight is student.get_output_embeddings().weight


def test_pruned_pretrained_student_loads_back(run_hf: Callable[..., Outcome], tmp_path: Path) -> None:
    """Lists with one item per layer in Qwen3's configuration shrink too."""
    student = run_hf("stage1.keep_layers=1", "stage1_9.loss_type=kl", "stage2.max_steps=0").student
    assert len(ternary_layers(student)) == 7
    config = student.config
    assert (config.num_hidden_layers, config.layer_types) == (1, ["full_attention"])
    config.save_pretrained(tmp_path)
    assert len(Qwen3ForCausalLM(Qwen3Config.from_pretrained(tmp_path)).model.layers) == 1


@pytest.mark.parametrize(
    ("override", "refusal"),
    [
        ("stage1.keep_layers=3", r"^stage1.keep_layers: the teacher has only 2 layers"),
        ("stage1_9.layer_weights=[1,2,3]", r"^stage1_9.layer_weights: 3 numbers for 2 layers"),
    ],
)
def test_settings_beyond_the_models_depth_are_refused(
    override: str, refusal: str, run_hf: Callable[..., Outcome]
) -> None:
    with pytest.raises(ConfigError, match=refusal):
        run_hf(override)


def test_a_sequence_longer_than_the_models_positions_is_refused(run_hf: Callable[..., Outcome]) -> None:
    with pytest.raises(ConfigError, match=r"^data.sequence_length: 65 .* \(64\)"):
        run_hf("data.sequence_length=65")


def test_prepare_names_the_pretrained_model(checkpoint: Path, small: tuple[str, ...]) -> None:
    common = [override for override in small if not override.startswith(TINY_ONLY)]
    prepared = api.prepare([*common, "model=hf", f"model.name={api.quote(str(checkpoint))}"])
    assert prepared.teacher == str(checkpoint)
    assert prepared.teacher_loss is None


def test_a_folder_without_a_model_is_refused_in_one_line(tmp_path: Path) -> None:
    from trainer.models.causal_lm import load_pretrained

    with pytest.raises(ConfigError, match=r"^model.name: cannot load") as caught:
        load_pretrained(str(tmp_path), dtype="auto", attention="eager")
    assert "\n" not in str(caught.value)


@pytest.fixture
def copied(checkpoint: Path, tmp_path: Path) -> Path:
    """A checkpoint of the test's own, to spoil."""
    return shutil.copytree(checkpoint, tmp_path / "copied")


def test_float16_checkpoint_needs_a_chosen_dtype(run_hf: Callable[..., Outcome], copied: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(copied, dtype=torch.float16)
    model.save_pretrained(copied)
    with pytest.raises(ConfigError, match=r"^model.dtype: .*float16.* write model.dtype=bfloat16"):
        run_hf(name=copied)
    student = run_hf("model.dtype=bfloat16", "stage1_9.max_steps=0", name=copied).student
    assert {p.dtype for p in student.parameters()} == {torch.float32}


def test_float32_products_of_bfloat16_weights_are_refused(run_hf: Callable[..., Outcome]) -> None:
    with pytest.raises(ConfigError, match=r"^device.dtype: .* write model.dtype=float32"):
        run_hf("device.dtype=float32")
    run_hf("device.dtype=float32", "model.dtype=float32", "stage1_9.max_steps=0", "stage2.max_steps=0")
    with pytest.raises(ConfigError, match=r"^device.dtype: .* write model.master_dtype=float32"):
        run_hf("device.dtype=float32", "model.dtype=float32", "model.master_dtype=bfloat16")


def test_a_name_without_a_tokenizer_is_refused_by_its_key(
    run_hf: Callable[..., Outcome], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"^model.name: "):
        run_hf(name=tmp_path / "nothing here")


def test_missing_tokenizer_is_refused_by_its_key(run_hf: Callable[..., Outcome], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^data.tokenizer: "):
        run_hf(f"data.tokenizer={api.quote(str(tmp_path / 'nothing here'))}")


def test_a_damaged_tokenizer_is_refused_by_the_models_key(
    run_hf: Callable[..., Outcome], copied: Path
) -> None:
    text = (copied / "tokenizer.json").read_text()
    for damaged in (text[: len(text) // 2], text.replace('"type": "BPE"', '"type": "BPF"')):
        (copied / "tokenizer.json").write_text(damaged)
        with pytest.raises(ConfigError, match=r"^model.name: "):
            run_hf(name=copied)


@pytest.mark.parametrize("left", [0, 7, 1000, 20000])
def test_a_truncated_checkpoint_is_refused_in_one_line(
    left: int, run_hf: Callable[..., Outcome], copied: Path
) -> None:
    weights = copied / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:left])
    with pytest.raises(ConfigError, match=r"^model.name: cannot load ") as caught:
        run_hf(name=copied)
    assert "\n" not in str(caught.value)


def test_error_without_a_message_is_named_by_its_type(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer.models.causal_lm import load_pretrained

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", fail)
    # A folder: of a name the hub would be asked first, for 20 s where there is no network.
    with pytest.raises(ConfigError, match=r"^model.name: cannot load '[^']*': OSError$"):
        load_pretrained(str(checkpoint), dtype="auto", attention="eager")


def test_model_that_the_hub_does_not_send_is_no_fault_of_the_configuration(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer.models.causal_lm import load_pretrained

    def fail(*_: object, **__: object) -> None:
        raise OSError("We couldn't connect to the hub") from ConnectionRefusedError(111, "refused")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", fail)
    with pytest.raises(UnreachableError, match=r"^cannot load '[^']*': We couldn't connect to the hub$"):
        load_pretrained(str(checkpoint), dtype="auto", attention="eager")


def test_tokenizer_larger_than_embeddings_is_refused(run_hf: Callable[..., Outcome], copied: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(copied)
    tokenizer.add_tokens(["return x"])
    tokenizer.save_pretrained(copied)
    with pytest.raises(ConfigError, match=r"^model.name: .*\d+ entries, .* \d+ embeddings"):
        run_hf(name=copied)
