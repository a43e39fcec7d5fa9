"""What the key of Stage 1.9 covers is held against the weights: every key of the configuration is flipped.

A flip that leaves the stage's key as it was must leave the weights at the stage's end bit for bit, or trials would
share what is not theirs. A flip that changes it must change them, or trials would pay twice; keys that belong to
it all the same are in CAUTIOUS, and are not run. A new key of the configuration fails here until `trainer.config.stage_key` has it
on the right side. A flip that should matter is a run of a fraction of a second, as the program has it, up to
Stage 2; of those that should not, a dozen share one.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import pytest
import torch
from flipped_keys import Flip, Overrides, dealt, flips, together
from pretrained import save_stand_in
from torch import nn

from trainer import __main__ as program
from trainer.api import check, quote, stage_keys
from trainer.config.compose import groups, keys
from trainer.errors import ConfigError
from trainer.stages import pretrain
from trainer.training.preemption import StopSignal

BASE = (
    "model.hidden_size=16", "model.intermediate_size=24", "model.layers=2", "model.heads=2",
    "model.teacher.max_steps=2", "model.teacher.batch_size=4", "model.teacher.schedule.warmup_steps=1",
    "model.teacher.schedule.decay_fraction=0.5", "data.held_out_fraction=0.2", "data.vocab_size=300",
    "data.sequence_length=16", "stage1.calibration_batches=1", "stage1_9.max_steps=2",
    "stage1_9.batch_size=4", "stage1_9.schedule.warmup_steps=1", "stage1_9.schedule.decay_fraction=0.5",
    "stage2.max_steps=4", "stage2.batch_size=4", "stage2.schedule.warmup_steps=1",
    "stage2.lambda_warmup.warmup_steps=2", "stage3.max_steps=2", "stage3.batch_size=4",
    "stage3.schedule.warmup_steps=1", "recovery.schedule.warmup_steps=0", "eval.at=[]", "eval.batches=3",
    "eval.batch_size=4", "device=cpu", "device.threads=1", "data.max_bytes=200000",
    "data.test_fraction=0.2",
)  # fmt: skip
LINES = ("data=text", "data.files=@lines", "data.text_key=text", "data.held_out_tokens=400")
LINES = (*LINES, "data.test_fraction=0.2", "data.test_tokens=400", "data.lanes=2", "data.shuffle_windows=16")
HF = ("model=hf", "model.name=@smollm2")
HTTP = ("stage3/teacher=http", "stage3.teacher.url=http://localhost:1", "stage3.teacher.model=a")
CACHED = ("stage3/teacher=cached", "stage3.teacher.path=nowhere")
NO_STAGE3 = ("stage3.max_steps=0", "stage3.attention_weight=0")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A configuration in which keys matter that elsewhere do not, or do not matter that elsewhere do.

    Args:
        overrides: as `given` takes them.
        flipped: beginnings of the keys that are flipped in it.
        by_hand: flips that differ from those of the other cases.
        hands: tests that the flips are dealt to. Each has a run or more of the flips that should not matter.
    """

    overrides: Overrides
    flipped: Overrides
    by_hand: dict[str, tuple[Overrides, ...]] = field(default_factory=dict)
    hands: int = 1


def given(*overrides: str) -> Overrides:
    """Return the overrides after those of BASE that go with the same model and text."""
    chosen = {"model=hf": "model.", "data=text": "data.max_bytes"}
    gone = tuple(keys for choice, keys in chosen.items() if choice in overrides)
    return (*(override for override in BASE if not override.startswith(gone)), *overrides)


def one(*overrides: str) -> dict[str, tuple[Overrides, ...]]:
    return {override.partition("=")[0]: ((override,),) for override in overrides}


def trained_with(kind: str, *settings: str) -> Case:
    parts = ("stage1_9.optimizer", "model.teacher.optimizer")
    chosen = tuple(f"{part}.{each}" for part in parts for each in (f"type={kind}", *settings))
    return Case(overrides=chosen, flipped=tuple(f"{part}." for part in parts), hands=2)


