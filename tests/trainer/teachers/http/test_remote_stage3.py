"""Stage 3 with its teacher behind a server: the numbers of one in the process, and every ending in one line."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_vllm import FakeVllm, answers, fails, waits
from torch import Tensor
from trainer_outcomes import lines_without_times, weights_digest, without_times
from trainer_precision import FLOAT32

from trainer import __main__ as program
from trainer import api
from trainer.data.inputs import prepare_inputs
from trainer.devices.device import open_device
from trainer.errors import ConfigError, PreemptedError, TeacherServerError
from trainer.models.causal_lm import run
from trainer.pipeline import Outcome
from trainer.stages.teacher import prepare_teacher
from trainer.training.preemption import StopSignal

Run = Callable[..., Outcome]
VOCABULARY = 300
ON = (
    *(*FLOAT32, "stage1_9.max_steps=2", "stage2.max_steps=4", "stage3.max_steps=4"),
    *("stage3.batch_size=2", "stage3.schedule.warmup_steps=1", "stage3.attention_weight=0.0"),
)
KEY = "s3cr3t-of-the-server"


@pytest.fixture
def server(small: tuple[str, ...]) -> Iterator[FakeVllm]:
    """A server of the teacher that the student is initialised from."""
    config = api.check([*small, *ON])
    teacher = prepare_teacher(
        config,
        prepare_inputs(config),
        device=open_device(config.device),
        stop=StopSignal(),
        progress=lambda *_: None,
    )

    @torch.no_grad()
    def predict(ids_BT: Tensor) -> Tensor:
        return run(teacher, ids_BT).logits.log_softmax(dim=-1)

    with FakeVllm(predict, vocab_size=VOCABULARY, key=KEY) as running:
        yield running


@pytest.fixture
def remote(server: FakeVllm, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Overrides that use the server."""
    monkeypatch.setenv("TEACHER_KEY", KEY)
    return (
        *ON,
        *("stage3/teacher=http", f"stage3.teacher.url={server.url}", "stage3.teacher.model=teacher"),
        *("stage3.teacher.top_k=300", "stage3.teacher.timeout_s=30.0", "stage3.teacher.patience_s=60.0"),
        "stage3.teacher.api_key_env=TEACHER_KEY",
    )


def logged(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / api.METRICS_FILE).read_text().splitlines()]
    return [line for line in lines if line["stage"] == "stage3"]


@pytest.mark.parametrize("micro", ["null", pytest.param("1", marks=pytest.mark.slow)])
def test_full_vocabulary_equals_a_teacher_in_process(
    micro: str, run_small: Run, remote: tuple[str, ...], server: FakeVllm, tmp_path: Path
) -> None:
    weight = "stage3.logits_weight=1.0"  # from step to step a larger one multiplies rounding
    here = run_small(*ON, weight).result.metrics
    in_process = logged(tmp_path)
    there = run_small(*remote, weight, f"stage3.micro_batch_size={micro}").result.metrics
    for ours, theirs in zip(logged(tmp_path), in_process, strict=True):
        assert {name for name in ours if name not in theirs} == set()
        for part in ("loss", "ce", "logits_kl"):
            assert ours[part] == pytest.approx(theirs[part], rel=2e-4)
    assert there.final_loss == pytest.approx(here.final_loss, rel=1e-3)
    assert there.effective_steps == here.effective_steps == 2 * 2 + 4 + 2 * 4
    forward = here.train_flops / (4 * 2 * 64 + 3 * 4 * 64 + 4 * 4 * 32)
    assert here.train_flops - there.train_flops == pytest.approx(
        forward * 4 * 32
    )  # what it computes is not known
    asked = [body["prompt"] for body in server.bodies]
    assert len(asked[0]) == 1  # the health check
    assert [len(prompt) for prompt in asked[1:]] == [2] * (len(asked) - 1)
    assert 4 <= len(asked) - 1 <= 4 + 2


def test_fewer_candidates_change_the_loss_and_the_weights(
    run_small: Run, remote: tuple[str, ...], tmp_path: Path
) -> None:
    run_small(*remote)
    complete = [line["logits_kl"] for line in logged(tmp_path)]
    run_small(*remote, "stage3.teacher.top_k=5", "stage3.teacher.prefetch=0")
    assert [line["logits_kl"] for line in logged(tmp_path)] != complete


