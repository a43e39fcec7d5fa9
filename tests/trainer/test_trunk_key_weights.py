"""What the keys of trunks cover is held against the weights, as `test_stage_key_weights` does for a stage's end.

A flip of any key of the configuration that leaves a trunk's key as it was must leave the weights after each
of its steps bit for bit; one that changes the key must change them, or be in CAUTIOUS. Compared are the steps
before either run's decay. Flips of which none should matter share a run.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from flipped_keys import Flip, Overrides, dealt, flips, together
from test_stage_key_weights import (
    BY_HAND,
    CACHED,
    GROUPS,
    HTTP,
    LINES,
    NO_STAGE3,
    NOT_HERE,
    Case,
    filled,
    one,
)
from test_stage_key_weights import CAUTIOUS as CAUTIOUS_AT_THE_END
from test_stage_key_weights import given as given_short
from test_stage_key_weights import places as places
from torch import nn

from trainer import __main__ as program
from trainer.api import StageTrunk, check, quote, stage_trunks
from trainer.errors import ConfigError
from trainer.stages import layerwise, pretrain
from trainer.training.preemption import StopSignal
from trainer.training.train_step import TrainStep

STAGES = ("stage1_9", "stage2")
LONG = (
    *(f"{stage}.max_steps=8" for stage in STAGES),
    *(f"{stage}.schedule.{each}" for stage in STAGES for each in ("warmup_steps=2", "decay_fraction=0.5")),
    "stage2.lambda_warmup.warmup_steps=3",
)
"""Both leave their trunks after 4 steps."""


def given(*overrides: str) -> Overrides:
    taken = {override.partition("=")[0] for override in LONG}
    return (*(each for each in given_short() if each.partition("=")[0] not in taken), *LONG, *overrides)


def with_text(*overrides: str) -> Overrides:
    """Return the overrides without the key of the built-in text alone."""
    return tuple(each for each in given(*overrides) if not each.startswith("data.max_bytes"))


def trained_with(kind: str, *settings: str) -> Case:
    """Return a case in which both stages have this optimizer; the teacher's is in the other file."""
    parts = tuple(f"{stage}.optimizer" for stage in STAGES)
    chosen = tuple(f"{part}.{each}" for part in parts for each in (f"type={kind}", *settings))
    return Case(overrides=chosen, flipped=tuple(f"{part}." for part in parts), hands=2)


CASES = {
    "plain": Case(overrides=(), flipped=("",), hands=8),
    "adamw": trained_with("adamw"),
    "muonclip": trained_with("muonclip", "muonclip.tau=1e-5"),
    "apollo": trained_with("apollo", "apollo.rank=4", "apollo.update_interval=1"),
    "apollo_mini": trained_with("apollo_mini", "apollo_mini.update_interval=1"),
    "distilled": Case(
        overrides=("stage2.distill.weight=0.5",), flipped=("stage2.distill.", "stage2.micro_batch_size")
    ),
    "unwarmed": Case(overrides=("stage2.lambda_warmup.enabled=false",), flipped=("stage2.lambda_warmup.",)),
    "freezing": Case(
        overrides=(
            *("auto_freeze.enabled=true", "auto_freeze.threshold=1e9", "auto_freeze.every_steps=1"),
            *("auto_freeze.start_step=1", "auto_freeze.patience=1"),
        ),
        flipped=("auto_freeze.",),
        by_hand=one("auto_freeze.enabled=false", "auto_freeze.threshold=1e-9", "auto_freeze.start_step=3"),
    ),
    "idle": Case(
        overrides=tuple(
            f"{stage}.{each}"
            for stage in STAGES
            for each in ("schedule.decay_fraction=0.0", "optimizer.weight_decay=0.0")
        ),
        flipped=tuple(
            f"{stage}.{each}" for stage in STAGES for each in ("schedule.", "optimizer.weight_decay_until")
        ),
    ),
    "lines": Case(
        overrides=LINES, flipped=("data.",), by_hand=one("data.lanes=1", "data.shuffle_windows=8"), hands=2
    ),
}
MORE_BY_HAND: dict[str, tuple[Overrides, ...]] = {
    **one("stage2.optimizer.max_grad_norm=0.001"),
    "stage1_9.max_steps": (("stage1_9.max_steps=10",), ("stage1_9.max_steps=6",)),
    "stage2.max_steps": (("stage2.max_steps=10",), ("stage2.max_steps=6",)),
    "stage1_9.saliency.enabled": (("stage1_9.saliency.enabled=true", "stage1_9.saliency.update_interval=1"),),
    "stage3.teacher.kind": ((*HTTP, *NO_STAGE3), (*CACHED, *NO_STAGE3)),
}
NOT_HERE_EITHER = {
    **NOT_HERE,
    "stage2.optimizer.type=adamw_8bit": "needs bitsandbytes",
    "model.kind": "the other file flips it",
}
CAUTIOUS: dict[str, str] = CAUTIOUS_AT_THE_END


class AtEnd(Exception):
    """Raised once both trunks are over, with digests of the student after each of their steps, by stage."""


