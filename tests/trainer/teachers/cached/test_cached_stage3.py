"""Stage 3 from a cache in small runs: the numbers of a teacher in the process, its costs, its refusals."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from cached_runs import LENGTH, ON, VOCABULARY, Make, Prepared, cached, logged
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.utils.flop_counter import FlopCounterMode
from trainer_outcomes import weights_digest, without_times
from transformers.modeling_outputs import BaseModelOutput

from benchmarks.tensor_memory import most_bytes
from trainer import __main__ as program
from trainer import teacher_cache as command
from trainer.api import METRICS_FILE
from trainer.checkpoint.state import State
from trainer.config import Config, sha256
from trainer.data.corpus import stage_text
from trainer.data.feed import LabelledFeed
from trainer.devices.device import open_device
from trainer.distributed.ranks import Ranks
from trainer.errors import ConfigError, DataError, PreemptedError
from trainer.losses.sparse import Sample, Targets
from trainer.models.causal_lm import build_tiny
from trainer.pipeline import Outcome
from trainer.stages.distill import cached_text, from_cache
from trainer.teachers.cached.reader import CachedFeed, open_cache
from trainer.training import train_step as step
from trainer.training.compilation import uncompiled
from trainer.training.preemption import StopSignal
from trainer.training.train_step import TrainStep

Run = Callable[..., Outcome]
PARTS = ("loss", "ce", "logits_kl")


def test_all_tokens_equal_a_teacher_in_process(run_small: Run, make: Make, tmp_path: Path) -> None:
    """In float32, to 2e-4 over four steps of training; the micro-batches of a cached run take their own rows."""
    complete = cached(tmp_path / "cache", top_k=VOCABULARY, negatives=0)
    make(*complete)
    here = run_small(*ON).result.metrics
    in_process = logged(tmp_path)
    for cross_entropy in ("sampled", "exact"):
        again = run_small(
            *complete, f"stage3.teacher.cross_entropy={cross_entropy}", "stage3.micro_batch_size=2"
        )
        for ours, theirs in zip(logged(tmp_path), in_process, strict=True):
            for part in PARTS:
                assert ours[part] == pytest.approx(theirs[part], rel=2e-4), cross_entropy
        assert again.result.metrics.final_loss == pytest.approx(here.final_loss, rel=1e-3)
        assert again.result.metrics.effective_steps == here.effective_steps - 4  # nobody runs the teacher


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the cache that the tests below share."""
    return tmp_path_factory.mktemp("kept") / "cache"


@pytest.fixture
def overrides(kept: Path, make: Make) -> tuple[str, ...]:
    """Overrides of a run with five likeliest tokens and three others, whose cache is built."""
    make(*cached(kept))
    return cached(kept)


def test_every_knob_of_the_cached_teacher_changes_the_loss(
    overrides: tuple[str, ...],
    configured: Callable[..., Config],
    make: Make,
    prepared: Prepared,
    tmp_path: Path,
) -> None:
    """The loss of one batch, with another model as the student; `path` and `preload` do not change it."""

    def loss(*given: str) -> float:
        config = configured(*given, "stage3.temperature=1.0", "stage3.logits_weight=100.0")
        stage, device = config.stage3, open_device(config.device)
        assert stage.teacher.kind == "cached"
        assert config.model.kind == "tiny"
        torch.manual_seed(1)
        student = build_tiny(config.model, vocab_size=VOCABULARY, sequence_length=LENGTH, attention="eager")
        with stage_text(prepared.corpus, config, "stage3", 4) as text:
            feed = cached_text(text, stage, stage.teacher, device=device)
            return float(from_cache(student, feed.take, stage, stage.teacher)(next(feed))["loss"].detach())

    usual = loss(*overrides)
    for number, knob in enumerate(("top_k=6", "negatives=0", "dtype=float16")):
        other = (*cached(tmp_path / str(number)), f"stage3.teacher.{knob}")
        make(*other)
        assert loss(*other) != usual, knob
    assert loss(*overrides, "stage3.teacher.cross_entropy=exact") != usual
    assert loss(*overrides, "stage3.teacher.preload=false") == usual


