"""trainer.data.files and remote: matching of patterns, here and in a bucket, and retries."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from fake_gcs import FakeGcs
from gcsfs.core import GCSFileSystem

from trainer.data import remote
from trainer.data.files import find_files
from trainer.data.remote import local_folder, with_retries
from trainer.errors import ConfigError, DataError, MissingError, UnreachableError


def write(folder: Path, *names: str, text: str = "text") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def names(*patterns: str, suffixes: tuple[str, ...] = ()) -> list[str]:
    return [file.name for file in find_files(patterns, suffixes)]


@pytest.fixture
def bucket(gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty folder in the fake bucket."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    monkeypatch.setattr(remote, "FIRST_WAIT_S", 0.01)
    GCSFileSystem.clear_instance_cache()
    return f"gs://bucket/data/{uuid.uuid4().hex}"


def put(url: str, **files: bytes) -> None:
    """Write files by name; `__` is a slash."""
    filesystem, root = remote.open_filesystem(url)
    for name, data in files.items():
        filesystem.pipe_file(f"{root}/{name.replace('__', '/')}", data)


def test_folder_lists_files_by_suffix(tmp_path: Path) -> None:
    write(tmp_path, "b.txt", "a/c.txt", "a/.d.txt", ".git/e.txt", "f.md")
    write(tmp_path, "empty.txt", text="")
    assert names(str(tmp_path)) == ["a/c.txt", "b.txt", "f.md"]
    assert names(str(tmp_path), suffixes=(".txt",)) == ["a/c.txt", "b.txt"]


def test_globs_files_and_lists_name_what_they_say_each_once(tmp_path: Path) -> None:
    write(tmp_path, "x1.txt", "x2.txt", "y.txt", "deep/x3.txt")
    assert names(f"{tmp_path}/x*") == ["x1.txt", "x2.txt"]
    assert names(f"{tmp_path}/**/x*.txt") == ["deep/x3.txt", "x1.txt", "x2.txt"]
    assert names(f"{tmp_path}/y.txt", suffixes=(".parquet",)) == ["y.txt"]  # who names a file means it
    assert names(f"{tmp_path}/y.txt", f"{tmp_path}/*.txt") == ["x1.txt", "x2.txt", "y.txt"]


def test_a_file_whose_name_looks_like_a_glob_is_that_file(tmp_path: Path) -> None:
    write(tmp_path, "a[1].txt", "a1.txt")
    assert names(f"{tmp_path}/a[1].txt") == ["a[1].txt"]
    assert names(f"{tmp_path}/a[0-9].txt") == ["a1.txt"]


def test_a_relative_path_is_below_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "corpus/a.txt")
    monkeypatch.chdir(tmp_path)
    (file,) = find_files(["corpus"], ())
    assert (file.name, file.bytes(0, 100), file.bytes(1, 3)) == ("a.txt", b"text", b"ex")


@pytest.mark.parametrize("pattern", ["nothing", "nothing*", "folder"])
def test_a_pattern_that_names_nothing_is_refused_by_its_key(pattern: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match=f"{tmp_path}/{pattern.replace('*', '.')}") as error:
        find_files([str(tmp_path / pattern)], (".txt",))
    assert error.value.key == "data.files"


@pytest.mark.parametrize(
    ("present", "wanted", "instead"),
    [
        ("a.parquet", ".jsonl", "'.parquet'; write data=parquet"),
        ("a.jsonl", ".parquet", r"'.jsonl'; write data=text data.text_key=KEY"),
        ("a.csv", ".parquet", "'.csv'$"),
    ],
)
def test_folder_of_other_files_names_them(present: str, wanted: str, instead: str, tmp_path: Path) -> None:
    write(tmp_path, present)
    with pytest.raises(ConfigError, match=f"{wanted}; .*{instead}"):
        find_files([str(tmp_path)], (wanted,))


def test_compressed_copy_of_a_file_counts_once(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", "a.jsonl.gz", "b.jsonl.zst")
    assert names(str(tmp_path), suffixes=(".jsonl", ".jsonl.gz", ".jsonl.zst")) == ["a.jsonl", "b.jsonl.zst"]
    assert names(f"{tmp_path}/a*") == ["a.jsonl", "a.jsonl.gz"]  # a glob means what it says


def test_a_protocol_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^data\.files: 'nonsense://x' ") as error:
        find_files(["nonsense://x"], ())
    assert "\n" not in str(error.value)


def test_files_have_the_same_names_in_a_bucket(bucket: str, tmp_path: Path) -> None:
    put(bucket, a__x=b"1", b=b"22")
    write(tmp_path, "a/x", "b")
    here, there = find_files([str(tmp_path)], ()), find_files([bucket], ())
    assert [file.name for file in there] == [file.name for file in here] == ["a/x", "b"]
    assert [file.size for file in there] == [1, 2]
    assert there[1].url == f"{bucket}/b"
    assert there[1].bytes(1, 99) == b"2"
    assert all(file.checksum for file in there)
    assert names(f"{bucket}/a/*") == ["x"]


def test_a_bucket_that_has_no_such_thing_is_told_by_the_key(bucket: str) -> None:
    for pattern in (bucket, f"{bucket}/*.parquet", "gs://no-such-bucket/x"):
        with pytest.raises(ConfigError, match=r"^data\.files: "):
            find_files([pattern], ())


def test_a_file_that_another_writer_has_just_put_there_is_seen(bucket: str) -> None:
    put(bucket, a=b"1")
    assert names(bucket) == ["a"]
    put(bucket, b=b"1")
    assert names(bucket) == ["a", "b"]


class WithoutRanges(SimpleHTTPRequestHandler):
    """It ignores what bytes are asked for, and answers with all of the file."""

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


class WithoutSizes(WithoutRanges):
    """It sends files in chunks, as programs that make them do."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(b"4\r\ntext\r\n0\r\n\r\n")


