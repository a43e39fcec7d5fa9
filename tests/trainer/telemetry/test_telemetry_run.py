"""metrics.jsonl: which steps have a line, what is in it, and what people are shown."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from telemetry_steps import begun, lines_of, step

from trainer.api import check
from trainer.devices.device import Device
from trainer.telemetry.health import Health, HealthWarning
from trainer.telemetry.run import Telemetry
from trainer.training.evaluation import HeldOutPoint


@pytest.mark.parametrize(
    ("every", "dense", "logged"),
    [
        (1, 1, [1, 2, 3, 4, 5, 6, 7]),
        (3, 1, [1, 3, 6, 7]),
        (100, 1, [1, 7]),
        (100, 3, [1, 2, 3, 7]),
        (3, 4, [1, 2, 3, 4, 6, 7]),
        (100, 50, [1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_the_first_steps_the_last_and_every_nth_are_logged(
    every: int, dense: int, logged: list[int], tmp_path: Path
) -> None:
    path = tmp_path / "metrics.jsonl"
    with Telemetry(path, every=every, dense=dense, out=None) as telemetry:
        begun(telemetry, 7)
        for index in range(1, 8):
            telemetry.watch(step(index, 7))
    assert [line["step"] for line in lines_of(path)] == logged
    assert lines_of(path)[-1]["done"] == 1.0
    assert all(line["tokens_per_second"] == pytest.approx(200) for line in lines_of(path))


def test_first_ten_steps_of_a_stage_are_logged_by_default() -> None:
    assert check([]).telemetry.dense_steps == 10
    assert check(["telemetry.dense_steps=3"]).telemetry.dense_steps == 3


def test_each_line_is_on_the_disk_when_it_is_logged(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with Telemetry(path, every=1, out=None) as telemetry:
        begun(telemetry, 2)
        telemetry.watch(step(1, 2))
        assert len(lines_of(path)) == 1


def test_numbers_of_layers_are_read_and_counted_from_one(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with Telemetry(path, every=1, out=None) as telemetry:
        begun(telemetry, 1)
        telemetry.watch(step(1, 1, details={"distill_layer": torch.tensor([0.5, 0.25])}))
    (line,) = lines_of(path)
    assert (line["distill_layer_1"], line["distill_layer_2"]) == (0.5, 0.25)


def test_times_are_means_over_the_steps_since_the_last_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with Telemetry(path, every=3, out=None) as telemetry:
        begun(telemetry, 5)
        for index in range(1, 6):
            telemetry.watch(
                step(index, 5, seconds=float(index), data_seconds=0.1 * index, save_seconds=index / 2)
            )
    first, third, last = lines_of(path)
    assert (first["data_seconds"], first["compute_seconds"], first["save_seconds"]) == pytest.approx(
        (0.1, 0.9, 0.5)
    )
    assert (third["data_seconds"], third["compute_seconds"], third["save_seconds"]) == pytest.approx(
        (0.25, 2.25, 1.25)
    )
    assert third["tokens_per_second"] == pytest.approx(200 / 5)  # saving is not in it
    assert last["compute_seconds"] == pytest.approx(0.9 * 4.5)


def test_every_line_names_its_units_and_its_time(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with Telemetry(path, every=1, out=None) as telemetry:
        begun(telemetry, 1)
        telemetry.watch(step(1, 1))
    (line,) = lines_of(path)
    assert 10 < line["memory_mib"] <= line["peak_memory_mib"] < 2**20
    assert line["unix_seconds"] > 1.7e9
    assert "mfu" not in line  # nobody tells what a CPU could do
    assert "reserved_memory_mib" not in line


class Accelerator(Device):
    """An H100 that is not there."""

    def memory_bytes(self) -> int:
        return 3 * 2**20

    def peak_memory_bytes(self) -> int:
        return 5 * 2**20

    def reserved_memory_bytes(self) -> int:
        return 8 * 2**20


def test_mfu_is_a_share_of_peak_and_memory_has_three_names(tmp_path: Path) -> None:
    device = Accelerator(
        torch_device=torch.device("cuda"),
        dtype=torch.bfloat16,
        name="NVIDIA H100 80GB HBM3",
        attention="sdpa",
    )
    path = tmp_path / "metrics.jsonl"
    with Telemetry(path, every=1, out=None) as telemetry:
        begun(telemetry, 1, device=device, flops_per_token=989.5e9)
        telemetry.watch(step(1, 1))
    (line,) = lines_of(path)
    assert line["mfu"] == pytest.approx(0.2)  # 200 tokens/s · 989.5 Gflop / 989.5 Tflop/s
    assert (line["memory_mib"], line["peak_memory_mib"], line["reserved_memory_mib"]) == (3, 5, 8)


def test_console_skips_dense_lines(tmp_path: Path) -> None:
    out = io.StringIO()
    with Telemetry(tmp_path / "metrics.jsonl", every=4, dense=3, out=out) as telemetry:
        begun(telemetry, 4)
        for index in range(1, 5):
            telemetry.watch(step(index, 4))
    assert out.getvalue().splitlines() == [
        "stage2 1/4  loss 3  lr 0.001  lambda 1  tokens_per_second 200",
        "stage2 4/4  loss 3  lr 0.001  lambda 1  tokens_per_second 200",
    ]


def test_only_the_first_process_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Telemetry(None, every=1) as telemetry:
        begun(telemetry, 1)
        telemetry.watch(step(1, 1))
        with telemetry.during("evaluating"):
            pass
    assert (capsys.readouterr().out, list(tmp_path.iterdir())) == ("", [])


def test_the_lines_of_a_run_have_what_is_promised(run_small, tmp_path: Path) -> None:
    run_small()
    lines = lines_of(tmp_path / "metrics.jsonl")
    promised = {
        *("stage", "step", "of", "done", "loss", "lambda", "lr", "grad_norm", "tokens_per_second"),
        *("grad_norm_matrices", "grad_norm_ends", "grad_norm_gains", "unix_seconds"),
        *("data_seconds", "compute_seconds", "save_seconds", "memory_mib", "peak_memory_mib"),
    }
    assert all(promised <= set(line) for line in lines)
    assert all(0 <= line["data_seconds"] < 60 and 0 < line["compute_seconds"] < 60 for line in lines)


def unsteady(telemetry: Telemetry, of: int) -> None:
    """A stage whose steps take 2 s each, and from the 400th on 4 s."""
    begun(telemetry, of)
    for index in range(1, of + 1):
        loss = {"loss": -float(index)}
        telemetry.watch(step(index, of, seconds=2.0 if index <= 400 else 4.0, losses=loss))


def test_health_warnings_reach_stderr_line_and_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "metrics.jsonl"
    with Telemetry(path, every=1000, out=None) as telemetry:
        unsteady(telemetry, 500)
        (warning,) = telemetry.warnings
    (line,) = [line for line in lines_of(path) if "warnings" in line]
    assert line["warnings"] == [warning]
    assert (warning["check"], warning["stage"], warning["step"]) == ("throughput", "stage2", line["step"])
    assert capsys.readouterr().err == f"trainer: warning: {warning['message']}\n"
    assert [line["step"] for line in lines_of(path)] == [1, warning["step"], 500]


def test_warnings_of_an_earlier_attempt_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "metrics.jsonl"
    with Telemetry(path, every=1000, out=None) as first:
        unsteady(first, 500)
    with Telemetry(path, every=1000, append=True, out=None) as second:
        assert second.warnings == first.warnings
    with Telemetry(path, every=1000, out=None) as anew:
        assert anew.warnings == ()


def point(at: int, of: int, loss: float | None) -> HeldOutPoint:
    return HeldOutPoint(stage="stage2", step=at, of=of, loss=loss, sequences=8, seconds=0.25)


def test_held_out_loss_always_has_a_line(tmp_path: Path) -> None:
    path, out = tmp_path / "metrics.jsonl", io.StringIO()
    with Telemetry(path, every=100, dense=1, out=out) as telemetry:
        begun(telemetry, 4)
        for index in range(1, 5):
            telemetry.watch(step(index, 4))
            if index == 2:
                telemetry.record_held_out(point(2, 4, 3.25))
                telemetry.record_held_out(point(2, 4, 3.25))
            elif index == 3:
                telemetry.record_held_out(point(3, 4, None))
    first, second, third, last = lines_of(path)
    assert first["step"] == 1
    assert second.pop("unix_seconds") > 1e9
    assert second == {
        **{"stage": "stage2", "step": 2, "of": 4, "done": 0.5, "held_out_loss": 3.25},
        **{"held_out_sequences": 8, "held_out_seconds": 0.25},
    }
    assert (third["step"], third["held_out_loss"]) == (3, None)
    assert (last["step"], last["tokens_per_second"]) == (4, pytest.approx(200))
    assert out.getvalue().splitlines()[1:3] == [
        "stage2 2/4  held_out_loss 3.25 on the first 8 sequences",
        "stage2 3/4  held_out_loss not finite on the first 8 sequences",
    ]


def test_held_out_loss_of_earlier_attempt_is_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for append in (False, True):
        with Telemetry(path, every=1, append=append, out=None) as telemetry:
            begun(telemetry, 4)
            telemetry.record_held_out(point(4, 4, 3.25))
    assert [line["held_out_loss"] for line in lines_of(path)] == [3.25]


def test_a_result_holds_the_warnings(run_in, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = HealthWarning(check="memory", stage="stage2", step=2, message="it grows")
    monkeypatch.setattr(Health, "step", lambda self, step, **rest: [said] if step == 2 else [])
    run_in(tmp_path)
    document = json.loads((tmp_path / "result.json").read_text())
    assert (
        document["warnings"] == [{"check": "memory", "stage": "stage2", "step": 2, "message": "it grows"}] * 2
    )  # of both stages
