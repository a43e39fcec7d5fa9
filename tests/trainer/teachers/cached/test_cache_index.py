"""The index of a cache: round trip, invalid documents, and differences of specs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from trainer.teachers.cached.index import Index, Shard, UnreadableError, decode, differences, encode

SPEC = {"teacher": "a" * 64, "seed": 0, "top_k": 5}


def shard(first: int, rows: int) -> Shard:
    return Shard(
        file=f"rows-{first}", first=first, rows=rows, size=9, sha256=f"{first}", after={"rows": first + rows}
    )


INDEX = Index(spec=SPEC, made_with={"device": "CPU"}, shards=(shard(0, 4), shard(4, 2)))


def test_it_is_read_as_it_was_written() -> None:
    assert decode(encode(INDEX)) == INDEX
    assert INDEX.rows == 6


def test_the_digest_is_that_of_the_rows_that_are_taken() -> None:
    longer = Index(spec=SPEC, made_with={}, shards=(*INDEX.shards, shard(6, 1)))
    assert longer.digest(5) == longer.digest(6) == INDEX.digest(6)
    others = [longer.digest(7), longer.digest(4), Index(spec={}, made_with={}, shards=INDEX.shards).digest(6)]
    assert len({*others, INDEX.digest(6)}) == 4


DAMAGED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a later schema": (
        lambda index: index.update(schema=2),
        "its schema is 2, this version reads 1; build it anew",
    ),
    "no schema": (lambda index: index.pop("schema"), "its index.json is damaged"),
    "no spec": (lambda index: index.pop("spec"), "its index.json is damaged"),
    "a shard of another kind": (lambda index: index["shards"][0].pop("sha256"), "its index.json is damaged"),
    "shards that are none": (lambda index: index.update(shards=3), "its index.json is damaged"),
    "a gap": (lambda index: index["shards"].pop(0), "its index.json leaves rows out"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_what_is_none_is_refused(case: str) -> None:
    document = json.loads(encode(INDEX))
    change, problem = DAMAGED[case]
    change(document)
    with pytest.raises(UnreadableError, match=f"^{problem}"):
        decode(json.dumps(document).encode())


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", bytes(range(128, 140))])
def test_what_is_no_document_is_refused(data: bytes) -> None:
    with pytest.raises(UnreadableError, match="damaged"):
        decode(data)


@pytest.mark.parametrize(
    ("theirs", "problem"),
    [
        (SPEC, ""),
        (SPEC | {"seed": 1}, "seed 1 (here 0)"),
        (
            SPEC | {"teacher": "b" * 64, "top_k": 7},
            "teacher bbbbbbbbbbbb (here aaaaaaaaaaaa), top_k 7 (here 5)",
        ),
        ({"teacher": "a" * 64, "seed": 0}, "top_k None (here 5)"),
        (SPEC | {"more": 1}, "more 1 (here None)"),
    ],
)
def test_differences_are_named_with_both_values(theirs: dict[str, str | int], problem: str) -> None:
    assert differences(theirs, SPEC) == problem