CASES = {
    "plain": Case(overrides=(), flipped=("",), hands=8),
    "adamw": trained_with("adamw"),
    "muonclip": trained_with("muonclip", "muonclip.tau=1e-5"),
    "apollo": trained_with("apollo", "apollo.rank=4", "apollo.update_interval=1"),
    "apollo_mini": trained_with("apollo_mini", "apollo_mini.update_interval=1"),
    "salient": Case(
        overrides=(
            *("stage1_9.max_steps=4", "stage1_9.optimizer.lr=0.05", "stage1_9.saliency.enabled=true"),
            *("stage1_9.saliency.initial_k=0.5", "stage1_9.saliency.final_k=0.2"),
            *("stage1_9.saliency.update_interval=1", "stage1_9.saliency.ema_decay=0.9"),
        ),
        flipped=("stage1_9.saliency.",),
        by_hand=one("stage1_9.saliency.ema_decay=0.0"),
    ),
    "freezing": Case(
        overrides=(
            *("stage1_9.max_steps=5", "auto_freeze.enabled=true", "auto_freeze.threshold=1e9"),
            *("auto_freeze.every_steps=1", "auto_freeze.start_step=1", "auto_freeze.patience=1"),
        ),
        flipped=("auto_freeze.",),
        by_hand=one("auto_freeze.enabled=false", "auto_freeze.threshold=1e-9", "auto_freeze.start_step=3"),
    ),
    "carried": Case(
        overrides=tuple(
            f"{stage}.optimizer.{base}=1000"
            for stage in ("stage1_9", "model.teacher")
            for base in ("base_tokens", "base_batch_tokens")
        ),
        flipped=tuple(
            f"{stage}.{each}"
            for stage in ("stage1_9", "model.teacher")
            for each in ("max_steps", "optimizer.base_", "optimizer.tokens_", "optimizer.batch_")
        ),
    ),
    "measured": Case(overrides=("eval.at=[0.5,1.0]",), flipped=("eval.",)),
    "fading": Case(
        overrides=("stage1_9.distill_schedule.type=linear",), flipped=("stage1_9.distill_schedule.",)
    ),
    "idle": Case(
        overrides=(
            *("data.tokenizer=@smollm2", "stage1.subln=ones", "stage1_9.micro_batch_size=2"),
            *("stage1_9.schedule.decay_fraction=0.0", "model.teacher.schedule.decay_fraction=0.0"),
            "stage1_9.optimizer.weight_decay=0.0",
        ),
        flipped=(
            *("data.vocab_size", "stage1.", "stage1_9.schedule.", "model.teacher.schedule.", "device."),
            "stage1_9.optimizer.weight_decay_until",
        ),
        hands=2,
    ),
    "fitted": Case(overrides=("device.auto_micro_batch=true",), flipped=("device.",)),
    "lines": Case(
        overrides=LINES, flipped=("data.",), by_hand=one("data.lanes=1", "data.shuffle_windows=8"), hands=2
    ),
    "hf": Case(overrides=HF, flipped=("model.", "data.vocab_size")),
    "http": Case(overrides=(*HTTP, *NO_STAGE3), flipped=("stage3.teacher.",)),
    "cached": Case(overrides=(*CACHED, *NO_STAGE3), flipped=("stage3.teacher.",)),
}
# Texts, lists, and numbers that must go with others.
BY_HAND = {
    **one("model.hidden_size=20", "model.heads=1", "model.name=@qwen3"),
    **one("data.tokenizer=@smollm2", "data.max_bytes=300000", "data.test_fraction=0.3"),
    **one("data.files=@lines/??.jsonl", "data.text_key=other", "stage1.keep_layers=1"),
    **one(
        "stage3.teacher.url=http://localhost:2", "stage3.teacher.model=b", "stage3.teacher.api_key_env=KEY"
    ),
    **one("stage3.teacher.path=elsewhere", "stage3.teacher.anchor=elsewhere"),
    **one("wandb.project=b", "wandb.group=b", "wandb.name=b", "wandb.id=b", "wandb.tags=[b]"),
    **one("hooks.names=['math:sqrt']", "hooks.cpp.problems=b", "hooks.cpp.compiler=c++"),
    **one("hooks.lm_eval.tasks=[b]", "hooks.lm_eval.include_path=b", "samples.prompts=[b]"),
    **one('auto_freeze.parameters=["*embed*"]', "stage1_9.saliency.final_k=0.05"),
    **one(*(f"{stage}.optimizer.max_grad_norm=0.001" for stage in ("stage1_9", "model.teacher"))),
    "auto_freeze.enabled": (
        (
            *("auto_freeze.enabled=true", "auto_freeze.every_steps=1", "auto_freeze.start_step=0"),
            *("auto_freeze.patience=1", "auto_freeze.threshold=1e9"),
        ),
    ),
    "model.kind": (HF,),
    "data.name": (LINES,),
    "stage1_9.layer_weights": (("stage1_9.layer_weights=uniform",), ("stage1_9.layer_weights=[1,5]",)),
    "stage3.teacher.kind": ((*HTTP, *NO_STAGE3), (*CACHED, *NO_STAGE3)),
    "stage3.teacher.anchor_weight": (("stage3.teacher.anchor_weight=1.0", "stage3.teacher.anchor=a"),),
    "average.type": (("average.type=ema",), ("average.type=last", "average.steps=2")),
    "stage2.fp8_recipe.exclude": (('stage2.fp8_recipe.exclude=["*"]',),),
    "eval.at": (("eval.at=[0.5]",), ("eval.at=[1.0]",)),
    "memory_log.level": tuple((f"memory_log.level={level}",) for level in ("basic", "tensors", "metrics")),
    "memory_log.every": (("memory_log.every=1", "memory_log.level=tensors"),),
    "memory_log.phases": (("memory_log.phases=[train]", "memory_log.level=basic"),),
    "memory_log.path": (("memory_log.path=@/memory.jsonl", "memory_log.level=basic"),),
    "run_dir": ((),),  # every run has another
}
GROUPS = ("model.kind", "data.name", "stage3.teacher.kind")
NOT_HERE = {
    "device.type=cuda": "refused on a CPU",
    "device.type=xla": "needs torch_xla",
    "device.num_chips=2": "refused on a CPU",
    "device.parallel=ddp": "refused in a single process",
    "device.parallel=fsdp": "refused in a single process",
    "device.mesh.data=2": "refused in a single process",
    "device.mesh.tensor=2": "refused in a single process",
    "device.teacher=sharded": "refused in a single process",
    "checkpoint.format=sharded": "refused in a single process",
    **{f"device.compile={what}": "takes a minute on a CPU" for what in ("true", "layers")},
    "stage2.fp8=true": "refused on a CPU",
    "wandb.mode=offline": "starts a process of wandb's",
    "wandb.mode=online": "needs the network",
    **{f"{stage}.optimizer.type=adamw_8bit": "needs bitsandbytes" for stage in ("stage1_9", "model.teacher")},
    **{
        f"{stage}.optimizer.stochastic_rounding=true": "the weights are float32"
        for stage in ("model.teacher", "stage1_9", "stage2", "stage3")
    },
}
CAUTIOUS = {
    "device.type": "auto is the CPU here, and another device elsewhere",
    "device.compile": "compiled steps round differently, and fall back where the compiler fails",
    "device.recompute": "the same on a CPU; other kernels may be chosen on a GPU",
    "device.auto_micro_batch": "whether there are micro-batches depends on the memory",
    "device.memory_target_gib": "whether there are micro-batches depends on the memory",
    "data.held_out_tokens": "near-copies of measured text are not trained on; these lines have none",
    "data.test_tokens": "the same",
    "data.document_masks": "no document ends in these few windows; in test_documents.py some do",
}
OTHER_SOURCES = ("data.dataset", "data.subset", "data.split", "data.revision")  # as data.files


