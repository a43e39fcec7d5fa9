"""Properties: arbitrary bytes, JSON and text as results, metrics and errors, through `tell` and `import`.

After every case the records are read back as a new worker reads them, and no thread has died; after each batch
of cases, `status`, `doctor`, `trials` and a second worker end well on the sweep.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from what_programs_write import FUNCTION, SPACE, Sweep, add_pending, must_be_sound, sweep

from sweeps.experiment import Experiment
from sweeps.programs.result import was_preempted
from sweeps.storage.local import LocalStore
from sweeps.trials.lifecycle import Abandon

THOROUGH = 250
"""Examples of a property in the profile `thorough`, with which ten thousand cases are tried; else fewer, by it."""
BATCH = 100

characters = st.characters(codec=None, exclude_categories=())  # halves of surrogate pairs, too
strange = st.sampled_from(
    ["\ud800", "\ud800x", "\udfff\ud800", "\x00", "\x1b[31m", "=1+1", "\u2028", "loss", "param.x"]
)
texts = st.text(characters, max_size=40) | strange | st.sampled_from([300, 20_000]).map(lambda n: "word " * n)
huge = st.integers(1, 400).map(lambda digits: 10**digits)
numbers = st.integers() | st.floats() | huge | huge.map(lambda number: -number)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)
losses = st.floats(-9, 9) | st.floats(-9, 9) | st.integers() | values
metrics = st.fixed_dictionaries({"loss": losses}, optional={"step": numbers | values}).flatmap(
    lambda known: st.dictionaries(texts, values, max_size=4).map(lambda more: more | known)
)
results = (
    metrics
    | st.fixed_dictionaries({"metrics": metrics | values}, optional={"status": st.just("completed") | values})
    | st.fixed_dictionaries({"status": st.just("failed"), "error": values}, optional={"failure": values})
)


def _as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def spelled(documents: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    """Return a strategy for the documents as JSON, with escapes or without, broken JSON, and other bytes."""
    escaped = documents.map(lambda document: json.dumps(document).encode())
    plain = documents.map(lambda document: _as_bytes(json.dumps(document, ensure_ascii=False)))
    depths = st.sampled_from([100, 199, 200, 201, 5000, 100_000])
    deep = depths.map(lambda depth: b"[" * depth + b"]" * depth)
    deep_objects = depths.map(lambda depth: b'{"loss": 1.0, "a":' * depth + b"1" + b"}" * depth)
    long_numbers = st.sampled_from([4300, 4301, 100_000]).map(
        lambda digits: b'{"loss": 1' + b"0" * digits + b"}"
    )
    cut = st.builds(lambda data, at: data[: at % (len(data) + 1)], escaped, st.integers(0, 10_000))
    broken = st.one_of(deep, deep_objects, long_numbers, cut, st.binary(max_size=200), texts.map(_as_bytes))
    return st.one_of(escaped, plain, broken)


class Batches:
    """Sweeps of `BATCH` trials each; full ones are checked with the user's commands."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0
        self._sweep: Sweep | None = None
        self._store: LocalStore | None = None

    def in_memory(self, **options: Any) -> Sweep:
        """Return the sweep for the next case."""
        if self._count % BATCH == 0:
            self.check()
            self._sweep = Sweep(**options)
        self._count += 1
        assert self._sweep is not None
        self._sweep.log.clear()
        return self._sweep

    def in_folder(self) -> LocalStore:
        """Return the sweep for the next case, for commands."""
        if self._count % BATCH == 0:
            self.check()
            self._store = LocalStore(tempfile.mkdtemp(dir=self._folder))
            Experiment.create(self._store, SPACE)
        self._count += 1
        assert self._store is not None
        return self._store

    def check(self) -> None:
        """Check the sweep of the last cases."""
        if self._sweep is not None:
            self._sweep.must_be_sound(Path(tempfile.mkdtemp(dir=self._folder)))
        if self._store is not None:
            must_be_sound(self._store.url)


def as_result(batches: Batches, data: bytes) -> None:
    running = batches.in_memory()
    running.run(lambda folder: (folder / "result.json").write_bytes(data) * 0)
    assert len(running.log) < 10


def as_metrics(batches: Batches, data: bytes) -> None:
    running = batches.in_memory()

    def program(folder: Path) -> int:
        (folder / "metrics.jsonl").write_bytes(b'{"step": 1, "loss": 2.0}\n' + data)
        running.wait_for_heartbeats()
        (folder / "result.json").write_text('{"loss": 1.0}')
        return 0

    assert running.run(program).status == "completed"


def as_words(batches: Batches, case: tuple[bytes, int]) -> None:
    words, status = case
    running = batches.in_memory()
    running.run(lambda folder: (folder / "log.txt").write_bytes(words) * 0 + status)


def as_outcome(batches: Batches, function: Callable[[], Any]) -> None:
    batches.in_memory(program=FUNCTION).call(function)


