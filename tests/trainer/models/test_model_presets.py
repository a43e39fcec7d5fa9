"""The models of the research notebook: their presets, which the command line overrides, and runs of all stages
with stand-ins for them (a folder with random weights)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from fake_gcs import FakeGcs
from pretrained import save_stand_in
from torch import nn

from trainer import api
from trainer.api import check
from trainer.config import HfModelConfig
from trainer.config.compose import keys
from trainer.data import remote
from trainer.errors import ConfigError
from trainer.models.subln import SubLN
from trainer.pipeline import Outcome
from trainer.quant.ternary import ternary_layers

NAMES = {
    "smollm2_135m": "HuggingFaceTB/SmolLM2-135M",
    "qwen3_0_6b": "Qwen/Qwen3-0.6B",
    "qwen3_4b": "Qwen/Qwen3-4B",
}
# The notebook's best settings, in the length of its trials; batches of 512 tokens.
BEST = {
    "model.kind": "hf",
    "model.dtype": "bfloat16",
    "model.master_dtype": "float32",
    "device.dtype": "bfloat16",
    "data.sequence_length": 512,
    "stage1_9.max_steps": 200,
    "stage1_9.optimizer.type": "muon",
    "stage1_9.optimizer.lr": 3e-3,
    "stage1_9.lm_loss_weight": 0.5,
    "stage1_9.loss_type": "mse_normalized",
    "stage1_9.layer_weights": "progressive",
    "stage1_9.saliency.enabled": False,
    "stage2.max_steps": 200,
    "stage2.optimizer.type": "muon",
    "stage2.optimizer.lr": 2.4e-3,
    "stage2.lambda_warmup.enabled": True,
    "stage2.lambda_warmup.schedule": "linear",
    "stage2.lambda_warmup.warmup_steps": 100,
    "stage3.max_steps": 0,
    "quant.weight_scale": "absmean",
    "quant.activations": "int8",
}
# Per device of 48 GB, of 80 GB and of 141 GB.
BATCHES = {
    "smollm2_135m": ((32, None), (32, None)),
    "qwen3_0_6b": ((64, 8), (64, 16)),
    "qwen3_4b": ((64, 8), (64, 8)),
}


def value(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = getattr(config, part)
    return config


@pytest.mark.parametrize("data", ["fineweb", "stdlib"])
@pytest.mark.parametrize("model", NAMES)
def test_a_model_composes_with_the_notebooks_settings(model: str, data: str) -> None:
    config = check([f"model={model}", f"data={data}"])
    assert config.model == HfModelConfig(
        kind="hf", name=NAMES[model], dtype="bfloat16", master_dtype="float32"
    )
    assert {key: value(config, key) for key in BEST} == BEST
    for stage, (batch, micro) in zip((config.stage1_9, config.stage2), BATCHES[model], strict=True):
        assert (stage.batch_size, stage.micro_batch_size) == (batch, micro)
    windows = config.eval.batches * config.eval.batch_size
    assert windows * config.data.sequence_length <= keys(["data=fineweb"])["data.held_out_tokens"]


@pytest.mark.parametrize("model", NAMES)
def test_command_line_overrides_presets_in_any_order(model: str) -> None:
    given = {
        "stage1_9.optimizer.lr": 1e-3,
        "stage2.max_steps": 2_000,
        "stage2.lambda_warmup.warmup_steps": 1000,
        "data.sequence_length": 1024,
        "device.dtype": "float32",
        "eval.batch_size": 4,
        "model.name": "/a/folder",
    }
    overrides = [f"{key}={number}" for key, number in given.items()]
    for arguments in ([f"model={model}", *overrides], [*overrides, f"model={model}"]):
        config = check(arguments)
        assert {key: value(config, key) for key in given} == given


def test_a_model_changes_nothing_that_it_does_not_name() -> None:
    plain, chosen = keys(["model=hf"]), keys(["model=smollm2_135m"])
    changed = {key for key in plain if chosen[key] != plain[key]}
    assert changed <= {*BEST, "model.name", "stage1_9.batch_size", "stage2.batch_size"}
    assert chosen.keys() == plain.keys()


def test_the_tiny_model_is_what_it_was() -> None:
    config = check([])
    assert config == check(["model=tiny"])
    assert (config.eval.batch_size, config.stage1_9.batch_size, config.data.sequence_length) == (16, 16, 128)


def test_sweep_of_a_preset_is_checked_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from click.testing import CliRunner

    from sweeps.cli import cli

    (tmp_path / "space.yaml").write_text(
        "name: smollm2\n"
        "objectives: [{metric: final_loss, goal: minimize}]\n"
        "program: {trainer: {overrides: [model=smollm2_135m, data=fineweb]}}\n"
        "parameters:\n"
        "  stage1_9.optimizer.lr: {min: 1.0e-3, max: 8.0e-3, distribution: log_uniform_values}\n"
        "  stage2.lambda_warmup.warmup_steps: {values: [50, 100], ordered: true}\n"
        "search: {method: bayes, sobol: 2, seed: 0}\n"
        "run_cap: 4\n"
    )
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("it reached for the network"))
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(cli, ["init", "space.yaml"])
    assert answer.exit_code == 0, answer.output
    assert (tmp_path / "sweep-store" / "smollm2" / "sweep.json").exists()


# Stand-ins


@pytest.fixture(scope="module", params=["smollm2", "qwen3"])
def stand_in(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_stand_in(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the metadata of FineWeb-Edu."""
    folder = tmp_path_factory.mktemp("fineweb-edu")
    (folder / "sample" / "10BT").mkdir(parents=True)
    texts = [" ".join(f"{number * step % 997}" for step in range(1, 21)) for number in range(300)]
    pq.write_table(pa.table({"text": texts}), folder / "sample" / "10BT" / "000.parquet", row_group_size=10)
    configurations = (
        "configs: [{config_name: sample-10BT, data_files: [{split: train, path: sample/10BT/*}]}]"
    )
    (folder / "README.md").write_text(f"---\n{configurations}\n---\n")
    return folder