class AtStage2(Exception):
    """Raised instead of Stage 2, with a digest of what it would begin with."""


def begin(student: nn.Module, *_: object) -> None:
    digest = hashlib.sha256()
    for name, value in (*student.named_parameters(), *student.named_buffers()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)} {value.requires_grad}".encode())
        digest.update(value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    raise AtStage2(digest.hexdigest())


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("places")
    for architecture in ("smollm2", "qwen3"):
        save_stand_in(root / architecture, architecture)
    (root / "lines").mkdir()
    for file in range(60):
        texts = [f"{number} times {number} is {number**2}" for number in range(9 * file, 9 * file + 9)]
        rows = [json.dumps({"text": text, "other": text[::-1]}) + "\n" for text in texts]
        (root / "lines" / f"{file}.jsonl").write_text("".join(rows))
    return root


def filled(overrides: Overrides, places: Path) -> list[str]:
    """Return the overrides with the test's own files in place of `@`."""
    split = [override.partition("=@") for override in overrides]
    return [f"{key}={quote(f'{places}/{name}')}" if at else key for key, at, name in split]


@pytest.fixture
def weights(places: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Overrides], str]:
    """Return a function that runs the program up to Stage 2, and returns a digest of the student there."""
    monkeypatch.setattr(pretrain, "pretrain", begin)

    def weights(overrides: Overrides) -> str:
        folder = tmp_path / uuid.uuid4().hex
        config = check([*filled(overrides, places), f"run_dir={quote(str(folder))}"])
        with pytest.raises(AtStage2) as reached:
            program.train_in(folder, config, StopSignal())
        return str(reached.value)

    return weights