@pytest.mark.slow
def test_a_server_that_stumbles_does_not_show_in_the_numbers(
    run_small: Run, remote: tuple[str, ...], server: FakeVllm, tmp_path: Path
) -> None:
    run_small(*remote)
    smooth = [line["loss"] for line in logged(tmp_path)]
    server.troubles.extend([fails(503), waits(0.2), fails(429), fails(500)])
    run_small(*remote)
    assert [line["loss"] for line in logged(tmp_path)] == smooth


def test_a_wrong_server_is_noticed_before_anything_is_trained(
    run_small: Run, remote: tuple[str, ...], tmp_path: Path
) -> None:
    for change, message in {
        "stage3.teacher.model=other": "stage3.teacher: .* The model `other` does not exist",
        "stage3.teacher.top_k=301": "stage3.teacher.top_k: 301 is more than the vocabulary has",
    }.items():
        with pytest.raises(ConfigError, match=message):
            run_small(*remote, change)
        assert (tmp_path / api.METRICS_FILE).read_text() == ""


def test_failing_server_ends_the_run_with_its_message(
    run_small: Run, remote: tuple[str, ...], server: FakeVllm
) -> None:
    async def sane(request: object, answer: object) -> None:
        pass

    server.troubles.extend([sane, sane, answers("{}")])
    with pytest.raises(TeacherServerError, match=r"http://127.*: '{}'"):
        run_small(*remote)


def test_where_the_teacher_runs_is_not_part_of_what_a_run_is(
    remote: tuple[str, ...], small: tuple[str, ...]
) -> None:
    from trainer.config import sha256

    config = api.check([*small, *remote])
    for change in ("url=http://b", "timeout_s=1.0", "patience_s=99.0", "prefetch=0", "api_key_env=null"):
        assert sha256(api.check([*small, *remote, f"stage3.teacher.{change}"])) == sha256(config)
    for change in ("model=m", "top_k=7"):
        assert sha256(api.check([*small, *remote, f"stage3.teacher.{change}"])) != sha256(config)


@pytest.mark.slow
def test_a_process_ends_by_itself_and_writes_the_key_nowhere(
    small: tuple[str, ...], remote: tuple[str, ...], tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", *api.command([*small, *remote], tmp_path / "run")[1:]],
        env=dict(os.environ, PYTHONPATH=str(Path(api.__file__).parents[1])),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    written = [path.read_text() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(written) >= 2
    assert all(KEY not in text for text in [done.stdout, *written])


@pytest.fixture
def train(small: tuple[str, ...], remote: tuple[str, ...]) -> Iterator[Callable[[Path], Outcome]]:
    """Run or resume in a folder as the program does."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def train(folder: Path) -> Outcome:
        stop = StopSignal()
        stop.install()
        return program.train_in(folder, api.check([*small, *remote, f"run_dir={folder}"]), stop)

    yield train
    for number, handler in before.items():
        signal.signal(number, handler)


def test_sigterm_while_the_server_hangs_is_resumable(
    train: Callable[[Path], Outcome], server: FakeVllm, tmp_path: Path
) -> None:
    uninterrupted = train(tmp_path / "uninterrupted")
    asked = len(server.bodies)

    async def terminates(request: object, answer: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(300)

    async def sane(request: object, answer: object) -> None:
        pass

    # The health check, two batches, and then no more.
    server.troubles.extend([sane, sane, sane, terminates, waits(300), waits(300)])
    began = time.monotonic()
    with pytest.raises(PreemptedError, match="checkpoint"):
        train(tmp_path / "run")
    assert time.monotonic() - began < 60
    assert not (tmp_path / "run" / api.RESULT_FILE).exists()
    server.troubles.clear()
    again = train(tmp_path / "run")
    assert len(server.bodies) > asked
    assert weights_digest(again) == weights_digest(uninterrupted)
    assert without_times(again) == without_times(uninterrupted)
    files = [tmp_path / folder / api.METRICS_FILE for folder in ("uninterrupted", "run")]
    assert lines_without_times(files[1]) == lines_without_times(files[0])
    assert "remote-teacher" not in {thread.name for thread in threading.enumerate()}
