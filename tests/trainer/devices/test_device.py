"""The device, what it costs, and the result file."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch

from trainer.api import check
from trainer.config import DeviceConfig
from trainer.devices.device import Device, open_device
from trainer.devices.dtypes import cpu_multiplies_bfloat16
from trainer.errors import ConfigError, TrainerError
from trainer.result import Metrics, Provenance, Result, write
from trainer.telemetry.run import Telemetry
from trainer.training.loop import Step

CPU = Device(torch_device=torch.device("cpu"), dtype=torch.float32, name="CPU", attention="eager")


MIB = 2**20
STEP = Step(
    stage="stage2",
    step=1,
    of=1,
    losses={"loss": 3.0},
    lr=0.001,
    grad_norm=1.0,
    tokens=1,
    seconds=0.1,
    settings={},
)


def config(**changes: object) -> DeviceConfig:
    return dataclasses.replace(check(["device=cpu", "device.threads=1"]).device, **changes)


def test_threads_are_set() -> None:
    before = torch.get_num_threads()
    try:
        open_device(config(threads=2))
        assert torch.get_num_threads() == 2
        open_device(config(threads=1))
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_dtype_is_that_of_matrix_products(dtype: str) -> None:
    device = open_device(config(dtype=dtype))
    with device.autocast():
        assert (torch.randn(2, 2) @ torch.randn(2, 2)).dtype == getattr(torch, dtype)


@pytest.mark.parametrize(
    ("flags", "has"),
    [
        ("vendor_id : AuthenticAMD\nflags : fpu avx2 avx512f avx512_bf16 avx512_vnni", True),
        ("vendor_id : GenuineIntel\nflags : fpu avx2 avx512f avx512_bf16 avx512_vnni", False),
        ("vendor_id : GenuineIntel\nflags : fpu amx_bf16 avx512_bf16", True),
        ("Features : fp asimd bf16 i8mm", True),
        ("flags : fpu avx avx2 avx512f", False),
        (None, False),
    ],
    ids=["AMD's avx512", "Intel's avx512", "amx", "arm", "without", "no such file"],
)
def test_fastest_dtype_depends_on_processor_and_auto_does_not(
    flags: str | None, has: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STAGESWEEP_CPU_BFLOAT16", raising=False)
    cpuinfo = tmp_path / "cpuinfo"
    if flags is not None:
        cpuinfo.write_text(f"model name : Some CPU\n{flags}\n")
    assert cpu_multiplies_bfloat16(cpuinfo) == has
    monkeypatch.setattr("trainer.devices.dtypes.CPUINFO", cpuinfo)
    assert open_device(config(dtype="fastest")).dtype == (torch.bfloat16 if has else torch.float32)
    assert open_device(config(dtype="auto")).dtype == torch.float32
    assert open_device(config(dtype="bfloat16")).dtype == torch.bfloat16


@pytest.mark.parametrize(("forced", "dtype"), [("0", torch.float32), ("1", torch.bfloat16)])
@pytest.mark.parametrize("flags", ["avx2", "avx2 avx512_bf16"])
def test_variable_overrules_processor_capability(
    forced: str, dtype: torch.dtype, flags: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(f"flags : {flags}\n")
    monkeypatch.setattr("trainer.devices.dtypes.CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setenv("STAGESWEEP_CPU_BFLOAT16", forced)
    assert open_device(config(dtype="fastest")).dtype == dtype
    assert open_device(config(dtype="auto")).dtype == torch.float32


@pytest.mark.parametrize("value", ["yes", "true", "2", " 1"])
def test_another_value_of_that_variable_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGESWEEP_CPU_BFLOAT16", value)
    with pytest.raises(ConfigError, match=rf"^STAGESWEEP_CPU_BFLOAT16 is '{value}'"):
        open_device(config(dtype="fastest"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device takes less for float32, and says so")
def test_cpu_float32_ignores_earlier_matmul_precision() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        open_device(config())
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_missing_cuda_is_refused_and_auto_takes_the_cpu() -> None:
    with pytest.raises(ConfigError, match=r"^device.type: .*CUDA"):
        open_device(config(type="cuda"))
    assert open_device(config(type="auto")).kind == "cpu"


def test_memory_is_measured_in_bytes() -> None:
    assert 10 * 2**20 < CPU.memory_bytes() < 2**40
    assert 10 * 2**20 < CPU.peak_memory_bytes() < 2**40


@pytest.mark.parametrize("version", [1, 2])
def test_free_memory_is_what_a_container_has_left(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 8 MiB its processes occupy 6, 1 of them with pages of files that the kernel may drop."""
    names = {
        1: ("limit_in_bytes", "usage_in_bytes", "total_inactive_file"),
        2: ("max", "current", "inactive_file"),
    }
    limit, usage, file_pages = names[version]
    folder = tmp_path / "memory" if version == 1 else tmp_path
    folder.mkdir(exist_ok=True)
    monkeypatch.setattr("trainer.devices.base._CGROUP", tmp_path)
    outside = CPU.free_memory_bytes()
    (folder / f"memory.{limit}").write_text(f"{8 * MIB}\n")
    assert CPU.free_memory_bytes() == 8 * MIB != outside  # what it occupies is not told
    (folder / f"memory.{usage}").write_text(f"{6 * MIB}\n")
    (folder / "memory.stat").write_text(f"anon {5 * MIB}\n{file_pages} {MIB}\n")
    assert CPU.free_memory_bytes() == 3 * MIB
    assert CPU.memory_counts()["total_bytes"] == 8 * MIB
    (folder / f"memory.{limit}").write_text("max\n")
    assert CPU.free_memory_bytes() == pytest.approx(outside, rel=0.2)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_batch_comes_to_a_cuda_device_as_it_was() -> None:
    device, ids = open_device(config(type="cuda")), torch.arange(24).view(2, 12)
    placed = device.place(ids)
    assert placed.is_cuda
    assert torch.equal(placed.cpu(), ids)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature:UserWarning")
