"""Time and dollars: the operations are those of `train_flops`, the speed is a share of the device's."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from trainer.config.compose import compose_config
from trainer.cost.flops import RATES
from trainer.devices.device import Device
from trainer.distributed.launched import Launched
from trainer.preflight import price
from trainer.preflight.dimensions import teacher_dimensions
from trainer.preflight.preflight import Preflight, joined_ranks, summary_line

H100 = Device(
    torch_device=torch.device("cuda"), dtype=torch.bfloat16, name="NVIDIA H100 80GB HBM3", attention="sdpa"
)


def test_known_gpu_runs_at_40_percent_and_has_a_price(small: tuple[str, ...]) -> None:
    config = compose_config(small)
    teacher = teacher_dimensions(config)
    # Two layers of width 32 and 48 inside, 300 words, 16 tokens; six steps of four sequences in either stage.
    layer = 4 * 32 * 32 + 3 * 32 * 48
    forward = 2 * (2 * layer + 300 * 32) + 4 * 16 * 32 * 2
    flops = forward * 6 * 64 * (4 + 3)
    found = price.seconds(config, teacher, H100)
    assert found == pytest.approx(flops / (0.4 * 989.5e12))
    assert price.dollars(config, H100, 7200.0) == pytest.approx(2 * RATES["H100"].on_demand)


def test_price_is_of_each_machine(small: tuple[str, ...]) -> None:
    """Two machines of four processes: the key's price twice, and the table's, of a GPU, eight times."""
    eight = Launched(rank=0, world=8, local_rank=0, local_world=4)
    shared = compose_config([*small, "device.parallel=fsdp"])
    device = dataclasses.replace(H100, ranks=joined_ranks(shared, H100, eight))
    assert price.dollars(shared, device, 7200.0) == pytest.approx(2 * 8 * RATES["H100"].on_demand)
    priced = compose_config([*small, "device.parallel=fsdp", "device.usd_per_hour=20"])
    assert price.dollars(priced, device, 7200.0) == pytest.approx(2 * 2 * 20)
    assert price.dollars(priced, H100, 7200.0) == pytest.approx(2 * 20)


def test_what_makes_it_longer(small: tuple[str, ...]) -> None:
    def of(*overrides: str, recompute: bool = False) -> float:
        config = compose_config([*small, *overrides])
        device = Device(**{**vars(H100), "recompute": recompute})
        return price.seconds(config, teacher_dimensions(config), device) or 0.0

    alone = ("stage1_9.max_steps=0",)
    assert of(*alone, "stage2.distill.weight=1.0") == pytest.approx(of(*alone) * 4 / 3)
    assert of(*alone, recompute=True) == pytest.approx(of(*alone) * 4 / 3)
    assert of(*alone, "stage2.max_steps=12") == pytest.approx(2 * of(*alone))


def test_adapters_cost_no_gradients_of_frozen_weights(small: tuple[str, ...]) -> None:
    """Of two layers: three forward passes and one of the teacher, less one of weights, and of rank 2 adapters three."""
    recovery = ("recovery.max_steps=6", "recovery.batch_size=4", "recovery.rank=2")
    config = compose_config([*small, "stage1_9.max_steps=0", "stage2.max_steps=0", *recovery])
    weights = 2 * (4 * 32 * 32 + 3 * 32 * 48) + 300 * 32
    forward = 2 * weights + 4 * 16 * 32 * 2
    adapters = 2 * 2 * (4 * (32 + 32) + 3 * (32 + 48))
    found = price.seconds(config, teacher_dimensions(config), H100)
    flops = 4 * forward - 2 * weights + 3 * 2 * adapters
    assert found == pytest.approx(flops * 6 * 64 / (0.4 * 989.5e12))


def test_candidate_logits_shorten_the_estimate(small: tuple[str, ...]) -> None:
    """Stage 3 alone, of two layers: forward and backward passes of the student, with 8 candidates and the true
    token before each of 15 of 16 tokens in place of 300 words before all."""
    cached = ("stage3/teacher=cached", "stage3.teacher.path=x", "stage3.attention_weight=0.0")
    counts = (
        "stage3.teacher.top_k=5",
        "stage3.teacher.negatives=3",
        "stage3.max_steps=6",
        "stage3.batch_size=4",
    )
    config = compose_config([*small, "stage1_9.max_steps=0", "stage2.max_steps=0", *cached, *counts])
    layer = 4 * 32 * 32 + 3 * 32 * 48
    forward = 2 * (2 * layer + 9 * 32 * 15 / 16) + 4 * 16 * 32 * 2
    found = price.seconds(config, teacher_dimensions(config), H100)
    assert found == pytest.approx(3 * forward * 6 * 64 / (0.4 * 989.5e12))


def test_cpu_is_measured_and_free_unknown_gpu_has_no_time(small: tuple[str, ...]) -> None:
    config = compose_config(small)
    cpu = Device(torch_device=torch.device("cpu"), dtype=torch.float32, name="CPU", attention="eager")
    found = price.seconds(config, teacher_dimensions(config), cpu)
    assert found is not None
    assert found > 0
    assert price.dollars(config, cpu, found) == 0
    unknown = Device(**{**vars(H100), "name": "NVIDIA X1"})
    assert price.seconds(config, teacher_dimensions(config), unknown) is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(42.4, "42 s"), (100, "1.7 min"), (1800, "30 min"), (9000, "2.5 h"), (90000, "25 h")],
)
def test_the_line_tells_them_in_units_of_their_size(seconds: float, words: str) -> None:
    text = summary_line(Preflight(seconds=seconds, usd=1.234))
    assert text.endswith(f"roughly {words} of training, 1.23 $")
    assert "$" not in summary_line(Preflight(seconds=seconds, usd=0.0))
