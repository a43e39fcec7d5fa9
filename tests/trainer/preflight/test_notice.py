"""Whether a checkpoint is written within a preemption's notice: the disk is measured, and too slow a one warned of."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from trainer import __main__ as program
from trainer.config.compose import compose_config
from trainer.devices.device import open_device
from trainer.distributed.launched import ALONE, Launched
from trainer.preflight import disk, notice, preflight
from trainer.preflight.preflight import Preflight

pytestmark = pytest.mark.usefixtures("keep_signals")
MIB = 2**20
EIGHT = Launched(rank=0, world=8, local_rank=0, local_world=4)
FSDP = "device.parallel=fsdp"


@pytest.fixture(autouse=True)
def _large_and_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint of 4 GiB, and a disk that takes 100 MiB a second."""
    really = disk.disk

    def large(*arguments: object) -> disk.Disk:
        return dataclasses.replace(really(*arguments), checkpoint=4096 * MIB, free=2**50)  # type: ignore[arg-type] # of any call

    monkeypatch.setattr(disk, "disk", large)
    monkeypatch.setattr(notice, "write_speed", lambda folder: 100.0 * MIB)


def checked(small: tuple[str, ...], folder: Path, *overrides: str, launch: Launched = ALONE) -> Preflight:
    config = compose_config([*small, *overrides])
    return preflight.run_preflight(config, open_device(config.device), folder, launch=launch)


def test_slow_disk_is_warned_of_with_what_to_do(small: tuple[str, ...], tmp_path: Path) -> None:
    found = checked(small, tmp_path / "run")
    (warning,) = found.warnings
    assert warning == (
        "a checkpoint takes about 41 s here (4.00 GiB by one process, 100 MiB/s measured), longer than a notice of "
        "30 s: a preempted run loses up to checkpoint.every_seconds=300 of computing; write a smaller "
        "checkpoint.every_seconds, or run_dir on a faster disk"
    )
    assert found.refusals == []
    assert ", a checkpoint about 41 s" in preflight.summary_line(found)
    assert not (tmp_path / "run").exists()


def test_seconds_are_those_of_a_machine_s_processes(small: tuple[str, ...], tmp_path: Path) -> None:
    """Four of eight processes share a disk, and write half of a sharded checkpoint; a whole one is the first's."""
    sharded = checked(small, tmp_path, FSDP, launch=EIGHT).checkpoint
    assert sharded is not None
    assert (sharded.size, sharded.writers, sharded.seconds) == (512 * MIB, 4, pytest.approx(20.48))
    whole = checked(small, tmp_path, FSDP, "checkpoint.format=whole", launch=EIGHT)
    assert "write a smaller checkpoint.every_seconds, or checkpoint.format=sharded, or" in whole.warnings[0]
    assert checked(small, tmp_path, "device.parallel=ddp", launch=EIGHT).checkpoint.writers == 1
    assert checked(small, tmp_path, FSDP, launch=dataclasses.replace(EIGHT, rank=1)).checkpoint is None


@pytest.mark.parametrize(
    ("override", "warned"),
    [("30", True), ("41", False), ("0", False)],
    ids=["short", "long", "never preempted"],
)
def test_notice_decides(override: str, warned: bool, small: tuple[str, ...], tmp_path: Path) -> None:
    found = checked(small, tmp_path, f"checkpoint.notice_seconds={override}")
    assert bool(found.warnings) == warned
    assert (found.checkpoint is None) == (override == "0")
    if override == "30":
        lost = checked(small, tmp_path, "checkpoint.every_seconds=0").warnings[0]
        assert "loses all since the last checkpoint" in lost


def test_preflight_prints_the_warning(
    small: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main([*small, f"run_dir={tmp_path}/run", "--preflight"]) == 0
    assert re.search(r"^warning: a checkpoint takes about 41 s", capsys.readouterr().out, re.MULTILINE)


def test_small_checkpoint_is_not_measured(tmp_path: Path) -> None:
    assert notice.checkpoint_time(notice.WORTH_MEASURING - 1, tmp_path / "missing") is None


def test_measurement_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    written = []
    monkeypatch.setattr(notice, "sync", lambda path: written.append(path.stat().st_size))
    assert notice.write_speed(tmp_path) > 0
    assert 0 < written[0] <= 64 * MIB
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="No such file"):
        notice.write_speed(tmp_path / "missing")