def test_cuda_fetch_does_not_wait_and_keeps_values() -> None:
    device = open_device(config(type="cuda"))
    values = torch.arange(3.0, device=device.torch_device)
    try:
        torch.cuda.set_sync_debug_mode("error")
        arrive = device.begin_fetch(values)
        values.zero_()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(arrive(), torch.arange(3.0))


def test_only_cuda_reads_late() -> None:
    assert not CPU.reads_late
    cuda = dataclasses.replace(CPU, torch_device=torch.device("cuda"))
    assert cuda.reads_late
    assert [cuda.reads(step, 4) for step in (1, 2, 3, 4)] == [True, False, False, True]
    assert all(CPU.reads(step, 4) for step in (1, 2, 3, 4))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_peak_of_a_cuda_device_counts_from_its_reset() -> None:
    device = open_device(config(type="cuda"))
    kept = torch.cuda.memory_allocated()  # such as cuBLAS's workspaces, of 64 MiB, once a test has multiplied
    torch.empty(2**26, dtype=torch.uint8, device=device.torch_device)  # dropped at once
    assert device.peak_memory_bytes() >= kept + 2**26
    device.reset_peak_memory()
    assert device.peak_memory_bytes() < kept + 2**26


def result(final_loss: float = 3.0) -> Result:
    metrics = Metrics(
        final_loss=final_loss,
        final_loss_sem=0.1,
        final_loss_text_sem=0.2,
        perplexity=20.0,
        bits_per_byte=1.0,
        stage1_9_final_loss=None,
        stage1_9_distill_loss=None,
        stage1_9_ce_loss=None,
        stage1_9_kl_loss=None,
        stage2_start_loss=4.0,
        stage2_train_loss=3.1,
        stage3_final_loss=None,
        effective_steps=10,
        train_flops=1e9,
        train_seconds=1.0,
        tokens=100,
        tokens_per_second=100.0,
        peak_memory_gib=0.5,
        usd=0.0,
    )
    provenance = Provenance(
        config_sha256="a",
        code_version="b",
        device="CPU",
        torch="2",
        seed=0,
        data_sha256="c",
        dtype="float32",
        muon_dtype={},
    )
    return Result(metrics=metrics, provenance=provenance)


def test_a_result_reads_back_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    write(result(), tmp_path / "result.json")
    document = json.loads((tmp_path / "result.json").read_text())
    assert document["metrics"]["stage1_9_final_loss"] is None
    assert document["provenance"]["reused_stages"] == []
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_a_folder_that_is_gone_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match="No such file or directory"):
        write(result(), tmp_path / "gone" / "result.json")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    telemetry = Telemetry(tmp_path / "metrics.jsonl", every=1, out=None)
    telemetry.begin("stage2", finished=0, weight=1, device=CPU)
    with pytest.raises(TrainerError, match="No space left"):
        telemetry.watch(STEP)
    telemetry.close()  # it flushes once more, which nobody has to hear of again


def test_a_result_that_is_no_json_leaves_the_old_one(tmp_path: Path) -> None:
    write(result(), tmp_path / "result.json")
    before = (tmp_path / "result.json").read_bytes()
    with pytest.raises(ValueError):
        write(result(final_loss=math.nan), tmp_path / "result.json")
    assert (tmp_path / "result.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
