"""What the launcher of a process says must go with the configuration, or one line refuses it."""

from __future__ import annotations

import golden_messages
import pytest

from trainer.api import check as checked
from trainer.distributed.launched import ALONE, Launched, check, foresee, launched
from trainer.errors import ConfigError

SECOND_OF_TWO = Launched(rank=1, world=2, local_rank=1)


def test_what_torchrun_says_is_read() -> None:
    environment = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
    assert launched(environment) == Launched(rank=5, world=8, local_rank=1, local_world=8)
    environment["LOCAL_WORLD_SIZE"] = "4"
    assert launched(environment) == Launched(rank=5, world=8, local_rank=1, local_world=4)


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
    "several, none shares": ((), SECOND_OF_TWO, "device.parallel"),
    "one, told to share": ((DDP,), None, "device.parallel"),
    "no mesh of so many": (
        ("device.parallel=fsdp", "device.mesh={data: 2, tensor: 2}"),
        SECOND_OF_TWO,
        "device.mesh",
    ),
    "an odd number of them": (("device.parallel=fsdp", "device.mesh.tensor=4"), SECOND_OF_TWO, "device.mesh"),
    "an odd batch of tensor groups": (
        ("device.parallel=fsdp", "device.mesh.tensor=2", "stage2.batch_size=5"),
        Launched(rank=1, world=4, local_rank=1),
        "stage2.batch_size",
    ),
    "an odd batch": ((DDP, "stage2.batch_size=5"), SECOND_OF_TWO, "stage2.batch_size"),
    "an odd batch of micro-batches": (
        (DDP, "stage1_9.batch_size=6", "stage1_9.micro_batch_size=2"),
        SECOND_OF_TWO,
        "stage1_9.batch_size",
    ),
}


def test_what_does_not_go_together_is_refused_as_the_page_says() -> None:
    messages = []
    for case, (overrides, found, key) in REFUSED.items():
        with pytest.raises(ConfigError) as refusal:
            check(checked(overrides), found)
        assert refusal.value.key == key, case
        messages.append((f"{case}: `{' '.join(overrides)}`", str(refusal.value)))
    golden_messages.compare("Processes that share a run", messages)


@pytest.fixture
def _on_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.distributed.tpu_host.uses_xla", lambda kind: kind in ("auto", "xla"))


@pytest.mark.usefixtures("_on_xla")
def test_the_chips_of_a_tpu_share_a_run_in_one_process() -> None:
    overrides = [
        "device.parallel=fsdp",
        "device.mesh.tensor=2",
        "stage2.batch_size=5",
    ]  # of the chips another place knows
    assert check(checked(["device=xla", *overrides]), None) == check(checked(overrides), None) == ALONE
    with pytest.raises(ConfigError, match=r"^device\.parallel: 2 processes .*TPU"):
        check(checked(overrides), SECOND_OF_TWO)


def test_a_run_for_tpus_is_checked_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `sweep init` does on a laptop."""
    monkeypatch.delenv("PJRT_DEVICE", raising=False)
    for parallel in ("none", "fsdp"):
        config = checked(["device=xla", f"device.parallel={parallel}"])
        assert check(config, None) == ALONE
        with pytest.raises(
            ConfigError, match=r"start one: the chips of a TPU host .* those of several do not"
        ):
            check(config, SECOND_OF_TWO)


@pytest.mark.usefixtures("_on_xla")
def test_a_mesh_of_a_tpu_s_chips_is_one_process_of_an_estimate() -> None:
    config = checked(["device.parallel=fsdp", "device.mesh={data: 2, tensor: 2}"])
    assert foresee(config, None) == ALONE
    assert ALONE.shares(config.device.mesh) == 1


def test_an_estimate_foresees_the_processes_of_a_mesh() -> None:
    sharded = ("device.parallel=fsdp", "device.mesh.tensor=2")
    foreseen = foresee(checked([*sharded, "device.mesh.data=4"]), None)
    assert foreseen == Launched(rank=0, world=8, local_rank=0, local_world=8)
    assert foreseen.shares(checked(sharded).device.mesh) == 4
    assert foresee(checked(sharded), None) is ALONE  # nobody knows how many
    assert foresee(checked([DDP]), SECOND_OF_TWO) == SECOND_OF_TWO
    with pytest.raises(ConfigError, match=r"^stage2\.batch_size: "):
        foresee(checked([*sharded, "device.mesh.data=4", "stage2.batch_size=6"]), None)


def test_the_batch_of_a_stage_that_is_left_out_does_not_matter() -> None:
    config = checked([DDP, "stage1_9.max_steps=0", "stage1_9.batch_size=5"])
    assert check(config, SECOND_OF_TWO) == SECOND_OF_TWO


def test_muonclip_trains_parameters_that_are_in_parts_on_chips() -> None:
    overrides = ["device=xla", "device.parallel=fsdp", "stage2.optimizer.type=muonclip"]
    assert checked(overrides).device.parallel == "fsdp"


def test_optimizer_of_an_omitted_stage_does_not_matter() -> None:
    overrides = ("stage1_9.max_steps=0", "stage1_9.optimizer.type=adamw_8bit")
    assert checked(["device.parallel=fsdp", *overrides]).device.parallel == "fsdp"
