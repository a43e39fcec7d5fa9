"""The door for other programs: what it refuses, how it quotes, and what it does not import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from sweeps.space.overrides import to_overrides
from trainer import api
from trainer.config.compose import compose_tree

ACCEPTED = [
    [],
    ["stage1_9.max_steps=0"],
    ["stage1_9.max_steps=0", "stage1_9.schedule.warmup_steps=50"],
    ["optimizer@stage1_9.optimizer=adamw", "stage1_9.optimizer.lr=3e-3"],
    ["stage2.optimizer.type=adamw"],
    ["stage2.max_steps=10", "stage2.lambda_warmup.enabled=false"],
    ["stage2.max_steps=21"],
    ["optimizer@model.teacher.optimizer=adamw"],
    ["stage1_9.layer_weights=[1,2,3,4]"],
    ["stage1_9.layer_weights=[0,0,0.5,1e3]"],
    ["stage1_9.layer_weights=[1,2]", "stage1.keep_layers=2"],
    ["stage1_9.lm_loss_weight=0", "stage1_9.distill_schedule.type=linear"],
    ["model=hf", "model.name=some/model"],
    ["device=cpu", "device.usd_per_hour=1"],
    ["wandb.tags=[a,b]", "wandb.mode=offline"],
]


@pytest.mark.parametrize("overrides", ACCEPTED, ids=" ".join)
def test_what_is_meant_to_work_is_accepted(overrides: list[str]) -> None:
    api.check(overrides)


@pytest.mark.parametrize("listed", ["[1,2,3,4]", "'[1,2,3,4]'", "[1.0,2,3.0,4]"])
def test_layer_weights_read_the_same_as_a_list_and_as_text(listed: str) -> None:
    config = api.check([f"stage1_9.layer_weights={listed}"])
    assert config.stage1_9.layer_weights == (1.0, 2.0, 3.0, 4.0)


def test_layer_weights_by_name_and_by_list() -> None:
    """A search space holds a list as text; its override reaches the trainer as that list."""
    for value, expected in (("progressive", "progressive"), ("[1, 0, 0, 1]", (1.0, 0.0, 0.0, 1.0))):
        config = api.check(to_overrides({"stage1_9.layer_weights": value}))
        assert config.stage1_9.layer_weights == expected


def test_the_optimizer_group_is_chosen_per_stage() -> None:
    config = api.check(["optimizer@stage1_9.optimizer=adamw", "stage2.optimizer.lr=0.005"])
    assert (config.stage1_9.optimizer.type, config.stage2.optimizer.type) == ("adamw", "muon")
    assert config.stage1_9.optimizer.lr != config.stage2.optimizer.lr == 0.005


@settings(deadline=None)  # the parser's first call builds its tables
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_any_run_dir_reads_back_as_it_was_given(name: str) -> None:
    parsed = OverridesParser.create().parse_override(api.command([], name)[-1])
    assert OmegaConf.create({"run_dir": parsed.value()}).run_dir == name


@pytest.mark.parametrize(
    "name", ["a b", "it's", "x\\", "a\\'b", "${seed}", "\\${seed}", "\\\\${a}${b}", "null", "1", "[a]", "é=,"]
)
def test_hostile_run_dirs_read_back(name: str) -> None:
    assert compose_tree(api.command([], name)[4:]).run_dir == name


def test_command_is_an_argument_vector() -> None:
    assert api.command(["seed=3"], Path("out"))[1:] == ["-P", "-m", "trainer", "seed=3", "run_dir='out'"]


@pytest.mark.parametrize(
    ("overrides", "costs"),
    [
        ([], {"stage1_9": (2, 100), "stage2": (1, 200), "stage3": (2, 0), "recovery": (2, 0)}),
        (
            [
                "stage1_9.max_steps=0",
                "stage2.max_steps=30",
                "stage2.distill.weight=0.5",
                "stage3.max_steps=7",
                "recovery.max_steps=9",
                "recovery.distill.weight=0.0",
            ],
            {"stage1_9": (2, 0), "stage2": (2, 30), "stage3": (2, 7), "recovery": (1, 9)},
        ),
        (
            ["stage3/teacher=cached", "stage3.teacher.path=cache", "stage3.attention_weight=0"],
            {"stage1_9": (2, 100), "stage2": (1, 200), "stage3": (1, 0), "recovery": (2, 0)},
        ),
    ],
    ids=["defaults", "all_stages", "cached_teacher"],
)
def test_a_step_with_a_teachers_forward_pass_counts_twice(
    overrides: list[str], costs: dict[str, tuple[int, int]]
) -> None:
    counted = api.stage_costs(overrides)
    assert list(counted.items()) == list(costs.items())  # in the order of the stages


def test_costs_of_a_refused_configuration_are_refused() -> None:
    with pytest.raises(api.ConfigError, match="max_steps"):
        api.stage_costs(["stage2.max_steps=-1"])


def test_checking_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from trainer import api; api.check(['seed=3']); api.command([], 'x'); api.stage_costs([]); "
        "print([m for m in ('torch', 'transformers', 'numpy', 'ax') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_composing_leaves_no_trace_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    api.check(["seed=3"])
    assert list(tmp_path.iterdir()) == []


def test_exit_statuses_are_the_contracts() -> None:
    assert (api.EXIT_DONE, api.EXIT_FAILED, api.EXIT_CONFIG) == (0, 1, 2)
    assert (api.EXIT_DIVERGED, api.EXIT_PREEMPTED) == (70, 75)


def test_another_library_or_evaluation_makes_another_teacher(
    small: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights come from the libraries, and the loss that is kept with it from the evaluation."""
    import torch

    from trainer.stages import teacher

    folders = [api.prepare(small).teacher, api.prepare([*small, "eval.batches=3"]).teacher]
    monkeypatch.setattr(teacher, "version", lambda package: "5.999")
    folders.append(api.prepare(small).teacher)
    monkeypatch.setattr(torch, "__version__", "2.999")
    folders.append(api.prepare(small).teacher)
    assert len(set(folders)) == 4


def test_prepare_builds_once_and_reports_progress(small: tuple[str, ...]) -> None:
    reports: list[tuple[str, float | None]] = []
    overrides = [*small, "model.teacher.seed=11"]
    first = api.prepare(overrides, lambda message, fraction: reports.append((message, fraction)))
    assert ("teacher", 1.0) in reports
    reports.clear()
    again = api.prepare(overrides, lambda message, fraction: reports.append((message, fraction)))
    assert again == first
    assert ("teacher", 1.0) not in reports
    assert first.teacher_loss is not None
    assert 0 < first.teacher_loss < 10
    assert Path(first.teacher).is_dir()
    assert first.tokenizer.is_dir()


@pytest.mark.parametrize("odd", [None, 5, "seed=1", b"x", [1], {"seed": 1}, ["seed=1", None]], ids=repr)
@pytest.mark.parametrize(
    "call",
    [api.check, api.stage_costs, api.stage_keys, api.stage_trunks, lambda odd: api.command(odd, "run")],
    ids=["check", "stage_costs", "stage_keys", "stage_trunks", "command"],
)
def test_overrides_are_a_list_of_texts(call, odd):
    with pytest.raises(api.ConfigError, match="list"):
        call(odd)
