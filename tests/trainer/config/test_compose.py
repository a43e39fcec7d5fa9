"""Configurations are composed as Hydra composes them, although the files are read once for all of a kind."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from trainer.config import compose as composing
from trainer.config.compose import compose_config, compose_tree
from trainer.errors import ConfigError


def by_hydra(overrides: Sequence[str]) -> object:
    with initialize_config_module("trainer.conf", version_base="1.3"):
        return OmegaConf.to_container(compose("config", overrides=list(overrides)))


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["seed=3", "stage2.optimizer.lr=1e-3", "run_dir='a b=c'"],
        pytest.param(
            ["model=tiny", "model.hidden_size=64", "data=text", "data.files=[a.txt,'b,c.txt']"],
            marks=pytest.mark.slow,
        ),
        ["stage2.optimizer.lr=0.5", "optimizer@stage2.optimizer=adamw", "stage2.optimizer.beta1=0.7"],
        ["stage3/teacher=http", "stage3.teacher.url=http://x:1", "stage3.max_steps=3"],
        pytest.param(
            ["device=cpu", "device.threads=1", "device.threads=2", "stage1_9.layer_weights=[1.0,2.0]"],
            marks=pytest.mark.slow,
        ),
        ["~device.type", "eval={batches:3,batch_size:2}", "stage1.keep_layers=null"],
        pytest.param(["device.type=cpu", "~device.type", "seed=1"], marks=pytest.mark.slow),
        ["+model.note=x", "++seed=4", "log_every=${seed}"],
        pytest.param(["seed=2", "++seed=1", "log_every=3", "model=tiny"], marks=pytest.mark.slow),
        ["++seed=1", "seed=2"],
        pytest.param(["seed=2", "++seed=1", "seed=3"], marks=pytest.mark.slow),
    ],
)
def test_the_tree_is_hydras(overrides: list[str]) -> None:
    expected = by_hydra(overrides)
    for _ in range(2):  # the second time from the cache
        parsed = composing.parse_overrides(overrides)
        composed = composing.compose_cached(parsed)
        assert OmegaConf.to_container(composed) == expected
        assert OmegaConf.is_struct(composed)
        # Without Hydra where numbers, words and lists of them are set, and only there.
        values = composing._plain_values(parsed)
        assert values in (None, expected)
        assert (values is None) == any("{" in each for each in overrides)


def test_later_of_two_overrides_holds() -> None:
    assert compose_config(["seed=2", "++seed=1"]).seed == compose_tree(["seed=2", "++seed=1"]).seed == 1
    assert compose_config(["++seed=1", "seed=2"]).seed == 2


@pytest.mark.parametrize("key", ["wandb.name", "+wandb.name", "++wandb.name"])
def test_interpolations_are_resolved(key: str) -> None:
    assert compose_config([f"{key}=of ${{wandb.project}}"]).wandb.name == "of stagesweep"
    assert compose_config([f"{key}='\\${{wandb.project}}'"]).wandb.name == "${wandb.project}"


def test_values_of_one_run_do_not_show_in_the_next() -> None:
    before = compose_tree(["model=tiny"])
    assert compose_tree(["model=tiny", "model.layers=7", "seed=11"]).model.layers == 7
    assert compose_tree(["model=tiny"]) == before


@pytest.mark.parametrize(
    "shared", [[], ["log_every=${stage2.batch_size}"]], ids=["plain", "with an interpolation"]
)
def test_files_are_read_once_for_runs_that_differ_in_values(shared: list[str]) -> None:
    for each in (composing.compose_files, composing._values_of_files):
        each.cache_clear()
    with mock.patch.object(composing, "compose", wraps=compose) as reading:
        for lr in (0.1, 0.2, 0.3):
            overrides = ["model=tiny", *shared, f"stage2.optimizer.lr={lr}"]
            assert compose_config(overrides).stage2.optimizer.lr == lr
            assert compose_tree(overrides).stage2.optimizer.lr == lr
    assert reading.call_count == 1


def test_unknown_key_is_refused_each_time() -> None:
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"did you mean 'stage2\.max_steps'"):
            compose_tree(["stage2.max_stepz=1"])


def test_threads_may_compose_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hydra has one state in a process, and `Sweep.run(workers=N)` composes a trial in each thread."""
    compose_slowly = mock.Mock(
        side_effect=lambda *args, **options: time.sleep(0.1) or compose(*args, **options)
    )
    monkeypatch.setattr(composing, "compose", compose_slowly)
    composing.compose_files.cache_clear()
    composing.groups.cache_clear()
    with ThreadPoolExecutor(3) as pool:
        trees = [pool.submit(composing.compose_files, (f"seed={seed}",)) for seed in (1, 2)]
        groups = pool.submit(composing.groups)
    assert [tree.result().seed for tree in trees] == [1, 2]
    assert "model" in groups.result()