SMALLER = (
    "data.sequence_length=16", "data.held_out_tokens=400", "data.held_out_fraction=0.2",
    "stage1.calibration_batches=1", "stage1_9.max_steps=3", "stage1_9.batch_size=4",
    "stage1_9.schedule.warmup_steps=1", "stage2.max_steps=4", "stage2.batch_size=4",
    "stage2.schedule.warmup_steps=1", "stage2.lambda_warmup.warmup_steps=2", "eval.batches=2",
    "eval.batch_size=4", "device=cpu", "device.threads=1", "device.dtype=bfloat16",
)  # fmt: skip


@pytest.fixture
def run(
    run_config: Callable[..., Outcome], dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Outcome]:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    def run(name: str, *overrides: str) -> Outcome:
        where = [f"model.name={api.quote(name)}", f"data.dataset={api.quote(str(dataset))}"]
        config = check(["model=smollm2_135m", "data=fineweb", *where, *SMALLER, *overrides])
        return run_config(config)

    return run


def test_stand_in_models_pass_all_stages(stand_in: Path, run: Callable[..., Outcome]) -> None:
    outcome = run(str(stand_in))
    metrics, student = outcome.result.metrics, outcome.student
    assert 0 < metrics.final_loss < 2 * math.log(280)
    assert metrics.stage1_9_final_loss is not None
    assert metrics.bits_per_byte is not None
    assert {parameter.dtype for parameter in student.parameters()} == {torch.float32}
    assert outcome.result.provenance.dtype == "bfloat16"
    assert len(ternary_layers(student)) == 2 * 7
    assert all(layer.effective_weight().unique().numel() == 3 for layer in ternary_layers(student))
    assert student.get_input_embeddings().weight is student.get_output_embeddings().weight


def test_qk_norms_stay_and_sublns_are_placed(stand_in: Path, run: Callable[..., Outcome]) -> None:
    student = run(str(stand_in), "stage1_9.max_steps=0", "stage2.max_steps=0").student
    modules = dict(student.named_modules())
    sublns = {name for name, module in modules.items() if isinstance(module, SubLN)}
    assert {name.split(".")[-2] for name in sublns} == {"o_proj", "down_proj"}
    assert len(sublns) == 2 * 2
    kept = [module for name, module in modules.items() if name.endswith(("q_norm", "k_norm"))]
    assert len(kept) == (4 if "qwen3" in str(stand_in) else 0)
    assert not any(isinstance(module, SubLN | nn.Linear) for module in kept)


def test_model_and_tokenizer_load_from_a_bucket(
    gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch, stand_in: Path, run: Callable[..., Outcome]
) -> None:
    from gcsfs.core import GCSFileSystem

    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    monkeypatch.setattr(remote, "FIRST_WAIT_S", 0.01)
    GCSFileSystem.clear_instance_cache()
    url = f"gs://bucket/models/{stand_in.name}"
    GCSFileSystem(token="anon").put(str(stand_in), url, recursive=True)
    there, here = run(url, "stage1_9.max_steps=0"), run(str(stand_in), "stage1_9.max_steps=0")
    metrics = [dataclasses.asdict(outcome.result.metrics)["final_loss"] for outcome in (there, here)]
    assert metrics[0] == metrics[1]
    with pytest.raises(ConfigError, match=r"^model\.name: .*gs://bucket/models/nothing"):
        run("gs://bucket/models/nothing")
