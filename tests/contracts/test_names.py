"""Nothing leaves the sweep's prefix: keys, sweeps' names and the names in manifests, in a folder and in a bucket."""

from __future__ import annotations

import json
import os
import posixpath
import tempfile
from itertools import product
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from memory_store import MemoryStore

from sweeps.errors import InputError
from sweeps.storage import urls
from sweeps.storage.base import Store
from sweeps.storage.gcs.client import object_path
from sweeps.storage.gcs.store import GcsStore
from sweeps.storage.keys import checked_key
from sweeps.storage.local import LocalStore
from sweeps.storage.run_files import manifest

PARTS = [
    ".",
    "..",
    "",
    "a",
    "b.json",
    "~",
    "\\",
    "..\\..",
    "%2e%2e",
    "%2f",
    "．．",
    "‥",
    "∕",
    "a\x00",
    "\u202e",
    "é",
    "e\u0301",
    "a" * 300,
]
HOSTILE = (
    "../outside", "/absolute", "", "a/../../b", "a//b", "./a", "a/.", "a/", "..", "a\x00b", "a\nb", "\ud800",
    "//server/share", "trials/../../x", "\x7f", "a/" * 200 + "b",
)  # fmt: skip
names = st.one_of(
    st.text(max_size=40),
    st.lists(st.sampled_from(PARTS), min_size=1, max_size=6).map("/".join),
)


def hostile(test):
    for name in HOSTILE:
        test = example(name)(test)
    return test


@pytest.mark.parametrize("kind", ["memory", "local", "gcs"])
def test_stores_refuse_ambiguous_keys(kind, tmp_path):
    store: Store = {
        "memory": MemoryStore,
        "local": lambda: LocalStore(tmp_path / "sweep"),
        "gcs": lambda: GcsStore("gs://bucket/sweep", endpoint="http://127.0.0.1:9"),  # nobody answers there
    }[kind]()
    actions = (
        store.read,
        lambda k: store.create(k, b"x"),
        lambda k: store.replace(k, b"x", "1"),
        lambda k: store.delete(k, "1"),
        store.folder,
    )
    for action, key in product(actions, HOSTILE):
        with pytest.raises(ValueError, match="not a key"):
            action(key)
    assert list(tmp_path.rglob("*")) == []


@given(names)
@hostile
def test_key_is_refused_or_names_a_file_in_the_folder(key):
    with tempfile.TemporaryDirectory() as folder:
        store = LocalStore(Path(folder, "sweep"))
        try:
            store.create(key, b"x")
        except ValueError:
            assert list(Path(folder).iterdir()) == []
            return
        except OSError:  # a part is too long for this file system
            if len(os.fsencode(key)) > 200:
                return
            raise
        assert [path.name for path in Path(folder).iterdir()] == ["sweep"]
        assert Path(folder, "sweep", key).read_bytes() == b"x"
        hidden = any(part.startswith(".") for part in key.split("/"))
        assert [entry.key for entry in store.list("")] == ([] if hidden else [key])


@given(names)
@hostile
def test_key_is_refused_or_names_an_object_below_the_prefix(key):
    store = GcsStore("gs://bucket/deep/sweep")
    try:
        path = object_path(store.name(key))
    except ValueError:
        return
    quoted = path.removeprefix("o/")
    assert "/" not in quoted
    assert unquote(quoted) == f"deep/sweep/{key}"
    assert posixpath.normpath(f"deep/sweep/{key}") == f"deep/sweep/{key}"


@given(names)
@hostile
def test_name_is_refused_or_is_one_folder(name):
    for storage in ("./store", "file:///store", "gs://bucket/store"):
        try:
            url = urls.join(storage, name)
        except InputError:
            continue
        assert urls.name_of(url) == name
        root = urls.parent(url)
        assert root == storage if storage.startswith("gs") else Path(root) == Path(urls.local_path(storage))
        assert posixpath.basename(posixpath.normpath(url)) == name


def entry(stored: str) -> dict[str, object]:
    return {
        "object": stored,
        "generation": "1",
        "size": 0,
        "sha256": "0" * 64,
        "md5": "",
        "growing": False,
    }


@given(names)
@hostile
def test_manifest_stays_below_its_folder_or_is_refused(name):
    for document in ({name: entry("model")}, {"model": entry(name)}):
        data = json.dumps({"schema": 1, "files": document}).encode()
        try:
            files = manifest.decode(data)
        except ValueError:
            continue
        for file, stored in files.items():
            for path in (file, stored.object):
                inside = posixpath.normpath(posixpath.join("/runs/1", path))
                assert inside == f"/runs/1/{path}"
                assert checked_key(path) == path