def through_tell(batches: Batches, data: bytes) -> None:
    store = batches.in_folder()
    add_pending(store)
    record = Experiment.open(store).ask("person", leased=False)
    assert record is not None
    file = Path("r.json")
    file.write_bytes(data)
    ran = sweep("tell", str(record.trial), "--result", str(file), "--storage", store.url)
    assert ran.status in (0, 2), ran.err
    assert ran.err.count("\n") == (ran.status == 2), ran.err
    if ran.status:
        Experiment.open(store).apply(record.trial, Abandon(by="person"))
    Experiment.open(store).trial(record.trial)


def through_import(batches: Batches, case: tuple[str, bytes]) -> None:
    suffix, data = case
    store = batches.in_folder()
    before = len(store.list("trials/"))
    file = Path(f"t{suffix}")
    file.write_bytes(data)
    ran = sweep("import", str(file), "--again", "--storage", store.url)
    assert ran.status in (0, 2), ran.err
    assert "Traceback" not in ran.err
    assert ran.status == 0 or len(store.list("trials/")) == before
    for index in range(before, len(store.list("trials/"))):
        Experiment.open(store).trial(index)


def _raising(kind: type[BaseException], *arguments: object) -> Callable[[], Any]:
    def function() -> Any:
        raise kind(*arguments)

    return function


class _Unspeakable(Exception):
    def __str__(self) -> str:
        raise RecursionError(self.args)


kinds = st.sampled_from([ValueError, KeyError, OSError, MemoryError, SystemExit, GeneratorExit, _Unspeakable])
outcomes = (
    st.builds(_raising, kinds, texts)
    | st.builds(_raising, kinds, values, texts)
    | (results | values | st.dictionaries(st.integers() | st.none() | texts, values, max_size=4)).map(
        lambda returned: lambda: returned
    )
)
inside = st.floats(0, 1)
wild_rows = st.fixed_dictionaries({"x": inside | values, "loss": losses}).flatmap(
    lambda row: st.dictionaries(texts, values, max_size=3).map(lambda more: more | row)
)
good_rows = st.fixed_dictionaries({"x": inside, "loss": inside}, optional={"a note": values, "\x1b": inside})
rows = wild_rows | good_rows
cells = st.lists(inside.map(str) | inside.map(str) | texts, min_size=2, max_size=3)
csv_tables = st.lists(cells, max_size=3).flatmap(
    lambda table: st.sampled_from([["x", "loss"], ["x", "loss", "\x1b"], ["param.x", "loss", "status"]]).map(
        lambda header: _as_bytes("\n".join(",".join(line) for line in [header, *table]))
    )
)
tables = st.tuples(
    st.just(".json"), spelled(st.lists(good_rows, max_size=3) | st.lists(rows, max_size=3) | values)
) | st.tuples(st.just(".csv"), csv_tables | st.binary(max_size=200))
NOT_STARTED = (126, 127)  # by these the worker learns that the program cannot start here, and leaves
# A polite signal hands the trial back.
statuses = st.integers(1, 255).filter(lambda status: status not in NOT_STARTED and not was_preempted(status))
lines = st.lists(spelled(metrics | values), max_size=4).map(b"\n".join)

WAYS: dict[str, tuple[st.SearchStrategy[Any], Callable[[Batches, Any], None], int]] = {
    "result": (spelled(metrics | metrics | results | values), as_result, 3000),
    "metrics": (lines, as_metrics, 1500),
    "last-words": (st.tuples(st.binary() | texts.map(_as_bytes), statuses), as_words, 1000),
    "function": (outcomes, as_outcome, 2000),
    "tell": (spelled(metrics | metrics | results | values), through_tell, 1500),
    "import": (tables, through_import, 1000),
}
"""Strategy, what is done with a case, and its share of ten thousand cases."""


@pytest.fixture
def batches(tmp_path, monkeypatch) -> Batches:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STAGESWEEP_CACHE", str(tmp_path / "cache"))
    return Batches(tmp_path)


def holds(way: str, batches: Batches, how: settings) -> None:
    strategy, check, _ = WAYS[way]

    @settings(how, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def property_(case: Any) -> None:
        check(batches, case)

    property_()
    batches.check()


@pytest.mark.parametrize("way", WAYS)
def test_whatever_is_written_the_sweep_goes_on(way, batches):
    holds(way, batches, settings())


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", WAYS)
def test_thousands_of_things_are_written_and_the_sweep_goes_on(way, batches):
    """A thousand in each run, other ones each time; HYPOTHESIS_PROFILE=thorough tries ten thousand."""
    assert sum(share for _, _, share in WAYS.values()) == 10_000
    cases = WAYS[way][2] if settings().max_examples == THOROUGH else WAYS[way][2] // 10
    holds(way, batches, settings(max_examples=cases))
