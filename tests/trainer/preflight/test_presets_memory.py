"""The memory table of docs/how-to/train.md is what the estimates say. Of models that come with the trainer, from their
published dimensions; slow but for the smallest, as each estimate takes some seconds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from trainer.api import check, quote
from trainer.devices.device import Device
from trainer.distributed.ranks import Ranks
from trainer.preflight.memory import evaluation_memory, stage_memory, stages
from trainer.preflight.trace import blueprint

DOCS = Path(__file__).parents[3] / "docs" / "how-to" / "train.md"
QWEN3 = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "head_dim": 128,
    "num_key_value_heads": 8,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}
PUBLISHED = {
    "smollm2_135m": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49_152,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    },
    "qwen3_0_6b": QWEN3
    | {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
    "qwen3_4b": QWEN3
    | {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
}
STAGE = {"1.9": "stage1_9", "2": "stage2"}


def documented() -> dict[tuple[str, str, str], list[str]]:
    pattern = r"^\| `(\w+)`( in bfloat16)? \| (1\.9|2) \| (\d+ \|(?: [\d.]+ \|){5})$"
    return {
        (model, "bfloat16" if lighter else "float32", STAGE[stage]): cells.replace("|", "").split()
        for model, lighter, stage, cells in re.findall(pattern, DOCS.read_text(), re.M)
    }


SMALLER = re.findall(
    r"^\| (float32|bfloat16), `(\w+)`(, host)?(, not held)? \| ((?:[\d. ]+\|){5})$", DOCS.read_text(), re.M
)


@pytest.mark.slow
@pytest.mark.parametrize(("masters", "optimizer", "host", "not_held", "cells"), SMALLER)
def test_a_device_of_48_gb(
    masters: str, optimizer: str, host: str, not_held: str, cells: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED["qwen3_4b"]))
    config = check(
        [
            *("model=qwen3_4b", f"model.name={quote(str(tmp_path))}", f"model.master_dtype={masters}"),
            f"stage1_9.optimizer.type={optimizer}",
        ]
    )
    device = Device(
        torch_device=torch.device("cpu"),
        dtype=torch.bfloat16,
        name="any",
        attention="sdpa",
        recompute=True,
        hold_weights=not not_held,
        teacher="host" if host else "device",
    )
    memory = stage_memory(config, "stage1_9", config.stage1_9, blueprint(config, device), device)
    sizes = (memory.weights, memory.gradients, memory.optimizer, memory.activations, memory.peak)
    expected = [float(cell) for cell in cells.split("|")[:-1]]
    assert [size / 2**30 for size in sizes] == pytest.approx(expected, rel=0.02)


def test_there_are_ways_to_hold_qwen3_4b_in_48_gb() -> None:
    peaks = {masters: float(cells.split("|")[-2]) for masters, *_, cells in SMALLER}
    assert len(SMALLER) == 6
    assert max(peaks.values()) < 48e9 / 2**30


SIZES = {
    "1.7B": QWEN3
    | {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16},
    "4B": PUBLISHED["qwen3_4b"],
    "8B": QWEN3
    | {"hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36, "num_attention_heads": 32}
    | {"tie_word_embeddings": False},
}
SEVERAL = re.findall(r"^\| ([\d.]+B) \| (\d+) \| ((?:[\d. ]+\|){6})$", DOCS.read_text(), re.M)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "world", "cells"), SEVERAL)
def test_memory_of_each_of_several_devices(size: str, world: str, cells: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SIZES[size]))
    stages = [f"{stage}.batch_size=8" for stage in STAGE.values()]
    name = f"model.name={quote(str(tmp_path))}"
    config = check(["model=qwen3_4b", name, "model.master_dtype=bfloat16", *stages, "eval.batch_size=8"])
    alone = world == "1"
    device = Device(
        torch_device=torch.device("cpu"),
        dtype=torch.bfloat16,
        name="any",
        attention="sdpa",
        recompute=True,
        hold_weights=False,
        teacher="device" if alone else "sharded",
        ranks=Ranks(world=int(world), parallel="none" if alone else "fsdp"),
    )
    plan = blueprint(config, device)
    first = stage_memory(config, "stage1_9", config.stage1_9, plan, device)
    second = stage_memory(config, "stage2", config.stage2, plan, device)
    peaks = (first.peak, second.peak, evaluation_memory(config, plan, device).peak)
    expected = [float(cell) for cell in cells.split("|")[:-1]]
    found = [size / 2**30 for size in (first.weights, first.gradients, first.optimizer, *peaks)]
    assert found == pytest.approx(expected, rel=0.02)


def test_each_size_is_estimated_for_each_number_of_devices() -> None:
    assert {(size, world) for size, world, _ in SEVERAL} == {
        (size, world) for size in SIZES for world in "148"
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "masters"),
    [
        ("tiny", "float32"),
        *((name, masters) for name in PUBLISHED for masters in ("float32", "bfloat16")),
    ],
)
def test_the_table_is_what_is_estimated(model: str, masters: str, tmp_path: Path) -> None:
    overrides = [f"model={model}", f"model.master_dtype={masters}"]
    if model in PUBLISHED:
        (tmp_path / "config.json").write_text(json.dumps(PUBLISHED[model]))
        overrides.append(f"model.name={quote(str(tmp_path))}")
    config = check(overrides)
    dtype = torch.float32 if model == "tiny" else torch.bfloat16
    attention = "eager" if model == "tiny" else "sdpa"
    device = Device(torch_device=torch.device("cpu"), dtype=dtype, name="any", attention=attention)
    plan, rows = blueprint(config, device), documented()
    assert {name for *row, name in rows if row == [model, masters]} == {name for name, _ in stages(config)}
    for name, stage in stages(config):
        memory = stage_memory(config, name, stage, plan, device)
        sizes = (memory.weights, memory.gradients, memory.optimizer, memory.activations, memory.peak)
        cells = [float(cell) for cell in rows[model, masters, name]]
        assert [memory.micro_batch, *(size / 2**30 for size in sizes)] == pytest.approx(
            cells, rel=0.02, abs=0.02
        )