def digest_of(student: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in (*student.named_parameters(), *student.named_buffers()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)} {value.requires_grad}".encode())
        digest.update(value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@pytest.fixture
def weights(
    places: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[Overrides], dict[str, list[str]]]:
    """Return a function that runs the program until its trunks are over, and returns digests of the student."""
    students: list[nn.Module] = []
    found: dict[str, list[str]] = {}
    last = 0
    step = TrainStep.__call__

    def remembering(stage: Callable[..., Any]) -> Callable[..., Any]:
        def train(student: nn.Module, *rest: Any) -> Any:
            students.append(student)
            return stage(student, *rest)

        return train

    def watching(self: TrainStep, *args: Any, number: int) -> Any:
        if self.plan.name in STAGES:
            digests = found.setdefault(self.plan.name, [])
            if number > 1:  # before a step, as freezing comes after the one before
                digests.append(digest_of(students[-1]))
            if self.plan.name == STAGES[-1] and number > last:
                raise AtEnd
        return step(self, *args, number=number)

    monkeypatch.setattr(TrainStep, "__call__", watching)
    monkeypatch.setattr(layerwise, "align", remembering(layerwise.align))
    monkeypatch.setattr(pretrain, "pretrain", remembering(pretrain.pretrain))

    def weights(overrides: Overrides) -> dict[str, list[str]]:
        nonlocal last
        students.clear()
        found.clear()
        chosen = filled(overrides, places)
        until = {stage: trunk.until for stage, trunk in stage_trunks(chosen).items()}
        last = min(until.get("stage2", 0), check(chosen).stage2.max_steps - 1)
        folder = tmp_path / uuid.uuid4().hex
        with pytest.raises(AtEnd):
            program.train_in(folder, check([*chosen, f"run_dir={quote(str(folder))}"]), StopSignal())
        return {stage: found[stage][: until[stage]] for stage in until}

    return weights


def base_of(case: str) -> Overrides:
    overrides = CASES[case].overrides
    return with_text(*overrides) if "data=text" in overrides else given(*overrides)


def case_flips(name: str) -> list[Flip]:
    case, found = CASES[name], []
    for flip in flips(base_of(name), {**BY_HAND, **MORE_BY_HAND, **case.by_hand}):
        here = tuple(each for each in flip.overrides if not NOT_HERE_EITHER.keys() & set(each))
        if flip.key.startswith(case.flipped) and flip.key not in GROUPS[:2] and here:
            found.append(Flip(flip.key, here))
    return found


def trunks_of(overrides: Overrides, places: Path) -> dict[str, StageTrunk]:
    return stage_trunks(filled(overrides, places))


def test_every_key_is_flipped() -> None:
    flipped = {flip.key for name in CASES for flip in case_flips(name)}
    flipped |= {override.partition("=")[0] for override in NOT_HERE_EITHER}
    assert {flip.key for flip in flips(given(), {})} - flipped <= set(GROUPS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "hand"), [(name, hand) for name, case in CASES.items() for hand in range(case.hands)]
)
def test_a_trunks_key_changes_where_the_weights_on_it_do(
    case: str,
    hand: int,
    weights: Callable[[Overrides], dict[str, list[str]]],
    places: Path,
    remembered: Callable[[str, Callable[[], str]], str],
) -> None:
    """Keys that change no trunk are flipped together, and apart where weights then differ."""
    base = base_of(case)
    before = json.loads(remembered(f"weights on the trunks of {base}", lambda: json.dumps(weights(base))))
    trunks = trunks_of(base, places)

    def changed(overrides: Overrides) -> dict[str, bool]:
        after, changed = weights((*base, *overrides)), {}
        for stage, digests in after.items():
            shared = min(len(before[stage]), len(digests))
            assert shared >= 2
            changed[stage] = before[stage][:shared] != digests[:shared]
        return changed

    def others(overrides: Overrides) -> dict[str, bool]:
        return {
            stage: trunk.key != trunks[stage].key
            for stage, trunk in trunks_of((*base, *overrides), places).items()
        }

    outside: list[Overrides] = []
    for flip in dealt(case_flips(case), CASES[case].hands)[hand]:
        if all(trunks_of((*base, *each), places) == trunks for each in flip.overrides):
            outside += flip.overrides
            continue
        keys = [others(each) for each in flip.overrides]
        covering = [stage for stage in STAGES if any(each.get(stage) for each in keys)]
        assert all(each.get(stage, True) for each in keys for stage in covering), (
            f"some values of {flip.key} change the trunk's key, and some do not"
        )
        unchanged = set() if flip.key in CAUTIOUS else {*covering}
        for overrides in flip.overrides:
            if not unchanged and len(covering) == len(STAGES):
                break  # whatever the other values do is right
            results = changed(overrides)
            assert not [stage for stage in results if results[stage] and stage not in covering], flip.key
            unchanged -= {stage for stage in results if results[stage]}
        assert not unchanged, (flip.key, unchanged)

    def accepted(overrides: Overrides) -> bool:
        try:
            return trunks_of((*base, *overrides), places) == trunks
        except ConfigError:
            return False

    for group in together(outside, accepted):
        if any(changed(tuple(chain(*group))).values()):
            assert [each for each in group if any(changed(each).values())] == []
            pytest.fail(f"only together they change the weights: {group}")
