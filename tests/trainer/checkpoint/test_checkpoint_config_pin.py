"""A run's folder pins its configuration as long as there is something to go on from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer.api import RESULT_FILE, check
from trainer.checkpoint import run_folder
from trainer.checkpoint.run_folder import CONFIG_FILE, refuse_another
from trainer.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a run of the default configuration that has a checkpoint."""
    run_folder.pin(check([f"run_dir={tmp_path}"]), tmp_path)
    (tmp_path / "checkpoints" / "00000010").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    "same",
    [
        [],
        ["log_every=7"],
        ["run_dir=elsewhere"],
        ["wandb.mode=offline", "wandb.tags=[a,b]"],
        ["checkpoint.every_steps=5", "checkpoint.keep=1", "checkpoint.every_seconds=0"],
    ],
    ids=" ".join,
)
def test_what_cannot_change_the_result_may_differ(same: list[str], folder: Path) -> None:
    refuse_another(check(same), folder)


@pytest.mark.parametrize(
    ("other", "diff"),
    [
        (["seed=1"], "(seed: 0 → 1)"),
        (["device.threads=1"], "(device.threads: 2 → 1)"),
        (["data.max_bytes=null", "seed=3"], "(data.max_bytes: 8000000 → null; seed: 0 → 3)"),
        (["optimizer@stage2.optimizer=adamw"], 'stage2.optimizer.type: "muon" → "adamw")'),
    ],
    ids=" ".join,
)
def test_another_configuration_is_refused_with_the_difference(
    other: list[str], diff: str, folder: Path
) -> None:
    with pytest.raises(ConfigError) as refused:
        refuse_another(check(other), folder)
    message = str(refused.value)
    assert message.startswith(f"run_dir: '{folder}' ")
    assert diff in message
    assert "\n" not in message


def test_a_long_difference_is_cut(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"; and \d+ more\)"):
        refuse_another(check(["model=hf", "model.name=x"]), folder)


def test_keys_that_came_or_went_with_a_version_are_told(folder: Path) -> None:
    document = json.loads((folder / CONFIG_FILE).read_text())
    document["config"]["old_knob"] = document["config"].pop("seed")
    (folder / CONFIG_FILE).write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=r"\(old_knob: 0 → \(absent\); seed: \(absent\) → 0\)") as refused:
        refuse_another(check([]), folder)
    assert "version of the program" in str(refused.value)


def test_nothing_is_pinned_without_a_checkpoint_or_with_a_result(folder: Path) -> None:
    (folder / RESULT_FILE).write_text("{}")
    refuse_another(check(["seed=1"]), folder)
    (folder / RESULT_FILE).unlink()
    (folder / "checkpoints" / "00000010").rmdir()
    refuse_another(check(["seed=1"]), folder)


@pytest.mark.parametrize(
    "damaged", ["", "{", "[]", '{"schema": 1}', '{"schema": 9, "config": {}}', '{"schema": 1, "config": 3}']
)
def test_damaged_pin_refuses_nothing(damaged: str, folder: Path) -> None:
    (folder / CONFIG_FILE).write_text(damaged)
    refuse_another(check(["seed=1"]), folder)


def test_the_pin_is_the_whole_configuration_for_people_to_read(folder: Path) -> None:
    document = json.loads((folder / CONFIG_FILE).read_text())
    assert document["schema"] == 1
    assert document["config"]["stage2"]["optimizer"]["lr"] == 4.0e-3
    assert document["config"]["log_every"] == 10


def test_no_secret_is_written_or_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijkl")
    secret = ["data=text", "data.files=['https://me:pass@host/hf_abcdefghijkl']"]
    run_folder.pin(check(secret), tmp_path)
    (tmp_path / "checkpoints" / "00000010").mkdir(parents=True)
    refuse_another(check(secret), tmp_path)
    with pytest.raises(ConfigError) as refused:
        refuse_another(check([]), tmp_path)
    written = (tmp_path / CONFIG_FILE).read_text() + str(refused.value)
    assert "***" in written
    assert "abcdefghijkl" not in written
    assert ":pass@" not in written
