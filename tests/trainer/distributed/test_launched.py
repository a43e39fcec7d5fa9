"""What the launcher of a process says must go with the configuration, or one line refuses it."""

from __future__ import annotations

import pytest

from trainer.api import check as checked
from trainer.distributed.launched import ALONE, Launched, check, launched
from trainer.errors import ConfigError

SECOND_OF_TWO = Launched(rank=1, world=2, local_rank=1)


def test_what_torchrun_says_is_read() -> None:
    environment = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
    assert launched(environment) == Launched(rank=5, world=8, local_rank=1)


@pytest.mark.parametrize("environment", [{}, {"RANK": "0"}, {"RANK": "", "WORLD_SIZE": "2"}], ids=str)
def test_without_a_launcher_there_is_nothing_to_read(environment: dict[str, str]) -> None:
    assert launched(environment) is None


@pytest.mark.parametrize("found", [None, ALONE], ids=["started alone", "by torchrun, one process"])
def test_one_process_needs_no_sharing(found: Launched | None) -> None:
    assert check(checked([]), found) == ALONE


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_processes_that_share_keep_their_places(parallel: str) -> None:
    assert check(checked([f"device.parallel={parallel}"]), SECOND_OF_TWO) == SECOND_OF_TWO
    assert check(checked([f"device.parallel={parallel}"]), ALONE) == ALONE


DDP = "device.parallel=ddp"
REFUSED = {
    "several, none shares": ((), SECOND_OF_TWO, "device.parallel: 2 processes were started, and each"),
    "one, told to share": ((DDP,), None, "device.parallel: ddp shares a run among processes, but"),
    "an odd batch": (
        (DDP, "stage2.batch_size=5"),
        SECOND_OF_TWO,
        "stage2.batch_size: 5 sequences cannot be shared out evenly among 2 processes; write a multiple of 2",
    ),
    "an odd batch of micro-batches": (
        (DDP, "stage1_9.batch_size=6", "stage1_9.micro_batch_size=2"),
        SECOND_OF_TWO,
        "stage1_9.batch_size: 6 sequences cannot be shared out evenly among 2 processes in micro-batches of 2; "
        "write a multiple of 4",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_go_together_is_refused_in_one_line(case: str) -> None:
    overrides, found, message = REFUSED[case]
    with pytest.raises(ConfigError) as refusal:
        check(checked(overrides), found)
    assert str(refusal.value).startswith(message)
    assert "\n" not in str(refusal.value)


@pytest.fixture
def _on_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.distributed.tpu_host.uses_xla", lambda kind: kind in ("auto", "xla"))


@pytest.mark.usefixtures("_on_xla")
def test_the_chips_of_a_tpu_share_a_run_in_one_process() -> None:
    overrides = ["device.parallel=fsdp", "stage2.batch_size=5"]  # of the chips another place knows
    assert check(checked(["device=xla", *overrides]), None) == check(checked(overrides), None) == ALONE
    with pytest.raises(
        ConfigError, match=r"^device\.parallel: 2 processes .*; start one: the chips of a TPU"
    ):
        check(checked(overrides), SECOND_OF_TWO)


def test_the_batch_of_a_stage_that_is_left_out_does_not_matter() -> None:
    config = checked([DDP, "stage1_9.max_steps=0", "stage1_9.batch_size=5"])
    assert check(config, SECOND_OF_TWO) == SECOND_OF_TWO


UNTRAINABLE = {
    "stage3.teacher: a teacher over HTTP can be asked by one process only": (
        DDP,
        "stage3.max_steps=200",
        "stage3/teacher=http",
        "stage3.attention_weight=0",
        "stage3.teacher.url=http://h",
        "stage3.teacher.model=m",
    ),
    "stage2.optimizer.type: muonclip cannot train parameters that are in parts; write muon, or "
    "device.parallel=ddp, or on a TPU device=xla": (
        "device.parallel=fsdp",
        "stage2.optimizer.type=muonclip",
    ),
    "stage1_9.optimizer.type: adamw_8bit cannot train parameters that are in parts; write adamw, or": (
        "device.parallel=fsdp",
        "stage1_9.optimizer.type=adamw_8bit",
    ),
    "device.compile: processes that share a run compile no step as one graph; write device.compile=layers": (
        DDP,
        "device.compile=true",
    ),
    "device.parallel: fsdp shares the weights among chips, and one is asked for; write none": (
        "device=xla",
        "device.num_chips=1",
        "device.parallel=fsdp",
    ),
}


@pytest.mark.parametrize("message", UNTRAINABLE)
def test_what_cannot_be_shared_is_refused_with_the_configuration(message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        checked(UNTRAINABLE[message])
    assert str(refusal.value).startswith(message)


def test_muonclip_trains_parameters_that_are_in_parts_on_chips() -> None:
    overrides = ["device=xla", "device.parallel=fsdp", "stage2.optimizer.type=muonclip"]
    assert checked(overrides).device.parallel == "fsdp"


def test_optimizer_of_an_omitted_stage_does_not_matter() -> None:
    overrides = ("stage1_9.max_steps=0", "stage1_9.optimizer.type=muonclip")
    assert checked(["device.parallel=fsdp", *overrides]).device.parallel == "fsdp"
