"""The benchmark of training steps, on a model small enough for a CPU."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from benchmarks.gpu import cases
from benchmarks.gpu.cases import SHAPES, Case, Shape, run
from benchmarks.gpu.process import in_a_process
from benchmarks.gpu.tables import table, targets
from trainer.optim.build import OptimizerSet
from trainer.training.train_step import TrainStep

SMALL = Shape(
    architecture="qwen3",
    hidden=32,
    intermediate=64,
    layers=2,
    heads=2,
    kv_heads=1,
    head_dim=16,
    vocabulary=64,
    batch=4,
    micro=2,
    tokens=16,
)
OVERRIDES = ["device=cpu", "device.threads=1"]


@pytest.mark.parametrize("kind", ["plain", "full precision", "ternary", "stage 1.9"])
def test_a_case_has_time_memory_losses_and_operations(kind: str):
    before = TrainStep.accumulate, OptimizerSet.step
    result = run(SMALL, Case(kind=kind, compile=False), OVERRIDES, 0.05)
    assert (TrainStep.accumulate, OptimizerSet.step) == before
    assert result["ms"] > 0
    assert result["steps"] >= 2
    assert result["tokens_per_second"] == pytest.approx(4 * 16 * 1000 / result["ms"])
    assert len(result["losses"]) == cases.COMPARED_STEPS
    assert (result["syncs"], result["mfu"]) == (None, None)  # a CPU has neither
    if kind != "plain":
        assert set(result["parts_ms"]) == {"forward and backward", "optimizer"}
        assert result["operations"]["forward and backward"] > 50


def test_cases_begin_from_the_same_weights_and_tokens():
    first, again = (run(SMALL, Case(kind="ternary", compile=False), OVERRIDES, 0.0) for _ in range(2))
    assert first["losses"] == again["losses"]


def test_fp8_without_a_gpu_is_an_error_of_that_case():
    result = run(SMALL, Case(kind="ternary fp8", compile=True), OVERRIDES, 0.0)
    assert result == {"error": "the device has no products of 8-bit floats"}


@pytest.mark.slow
def test_slow_or_failed_case_ends_no_other():
    case = Case(kind="ternary", compile=False)
    late = in_a_process("cpu", case, OVERRIDES, 1000.0, limit=1.0)
    assert late["error"] == "no result within 1 s"
    wrong = in_a_process("cpu", case, ["stage2.nothing=1"], 0.0, limit=60.0)
    assert "stage2.nothing" in wrong["error"]
    assert (wrong["shape"], wrong["case"]) == ("cpu", "ternary, eager")


@pytest.mark.slow
def test_the_command_starts_its_cases():
    command = [sys.executable, "-m", "benchmarks.gpu", "stage2.nothing=1", "--shapes", "cpu"]
    done = subprocess.run([*command, "--cases", "plain, eager"], capture_output=True, text=True, check=True)
    assert "cpu, plain, eager: ConfigError: stage2.nothing" in done.stdout


@pytest.mark.parametrize(
    ("shape", "millions"), [("smollm2_135m", 134.5), ("qwen3_0_6b", 596), ("qwen3_1_7b", 1720)]
)
def test_shapes_have_the_sizes_of_their_models(shape: str, millions: float):
    import torch

    with torch.device("meta"):
        model = SHAPES[shape].build("sdpa")
    assert cases.parameter_count(model) / 1e6 == pytest.approx(millions, rel=0.002)


def result(case: str, ms: float, **more: Any) -> dict[str, Any]:
    filled = {
        "shape": "qwen3_1_7b",
        "case": case,
        "device": "GPU",
        "dtype": "bfloat16",
        "torch": "2.13",
        "parameters": 1.7e9,
        "batch": "32 x 512",
        "ms": ms,
        "tokens_per_second": 16384e3 / ms,
        "mfu": 50.0 / ms,
        "compile_seconds": 20.0,
        "peak_gib": 40.0,
        "parts_ms": {"forward and backward": ms - 5, "optimizer": 4.0},
        "operations": {"forward and backward": 1000, "optimizer": 500},
        "syncs": 0,
        "losses": [10.0, 9.0],
    }
    return {**filled, **more}


RESULTS = [
    result("full precision, compiled", 95.0),
    result("ternary, eager", 210.0),
    result("ternary, compiled", 100.0, losses=[10.0, 9.09]),
    {"shape": "qwen3_1_7b", "case": "ternary fp8, compiled", "error": "no result within 60 s"},
]


def test_table_compares_with_the_eager_case():
    lines = table("qwen3_1_7b", RESULTS).splitlines()
    assert lines[0].startswith("qwen3_1_7b: 1700M parameters, batch 32 x 512, GPU")
    assert lines[-1].startswith("| ternary fp8, compiled | no result within 60 s |")
    assert lines[-2] == (
        "| ternary, compiled | 100.0 | 163,840 | 50.0% | 95.0, 4.0 | 1,000, 500 | 40.0 | 20.0 | 0 | 1.0e-02 |"
    )
    assert len({line.count("|") for line in lines[2:]}) == 1


def test_targets_are_met_missed_or_not_measured():
    lines = targets(RESULTS).splitlines()[2:]
    assert lines == [
        "| qwen3_1_7b | MFU of Stage 2 | ≥ 0.50 | 0.50 | yes |",
        "| qwen3_1_7b | MFU of Stage 1.9 | ≥ 0.45 | – | not measured |",
        "| qwen3_1_7b | speed of FP8 over bfloat16 | ≥ 1.10 | – | not measured |",
        "| qwen3_1_7b | time of ternary over full precision, compiled | ≤ 1.10 | 1.05 | yes |",
        "| qwen3_1_7b | speed of compiled over eager, ternary | ≥ 2.00 | 2.10 | yes |",
    ]
    slow = [result("ternary, eager", 150.0), result("ternary, compiled", 100.0)]
    assert targets(slow).splitlines()[-1].endswith("| 1.50 | **no** |")
