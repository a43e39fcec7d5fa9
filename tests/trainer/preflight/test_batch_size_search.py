"""Micro-batches that are found: the largest that fits, remembered, under an unchanged effective batch."""

from __future__ import annotations

import dataclasses
import json
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.config import Config
from trainer.config.compose import compose_config
from trainer.devices.device import Device, open_device
from trainer.distributed.launched import Launched
from trainer.distributed.ranks import Ranks
from trainer.errors import ConfigError
from trainer.preflight import batch_size_search, fitting, trace
from trainer.preflight.memory import StageMemory, optimizer_memory, stage_memory, student_dimensions
from trainer.preflight.preflight import per_process

GIB = 2**30
AUTO = ("device.auto_micro_batch=true", "stage1_9.batch_size=12", "stage2.batch_size=6")


class FourChips(Device):
    """A device whose four chips share each batch."""

    chips = 4  # type: ignore[assignment]  # a property there


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STAGESWEEP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / batch_size_search.KIND


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Memory is a GiB, and one for each sequence at once; which stages were estimated."""
    estimated = list[str]()

    def of_stage(config, name, stage, plan, device, *, micro_batch) -> StageMemory:
        estimated.append(name)
        return StageMemory(
            name=name, micro_batch=micro_batch, weights=GIB, gradients=0, optimizer=0,
            peak=(1 + micro_batch) * GIB,
        )  # fmt: skip

    monkeypatch.setattr(fitting, "stage_memory", of_stage)
    monkeypatch.setattr(batch_size_search, "memory_upper_bound", lambda *_: 999 * GIB)
    monkeypatch.setattr(Device, "free_memory_bytes", lambda self: 80 * GIB)
    return estimated


def sizes(config: Config, **more: int) -> tuple[int | None, int | None]:
    found = batch_size_search.with_micro_batches(config, open_device(config.device), **more)
    assert (found.stage1_9.batch_size, found.stage2.batch_size) == (12, 6)
    return found.stage1_9.micro_batch_size, found.stage2.micro_batch_size


def test_largest_fitting_divisors_unless_switched_off(
    small: tuple[str, ...], cache: Path, asked: list[str]
) -> None:
    assert sizes(compose_config([*small, *AUTO])) == (12, 6)
    # Nine tenths of the memory are filled: 5.4 GiB hold four sequences.
    assert sizes(compose_config([*small, *AUTO, "device.memory_target_gib=6"])) == (4, 3)
    assert sizes(compose_config([*small, *AUTO, "device.memory_target_gib=0.5"])) == (1, 1)
    named = ("device.memory_target_gib=6", "stage2.micro_batch_size=2")
    assert sizes(compose_config([*small, *AUTO, *named])) == (4, 2)
    assert sizes(compose_config([*small, *AUTO[1:], "device.memory_target_gib=6"])) == (None, None)


def test_processes_share_the_batch(small: tuple[str, ...], cache: Path, asked: list[str]) -> None:
    assert sizes(compose_config([*small, *AUTO]), processes=3) == (4, 2)


def test_processes_on_one_cpu_share_its_memory(
    small: tuple[str, ...], cache: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Device, "free_memory_bytes", lambda self: 12 * GIB)
    config = compose_config([*small, *AUTO])
    two = Launched(rank=0, world=2, local_rank=0, local_world=2)
    found = batch_size_search.with_micro_batches(config, open_device(config.device), launch=two)
    assert found.stage1_9.micro_batch_size == 4  # nine tenths of 6 GiB hold four sequences


@pytest.mark.slow
def test_shards_are_estimated_and_no_step_is_tried(
    small: tuple[str, ...], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the number of processes, which no other result is remembered for."""
    config = compose_config([*small, *AUTO, "device.parallel=fsdp"])
    device = open_device(config.device)
    monkeypatch.setattr(Device, "kind", "cuda")
    monkeypatch.setattr(trace, "step_once", lambda *_, **__: pytest.fail("a step was tried"))
    monkeypatch.setattr(batch_size_search, "memory_upper_bound", lambda *_: 999 * GIB)
    stage, plan = config.stage1_9, trace.blueprint(config, device)
    four = Ranks(world=4, parallel="fsdp")
    own = per_process(config, 4)
    needed = stage_memory(own, "stage1_9", own.stage1_9, plan, dataclasses.replace(device, ranks=four)).peak
    monkeypatch.setattr(Device, "free_memory_bytes", lambda self: int(1.05 * needed / 0.9))

    def found(world: int) -> int | None:
        launch = Launched(rank=1, world=world, local_rank=1)
        fitted = batch_size_search.with_micro_batches(config, device, processes=world, launch=launch)
        return fitted.stage1_9.micro_batch_size

    assert found(4) == stage.batch_size // 4  # all of a process's part
    assert found(2) in (1, 2, 3)  # of 6, with more of the weights
    assert batch_size_search.with_micro_batches(config, device) is config  # nobody knows how many they are


