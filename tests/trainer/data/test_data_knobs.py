"""Every key of the streamed sources has an effect: changing it changes batches or held-out text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_texts import numbered, write_lines

from trainer.api import check, quote
from trainer.config.compose import keys
from trainer.data.inputs import load

SMALL = {
    "data.vocab_size": "300",
    "data.sequence_length": "16",
    "data.held_out_fraction": "0.2",
    "data.held_out_tokens": "200",
    "data.test_fraction": "0.1",
    "data.test_tokens": "100",
    "data.lanes": "2",
    "data.shuffle_windows": "16",
}
FLIPPED = {
    "data.vocab_size": "270",
    "data.sequence_length": "12",
    "data.held_out_fraction": "0.3",
    "data.held_out_tokens": "400",
    "data.test_fraction": "0.2",
    "data.test_tokens": "200",
    "data.lanes": "1",
    "data.shuffle_windows": "8",
    "data.text_key": "other",
    "data.tokenizer": "@words",
}
OF_THE_SOURCE = {
    "text": {"data.files": "@root/lines/1*.json", "data.text_key": "text"},
    "parquet": {"data.files": "@root/hub/other.parquet"},
    "hub": {"data.dataset": "@root/another", "data.subset": "other", "data.split": "test"},
}
START = {
    "text": ["data.files=@root/lines"],
    "parquet": ["data.files=@root/hub/train.parquet"],
    "hub": ["data.dataset=@root/hub"],
}
ELSEWHERE = {
    "data.document_masks": "tests/trainer/models/test_documents.py",
    "data.name": "the group",
    "data.revision": "only the hub itself has revisions; `datasets` is given it, see test_data_hub.py",
}
CARD = """\
---
configs:
- config_name: default
  data_files: [{split: train, path: train.parquet}, {split: test, path: other.parquet}]
- config_name: other
  data_files: [{split: train, path: third.parquet}]
---
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sources")
    for number, name in enumerate(("train", "other", "third")):
        texts = numbered(300, first=300 * number)
        table = pa.table({"text": texts, "other": [f"another {text}" for text in texts]})
        for folder in ("hub", "another"):
            (root / folder).mkdir(exist_ok=True)
            shift = 5 if folder == "another" else 0
            pq.write_table(table.slice(shift), root / folder / f"{name}.parquet", row_group_size=4)
            (root / folder / "README.md").write_text(CARD)
    for number, text in enumerate(numbered(200)):
        write_lines(root / "lines" / f"{number}.json", [text])
    return root


def flips() -> list[tuple[str, str, str]]:
    return [
        (source, key, value)
        for source, own in OF_THE_SOURCE.items()
        for key, value in {**FLIPPED, **own}.items()
    ]


@pytest.mark.parametrize("source", OF_THE_SOURCE)
def test_every_key_is_flipped_here_or_tested_elsewhere(source: str) -> None:
    there = {key for key in keys([f"data={source}"]) if key.startswith("data.")}
    flipped = {key for of, key, _ in flips() if of == source}
    assert flipped | (set(ELSEWHERE) & there) == there


@pytest.mark.parametrize(("source", "key", "value"), flips(), ids=lambda value: str(value).lstrip("@"))
def test_no_key_is_inert(
    source: str,
    key: str,
    value: str,
    root: Path,
    word_tokenizer: Path,
    remembered: Callable[[str, Callable[[], str]], str],
) -> None:
    def outcome(*more: str) -> tuple[str, str]:
        given = [f"data={source}", *START[source], *(f"{k}={v}" for k, v in SMALL.items()), *more]
        data = check([_filled(override, root, word_tokenizer) for override in given]).data
        corpus = load(data)
        digest = hashlib.sha256(corpus.held_out.tobytes() + corpus.test.tobytes())
        with corpus.batches(batch_size=2, sequence_length=data.sequence_length, seed=0) as feed:
            for batch in islice(feed, 12):
                digest.update(batch.numpy().tobytes())
        return digest.hexdigest(), corpus.sha256

    plain = tuple(json.loads(remembered(f"data of {source}", lambda: json.dumps(outcome()))))
    flipped = outcome(f"{key}={value}")
    assert flipped[0] != plain[0]
    if key not in (
        "data.sequence_length",
        "data.lanes",
        "data.shuffle_windows",
    ):  # how it is cut, not what it is
        assert flipped[1] != plain[1]


def _filled(override: str, root: Path, words: Path) -> str:
    key, _, value = override.partition("=")
    filled = value.replace("@root", str(root)).replace("@words", str(words))
    return override if filled == value else f"{key}={quote(filled)}"