def test_cache_of_another_run_is_refused(overrides: tuple[str, ...], run_small: Run, tmp_path: Path) -> None:
    build = "python -m trainer.teacher_cache with the overrides of this run"
    for change, problem in {
        "stage3.teacher.top_k=6": r"the cache at .* is of another top_k 5 \(here 6\)$",
        "data.document_masks=true": r"is of another .*document_masks None \(here True\)$",
        "data.sequence_length=12": r"is of another model \w{12} .*, sequence_length 16 \(here 12\)$",
        "stage3.max_steps=5": rf"has 16 rows, and max_steps \* batch_size is 20; build it: {build}",
        f"stage3.teacher.path={tmp_path}/none": f"there is no cache at {tmp_path}/none; build it: {build}",
        "stage3.teacher.top_k=301": "stage3.teacher.top_k: 301 is more than the vocabulary has",
    }.items():
        with pytest.raises(ConfigError, match=problem) as caught:
            run_small(*overrides, change)
        assert "\n" not in str(caught.value)
        assert (tmp_path / METRICS_FILE).read_text() == ""


@pytest.mark.parametrize("cross_entropy", ["sampled", "exact"])
def test_train_flops_are_what_torch_counts(
    cross_entropy: str, overrides: tuple[str, ...], run_small: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The student's own, with its head at the candidates: exactly the products that the formula counts."""
    counted, accumulate = 0, TrainStep.accumulate

    def counting(step: TrainStep, ids_BT: Tensor) -> dict[str, Tensor]:
        nonlocal counted
        with FlopCounterMode(display=False) as counter:
            parts = accumulate(step, ids_BT)
        counted += counter.get_total_flops()
        return parts

    monkeypatch.setattr(TrainStep, "accumulate", counting)
    alone = ("stage1_9.max_steps=0", "stage2.max_steps=0", f"stage3.teacher.cross_entropy={cross_entropy}")
    metrics = run_small(*overrides, *alone).result.metrics
    assert metrics.train_flops == pytest.approx(counted, rel=1e-6)
    assert metrics.effective_steps == 4


def test_a_stage_without_steps_needs_no_cache(run_small: Run, tmp_path: Path) -> None:
    run_small(*cached(tmp_path / "none"), "stage3.max_steps=0")


def test_where_the_cache_lies_is_not_part_of_what_a_run_is(configured: Callable[..., Config]) -> None:
    config = configured(*cached("here"))
    teacher = config.stage3.teacher
    assert teacher.kind == "cached"

    def digest(**change: Any) -> str:
        stage = dataclasses.replace(config.stage3, teacher=dataclasses.replace(teacher, **change))
        return sha256(dataclasses.replace(config, stage3=stage))

    assert digest(path="there") == digest(preload=False) == sha256(config)
    others = {digest(top_k=7), digest(negatives=0), digest(dtype="float16"), digest(cross_entropy="exact")}
    others |= {digest(anchor_weight=1.0, anchor=name) for name in ("one", "other")}  # which one it is decides
    assert len({*others, sha256(config)}) == 7


def test_stopped_in_the_stage_it_goes_on_as_if_it_had_not(
    overrides: tuple[str, ...],
    configured: Callable[..., Config],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By SIGTERM in its third step, with two micro-batches a step."""
    more = (*overrides, "stage3.teacher.preload=false", "stage3.micro_batch_size=2")

    def train(name: str) -> Outcome:
        stop = StopSignal()
        stop.install()
        folder = tmp_path / name
        return program.train_in(folder, configured(*more, f"run_dir={folder}"), stop)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        uninterrupted, given, batches = train("uninterrupted"), CachedFeed.__next__, 0

        def terminates(feed: CachedFeed) -> Tensor:
            nonlocal batches
            batches += 1
            if batches == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            return given(feed)

        with monkeypatch.context() as patch:
            patch.setattr(CachedFeed, "__next__", terminates)
            with pytest.raises(PreemptedError, match="checkpoint"):
                train("run")
        assert batches == 3
        again = train("run")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert weights_digest(again) == weights_digest(uninterrupted)
    assert without_times(again) == without_times(uninterrupted)


def test_each_process_gets_the_rows_of_its_own_text(
    overrides: tuple[str, ...], configured: Callable[..., Config], prepared: Prepared
) -> None:
    config = configured(*overrides)
    assert config.stage3.teacher.kind == "cached"
    cache = open_cache(config.stage3.teacher.path, rows=16, preload=True)

    def feed(rank: int = 0, world: int = 1) -> CachedFeed:
        device = dataclasses.replace(open_device(config.device), ranks=Ranks(rank=rank, world=world))
        return CachedFeed(
            stage_text(prepared.corpus, config, "stage3", 4, device.ranks), cache, None, device=device
        )

    alone, shared = feed(), [feed(rank, 2) for rank in range(2)]
    for _ in range(3):
        ids = next(alone)
        labels = alone.take(4).teacher
        for rank, one in enumerate(shared):
            assert torch.equal(next(one), ids[rank::2])
            assert torch.equal(one.take(2).teacher.ids, labels.ids[rank::2])
    later = feed()
    later.restore(alone.state())
    assert torch.equal(next(later), next(alone))
    assert torch.equal(later.take(4).teacher.logits, alone.take(4).teacher.logits)


def test_a_checkpoint_of_another_cache_is_refused(
    overrides: tuple[str, ...], configured: Callable[..., Config], prepared: Prepared
) -> None:
    config = configured(*overrides)
    assert config.stage3.teacher.kind == "cached"
    text = stage_text(prepared.corpus, config, "stage3", 4)
    cache = open_cache(config.stage3.teacher.path, rows=16, preload=True)
    feed = CachedFeed(text, cache, None, device=open_device(config.device))
    state = feed.state()
    with pytest.raises(DataError, match=r"teacher cache .*checkpoint"):
        feed.restore(State(values={**state.values, "teacher_cache": "another"}))
    assert feed.state() == state


def test_positions_of_each_process_in_streamed_text_stay_marked(configured: Callable[..., Config]) -> None:
    streamed = State(values={"rows": 8, "lanes": {"1": [0]}}, per_process=("lanes",))
    text, cache = Mock(state=lambda: streamed), Mock(digest="0")
    found = CachedFeed(text, cache, None, device=open_device(configured().device)).state()
    assert (found.values["lanes"], found.values["teacher_cache"]) == ({"1": [0]}, "0")
    assert found.per_process == ("lanes",)


def test_recomputed_micro_batches_take_the_same_rows(
    overrides: tuple[str, ...], run_small: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If compiling fails in the second micro-batch, the step starts again without it."""
    two = (*overrides, "stage3.micro_batch_size=2")
    run_small(*two)
    losses = [line["loss"] for line in logged(tmp_path)]

    def fails_in_the_second(objective: Callable[[Tensor], object]) -> Callable[[Tensor], object]:
        calls = 0

        def called(ids_BT: Tensor) -> object:
            nonlocal calls
            calls += 1
            found = objective(ids_BT)
            if calls == 2:
                raise ValueError("no compiler")
            return found

        return called

    monkeypatch.setattr(step, "compiled", fails_in_the_second)
    run_small(*two, "device.compile=true")
    assert [line["loss"] for line in logged(tmp_path)] == losses


@pytest.mark.parametrize("cross_entropy", ["sampled", pytest.param("exact", marks=pytest.mark.slow)])
def test_objective_makes_no_tensor_of_all_logits(
    cross_entropy: str, configured: Callable[..., Config]
) -> None:
    """A student of one narrow layer at L = 1024 and V = 151,936, forward and backward: the largest tensor is
    the head's gradient or a chunk of 16 MiB; all logits would be 593.5 MiB."""
    vocabulary, length = 151_936, 1024
    config = configured(
        *cached("here", top_k=128, negatives=64),
        *(f"stage3.teacher.cross_entropy={cross_entropy}", "model.layers=1", "model.heads=1"),
        *("model.hidden_size=8", "model.intermediate_size=8"),
    )
    teacher = config.stage3.teacher
    assert teacher.kind == "cached"
    assert config.model.kind == "tiny"
    student = build_tiny(config.model, vocab_size=vocabulary, sequence_length=length, attention="eager")
    ids = torch.randint(vocabulary, (1, length - 1, 192), dtype=torch.int32)
    labels = Targets(teacher=Sample(ids=ids, logits=torch.randn(ids.shape)))
    objective = from_cache(student, lambda rows: labels, config.stage3, teacher)
    text = torch.randint(vocabulary, (1, length))
    most = most_bytes(lambda: objective(text)["loss"].backward())  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None for parameter in student.parameters())
    assert most.largest <= 4 * 2**22  # of one chunk
    assert most.at_once < 4 * length * vocabulary / 4


class Bigrams(nn.Module):
    """The smallest model that `head_inputs` accepts."""

    def __init__(self, vocabulary: int, hidden: int) -> None:
        super().__init__()
        self.embeddings, self.head = (
            nn.Embedding(vocabulary, hidden),
            nn.Linear(hidden, vocabulary, bias=False),
        )

    def get_decoder(self) -> nn.Module:
        return self

    def forward(self, input_ids: Tensor, **_: Any) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=self.embeddings(input_ids))

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings

    def get_output_embeddings(self) -> nn.Module:
        return self.head


