"""All wrong settings are named at once; those that depend on others only where these hold."""

from __future__ import annotations

import shlex

import golden_messages
import pytest

from trainer import __main__ as program
from trainer.api import check
from trainer.errors import ConfigError, ConfigErrors, MachineError, joined

# Overrides, and the keys that are refused.
TABLE: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "unknown keys": (("stage2.max_stepz=1", "+foo=1", "seeed=2"), {"stage2.max_stepz", "foo", "seeed"}),
    "values": (
        ("seed=-1", "stage2.optimizer.lr=nan", "stage1.subln=some", "data.vocab_size=1.5"),
        {"seed", "stage2.optimizer.lr", "stage1.subln", "data.vocab_size"},
    ),
    "contradictions": (
        ("stage1_9.max_steps=3", "stage1_9.micro_batch_size=5", "stage2.max_steps=4", "eval.part_batches=99"),
        {
            "stage1_9.schedule.warmup_steps",
            "stage1_9.micro_batch_size",
            "stage2.schedule.warmup_steps",
            "stage2.lambda_warmup.warmup_steps",
            "eval.part_batches",
        },
    ),
    "contradictions between sections": (
        ("stage1.keep_layers=99", "quant.group_size=7", "memory_log.level=hlo", "device=cpu"),
        {"stage1.keep_layers", "quant.group_size", "memory_log.level"},
    ),
    "groups": (("model=tyni", "device=5", "seed=-1"), {"model", "device", "seed"}),
    "missing": (
        ("data=text", "stage3/teacher=http", "seed=-1"),
        {"data.files", "stage3.teacher.url", "stage3.teacher.model", "seed"},
    ),
    "unreadable": (("seed=1,2", "log_every=[", "hydra.run.dir=x", "eval.batches=1"), {"seed", "", "hydra.run.dir", "eval.batches"}),
    "long runs": (
        ("stage2.max_steps=20000", "device=cpu", "checkpoint.every_seconds=0"),
        {"device.type", "checkpoint.every_seconds"},
    ),
    "groups that are there already": (
        ("+data=text", "data.files=x", "+model=smollm2_135m", "+device=cpu", "+quant=bitnet", "+stage3/teacher=cached", "seed=-1"),
        {"data", "model", "device", "quant", "stage3/teacher", "seed"},
    ),
    "below an unknown choice": (("model=tyni", "model.name=x", "stage1.keep_layers=12"), {"model"}),
    "beside a misspelt value": (("stage2.max_stepz=900", "stage2.schedule.warmup_steps=500"), {"stage2.max_stepz"}),
    "of a wrong field": (("stage2.batch_size=0", "stage2.micro_batch_size=5"), {"stage2.batch_size"}),
    "an item of a list": (("data=text", "data.files=['']"), {"data.files.0"}),
    "misspelt and missing": (("data=text", "data.file=x"), {"data.file"}),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_all_wrong_settings_are_named(name: str) -> None:
    overrides, keys = TABLE[name]
    with pytest.raises(ConfigError) as refused:
        check(overrides)
    assert {error.key for error in refused.value.errors} == keys
    lines = str(refused.value).split("\n")
    assert lines == [str(error) for error in refused.value.errors]
    assert refused.value.key == refused.value.errors[0].key


def test_messages_are_those_of_the_page() -> None:
    messages = []
    for overrides, _ in TABLE.values():
        with pytest.raises(ConfigError) as refused:
            check(overrides)
        messages.append((f"`{shlex.join(overrides)}`", str(refused.value)))
    golden_messages.compare("The trainer's configuration", messages)


def test_unknown_keys_have_their_nearest() -> None:
    with pytest.raises(ConfigErrors) as refused:
        check(["stage2.max_stepz=1", "stage2.batch_sise=2"])
    assert [error.problem.partition("; ")[2] for error in refused.value.errors] == [
        "did you mean 'stage2.max_steps'?",
        "did you mean 'stage2.batch_size'?",
    ]


def test_command_prints_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--fast", "a=wrong", "seed=-1", "b=wrong"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[2] for line in errors] == [
        "there is no option --fast; overrides are written key=value, see --help",
        "a",
        "b",
        "seed",
        "run_dir",
    ]
    assert all(line.startswith("trainer: error: ") for line in errors)


@pytest.mark.parametrize("override", ["+device=cpu", "++data=text", "+stage3/teacher=cached"])
def test_added_group_is_one_line(override: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main([override, "run_dir=x"]) == 2
    name, _, choice = override.lstrip("+").partition("=")
    assert capsys.readouterr().err == (
        f"trainer: error: {name}: there is one already; write {name}={choice}\n"
    )


def test_group_that_is_not_there_cannot_be_removed() -> None:
    with pytest.raises(ConfigError, match="data=text"):
        check(["~data=text"])


def test_joined_errors_are_the_machines_if_all_are() -> None:
    here, lacking = ConfigError("a", key="k"), MachineError("b", key="l")
    assert joined([here]) is here
    assert isinstance(joined([lacking, MachineError("c")]), MachineError)
    assert not isinstance(joined([lacking, here]), MachineError)
    assert joined([joined([here, lacking]), here]).errors == (here, lacking)
