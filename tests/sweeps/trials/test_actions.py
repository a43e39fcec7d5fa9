"""The history of what people did to a sweep, over every kind of store."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest
from memory_store import MemoryStore

from sweeps.errors import StoreUnavailable
from sweeps.storage.base import Store
from sweeps.storage.local import LocalStore
from sweeps.trials import actions
from sweeps.trials.actions import History, about_trials, note


def test_readers_see_each_action_once_in_its_order(store: Store) -> None:
    early, late = History(store), History(store)
    assert early.refresh() == ()
    note(store, "pause", "ada@desk")
    (first,) = early.refresh()
    assert (first.number, first.what, first.by) == (1, "pause", "ada@desk")
    assert abs(first.at - store.now()) < 60
    note(store, "resume", "bob")
    assert [one.what for one in early.refresh()] == ["pause", "resume"]
    assert late.refresh() == early.refresh()


def test_two_people_at_once_each_get_a_number(store: Store) -> None:
    threads = [threading.Thread(target=note, args=(store, f"retry trial {i}", "ada")) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = History(store).refresh()
    assert [one.number for one in found] == [1, 2, 3, 4]
    assert {one.what for one in found} == {f"retry trial {i}" for i in range(4)}


@pytest.mark.parametrize("data", [b"", b"[]", b'{"what": 3}', b"\xff", b"{" * 5000])
def test_one_that_cannot_be_read_is_named_and_hides_no_other(store: Store, data: bytes) -> None:
    note(store, "pause", "ada")
    store.create(actions.key(2), data)
    note(store, "resume", "ada")
    found = History(store).refresh()
    assert [one.what.partition(":")[0] for one in found] == [
        "pause",
        "actions/000002.json cannot be read",
        "resume",
    ]


def test_a_folder_with_the_name_of_one_hides_no_other(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "sweep")
    note(store, "pause", "ada")
    note(store, "resume", "ada")
    file = tmp_path / "sweep" / actions.key(1)
    file.unlink()
    file.mkdir()
    assert [one.what for one in History(store).refresh()][-1] == "resume"


def test_strange_times_and_names_are_shown_as_unknown(store: Store) -> None:
    store.create(actions.key(1), b'{"what": "pause", "by": ["ada"], "at": 1e300}')
    (found,) = History(store).refresh()
    assert (found.what, found.by, found.at) == ("pause", "", 0.0)


def test_texts_are_one_line_without_secrets(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef0123456789abcdef")
    note(store, "abandon trial 1", "ada: \x1b[1mkey\n0123456789abcdef0123456789abcdef" + "x" * 2000)
    (found,) = History(store).refresh()
    assert found.by.isprintable()
    assert "0123456789abcdef" not in found.by
    assert len(found.by) <= 500


def test_a_store_that_does_not_take_it_costs_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()

    def refused(key: str, data: bytes) -> str:
        raise StoreUnavailable("no space left")

    monkeypatch.setattr(store, "create", refused)
    with caplog.at_level(logging.WARNING):
        note(store, "pause", "ada")
    (message,) = caplog.messages
    assert message.endswith(": no space left")
    assert History(store).refresh() == ()


def test_long_lists_of_trials_are_counted() -> None:
    assert about_trials("retry", [3]) == "retry trial 3"
    assert about_trials("retry", [3, 5]) == "retry trials 3, 5"
    assert about_trials("abandon", range(14)).endswith("10, 11 and 2 more")