@pytest.mark.filterwarnings("ignore")  # the compiler's own, about parts of torch
def test_compiled_objective_is_one_graph(configured: Callable[..., Config]) -> None:
    """The position of a micro-batch is not a constant of the graph. The student is only a head here."""
    config = configured(*cached("here"))
    teacher = config.stage3.teacher
    assert teacher.kind == "cached"

    class Chance(LabelledFeed[Targets]):
        def __next__(self) -> Tensor:
            ids = torch.randint(VOCABULARY, (4, LENGTH - 1, 8), dtype=torch.int32)
            self.set_labels(Targets(teacher=Sample(ids=ids, logits=torch.randn(ids.shape))))
            return torch.randint(VOCABULARY, (4, LENGTH))

        def state(self) -> State:
            raise NotImplementedError

        def restore(self, state: State) -> None:
            raise NotImplementedError

    student = Bigrams(VOCABULARY, 8)
    torch._dynamo.reset()
    feed, counter = Chance(), CompileCounter()
    objective = from_cache(student, uncompiled(feed.take), config.stage3, teacher)
    compiled = torch.compile(objective, backend=counter, dynamic=False)
    for _ in range(3):
        ids = next(feed)
        found = [compiled(part)["loss"] for part in ids.chunk(2)]
        feed.rewind()
        torch.testing.assert_close(found, [objective(part)["loss"] for part in ids.chunk(2)])
    assert counter.frame_count == 1


