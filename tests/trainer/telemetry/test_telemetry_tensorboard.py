"""TensorBoard's event files, read back; and what happens where they cannot be written."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import google_crc32c
import pytest
from telemetry_steps import begun, lines_of, step
from tensorboardX.proto.event_pb2 import Event

from sweeps.text.installation import install_command
from trainer import __main__ as program
from trainer.telemetry import tensorboard
from trainer.telemetry.run import Telemetry
from trainer.telemetry.tensorboard import FOLDER, TensorBoard


def events(folder: Path) -> Iterator[Event]:
    """Of the one file in the folder: records of length, checksum, bytes, checksum (TFRecord)."""
    (file,) = folder.iterdir()
    assert file.name.startswith("events.out.tfevents.")
    data = file.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        body = data[12 : 12 + length]
        for checked, at in ((data[:8], 8), (body, 12 + length)):
            crc = google_crc32c.value(checked)
            masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
            assert struct.unpack("<I", data[at : at + 4]) == (masked,)
        yield Event.FromString(body)
        data = data[16 + length :]


def scalars(folder: Path) -> dict[tuple[str, int], float]:
    return {
        (value.tag, event.step): value.simple_value
        for event in events(folder)
        for value in event.summary.value
    }


def test_every_number_of_every_line_is_a_scalar(run_in: Callable[..., object], tmp_path: Path) -> None:
    run_in(tmp_path, "telemetry.tensorboard=true")
    found = scalars(tmp_path / FOLDER)
    for line in lines_of(tmp_path / "metrics.jsonl"):
        for name, value in line.items():
            if name not in ("stage", "step", "of", "unix_seconds"):
                read = found.pop((f"{line['stage']}/{name}", line["step"]))
                assert read == pytest.approx(value, rel=1e-6)
    metrics = json.loads((tmp_path / "result.json").read_text())["metrics"]
    assert found == {
        (f"result/{name}", 0): pytest.approx(value, rel=1e-6)
        for name, value in metrics.items()
        if value is not None
    }


def test_it_is_off_unless_asked_for(run_in: Callable[..., object], tmp_path: Path) -> None:
    run_in(tmp_path)
    assert not (tmp_path / FOLDER).exists()


def test_events_have_the_time_of_their_line(tmp_path: Path) -> None:
    (tmp_path / "m").write_text('{"stage": "stage2", "step": 3, "loss": 2.5, "unix_seconds": 1700000000.5}\n')
    TensorBoard(tmp_path / "t", metrics=tmp_path / "m").close(0)
    version, event = events(tmp_path / "t")
    assert version.file_version == "brain.Event:2"
    assert (event.wall_time, event.step) == (1700000000.5, 3)


def test_a_run_that_goes_on_has_no_step_twice(tmp_path: Path) -> None:
    """The checkpoint has brought back `metrics.jsonl` up to step 1; the first attempt had got to step 3."""
    metrics, folder = tmp_path / "metrics.jsonl", tmp_path / "tensorboard"
    metrics.touch()
    for append, last in ((False, 3), (True, 4)):
        channel = TensorBoard(folder, metrics=metrics)
        with Telemetry(metrics, every=1, append=append, channels=[channel], out=None) as telemetry:
            begun(telemetry, 4)
            for index in range(2 if append else 1, last + 1):
                telemetry.watch(step(index, 4, losses={"loss": float(index + 10 * append)}))
        if not append:
            metrics.write_text(metrics.read_text().splitlines(keepends=True)[0])
    losses = [
        (e.step, v.simple_value) for e in events(folder) for v in e.summary.value if v.tag == "stage2/loss"
    ]
    assert losses == [(1, 1.0), (2, 12.0), (3, 13.0), (4, 14.0)]


def test_failing_disk_warns_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "metrics.jsonl").touch()
    channel = TensorBoard(tmp_path / "file" / "below", metrics=tmp_path / "metrics.jsonl")
    with Telemetry(tmp_path / "metrics.jsonl", every=1, channels=[channel], out=None) as telemetry:
        begun(telemetry, 2)
        telemetry.watch(step(1, 2))
        telemetry.watch(step(2, 2))
    assert len(lines_of(tmp_path / "metrics.jsonl")) == 2
    err = capsys.readouterr().err
    assert err.startswith("trainer: warning: TensorBoard ")
    assert err.count("\n") == 1


def test_missing_tensorboard_package_is_refused_early(
    small: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import signal

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    monkeypatch.setattr(tensorboard, "find_spec", lambda name: None)
    try:
        status = program.main([*small, "telemetry.tensorboard=true", f"run_dir={tmp_path / 'run'}"])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert status == 2
    err = capsys.readouterr().err
    assert err.startswith("trainer: error: not on this machine: telemetry.tensorboard: ")
    assert install_command("tensorboard") in err
    assert not (tmp_path / "run").exists()
