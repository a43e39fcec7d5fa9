"""Rules for long runs: which settings are refused, with what to write instead, and that `force` passes over them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trainer import api
from trainer.config.compose import compose_config
from trainer.config.long_runs import LONG_STEPS, refusals, total_steps
from trainer.errors import ConfigError

GOOD = ("device=cuda", "device.dtype=bfloat16", "stage2.max_steps=20000")


def problems(*overrides: str, **known: str) -> list[str]:
    return [str(refusal) for refusal in refusals(compose_config([*GOOD, *overrides]), **known)]


def test_long_run_that_is_accepted() -> None:
    assert problems() == []
    assert problems(device="cuda", dtype="bfloat16") == []
    assert problems("checkpoint.every_seconds=0", "checkpoint.every_steps=500") == []


@pytest.mark.parametrize(
    ("override", "refusal"),
    [
        ("device=cpu", "device.type: a run of 20,100 steps is long, and this is a CPU; write device=cuda"),
        ("device.dtype=float32", "device.dtype: .* float32 is slow .*; write bfloat16"),
        ("checkpoint.every_seconds=0", r"checkpoint.every_seconds: .* no checkpoint .*; write 300\.0"),
        ("eval.batches=2 eval.batch_size=2", "eval.batches: .* on 512 held-out tokens; write 64"),
        (
            "checkpoint.every_seconds=0 checkpoint.every_steps=30000",
            "checkpoint.every_steps: .* before its end; write 2010",
        ),
    ],
)
def test_each_rule_names_the_key_and_a_value_that_mends_it(override: str, refusal: str) -> None:
    import re

    (found,) = problems(*override.split())
    assert re.match(refusal, found), found
    key, value = found.split(":")[0], found.rpartition("write ")[2].split()[0]
    mended = value if "=" in value else f"{key}={value}"
    assert problems(*override.split(), "device.dtype=bfloat16", mended) == []


@pytest.mark.parametrize(
    ("device", "dtype", "key"), [("cpu", "bfloat16", "type"), ("cuda", "float32", "dtype")]
)
def test_auto_is_judged_by_what_it_resolved_to(device: str, dtype: str, key: str) -> None:
    auto = ("device=auto", "device.dtype=auto")
    assert problems(*auto) == []
    (found,) = problems(*auto, device=device, dtype=dtype)
    assert found.startswith(f"device.{key}: ")


def test_steps_of_all_stages_make_a_run_long() -> None:
    stages = ("stage1_9.max_steps=2000", "stage2.max_steps=2000", "device=cpu", "device.dtype=float32")
    short = compose_config([*stages, "stage3.max_steps=900", "recovery.max_steps=99"])
    assert (total_steps(short), refusals(short)) == (LONG_STEPS - 1, [])
    assert refusals(compose_config([*stages, "stage3.max_steps=900", "recovery.max_steps=100"]))


def test_check_refuses_a_long_run_and_force_passes() -> None:
    wrong = ["device=cuda", "device.dtype=float32", "stage2.max_steps=20000", "checkpoint.every_seconds=0"]
    with pytest.raises(ConfigError) as raised:
        api.check(wrong)
    assert [error.key for error in raised.value.errors] == ["device.dtype", "checkpoint.every_seconds"]
    assert all(str(error).endswith("(or force=true)") for error in raised.value.errors)
    assert api.check([*wrong, "force=true"]).stage2.max_steps == 20_000


def test_the_rules_do_not_load_torch() -> None:
    code = "import sys; from trainer import api; api.check(['stage2.max_steps=9999', 'force=true']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