def key(overrides: Overrides, places: Path) -> str:
    return stage_keys(filled(overrides, places))["stage1_9"]


def case_flips(name: str) -> list[Flip]:
    case, found = CASES[name], []
    for flip in flips(given(*case.overrides), {**BY_HAND, **case.by_hand}):
        if flip.key.startswith(case.flipped) and (name == "plain" or flip.key not in GROUPS):
            here = tuple(each for each in flip.overrides if not NOT_HERE.keys() & set(each))
            if here or not flip.overrides:
                found.append(Flip(flip.key, here))
    return found


def test_every_key_of_the_schema_is_flipped() -> None:
    """A key without a flip needs one in BY_HAND, or a reason in NOT_HERE."""
    chosen = [(), ("model=hf",), ("data=text",), ("data=parquet",), ("data=hub",)]
    chosen += [(f"stage3/teacher={kind}",) for kind in groups()["stage3/teacher"]]
    every = [flip for name in CASES for flip in case_flips(name)]
    flipped = {flip.key for flip in every if flip.overrides}
    assert {each for choice in chosen for each in keys(choice)} == {
        *flipped,
        *(override.partition("=")[0] for override in NOT_HERE),
        *OTHER_SOURCES,
    }
    assert all(flip.overrides for flip in every)


@pytest.mark.parametrize("what", ["true", "layers"])
def test_compiled_stages_have_keys_of_their_own(what: str, places: Path) -> None:
    assert key(given(f"device.compile={what}"), places) != key(given(), places)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "hand"), [(name, hand) for name, case in CASES.items() for hand in range(case.hands)]
)
def test_the_key_changes_where_the_weights_do(
    case: str,
    hand: int,
    weights: Callable[[Overrides], str],
    places: Path,
    remembered: Callable[[str, Callable[[], str]], str],
) -> None:
    """Keys that leave the stage's key as it was are flipped together, and apart where weights then differ."""
    own = CASES[case].overrides
    before, here = (
        remembered(f"weights at Stage 2 of {own}", lambda: weights(given(*own))),
        key(given(*own), places),
    )
    outside: list[Overrides] = []
    for flip in dealt(case_flips(case), CASES[case].hands)[hand]:
        others = [overrides for overrides in flip.overrides if key(given(*own, *overrides), places) != here]
        if others:
            assert others == list(flip.overrides), (
                f"some values of {flip.key} change the stage's key, and some do not"
            )
            assert flip.key in CAUTIOUS or any(
                weights(given(*own, *overrides)) != before for overrides in others
            ), flip.key
        else:
            outside += flip.overrides

    def accepted(overrides: Overrides) -> bool:
        try:
            return key(given(*own, *overrides), places) == here
        except ConfigError:
            return False

    for group in together(outside, accepted):
        if weights(given(*own, *chain(*group))) != before:
            assert [each for each in group if weights(given(*own, *each)) != before] == []
            pytest.fail(f"only together they change the weights: {group}")
