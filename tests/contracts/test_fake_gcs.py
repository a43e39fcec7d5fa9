"""The fake bucket against gcsfs itself, which knows the real one: what gcsfs does has to work here."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from fake_gcs import FakeGcs, Fault, Remote
from gcsfs.core import GCSFileSystem

from sweeps.storage.gcs.store import GcsStore
from sweeps.storage.retries import RetryPolicy

MIB = 2**20


@pytest.fixture
def fs(gcs: FakeGcs) -> GCSFileSystem:
    return GCSFileSystem(
        endpoint_url=gcs.url, token="anon", use_listings_cache=False, skip_instance_cache=True
    )


@pytest.fixture
def root() -> str:
    return f"bucket/fake/{uuid.uuid4().hex}"


def test_pipe_and_cat_with_checksums(fs, root):
    for consistency in ("md5", "size"):
        fs.pipe_file(f"{root}/{consistency}", b"data\r\n--==0==\r", consistency=consistency)
        assert fs.cat_file(f"{root}/{consistency}") == b"data\r\n--==0==\r"


def test_create_mode_refuses_a_taken_name(fs, root):
    fs.pipe_file(f"{root}/x", b"1", mode="create")
    with pytest.raises(FileExistsError):
        fs.pipe_file(f"{root}/x", b"2", mode="create")
    assert fs.cat_file(f"{root}/x") == b"1"


def test_ranges_are_cut_as_asked(fs, root):
    fs.pipe_file(f"{root}/x", b"0123456789")
    assert fs.cat_file(f"{root}/x", 2, 5) == b"234"
    assert fs.cat_file(f"{root}/x", start=-3) == b"789"
    assert fs.cat_file(f"{root}/x", start=8) == b"89"
    assert fs.cat_ranges([f"{root}/x"] * 2, [0, 9], [1, 10]) == [b"0", b"9"]


@pytest.mark.filterwarnings(
    "ignore:Sending a large body directly:ResourceWarning"
)  # gcsfs sends its parts so
def test_resumable_uploads_come_back_whole(fs, root, tmp_path):
    data = bytes(range(256)) * (6 * 4096)  # 6 MiB
    (tmp_path / "up").write_bytes(data)
    fs.put_file(str(tmp_path / "up"), f"{root}/put", chunksize=2 * MIB, consistency="md5")
    with fs.open(f"{root}/written", "wb", block_size=MIB) as file:
        for start in range(0, len(data), 700_000):
            file.write(data[start : start + 700_000])
    fs.get_file(f"{root}/put", str(tmp_path / "down"))
    assert (tmp_path / "down").read_bytes() == data
    assert fs.cat_file(f"{root}/written") == data
    with fs.open(f"{root}/written", "rb") as file:
        file.seek(5 * MIB)
        assert file.read(10) == data[5 * MIB : 5 * MIB + 10]


def test_folders_are_listed_as_gcs_does(fs, root):
    for name in ("a/1", "a/2", "b/c/3", "top"):
        fs.pipe_file(f"{root}/{name}", b"x")
    assert fs.ls(root, detail=False) == [f"{root}/a", f"{root}/b", f"{root}/top"]
    assert fs.find(root) == [f"{root}/{name}" for name in ("a/1", "a/2", "b/c/3", "top")]
    assert fs.isdir(f"{root}/b/c")
    assert fs.info(f"{root}/top")["size"] == 1
    assert not fs.exists(f"{root}/missing")


def test_copy_move_compose_metadata_and_recursive_delete(fs, root):
    fs.pipe_file(f"{root}/x", b"one")
    fs.cp_file(f"{root}/x", f"{root}/y")
    fs.merge(f"{root}/z", [f"{root}/x", f"{root}/y"])
    assert fs.cat_file(f"{root}/z") == b"oneone"
    assert fs.setxattrs(f"{root}/x", color="red") == {"color": "red"}
    assert fs.getxattr(f"{root}/x", "color") == "red"
    fs.rm(root, recursive=True)
    assert fs.find(root) == []


def test_pages_and_delimiters_give_every_name_once(gcs, fs, root):
    prefix = root.removeprefix("bucket/")
    for index in range(1205):
        gcs.objects.put("bucket", f"{prefix}/d{index % 5}/{index:04d}", b"", {}, {})
    assert len(fs.find(root)) == 1205
    assert fs.ls(root, detail=False) == [f"{root}/d{i}" for i in range(5)]
    page = fs.call("GET", "b/bucket/o", prefix=f"{prefix}/", delimiter="/", maxResults=2, json_out=True)
    assert page["prefixes"] == [f"{prefix}/d0/", f"{prefix}/d1/"]
    page = fs.call(
        "GET",
        "b/bucket/o",
        prefix=f"{prefix}/",
        delimiter="/",
        pageToken=page["nextPageToken"],
        json_out=True,
    )
    assert page["prefixes"] == [f"{prefix}/d{i}/" for i in (2, 3, 4)]


def test_generations_rise_across_a_delete_and_preconditions_hold(gcs, fs, root):
    name = root.removeprefix("bucket/") + "/x"
    generations = []
    for _ in range(3):
        generations.append(int(fs.call("POST", f"{gcs.url}/upload/storage/v1/b/bucket/o", uploadType="media",
                                name=name, ifGenerationMatch="0", data=b"x", json_out=True)["generation"]))  # fmt: skip
        headers, _ = fs.call("GET", fs.url(f"{root}/x"), ifGenerationMatch=str(generations[-1]))
        assert headers["X-Goog-Generation"] == str(generations[-1])
        headers, data = fs.call("GET", fs.url(f"{root}/x"), ifGenerationNotMatch=str(generations[-1]))
        assert data == b""  # 304: not modified
        with pytest.raises(FileExistsError):
            fs.call("DELETE", "b/{}/o/{}", "bucket", name, ifGenerationMatch="7")
        fs.rm_file(f"{root}/x")
    assert generations == sorted(set(generations))


def test_damaged_uploads_are_refused_and_nothing_is_stored(gcs, fs, root):
    import base64

    wrong = base64.b64encode(b"0" * 16).decode()
    about = json.dumps({"name": "damaged", "md5Hash": wrong})
    body = f"--b\r\nContent-Type: application/json\r\n\r\n{about}\r\n--b\r\n\r\nx\r\n--b--\r\n"
    with pytest.raises(Exception, match="doesn't match calculated"):
        fs.call(
            "POST",
            f"{gcs.url}/upload/storage/v1/b/bucket/o",
            uploadType="multipart",
            headers={"Content-Type": "multipart/related; boundary=b"},
            data=body,
        )
    assert "damaged" not in gcs.objects.names("bucket")


@pytest.mark.parametrize("fields", ["items(name", "items(", ")", "a,,b", "a b"])
def test_a_malformed_field_selection_is_refused(gcs, fs, fields):
    with pytest.raises(Exception, match="Invalid field selection"):
        fs.call("GET", "b/bucket/o", fields=fields)


def test_what_the_fake_lacks_says_so(gcs, fs):
    with pytest.raises(Exception, match="no GET"):
        fs.call("GET", "b/bucket/o/x/acl/everybody/else")


def test_the_bill_counts_by_google_s_classes(gcs, fs, root):
    gcs.journal.clear()
    fs.pipe_file(f"{root}/x", b"1")
    fs.cat_file(f"{root}/x")
    fs.rm_file(f"{root}/x")
    assert gcs.journal.bill() == {"A": 1, "B": 1, "free": 1, "usd": pytest.approx(0.0000054)}


def test_a_fake_of_its_own_process_takes_orders_over_http():
    process = subprocess.Popen(
        [sys.executable, "-m", "fake_gcs", "--bucket", "other", "--latency-s", "0.01"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    try:
        remote = Remote(json.loads(process.stdout.readline())["url"])
        remote.make_bucket("third")
        quick = RetryPolicy(total_s=3.0, attempt_s=1.0, first_wait_s=0.02, longest_wait_s=0.1)
        store = GcsStore("gs://third/x", endpoint=remote.door("worker-1"), retries=quick)
        remote.add(Fault(action="lose_response", operation="insert", door="worker-1"))
        remote.set(clock_skew_s=3600.0, one_write_per_second=True, latency_s=0.0)
        version = store.create("k", b"x")
        assert store.read("k") == (b"x", version)
        entries = [(e.operation, e.status) for e in remote.entries()]
        assert {e.door for e in remote.entries()} == {"worker-1"}
        assert entries[0] == ("insert", 0)  # committed, its answer lost
        assert set(entries[1:-2]) <= {
            ("insert", 429),
            ("insert", 412),
            ("stat", 200),
        }  # asked again within a second
        assert entries[-2:] == [("get", 200), ("get", 200)]  # read back, and by the test
        assert remote.bill()["B"] == sum(operation in ("get", "stat") for operation, _ in entries)
        remote.clear_journal()
        number = remote.add(Fault(action="status", times=None))
        remote.remove(number)
        remote.clear()
        assert remote.entries() == []
    finally:
        process.terminate()
        process.stdout.close()
        assert process.wait(timeout=20) == 0
