"""Building a cache: its content, complete after any death, resumed, extended, and never mixed with another."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from cached_runs import LENGTH, VOCABULARY, Make, Prepared, cached
from fake_gcs import FakeGcs
from fsspec.implementations.memory import MemoryFileSystem
from gcsfs.core import GCSFileSystem

from trainer import teacher_cache as command
from trainer.api import EXIT_DONE, EXIT_PREEMPTED
from trainer.config import Config
from trainer.data.corpus import stage_text
from trainer.errors import ConfigError, DataError, TrainerError, UnreachableError
from trainer.losses.sparse import Sample
from trainer.models.causal_lm import run
from trainer.teachers.cached import build as module
from trainer.teachers.cached.build import build
from trainer.teachers.cached.index import INDEX, Index, Location, decode
from trainer.teachers.cached.reader import Cache
from trainer.teachers.cached.sampling import Drawn, draw

ONE_BATCH = 1  # byte per shard: each is full with its first batch
ROWS = 16


def index_of(folder: Path) -> Index:
    return decode((folder / INDEX).read_bytes())


def texts(prepared: Prepared, config: Config, count: int) -> torch.Tensor:
    with stage_text(prepared.corpus, config, "stage3", 1) as feed:
        return torch.cat([next(feed) for _ in range(count)])


def everything(folder: Path, ids: torch.Tensor, *, preload: bool = True) -> Sample:
    cache = Cache(folder, index_of(folder), rows=len(ids), preload=preload)
    return cache.rows(range(len(ids)), ids)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_cache_holds_the_teachers_predictions(
    dtype: str, make: Make, configured: Callable[..., Config], prepared: Prepared, tmp_path: Path
) -> None:
    overrides = (*cached(tmp_path, top_k=5, negatives=3), f"stage3.teacher.dtype={dtype}")
    built = make(*overrides)
    assert (built.computed, built.index.rows) == (ROWS, ROWS)
    ids = texts(prepared, configured(*overrides), ROWS)
    kept = everything(tmp_path, ids)
    with torch.no_grad():
        logprobs = run(prepared.teacher, ids).logits[:, :-1].log_softmax(dim=-1)
    assert kept.ids.shape == kept.logits.shape == (ROWS, LENGTH - 1, 8)
    assert kept.logits.dtype == getattr(torch, dtype)
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == "float32" else {"rtol": 2**-11, "atol": 1e-5}
    torch.testing.assert_close(kept.logits.float(), logprobs.gather(-1, kept.ids.long()), **tolerance)
    assert torch.equal(kept.ids[..., :5].long().sort().values, logprobs.topk(5).indices.sort().values)
    assert not (kept.ids[..., 5:, None] == kept.ids[..., None, :5]).any()


def test_rows_do_not_depend_on_how_many_are_computed_at_once(
    make: Make, configured: Callable[..., Config], prepared: Prepared, tmp_path: Path
) -> None:
    for name, micro in (("by 4", "null"), ("by 2", "2")):
        make(*cached(tmp_path / name), f"stage3.micro_batch_size={micro}")
    ids = texts(prepared, configured(*cached(tmp_path)), ROWS)
    by_four, by_two = (everything(tmp_path / name, ids) for name in ("by 4", "by 2"))
    assert torch.equal(by_four.ids, by_two.ids)
    torch.testing.assert_close(by_four.logits, by_two.logits)


class DiedError(Exception):
    """A simulated kill; the next builder must not depend on what `finally` still does."""


@pytest.mark.parametrize("before", ["a shard", "its index"])
def test_a_builder_that_dies_leaves_what_the_next_goes_on_from(
    before: str, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at the third shard of four; the result is that of an uninterrupted builder."""
    uninterrupted = make(*cached(tmp_path / "uninterrupted"), shard_bytes=ONE_BATCH)
    assert [shard.rows for shard in uninterrupted.index.shards] == [4, 4, 4, 4]
    folder, write, writes = tmp_path / "cache", Location.write, list[str]()

    def dies(self: Location, name: str, data: bytes) -> None:
        writes.append(name)
        if len(writes) == (5 if before == "a shard" else 6):
            (folder / ".half.tmp").write_bytes(data[: len(data) // 2])
            raise DiedError
        write(self, name, data)

    with monkeypatch.context() as patch:
        patch.setattr(Location, "write", dies)
        with pytest.raises(DiedError):
            make(*cached(folder), shard_bytes=ONE_BATCH)
    assert [shard.first for shard in index_of(folder).shards] == [0, 4]
    again = make(*cached(folder), shard_bytes=ONE_BATCH)
    assert again.computed == 8
    assert again.index.digest(ROWS) == uninterrupted.index.digest(ROWS)
    assert not list(folder.glob(".*.tmp"))
    assert make(*cached(folder)).computed == 0


def test_damaged_file_is_refused_and_repaired(
    make: Make, configured: Callable[..., Config], prepared: Prepared, tmp_path: Path
) -> None:
    """Where rows are read one by one, only the size is compared."""
    built = make(*cached(tmp_path), shard_bytes=ONE_BATCH)
    ids, file = texts(prepared, configured(*cached(tmp_path)), ROWS), tmp_path / built.index.shards[2].file
    content = file.read_bytes()
    flipped, cut = content[:-1] + bytes([content[-1] ^ 1]), content[:-1]
    for damaged, ways in ((flipped, (True,)), (cut, (True, False))):
        file.write_bytes(damaged)
        for preload in ways:
            problem = r"cannot use .*rows-00000008.* it is not what was written; .* repair"
            with pytest.raises(TrainerError, match=problem):
                everything(tmp_path, ids, preload=preload)
        repaired = make(*cached(tmp_path), shard_bytes=ONE_BATCH)
        assert repaired.computed == 8  # it and what follows
        assert repaired.index.digest(ROWS) == built.index.digest(ROWS)
        assert file.read_bytes() == content
    file.unlink()
    with pytest.raises(TrainerError, match=r"rows-00000008.*No such file"):
        everything(tmp_path, ids)


def test_signal_ends_the_command_which_resumes(
    small: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One shard per batch, so that some survive."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    monkeypatch.setattr(module, "build", partial(build, shard_bytes=ONE_BATCH))
    given, called = [*small, *cached(tmp_path)], 0

    def terminates(*of: Any) -> Drawn:
        nonlocal called
        called += 1
        if called == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return draw(*of)

    try:
        with monkeypatch.context() as patch:
            patch.setattr(module, "draw", terminates)
            assert command.main(given) == EXIT_PREEMPTED
        assert [shard.first for shard in index_of(tmp_path).shards] == [0]
        assert command.main(given) == EXIT_DONE
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    said = capsys.readouterr()
    assert said.err.startswith("teacher_cache: stopped by SIGTERM after row 4 ")
    assert said.err.count("\n") == 1
    assert "16 rows in 4 files, 17.4 KiB; 12 " in said.out


def test_more_steps_add_rows_and_leave_the_others_as_they_were(make: Make, tmp_path: Path) -> None:
    first = make(*cached(tmp_path))
    more = make(*cached(tmp_path), "stage3.max_steps=6")
    assert (more.index.rows, more.computed) == (24, 8)
    assert more.index.digest(ROWS) == first.index.digest(ROWS)
    assert make(*cached(tmp_path), "stage3.max_steps=2").index.rows == 24


def test_read_from_the_files_or_from_memory_it_is_the_same(
    make: Make, configured: Callable[..., Config], prepared: Prepared, tmp_path: Path
) -> None:
    make(*cached(tmp_path), shard_bytes=ONE_BATCH)
    ids = texts(prepared, configured(*cached(tmp_path)), ROWS)
    loaded = Cache(tmp_path, index_of(tmp_path), rows=ROWS, preload=True)
    lazy = Cache(tmp_path, index_of(tmp_path), rows=ROWS, preload=False)
    for numbers in (range(4), range(3, 13, 5), [15, 0]):
        one, other = (cache.rows(numbers, ids[list(numbers)]) for cache in (loaded, lazy))
        assert torch.equal(one.ids, other.ids)
        assert torch.equal(one.logits, other.logits)
    before = loaded.rows([7], ids[7:8])
    for file in tmp_path.iterdir():
        file.unlink()
    assert torch.equal(loaded.rows([7], ids[7:8]).logits, before.logits)
    with pytest.raises(DataError, match="row 8 "):
        loaded.rows([8], ids[7:8])


def test_lost_network_is_no_fault_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def cat_file(self: MemoryFileSystem, path: str) -> bytes:
        raise ConnectionResetError("by peer")

    monkeypatch.setattr(MemoryFileSystem, "cat_file", cat_file)
    with pytest.raises(UnreachableError, match=r"^cannot use .* at memory://cache: ConnectionResetError: by"):
        Location("memory://cache").read("index.json")


def test_a_bucket_holds_one_as_a_folder_does(
    make: Make,
    configured: Callable[..., Config],
    prepared: Prepared,
    tmp_path: Path,
    gcs: FakeGcs,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    GCSFileSystem.clear_instance_cache()
    url = f"gs://bucket/{tmp_path.name}/cache"
    assert make(*cached(url), shard_bytes=ONE_BATCH).computed == ROWS
    more = make(*cached(url), "stage3.max_steps=5", shard_bytes=ONE_BATCH)
    assert more.computed == 4
    there = Location(url).local_copy()
    make(*cached(tmp_path / "folder"), "stage3.max_steps=5", shard_bytes=ONE_BATCH)
    ids = texts(prepared, configured(*cached(url)), 20)
    assert torch.equal(everything(there, ids).logits, everything(tmp_path / "folder", ids).logits)


def test_a_cache_of_something_else_is_not_gone_on_with(make: Make, tmp_path: Path) -> None:
    make(*cached(tmp_path))
    kept = (tmp_path / INDEX).read_bytes()
    with pytest.raises(ConfigError) as caught:
        make(*cached(tmp_path, top_k=6), "seed=7")
    assert str(caught.value).startswith(f"stage3.teacher.path: the cache at {tmp_path} ")
    assert str(caught.value).endswith("seed 0 (here 7), top_k 5 (here 6)")
    assert (tmp_path / INDEX).read_bytes() == kept


NO_CACHE: dict[str, tuple[Sequence[str], str]] = {
    "no steps": (["stage3.max_steps=0"], "stage3.max_steps: a cache has max_steps"),
    "K above V": (
        [f"stage3.teacher.top_k={VOCABULARY + 1}"],
        r"top_k: 301 is more than the vocabulary has \(300\)",
    ),
    "K + R above V": (
        [f"stage3.teacher.top_k={VOCABULARY - 2}"],
        r"negatives: top_k=298 leaves 2 tokens of the vocabulary; write that at most",
    ),
}


@pytest.mark.parametrize("case", NO_CACHE)
def test_what_no_cache_can_be_made_of_is_refused(case: str, make: Make, tmp_path: Path) -> None:
    overrides, problem = NO_CACHE[case]
    with pytest.raises(ConfigError, match=problem):
        make(*cached(tmp_path), *overrides)


def test_where_nothing_can_be_written_is_told_in_one_line(make: Make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainerError, match=r"file/cache: Not a directory") as caught:
        make(*cached(tmp_path / "file" / "cache"))
    assert "\n" not in str(caught.value)