@contextmanager
def serving(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """Run a web server, and yield its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_small_file_of_a_server_without_byte_ranges_is_read(tmp_path: Path) -> None:
    """Each part would be the file's first bytes."""
    write(tmp_path, "a.jsonl", text="0123456789")
    with serving(partial(WithoutRanges, directory=str(tmp_path))) as url:
        (file,) = find_files([f"{url}/a.jsonl"], ())
        assert [file.bytes(0, 4), file.bytes(5, 9), file.bytes(9, 99)] == [b"0123", b"5678", b"9"]


def test_a_large_file_of_a_server_without_byte_ranges_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.data.files._ANSWERED_WHOLE", 9)
    write(tmp_path, "a.jsonl", text="0123456789")
    problem = r"/a\.jsonl: 10 bytes came of 4 that were asked for .* copy it here"
    with serving(partial(WithoutRanges, directory=str(tmp_path))) as url:
        (file,) = find_files([f"{url}/a.jsonl"], ())
        assert file.bytes(0, 99) == b"0123456789"
        with pytest.raises(DataError, match=problem):
            file.bytes(5, 9)


def test_a_server_that_does_not_tell_sizes_is_refused() -> None:
    problem = r"http://.*/{}: its server does not tell its size; copy it here and name the copy$"
    with serving(WithoutSizes) as url:
        with pytest.raises(ConfigError, match=r"^data\.files: " + problem.format(r"a\.jsonl")):
            find_files([f"{url}/a.jsonl"], ())
        with pytest.raises(ConfigError, match=problem.format(r"a\.gguf")):
            local_folder(f"{url}/a.gguf")


def test_a_file_that_has_become_shorter_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", text="0123456789")
    (file,) = find_files([str(tmp_path / "a.txt")], ())
    write(tmp_path, "a.txt", text="0123")
    with pytest.raises(DataError, match=r"/a\.txt: 2 bytes came of 8 .*the file has changed"):
        file.bytes(2, 10)


def failing(times: int, error: Exception) -> Callable[[], str]:
    def read() -> str:
        nonlocal times
        times -= 1
        if times >= 0:
            raise error
        return "read"

    return read


def test_a_read_over_the_network_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(remote.time, "sleep", waits.append)
    assert with_retries(failing(4, OSError("reset")), "gs://bucket/x") == "read"
    assert waits == [1, 2, 4, 8]
    with pytest.raises(DataError, match=r"gs://bucket/x: OSError: reset$"):
        with_retries(failing(5, OSError("reset\nby peer")), "gs://bucket/x")


def test_a_lost_network_is_waited_for_for_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(remote.time, "sleep", waits.append)
    lost = ConnectionResetError("by peer")
    assert with_retries(failing(8, lost), "gs://bucket/x") == "read"
    assert 240 < sum(waits) < 300
    with pytest.raises(UnreachableError, match=r"^cannot read gs://bucket/x: ConnectionResetError: by peer$"):
        with_retries(failing(9, lost), "gs://bucket/x")


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (OSError("disk"), "/a/path"),
        (PermissionError("no"), "gs://bucket/x"),
        (ValueError("no Parquet"), "gs://bucket/x"),
        (FileNotFoundError("x"), "gs://bucket/x"),
    ],
    ids=["on-this-machine", "forbidden", "damaged", "missing"],
)
def test_what_trying_again_cannot_mend_is_told_at_once(
    error: Exception, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote.time, "sleep", lambda seconds: pytest.fail("it waited"))
    with pytest.raises(DataError, match=what):
        with_retries(failing(1, error), what)


# Folders that are copied into the cache: tokenizers and models


def test_a_name_that_is_no_url_stays_as_it_is() -> None:
    assert [local_folder(name) for name in ("some/model", "/a/folder")] == ["some/model", "/a/folder"]


def test_bucket_folder_is_copied_again_when_changed(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put(bucket, config=b"1", deep__weights=b"22")
    first = Path(local_folder(bucket))
    assert (first / "config").read_bytes() == b"1"
    assert (first / "deep" / "weights").read_bytes() == b"22"
    with monkeypatch.context() as patch:
        patch.setattr(GCSFileSystem, "get_file", lambda *args, **kwargs: pytest.fail("it was copied again"))
        assert local_folder(bucket) == str(first)
    put(bucket, config=b"2")
    assert (Path(local_folder(bucket)) / "config").read_bytes() == b"2"
    assert (first / "config").read_bytes() == b"1"  # somebody may be reading it


def test_a_file_whose_copy_would_lie_elsewhere_is_refused(bucket: str, gcs: FakeGcs) -> None:
    put(bucket, config=b"1")
    filesystem, root = remote.open_filesystem(bucket)
    filesystem.pipe_file(f"{root}/deep/../../../escaped", b"2")
    with pytest.raises(DataError, match=r"'deep/\.\./\.\./\.\./escaped'"):
        local_folder(bucket)


def test_a_copy_that_comes_short_is_made_again(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put(bucket, weights=b"0123456789")
    real = GCSFileSystem.get_file
    cut = [True, True]

    def get_file(self: GCSFileSystem, source: str, target: str) -> None:
        real(self, source, target)
        if cut:
            cut.pop()
            Path(target).write_bytes(b"0123")

    monkeypatch.setattr(GCSFileSystem, "get_file", get_file)
    assert Path(local_folder(bucket), "weights").read_bytes() == b"0123456789"


def test_a_folder_that_is_not_there_is_told(bucket: str) -> None:
    with pytest.raises(MissingError, match=f"there is no {bucket}"):
        local_folder(bucket)
