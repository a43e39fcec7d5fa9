"""trainer.data.hub: a dataset with the hub's metadata in a folder; no test uses the network."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from data_texts import STREAM, numbered, write_lines, write_parquet

from sweeps.text.installation import install_command
from trainer.api import check
from trainer.config import HubConfig
from trainer.data import hub
from trainer.data.inputs import load
from trainer.data.stream import StreamCorpus
from trainer.errors import ConfigError, MachineError, UnreachableError

CARD = """\
---
configs:
- config_name: default
  data_files:
  - {split: train, path: data/*}
- config_name: sample-10BT
  data_files:
  - {split: train, path: sample/10BT/*}
  - {split: check, path: check/*}
---
"""


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert os.environ.get("HF_TOKEN") is None


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A dataset of two configurations, as FineWeb-Edu has them."""
    folder = tmp_path / "dataset"
    write_parquet(folder / "data" / "000.parquet", numbered(50))
    for part in range(3):
        texts = numbered(100, first=1000 + 100 * part)
        write_parquet(folder / "sample" / "10BT" / f"{part:03d}_00000.parquet", texts)
    write_lines(folder / "check" / "a.jsonl", numbered(5))
    (folder / "README.md").write_text(CARD)
    return folder


def config(dataset: Path | str, **changes: Any) -> HubConfig:
    plain = {"name": "hub", "dataset": str(dataset), "subset": None, "split": "train", "revision": None}
    return HubConfig(**({**STREAM, **plain, "text_key": "text"} | changes))


@pytest.mark.parametrize(("subset", "first", "last"), [("sample-10BT", 1000, 1299), (None, 0, 49)])
def test_a_subset_is_streamed_and_no_other(
    subset: str | None, first: int, last: int, dataset: Path, word_tokenizer: Path
) -> None:
    corpus = load(config(dataset, subset=subset), own_tokenizer=word_tokenizer)
    assert isinstance(corpus, StreamCorpus)
    with corpus.batches(batch_size=4, sequence_length=8, seed=0) as feed:
        words = {int(token) for _ in range(20) for token in next(feed).flatten() if token < 2000}
    assert words
    assert min(words) >= first
    assert max(words) <= last


def test_json_lines_are_streamed_too(tmp_path: Path, word_tokenizer: Path) -> None:
    write_lines(tmp_path / "lines" / "train.jsonl", numbered(200), key="body")
    corpus = load(config(tmp_path / "lines", text_key="body"), own_tokenizer=word_tokenizer)
    assert len(corpus.held_out) >= 100


def test_files_of_another_kind_are_refused_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "train.csv").write_text("text\nx\n")
    with pytest.raises(ConfigError, match=r"^data\.dataset: .*train\.csv; only .*refs/convert/parquet"):
        load(config(tmp_path / "tables"))


@pytest.mark.parametrize(
    ("changes", "key", "problem"),
    [
        ({"subset": "sample-11BT"}, "data.subset", "sample-10BT"),
        ({"split": "test"}, "data.split", "has no split 'test'; it has: train"),
    ],
    ids=["subset", "split"],
)
def test_missing_split_or_subset_is_refused(
    changes: dict[str, Any], key: str, problem: str, dataset: Path
) -> None:
    with pytest.raises(ConfigError, match=problem) as error:
        load(config(dataset, **changes))
    assert error.value.key == key
    assert "\n" not in str(error.value)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^data\.dataset: ") as error:
        load(config(tmp_path / "nowhere"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("offline", "kind"), [(True, MachineError), (False, UnreachableError)], ids=["offline", "outage"]
)
def test_silent_hub_is_no_fault_of_the_configuration(
    offline: bool, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    def builder(*_: object, **__: object) -> None:
        # As datasets puts it where the hub answers 503.
        raise FileNotFoundError("Couldn't find it on the Hugging Face Hub either") from ConnectionError("503")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    if not offline:
        monkeypatch.setattr(datasets, "load_dataset_builder", builder)
    with pytest.raises(kind, match=r"^dataset 'HuggingFaceFW/fineweb-edu' cannot be looked up: ") as error:
        load(check(["data=fineweb"]).data)
    assert "\n" not in str(error.value)


def test_the_revision_is_asked_for(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[Any] = []
    real = datasets.load_dataset_builder

    def builder(*args: Any, revision: str | None) -> Any:
        asked.append(revision)
        return real(*args)

    monkeypatch.setattr(datasets, "load_dataset_builder", builder)
    for revision in (None, "refs/convert/parquet"):
        hub.dataset_files(config(dataset, revision=revision))
    assert asked == [None, "refs/convert/parquet"]


def test_without_the_package_one_line_says_how_to_get_it(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MachineError, match=rf"^data\.name: .*{re.escape(install_command('hub'))}"):
        hub.dataset_files(config(dataset))


def test_fineweb_is_the_notebooks_sample() -> None:
    data = check(["data=fineweb"]).data
    assert isinstance(data, HubConfig)
    assert (data.dataset, data.subset, data.split) == ("HuggingFaceFW/fineweb-edu", "sample-10BT", "train")
    assert data.text_key == "text"
