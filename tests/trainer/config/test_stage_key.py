"""What the key of Stage 1.9's end depends on, and what not. `test_stage_key_weights.py` proves it by weights."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer import api
from trainer.config import stage_key
from trainer.config.compose import compose_config, keys
from trainer.config.run import leaves

VERSIONS = {"trainer": "1", "torch": "2"}
OTHER_RUNS = (
    "stage2.max_steps=300", "stage2.optimizer.lr=0.5", "stage2.lambda_warmup.enabled=false",
    "stage3.max_steps=9", "recovery.max_steps=9", "recovery.rank=3", "eval.batches=20", "eval.at=[]",
    "eval.test=true", "device.threads=7", "device.usd_per_hour=3.5", "device.pricing=spot",
    "device.hold_weights=false", "device.teacher=host", "device.parallel=ddp",
    "checkpoint.every_steps=5", "checkpoint.keep=1", "telemetry.dense_steps=1", "memory_log.level=basic",
    "wandb.mode=offline", "wandb.name=other", "log_every=3", "run_dir=elsewhere", "save_model=true",
    "force=true",
)  # fmt: skip
HTTP = ("stage3/teacher=http", "stage3.teacher.url=http://a:1", "stage3.teacher.model=m")
OTHER_STAGES = (
    "seed=1", "model.layers=3", "model.teacher.seed=1", "model.teacher.optimizer.lr=0.5",
    "data.sequence_length=64", "data.test_fraction=0.1", "quant.weight_scale=absmedian",
    "stage1.subln=ones", "stage1.keep_layers=2", "stage1_9.max_steps=101", "stage1_9.batch_size=8",
    "stage1_9.micro_batch_size=8", "stage1_9.layer_weights=uniform", "stage1_9.saliency.enabled=true",
    "optimizer@stage1_9.optimizer=adamw", "auto_freeze.enabled=true", "device=cuda",
    "device.dtype=bfloat16", "device.compile=false", "device.recompute=true",
    "device.auto_micro_batch=true",
)  # fmt: skip
# Keys that nothing reads up to Stage 1.9's end under a setting, with that setting and with another.
IDLE = {
    "saliency": (
        ("stage1_9.saliency.initial_k=0.2", "stage1_9.saliency.update_interval=1"),
        (),
        ("stage1_9.saliency.enabled=true",),
    ),
    "freezing": (("auto_freeze.patience=3", "auto_freeze.dry_run=true"), (), ("auto_freeze.enabled=true",)),
    "ramp": (("stage1_9.distill_schedule.final=0.5",), (), ("stage1_9.distill_schedule.type=cosine",)),
    "calibration": (("stage1.calibration_batches=9",), ("stage1.subln=none",), ("stage1.subln=blended",)),
    "vocabulary": (("data.vocab_size=999",), ("data.tokenizer=a",), ()),
    "vocabulary of a pretrained model": (("data.vocab_size=999",), ("model=hf", "model.name=a"), ()),
    "memory": (("device.memory_target_gib=3",), (), ("device.auto_micro_batch=true",)),
    "micro-batches": (
        ("device.auto_micro_batch=true", "device.memory_target_gib=3"),
        ("stage1_9.micro_batch_size=4",),
        (),
    ),
    "decay": (
        ("stage1_9.schedule.final_lr_ratio=0.5", "model.teacher.schedule.final_lr_ratio=0.5"),
        ("stage1_9.schedule.decay_fraction=0.0", "model.teacher.schedule.decay_fraction=0.0"),
        (),
    ),
    "weight decay": (
        ("stage1_9.optimizer.weight_decay_until=0.5", "model.teacher.optimizer.weight_decay_until=0.5"),
        ("stage1_9.optimizer.weight_decay=0.0", "model.teacher.optimizer.weight_decay=0.0"),
        (),
    ),
    "tokens": (
        ("stage1_9.optimizer.tokens_exponent=0.1", "model.teacher.optimizer.tokens_exponent=0.1"),
        (),
        ("stage1_9.optimizer.base_tokens=1000", "model.teacher.optimizer.base_tokens=1000"),
    ),
    "batch": (
        ("stage1_9.optimizer.batch_exponent=0.1", "model.teacher.optimizer.batch_exponent=0.1"),
        (),
        ("stage1_9.optimizer.base_batch_tokens=1000", "model.teacher.optimizer.base_batch_tokens=1000"),
    ),
    "adamw": (
        ("stage1_9.optimizer.momentum=0.1", "stage1_9.optimizer.apollo.rank=3"),
        ("stage1_9.optimizer.type=adamw",),
        ("stage1_9.optimizer.type=apollo",),
    ),
    "apollo": (
        ("model.teacher.optimizer.apollo_mini.scale=2.0", "model.teacher.optimizer.muon.dtype=float32"),
        ("model.teacher.optimizer.type=apollo",),
        ("model.teacher.optimizer.type=apollo_mini",),
    ),
    "muon": (
        ("stage1_9.optimizer.muonclip.tau=3.0",),
        ("stage1_9.optimizer.type=muon",),
        ("stage1_9.optimizer.type=muonclip",),
    ),
}


def key(*overrides: str) -> str:
    return api.stage_keys(overrides)["stage1_9"]


remembered = functools.cache(key)


def default_key() -> str:
    return remembered()


def test_processes_of_any_mesh_share(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    for how in (("ddp",), ("fsdp", "device.mesh.tensor=2", "device.mesh.data=2", "device.teacher=sharded")):
        assert key(f"device.parallel={how[0]}", *how[1:]) == default_key()


def key_of(config: Any, versions: dict[str, str] = VERSIONS) -> str:
    return stage_key.stage_keys(config, {}, versions)["stage1_9"]


@given(st.lists(st.sampled_from(OTHER_RUNS), unique=True))
def test_what_only_later_stages_or_people_read_leaves_the_key(overrides: list[str]) -> None:
    assert key(*overrides) == default_key()


def test_the_groups_of_later_stages_leave_the_key() -> None:
    assert key("optimizer@stage2.optimizer=apollo", *HTTP, "stage3.attention_weight=0") == default_key()


@pytest.mark.parametrize("override", OTHER_STAGES)
def test_whatever_stage_1_9_reads_changes_the_key(override: str) -> None:
    assert key(override) != default_key()


@given(st.permutations(["seed=3", "stage1_9.max_steps=50", "stage1_9.optimizer.lr=1", "quant.group_size=8"]))
def test_the_key_is_that_of_the_composed_configuration(overrides: list[str]) -> None:
    """Neither the order of the overrides nor the way to write a value is in it."""
    otherwise = ["seed=9", "quant.group_size=8", "stage1_9.max_steps=${stage2.max_steps}", "seed=3"]
    assert key(*overrides) == remembered(*otherwise, "stage2.max_steps=50", "stage1_9.optimizer.lr=1.0")


def test_a_list_and_the_same_list_as_text_have_one_key() -> None:
    assert key("stage1_9.layer_weights=[1,2,3,4]") == key("stage1_9.layer_weights='[1,2,3,4.0]'")
    assert key("data=text", "data.files=a") == key("data=text", "data.files=[a]")


@pytest.mark.parametrize(("idle", "setting", "another"), IDLE.values(), ids=IDLE)
def test_keys_that_nothing_reads_do_not_split_a_prefix(
    idle: tuple[str, ...], setting: tuple[str, ...], another: tuple[str, ...]
) -> None:
    for override in idle:
        assert key(*setting, override) == remembered(*setting)
    assert key(*another, *idle) != remembered(*another)


names = st.text("abcdef_0123456789", min_size=1).map("new_{}".format)
values = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text("ab.", max_size=5)


@given(st.sampled_from(["", "model", "data", "quant", "stage1", "stage1_9", "device"]), names, values)
def test_a_key_that_is_new_belongs_to_the_prefix(group: str, name: str, value: Any) -> None:
    document = asdict(compose_config([]))
    before = stage_key.prefix(document, {})
    node = document[group] if group else document
    node[name] = value
    dotted = f"{group}.{name}" if group else name
    assert stage_key.prefix(document, {}) == {**before, dotted: value}


@given(st.sampled_from(["stage2", "stage3", "eval", "telemetry", "wandb", "memory_log", "checkpoint"]), names)
def test_a_new_key_of_a_later_stage_or_of_telemetry_does_not(group: str, name: str) -> None:
    document = asdict(compose_config([]))
    before = stage_key.prefix(document, {})
    document[group][name] = 1
    assert stage_key.prefix(document, {}) == before


overrides_of_a_stage = st.fixed_dictionaries(
    {},
    optional={
        "stage1_9.max_steps": st.integers(10, 12),
        "stage1_9.lm_loss_weight": st.sampled_from([0.25, 0.5]),
        "stage1_9.saliency.enabled": st.sampled_from(["true", "false"]),
        "stage1_9.saliency.initial_k": st.sampled_from([0.1, 0.2]),
        "stage1_9.distill_schedule.type": st.sampled_from(["constant", "linear"]),
        "stage1_9.distill_schedule.final": st.sampled_from([0.0, 0.5]),
        "stage2.max_steps": st.integers(30, 32),
    },
).map(lambda chosen: [f"{name}={value}" for name, value in chosen.items()])


@given(overrides_of_a_stage, overrides_of_a_stage)
def test_keys_are_equal_iff_prefixes_are(one: list[str], other: list[str]) -> None:
    configs = compose_config(one), compose_config(other)
    prefixes = [stage_key.prefix(asdict(config), {}) for config in configs]
    assert (key_of(configs[0]) == key_of(configs[1])) == (prefixes[0] == prefixes[1])


@pytest.mark.parametrize("versions", [{}, {"trainer": "2", "torch": "2"}, {**VERSIONS, "transformers": "5"}])
def test_other_versions_change_the_key(versions: dict[str, str]) -> None:
    config = compose_config([])
    assert key_of(config, versions) != key_of(config)


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_the_versions_are_those_installed(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, version = default_key(), api.version
    monkeypatch.setattr(api, "version", lambda name: "0.1" if name == package else version(name))
    assert key() != before


def test_an_edited_trainer_has_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = default_key()
    monkeypatch.setattr(api, "code_version", lambda: "1+src.edited")
    assert key() != before


def test_the_document_names_its_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    before = default_key()
    monkeypatch.setattr(stage_key, "SCHEMA", stage_key.SCHEMA + 1)
    assert key() != before


@pytest.mark.parametrize(
    "overrides",
    [
        ("data=text", "data.files=${oc.env:TEXTS}/*.txt"),
        ("data=text", "data.files=['${oc.env:TEXTS}/a.txt',b.txt]"),
        ("data=parquet", "data.files=${oc.env:TEXTS}"),
        ("data=hub", "data.dataset=${oc.env:TEXTS}"),
        ("data.tokenizer=${oc.env:TEXTS}",),
    ],
    ids=" ".join,
)
def test_place_from_the_environment_does_not_change_the_key(
    overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = set()
    for place in ("/mnt/here", "/data/there"):
        monkeypatch.setenv("TEXTS", place)
        found.add(key(*overrides, f"run_dir={place}"))  # one process remembers what it composed
    assert len(found) == 1
    assert found != {key(*(each.replace("${oc.env:TEXTS}", "/mnt/here") for each in overrides))}


def test_any_other_value_counts_as_it_is_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHOSEN", "here/a")
    assert key("model=hf", "model.name=${oc.env:CHOSEN}") == key("model=hf", "model.name=here/a")


def test_key_is_reproducible_and_loads_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from trainer import api; print(api.stage_keys(['seed=3'])['stage1_9'], "
        "[m for m in ('torch', 'transformers', 'numpy', 'ax') if m in sys.modules])"
    )
    elsewhere = {"STAGESWEEP_CACHE": str(tmp_path / "cache"), "PYTHONHASHSEED": "7", "HOME": str(tmp_path)}
    root = str(Path(api.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=os.environ | elsewhere | {"PYTHONPATH": root},
    )
    assert done.stdout.split() == [key("seed=3"), "[]"]


def test_a_key_is_sha256_in_hexadecimal() -> None:
    assert len(default_key()) == 64
    assert set(default_key()) <= set("0123456789abcdef")


def test_without_stage_1_9_there_is_nothing_to_share() -> None:
    assert api.stage_keys(["stage1_9.max_steps=0"]) == {}


def test_a_wrong_override_is_refused_as_by_check() -> None:
    with pytest.raises(api.ConfigError, match=r"did you mean 'stage1_9\.max_steps'"):
        api.stage_keys(["stage1_9.max_stps=3"])


def test_every_part_of_the_prefix_is_a_key_of_the_configuration() -> None:
    config = compose_config([])
    covered = stage_key.prefix(asdict(config), keys([]))
    assert covered.keys() < dict(leaves(asdict(config))).keys()
    assert {"seed", "stage1_9.batch_size", "data.name", "device.dtype"} < covered.keys()
