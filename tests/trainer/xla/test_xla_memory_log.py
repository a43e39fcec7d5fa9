"""The memory log on XLA: it changes nothing that is compiled or run, and tells what there is to tell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from stage_runs import BATCH, LENGTH, SMALLEST, VOCABULARY, run_stage

pytestmark = pytest.mark.xla

STAGE = ("stage2", "xla", "optimizer@stage2.optimizer=adamw", *SMALLEST)


def test_a_run_compiles_and_runs_the_same_with_it_and_without(tmp_path: Path) -> None:
    path = tmp_path / "memory.jsonl"
    without = run_stage(*STAGE)
    with_it = run_stage(*STAGE, "memory_log.level=hlo", "memory_log.every=2", memory_log=path)
    # Graphs are remembered by the process: with it there is none that there was not without it.
    assert set(with_it.compiled) == {0}
    assert with_it.launched == without.launched
    assert with_it.fallen_back == without.fallen_back
    assert with_it.parts == without.parts

    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["point"], line["opt_step"]) for line in lines] == [
        ("after_model_init", 0),
        ("after_optimizer_init", 0),
        ("after_first_step", 1),
        ("after_warmup_compile", 2),
        ("after_step", 4),
        ("after_step", 6),
    ]
    assert {value for line in lines for value in line["hbm"].values()} == {None}  # XLA's CPU does not count
    compiles = [line["metrics"]["compiles"] for line in lines]
    assert len(set(compiles)) == 1
    assert compiles[0] > 0
    reads = [line["metrics"]["reads"] for line in lines]
    assert reads[2] == reads[3] == reads[4]  # nothing is read between steps 1 and 6, which are logged
    executions = [line["metrics"]["executions"] for line in lines]
    assert executions[-1] > executions[0]
    assert lines[-1]["tensors"]["optimizer_bytes"] > 0
    assert [line["hlo"] is None for line in lines] == [True, True, False, False, False, False]
    graph = lines[-1]["hlo"]
    assert graph["input_bytes"] >= lines[-1]["tensors"]["optimizer_bytes"]
    assert graph["unfused_peak_bytes"] > graph["input_bytes"] > graph["output_bytes"] > 0
    assert graph["largest_bytes"] >= 4 * BATCH * (LENGTH - 1) * VOCABULARY  # the logits
