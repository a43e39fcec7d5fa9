"""The preflight check: refusals with status 2 and what to write, `force`, disk, and the table of `--preflight`."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import namedtuple
from pathlib import Path

import pytest

from trainer import __main__ as program
from trainer import api
from trainer.config import Config
from trainer.config.compose import compose_config
from trainer.devices.device import Device, open_device
from trainer.distributed.launched import Launched
from trainer.preflight import disk, fitting, preflight
from trainer.preflight.memory import EVALUATION, StageMemory
from trainer.preflight.preflight import Preflight

pytestmark = pytest.mark.usefixtures("keep_signals")
GIB = 2**30


@pytest.fixture
def free_disk(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """So many bytes are free."""
    free = [GIB]
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: usage(0, 0, free[0]))
    return free


def checked(config: Config, folder: Path | None = None, *, detailed: bool = False) -> Preflight:
    return preflight.run_preflight(config, open_device(config.device), folder, detailed=detailed)


def test_a_small_run_is_one_line_without_an_estimate(
    small: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "stage_memory", lambda *_, **__: pytest.fail("it checked detailed"))
    monkeypatch.setattr(Device, "free_memory_bytes", lambda self: 8 * GIB)
    found = checked(compose_config(small), tmp_path / "run")
    assert (found.refusals, found.stages) == ([], [])
    assert preflight.summary_line(found).startswith("preflight: memory below ")
    assert re.search(
        r" MiB of 8\.00 GiB free, disk [\d.]+ [KM]iB of [\d.]+ [GMK]iB free", preflight.summary_line(found)
    )
    assert not (tmp_path / "run").exists()


@pytest.fixture
def estimates(monkeypatch: pytest.MonkeyPatch) -> None:
    """One GiB that lasts, and one for each sequence that is computed at once; half of it with recomputation.

    Of master weights in bfloat16 half a GiB lasts.
    """

    def of_sequences(name: str, count: int, device: Device, lasting: int = GIB) -> StageMemory:
        passing = count * GIB // (2 if device.recompute else 1)
        return StageMemory(
            name=name,
            micro_batch=count,
            weights=lasting // 2,
            gradients=lasting // 4,
            optimizer=lasting // 4,
            peak=lasting + passing,
        )

    def of_stage(config, name, stage, plan, device, *, micro_batch=None) -> StageMemory:
        lasting = GIB // 2 if config.model.master_dtype == "bfloat16" else GIB
        return of_sequences(name, micro_batch or stage.micro_batch_size or stage.batch_size, device, lasting)

    def of_evaluation(config, plan, device) -> StageMemory:
        return of_sequences("evaluation", config.eval.batch_size, device)

    for module in (preflight, fitting):
        monkeypatch.setattr(module, "stage_memory", of_stage)
        monkeypatch.setattr(module, "evaluation_memory", of_evaluation)
    monkeypatch.setattr(preflight, "memory_upper_bound", lambda *_: 999 * GIB)


@pytest.mark.usefixtures("estimates")
@pytest.mark.parametrize(
    ("target", "key", "advice"),
    [
        (5.5, "stage1_9.micro_batch_size", "write 4"),
        (2.0, "stage1_9.micro_batch_size", "write 1"),
        (1.6, "device.recompute", "write true, and stage1_9.micro_batch_size=1"),
        (1.2, "model.master_dtype", "write bfloat16, and device.recompute=true stage1_9.micro_batch_size=1"),
        (0.9, "stage1_9.micro_batch_size", "does not fit either: take a smaller model, an optimizer"),
    ],
)
def test_too_little_memory_names_what_makes_it_fit(
    target: float, key: str, advice: str, small: tuple[str, ...]
) -> None:
    stage = ("stage1_9.batch_size=12", "stage2.max_steps=0", "eval.batch_size=1")
    config = compose_config([*small, *stage, f"device.memory_target_gib={target}"])
    refusal = checked(config).refusals[0]
    assert refusal.key == key
    assert refusal.problem.startswith("stage1_9 takes an estimated 13.0 GiB of memory (weights 0.50 GiB, ")
    assert f"and {target:.2f} GiB are free; " in refusal.problem
    assert advice in refusal.problem


@pytest.mark.usefixtures("estimates")
def test_evaluation_that_does_not_fit_suggests_smaller_batches(
    small: tuple[str, ...],
) -> None:
    small_stages = ("stage1_9.micro_batch_size=1", "stage2.micro_batch_size=1")
    target = ("eval.batches=3", "eval.batch_size=8", "device.memory_target_gib=5.5")
    (refusal,) = checked(compose_config([*small, *small_stages, *target])).refusals
    assert (refusal.key, refusal.problem.rpartition("; ")[2]) == (
        "eval.batch_size",
        "write 4, and eval.batches=6",
    )


@pytest.mark.usefixtures("estimates")
def test_evaluation_of_one_sequence_at_once_suggests_more_batches_within_stages(
    small: tuple[str, ...],
) -> None:
    """With part_batches=1 that would be one sequence, which is refused."""
    sizes = ("eval.batches=3", "eval.batch_size=8", "eval.part_batches=1", "device.memory_target_gib=2.5")
    found = checked(compose_config([*small, *sizes]))
    assert [refusal.key for refusal in found.refusals] == [
        "stage1_9.micro_batch_size",
        "stage2.micro_batch_size",
        "eval.batch_size",
    ]
    advice = "write 1, and eval.batches=24 eval.part_batches=2"
    assert found.refusals[-1].problem.rpartition("; ")[2] == advice


def test_compiled_step_is_refused_by_half_its_activations(
    small: tuple[str, ...],
) -> None:
    memory = StageMemory(name="stage2", micro_batch=1, weights=10, gradients=5, optimizer=5, peak=40)
    eager = open_device(compose_config(small).device)
    compiled = open_device(compose_config([*small, "device.compile=true"]).device)
    assert [fitting.fits(memory, eager, free) for free in (40, 39)] == [True, False]
    assert [fitting.fits(memory, compiled, free) for free in (30, 29)] == [True, False]
    evaluation = dataclasses.replace(memory, name=EVALUATION)  # whose layers compute as they are
    assert [fitting.fits(evaluation, compiled, free) for free in (40, 39)] == [True, False]


@pytest.mark.usefixtures("estimates")
def test_processes_on_one_cpu_share_its_memory(
    small: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Device, "free_memory_bytes", lambda self: 15 * GIB)
    config = compose_config([*small, "stage1_9.batch_size=12", "stage2.max_steps=0", "eval.batch_size=1"])
    device = open_device(config.device)
    assert preflight.run_preflight(config, device, None).refusals == []  # 13 GiB
    two = Launched(rank=0, world=2, local_rank=0, local_world=2)
    (refusal,) = preflight.run_preflight(config, device, None, launch=two).refusals
    assert "7.50 GiB are free" in refusal.problem


@pytest.mark.parametrize(
    ("batch", "limit", "expected"), [(12, 5, 4), (12, 12, 12), (12, 0, None), (7, 6, 1), (1, 1, 1)]
)
def test_the_largest_divisor(batch: int, limit: int, expected: int | None) -> None:
    assert fitting.largest_divisor(batch, lambda size: size <= limit) == expected


def test_full_disk_is_refused_with_a_remedy(
    small: tuple[str, ...], tmp_path: Path, free_disk: list[int]
) -> None:
    config = compose_config([*small, "checkpoint.keep=5"])
    found = checked(config, tmp_path)
    assert (found.refusals, found.disk.checkpoints) == ([], 6)
    one = found.disk.checkpoint
    free_disk[0] = 4 * one + 2**20
    (refusal,) = checked(config, tmp_path).refusals
    assert (refusal.key, refusal.problem.rpartition("write ")[2]) == ("checkpoint.keep", "3")
    assert checked(compose_config([*small, "checkpoint.keep=3"]), tmp_path).refusals == []
    free_disk[0] = one
    assert checked(config, tmp_path).refusals[0].key == "run_dir"
    never = ("checkpoint.every_seconds=0", "save_model=true")
    assert checked(compose_config([*small, *never]), tmp_path).disk.checkpoints == 1


def test_checkpoints_of_the_attempt_before_are_not_counted_twice(
    small: tuple[str, ...], tmp_path: Path, free_disk: list[int]
) -> None:
    config = compose_config(small)
    one = checked(config, tmp_path).disk.checkpoint
    for name in ("00000001", "00000002"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
        (tmp_path / "checkpoints" / name / "model.safetensors").write_bytes(bytes(one))
    free_disk[0] = one + 2**20
    assert checked(config, tmp_path).refusals == []


def test_refusal_is_status_2_and_force_is_recorded(
    small: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], free_disk: list[int]
) -> None:
    free_disk[0] = 1000
    run_dir = tmp_path / "run"
    assert program.main([*small, f"run_dir={run_dir}"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("trainer: error: not on this machine: run_dir: 0.98 KiB ")
    assert captured.err.count("\n") == 1
    assert not run_dir.exists()
    assert program.main([*small, f"run_dir={run_dir}", "--force"]) == 0
    provenance = json.loads((run_dir / api.RESULT_FILE).read_text())["provenance"]
    assert [text.partition(":")[0] for text in provenance["forced"]] == ["run_dir"]
    assert "trainer: warning: forced: run_dir: " in capsys.readouterr().err


@pytest.mark.usefixtures("estimates")
@pytest.mark.parametrize("flag", ["--preflight", "--dry-run"])
def test_a_preflight_prints_the_table_and_computes_nothing(
    flag: str, small: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    monkeypatch.setattr(Device, "free_memory_bytes", lambda self: 8 * GIB)
    assert program.main([*small, f"run_dir={tmp_path}/run", flag]) == 0
    text = capsys.readouterr().out
    for word in ("stage1_9", "stage2", "evaluation", "activations", "memory about 5.00 GiB", "disk"):
        assert word in text
    assert list(tmp_path.iterdir()) == []
    assert program.main([*small, flag, "device.memory_target_gib=2.5"]) == 2
    assert "refused: stage1_9.micro_batch_size: stage1_9 takes" in capsys.readouterr().out


def test_failed_estimate_does_not_stop_a_run(
    small: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "blueprint", lambda *_: 1 / 0)
    found = checked(compose_config(small), tmp_path)
    assert found.refusals == []
    assert preflight.summary_line(found).endswith("(ZeroDivisionError: division by zero)")


@pytest.mark.parametrize(
    ("documents", "more", "said"),
    [
        (6, [], "leaves no held-out text among 6 documents; change it, or take more text"),
        (60, ["data.sequence_length=4096"], "tokens, fewer than data.sequence_length=4096; lower it"),
        (None, [], "data.files: "),
    ],
)
def test_the_preflight_says_that_text_is_missing(
    documents: int | None, more: list[str], said: str, small: tuple[str, ...], tmp_path: Path, capsys
) -> None:
    if documents is not None:
        lines = [json.dumps({"text": f"document {number} of a few"}) for number in range(documents)]
        (tmp_path / "few.jsonl").write_text("\n".join(lines))
    text = ["data=text", f"data.files=[{tmp_path}/few.jsonl]", "data.text_key=text"]
    given = [each for each in small if not each.startswith("data")] + text + more
    assert program.main([*given, "--preflight"]) == 2
    (refused,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("refused: ")]
    assert said in refused
    assert not list((tmp_path).glob("**/held_out.json"))