def test_savings_of_the_compiler_do_not_count_where_no_step_is_tried(
    small: tuple[str, ...], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = compose_config([*small, *AUTO, "device.parallel=fsdp"])
    device = dataclasses.replace(open_device(config.device), compile="layers")
    monkeypatch.setattr(Device, "kind", "cuda")
    monkeypatch.setattr(batch_size_search, "memory_upper_bound", lambda *_: 999 * GIB)
    four, own = Ranks(world=4, parallel="fsdp"), per_process(config, 4)
    plan, planned = trace.blueprint(own, device), dataclasses.replace(device, ranks=four)
    needed = stage_memory(own, "stage1_9", own.stage1_9, plan, planned).peak
    monkeypatch.setattr(Device, "free_memory_bytes", lambda self: int(0.95 * needed / 0.9))
    launch = Launched(rank=1, world=4, local_rank=1)
    fitted = batch_size_search.with_micro_batches(config, device, processes=4, launch=launch)
    assert fitted.stage1_9.micro_batch_size == 1  # of 3


def test_chips_share_a_micro_batch(small: tuple[str, ...], cache: Path, asked: list[str]) -> None:
    """It is a multiple of them, also where not even that many sequences fit."""
    auto = [*small, *AUTO, "stage2.batch_size=8"]
    for target, expected in ((6, (4, 4)), (0.5, (4, 4)), (13, (4, 8)), (20, (12, 8))):
        config = compose_config([*auto, f"device.memory_target_gib={target}"])
        found = batch_size_search.with_micro_batches(config, FourChips(**vars(open_device(config.device))))
        assert (found.stage1_9.micro_batch_size, found.stage2.micro_batch_size) == expected, target


def test_found_size_is_remembered_by_model_and_length(
    small: tuple[str, ...], cache: Path, asked: list[str]
) -> None:
    tight = [*small, *AUTO, "device.memory_target_gib=6"]
    first = sizes(compose_config(tight))
    files = sorted(cache.iterdir())
    assert [json.loads(path.read_text())["micro_batch_size"] for path in files] in ([3, 4], [4, 3])
    asked.clear()
    assert sizes(compose_config([*tight, "stage1_9.optimizer.lr=0.1", "stage2.max_steps=9"])) == first
    assert asked == []
    files[0].write_text("{")
    sizes(compose_config([*tight, "data.sequence_length=8"]))
    assert set(asked) == {"stage1_9", "stage2"}
    assert sizes(compose_config(tight)) == first
    assert len(list(cache.iterdir())) == 4


@pytest.mark.parametrize("more", ["average.type=ema", "data.document_masks=true"])
def test_what_takes_memory_besides_has_a_size_of_its_own(
    more: str, small: tuple[str, ...], cache: Path, asked: list[str]
) -> None:
    config = compose_config([*small, *AUTO])
    sizes(config)
    asked.clear()
    sizes(compose_config([*small, *AUTO, more]))
    # The average is of the last stage, and not there before.
    assert set(asked) == ({"stage2"} if more == "average.type=ema" else {"stage1_9", "stage2"})


def test_a_try_has_the_average_beside_the_state_of_the_optimizer(
    small: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = compose_config([*small, "average.type=ema"])
    device = open_device(config.device)
    plan = batch_size_search.blueprint(config, device)
    student = student_dimensions(config, plan.dimensions)
    reserved: list[int] = []
    empty = torch.empty

    def note(size: int, **options: Any) -> torch.Tensor:
        reserved.append(size)
        return empty(size, **options)

    monkeypatch.setattr(torch, "empty", note)
    monkeypatch.setattr(trace, "step_once", lambda *_, **__: None)
    for stage, average in ((config.stage1_9, 0), (config.stage2, 4 * student.parameters)):
        assert batch_size_search.survives(config, stage, plan, device, 2)
        assert reserved.pop() == optimizer_memory(student, stage.optimizer).state + average


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ],
)
def test_a_try_that_runs_out_of_memory_does_not_survive(
    error: RuntimeError, is_memory: bool, small: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = compose_config(small)
    device = open_device(config.device)
    plan = batch_size_search.blueprint(config, device)
    before = torch.get_rng_state()
    assert batch_size_search.survives(config, config.stage1_9, plan, device, 2)
    assert torch.equal(torch.get_rng_state(), before)

    def short(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(trace, "step_once", short)
    with nullcontext() if is_memory else pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        assert not batch_size_search.survives(config, config.stage1_9, plan, device, 2)


def test_what_a_failed_try_took_is_free_when_the_cache_is_emptied(
    small: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it stays in the cache of torch's allocator, where the preflight counts it as used."""
    config = compose_config(small)
    device = open_device(config.device)
    plan = batch_size_search.blueprint(config, device)
    taken: list[weakref.ref[Any]] = []
    alive: list[int] = []

    def noting(make: Callable[..., Any]) -> Callable[..., Any]:
        def note(*given: Any, **options: Any) -> Any:
            made = make(*given, **options)
            taken.append(weakref.ref(made))
            return made

        return note

    def short(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    def empty_cache() -> None:
        alive.append(sum(each() is not None for each in taken))

    plan = dataclasses.replace(plan, build=noting(plan.build))
    monkeypatch.setattr(torch, "empty", noting(torch.empty))
    monkeypatch.setattr(torch.Tensor, "backward", short)
    monkeypatch.setattr(Device, "kind", "cuda")
    monkeypatch.setattr(torch.cuda, "empty_cache", empty_cache)
    assert not batch_size_search.survives(config, config.stage1_9, plan, device, 2)
    assert len(taken) >= 3  # the optimizer's state, teacher and student
    assert alive == [0]


def test_found_micro_batches_give_the_same_result(
    small: tuple[str, ...], run_small: Callable[..., object], cache_folder: Path, asked: list[str]
) -> None:
    tight = compose_config([*small, "device.auto_micro_batch=true", "device.memory_target_gib=3.5"])
    found = batch_size_search.with_micro_batches(tight, open_device(tight.device))
    assert (found.stage1_9.micro_batch_size, found.stage2.micro_batch_size) == (2, 2)
    full = run_small().result.metrics  # type: ignore[attr-defined]
    parts = run_small("stage1_9.micro_batch_size=2", "stage2.micro_batch_size=2").result.metrics  # type: ignore[attr-defined]
    assert parts.final_loss == pytest.approx(full.final_loss, rel=2e-3)
    assert parts.effective_steps == full.effective_steps


def test_unreadable_model_is_refused_in_one_line(
    small: tuple[str, ...], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no\nshapes")

    monkeypatch.setattr(batch_size_search, "blueprint", fail)
    config = compose_config([*small, *AUTO])
    with pytest.raises(ConfigError, match=r"\(RuntimeError: no shapes\)") as caught:
        batch_size_search.with_micro_batches(config, open_device(config.device))
    assert caught.value.key == "device.auto_micro_batch"


def test_tokenizer_that_is_not_there_is_refused_by_its_key(small: tuple[str, ...], cache: Path) -> None:
    config = compose_config([*small, *AUTO, "data.tokenizer=./nowhere"])
    with pytest.raises(ConfigError, match=r"^data\.tokenizer: no tokenizer can be loaded from './nowhere'"):
        batch_size_search.with_micro_batches(config, open_device(config.device))