def test_the_command_builds_goes_on_and_refuses(
    small: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    given = [*small, *cached(tmp_path / "cache")]
    try:
        assert command.main(["--help"]) == 0
        assert command.main([*small, *ON]) == 2
        assert command.main([*given, "stage3.max_steps=0", "stage3.schedule.warmup_steps=0"]) == 2
        assert command.main([*given, "--fast"]) == 2
        assert command.main([*given, "--of", str(tmp_path)]) == 2
        anchored = ("stage3.teacher.anchor_weight=1.0", "stage3.teacher.anchor=x")
        assert command.main([*given, *anchored, "--of", str(tmp_path)]) == 2
        assert command.main([*given, "stage3.teacher.top_k=x"]) == 2
        assert command.main([*given, "stage3.max_steps=x", "stage3.batch_size=x"]) == 2
        assert not (tmp_path / "cache").exists()
        assert command.main(given) == 0
        assert command.main([*given, "stage3.max_steps=5"]) == 0
        assert command.main([*given, "seed=1"]) == 2
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    labels = capsys.readouterr()
    assert "16 rows in 1 file, 16.4 KiB; 16 " in labels.out
    assert "20 rows in 2 files, 20.7 KiB; 4 " in labels.out
    assert [line.split(":")[2].strip() for line in labels.err.splitlines()] == [
        "stage3.teacher",
        "stage3.max_steps",
        "there is no option --fast; overrides are written key=value, see --help",
        "stage3.teacher.anchor_weight",
        "--of",
        "stage3.teacher.top_k",
        "stage3.max_steps",
        "stage3.batch_size",
        "stage3.teacher.path",
    ]
