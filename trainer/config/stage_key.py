"""Keys of what runs can share: the ends of stages, and trunks of stages, which are runs before their decay.

Runs of one key have the same weights there, to rounding on different meshes. Called by `api`; reads no file.
What is not named here belongs to the key, a new key of the configuration too: at worst a stage is computed
twice. docs/explanation/sharing.md says what a key depends on, and tests/trainer/test_stage_key_weights.py
holds all of them against the weights.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trainer.config.run import INDECISIVE, PLACEMENT, TRUNK_EVERY, Config, is_below, leaves
from trainer.config.stages import Stage2Config, Stage19Config

SCHEMA = 1
STAGE, LATER = "stage1_9", "stage2"

# Keys, and groups of keys, that cannot reach the weights at the end of Stage 1.9.
_OUTSIDE = (
    *INDECISIVE,
    # Earlier than their stages they are read by checks alone, which refuse or pass.
    *(LATER, "stage3", "recovery"),
    *("eval", "average"),  # what is trained goes on as it is
    *("device.usd_per_hour", "device.pricing"),
    # The machine's to choose, and rounding, as between processors: runs share a teacher across it too.
    "device.threads",
    # Rounding too: checkpoints already move between meshes, so snapshots and points may. Random draws
    # differ there (stochastic rounding of shards, a pretrained model's dropout). `auto_micro_batch` stays in
    # the key: what it finds depends on the memory, and not on the mesh alone.
    *(f"device.{key}" for key in PLACEMENT),
    f"{STAGE}.{TRUNK_EVERY}",
)
# Keys of a stage that nothing reads before its learning rate falls.
_TAIL = ("max_steps", "schedule.decay_fraction", "schedule.final_lr_ratio", TRUNK_EVERY)
# Texts that each machine may have elsewhere. Which text it is, a snapshot's `data_sha256` says.
_PLACES = ("data.files", "data.dataset", "data.tokenizer")
_ENVIRONMENT = "${oc.env:"
_MUONS, _APOLLOS = ("muon", "muonclip"), ("apollo", "apollo_mini")
# Keys and groups of an optimizer, with the types that read them.
_READ_BY = {"momentum": _MUONS, "muon": _MUONS, "muonclip": _MUONS[1:]} | {name: (name,) for name in _APOLLOS}


@dataclass(frozen=True, kw_only=True)
class StageTrunk:
    """The part of a stage that runs of several lengths share.

    Args:
        key: 64 hexadecimal digits; equal keys mean equal weights after equal numbers of steps, to rounding on
            different meshes.
        until: steps of this run on the trunk; its learning rate falls from there.
    """

    key: str
    until: int


def stage_trunks(
    config: Config, written: Mapping[str, Any], versions: Mapping[str, str]
) -> dict[str, StageTrunk]:
    """Return the trunk of each stage that has one, by the stage's name.

    None has a stage whose steps depend on its length before the decay, too: a saliency curriculum ends with
    the stage, a distillation weight other than a constant falls or rises over all of it, a weight decay may
    end after a share of it, and a learning rate may follow its tokens. Nor has the stage whose weights are
    averaged, as a point has no average.

    Args: see `stage_keys`.
    """
    stages: dict[str, Stage19Config | Stage2Config] = {STAGE: config.stage1_9, LATER: config.stage2}
    depends = config.stage1_9.saliency.enabled or config.stage1_9.distill_schedule.type != "constant"
    document = asdict(config)
    return {
        name: StageTrunk(
            key=_digest(
                versions,
                trunk=name,
                config={
                    key: value
                    for key, value in prefix(document, written, name).items()
                    if key not in {f"{name}.{tail}" for tail in _TAIL}
                },
            ),
            until=stage.schedule.decay_start(stage.max_steps),
        )
        for name, stage in stages.items()
        if stage.max_steps
        and not (name == STAGE and depends)
        and not stage.optimizer.weight_decay_ends
        and stage.optimizer.base_tokens is None
        and name != config.averaged_stage
    }


def stage_keys(config: Config, written: Mapping[str, Any], versions: Mapping[str, str]) -> dict[str, str]:
    """Return the key of the end of each stage that runs can share, as 64 hexadecimal digits.

    Args:
        config: of the run; with `stage1_9.max_steps` 0 it has no such stage.
        written: the same by dotted key, before interpolations are resolved.
        versions: of the code and of the libraries that compute the weights, by name.
    """
    if not config.stage1_9.max_steps:
        return {}
    return {STAGE: _digest(versions, stage=STAGE, config=prefix(asdict(config), written))}


def _digest(versions: Mapping[str, str], **covers: Any) -> str:
    document = {"schema": SCHEMA, "versions": dict(versions), **covers}
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def prefix(document: Mapping[str, Any], written: Mapping[str, Any], stage: str = STAGE) -> dict[str, Any]:
    """Return the part of a configuration that decides the weights at the end of a stage, by dotted key.

    Args:
        document: a validated configuration as plain values.
        written: the same by dotted key, before interpolations are resolved. It is what counts where an
            environment variable says where the text is, as that may differ between machines.
        stage: its name, of Stage 1.9 or Stage 2.
    """
    values = dict(leaves(document))
    left_out = {*_OUTSIDE, *_idle(values, stage)} - {stage}
    kept = {key: value for key, value in values.items() if not is_below(key, left_out)}
    places = {key: written.get(key) for key in _PLACES if key in kept}
    return kept | {key: place for key, place in places.items() if _ENVIRONMENT in json.dumps(place)}


def _idle(values: Mapping[str, Any], end: str) -> Iterator[str]:
    """Yield keys, and groups of keys, that nothing reads up to the end of a stage, given these values."""
    trained = (STAGE,) if end == STAGE else (STAGE, LATER)
    micro_batches_are_searched = values["device.auto_micro_batch"] and any(
        values[f"{name}.micro_batch_size"] is None for name in trained
    )
    idle = {
        "stage1_9.saliency": not values["stage1_9.saliency.enabled"],
        "stage1_9.distill_schedule.final": values["stage1_9.distill_schedule.type"] == "constant",
        "stage2.fp8_recipe": not values["stage2.fp8"],
        "stage2.lambda_warmup": not values["stage2.lambda_warmup.enabled"],
        "stage2.distill.temperature": values["stage2.distill.weight"] == 0,
        "stage1.calibration_batches": values["stage1.subln"] in ("ones", "none"),
        "auto_freeze": not values["auto_freeze.enabled"],
        "scale_rule": values["scale_rule.type"] == "none",
        "data.vocab_size": values["data.tokenizer"] is not None or values["model.kind"] == "hf",
        "device.auto_micro_batch": not micro_batches_are_searched,
        "device.memory_target_gib": not micro_batches_are_searched,
    }
    yield from (key for key, is_idle in idle.items() if is_idle)
    for stage in (STAGE, LATER, "model.teacher"):
        kind = values.get(f"{stage}.optimizer.type")  # a pretrained teacher is not trained
        yield from (f"{stage}.optimizer.{key}" for key, readers in _READ_BY.items() if kind not in readers)
        if values.get(f"{stage}.optimizer.weight_decay") == 0:
            yield f"{stage}.optimizer.weight_decay_until"
        for base, exponent in (("base_tokens", "tokens_exponent"), ("base_batch_tokens", "batch_exponent")):
            if values.get(f"{stage}.optimizer.{base}") is None:
                yield f"{stage}.optimizer.{exponent}"
        if values.get(f"{stage}.schedule.decay_fraction") == 0:
            yield f"{stage}.schedule.final_lr_ratio"
