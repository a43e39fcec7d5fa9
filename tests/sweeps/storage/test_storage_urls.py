"""Values of --storage and their meaning."""

from __future__ import annotations

import pytest

from sweeps.errors import InputError
from sweeps.storage.gcs.store import GcsStore
from sweeps.storage.local import LocalStore
from sweeps.storage.objects.store import ObjectStore
from sweeps.storage.urls import is_remote, join, local_path, name_of, open_store, parent


@pytest.mark.parametrize(
    ("url", "kind", "shown"),
    [
        ("./sweep-store/x", LocalStore, "./sweep-store/x"),
        ("/data/x", LocalStore, "/data/x"),
        ("file:///data/a%20b", LocalStore, "/data/a b"),
        ("file://localhost/data", LocalStore, "/data"),
        ("gs://bucket/sweeps/x", GcsStore, "gs://bucket/sweeps/x"),
        ("gs://bucket/sweeps/x/", GcsStore, "gs://bucket/sweeps/x"),
        ("gs://bucket", GcsStore, "gs://bucket"),
        ("s3://bucket/sweeps/x/", ObjectStore, "s3://bucket/sweeps/x"),
    ],
)
def test_a_store_is_opened_and_shown_as_it_was_typed(url, kind, shown):
    store = open_store(url)
    assert isinstance(store, kind)
    assert store.url == shown
    assert store.location("trials/000001.json") == f"{shown}/trials/000001.json"


@pytest.mark.parametrize(
    ("url", "name", "joined"),
    [
        ("./sweep-store", "x", "./sweep-store/x"),
        ("file:///data", "x", "/data/x"),
        ("gs://bucket", "x", "gs://bucket/x"),
        ("gs://bucket/p/", "x y", "gs://bucket/p/x y"),
        ("s3://bucket/p", "x", "s3://bucket/p/x"),
    ],
)
def test_join_and_parent_are_each_others_inverse(url, name, joined):
    assert join(url, name) == joined
    assert parent(joined) == url.removeprefix("file://").rstrip("/")
    assert name_of(joined) == name


@pytest.mark.parametrize(
    ("url", "above"), [("x", "."), ("./x/", "."), ("/x", "/"), ("a/b/", "a"), ("file:///a/b", "/a")]
)
def test_the_parent_of_a_path(url, above):
    assert parent(url) == above


@pytest.mark.parametrize(
    ("url", "path"), [("~", "/home/me"), ("~/x", "/home/me/x"), ("./~/x", "./~/x"), ("file:///~/x", "/~/x")]
)
def test_home_folder_is_written_out(monkeypatch, url, path):
    monkeypatch.setenv("HOME", "/home/me")
    assert open_store(url).url == local_path(url) == path
    assert open_store(join(url, "name")).url == f"{path}/name"
    assert parent(join(url, "name")) == path


def test_a_bucket_lies_in_no_folder():
    with pytest.raises(InputError, match="gs://bucket/NAME"):
        parent("gs://bucket/")


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "../x", "new\nline", "nul\0", "n" * 201])
@pytest.mark.parametrize("url", ["./store", "gs://bucket/p"])
def test_a_name_is_one_folders_name(url, name):
    with pytest.raises(InputError, match="one folder's name"):
        join(url, name)


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("ftp://host/x", "gs://"),
        ("gcs://bucket/x", "gs://bucket/x"),
        ("s3a://bucket/x", "s3://bucket/x"),
        ("https://storage.googleapis.com/b", "gs://"),
        ("memory://x", "file://"),
        ("", "path"),
        ("file://host/x", "three slashes"),
        ("file://relative", "three slashes"),
    ],
)
def test_what_is_no_storage_is_refused_with_what_to_write(url, advice):
    with pytest.raises(InputError, match=advice):
        open_store(url)


def test_only_a_bucket_is_remote():
    assert is_remote("gs://bucket/x")
    assert is_remote("s3://bucket/x")
    assert not is_remote("./gs/x")
    with pytest.raises(InputError, match="a bucket, not a folder"):
        local_path("gs://bucket/x")
