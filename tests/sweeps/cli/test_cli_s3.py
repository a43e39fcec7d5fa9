"""A sweep in a bucket of S3 from the first command to the last, and what the commands say where there is none."""

from __future__ import annotations

import json
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from fake_gcs import Fault

from sweeps.storage.urls import open_store

TRAIN = """\
import json, os, sys
x = float(dict(each.split("=") for each in sys.argv[1:])["x"])
folder = os.environ["SWEEP_RUN_DIR"]
os.makedirs(f"{folder}/checkpoints/10")
with open(f"{folder}/checkpoints/10/model.bin", "wb") as file:
    file.write(bytes(9 * 2**20))
print("the last words")
with open(f"{folder}/result.json", "w") as file:
    json.dump({"loss": (x - 0.3) ** 2}, file)
"""
SPACE = """\
name: toy
objectives: [{metric: loss, goal: minimize}]
program: {command: [python, train.py, "${overrides}"]}
parameters: {x: {min: 0.0, max: 1.0}}
search: {method: random, seed: 0}
run_cap: 2
"""


@pytest.fixture
def storage(s3, monkeypatch, tmp_path) -> str:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.door("cli"))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")  # which has `python`
    monkeypatch.chdir(tmp_path)
    (tmp_path / "space.yaml").write_text(SPACE)
    (tmp_path / "train.py").write_text(TRAIN)
    return f"s3://bucket/cli/{uuid.uuid4().hex}"


@pytest.mark.timeout(240)
def test_sweep_runs_from_init_to_delete(sweep, storage):
    ran = sweep("init", "space.yaml", "--storage", storage)
    assert (ran.status, ran.out) == (0, f"{storage}/toy\n"), ran.err
    ran = sweep("worker", "--storage", storage)
    assert ran.status == 0, ran.err
    status = json.loads(sweep("status", "--storage", storage, "--format", "json").out)
    assert status["url"] == f"{storage}/toy"
    assert status["trials"]["completed"] == 2
    trials = json.loads(sweep("trials", "--storage", storage, "--format", "json").out)
    best = min(trials, key=lambda trial: trial["metrics"]["loss"])
    assert sweep("best", "--storage", storage).out.startswith(f"trial {best['trial']}: loss ")
    assert "the last words" in sweep("show", "0", "--storage", storage).out
    ran = sweep("doctor", "--storage", storage)
    assert "nothing is wrong" in ran.out, ran.out
    keys = {entry.key for entry in open_store(f"{storage}/toy").list("runs/000001/")}
    assert "runs/000001/attempt-1/checkpoints/10/model.bin" in keys
    assert sweep("rename", "other", "--storage", storage).status == 0
    (row,) = json.loads(sweep("list", "--storage", storage, "--format", "json").out)
    assert row["name"] == "other"
    assert sweep("delete", "--yes", "--storage", storage, "--name", "other").status == 0
    assert json.loads(sweep("list", "--storage", storage, "--format", "json").out) == []
    assert open_store(f"{storage}/other").list("") == []
    assert (
        sweep("init", "space.yaml", "--storage", storage).status == 0
    )  # where tombstones of the renamed lie


def test_init_refuses_a_service_without_conditional_writes(sweep, s3, storage):
    s3.ignores = ("if-none-match",)
    ran = sweep("init", "space.yaml", "--storage", storage)
    assert ran.status == 2
    assert "no conditional writes" in ran.err.splitlines()[-1]


@pytest.mark.parametrize(
    "command", [("init", "space.yaml"), ("status",), ("worker",), ("doctor",)], ids=" ".join
)
@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "the credentials are refused"),
        (
            {
                "AWS_ACCESS_KEY_ID": "",
                "AWS_SECRET_ACCESS_KEY": "",
                "AWS_METADATA_ENDPOINT": "http://127.0.0.1:1",
            },
            "no credentials were found",
        ),
        (
            {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_PROFILE": "lab"},
            "AWS profile lab: The config profile (lab) could not be found",
        ),
        ({"AWS_ENDPOINT_URL": "minio:9000"}, "is not the URL of a storage service"),
        ({"bucket": "nobucket"}, "there is no bucket nobucket"),
    ],
    ids=["wrong-secret", "no-credentials", "profile", "no-url", "no-bucket"],
)
def test_what_is_missing_is_one_line(sweep, storage, monkeypatch, command, variables, says):
    for name, value in variables.items():
        monkeypatch.delenv(name, raising=False)
        if value and name != "bucket":
            monkeypatch.setenv(name, value)
    storage = storage.replace("//bucket/", f"//{variables.get('bucket', 'bucket')}/")
    ran = sweep(*command, "--storage", storage)
    assert ran.status == 2, ran.err
    (line,) = (line for line in ran.err.splitlines() if line.startswith("sweep: error: "))
    assert says in line


@pytest.mark.parametrize("command", [("worker",), ("pause",), ("rename", "other")], ids=" ".join)
def test_who_may_only_read_is_told_at_once(sweep, s3, storage, command):
    assert sweep("init", "space.yaml", "--storage", storage).status == 0
    s3.body = b"<Error><Code>AccessDenied</Code></Error>"
    s3.faults.add(Fault(action="status", status=403, operation="put", times=None))
    assert sweep("status", "--storage", storage).status == 0
    began = time.monotonic()
    ran = sweep(*command, "--storage", storage)
    assert time.monotonic() - began < 20  # it waited for half an hour
    assert ran.status == 2
    (line,) = (line for line in ran.err.splitlines() if line.startswith("sweep: error: "))
    assert "access denied (403 AccessDenied, as AWS_ACCESS_KEY_ID); workers need s3:GetObject" in line
    assert "can be read but not written" in sweep("doctor", "--storage", storage).out


LOCK = {"x-amz-object-lock-mode": "GOVERNANCE", "x-amz-version-id": "a1"}
EXPIRES = {"x-amz-expiration": 'expiry-date="Fri, 27 Nov 2026 00:00:00 GMT", rule-id="tidy up"'}


@pytest.mark.parametrize(
    ("headers", "says"),
    [(LOCK, "object lock"), (EXPIRES, "the lifecycle rule 'tidy up' of bucket bucket deletes")],
    ids=["lock", "lifecycle"],
)
def test_harmful_bucket_is_refused(sweep, s3, storage, headers, says):
    s3.adds = headers
    ran = sweep("init", "space.yaml", "--storage", storage)
    assert ran.status == 2
    (line,) = (line for line in ran.err.splitlines() if line.startswith("sweep: error: "))
    assert says in line
    assert open_store(f"{storage}/toy").list("") == []
    s3.adds = {}
    assert sweep("init", "space.yaml", "--storage", storage).status == 0
    s3.adds = headers
    assert says in sweep("doctor", "--storage", storage).out


def test_versioned_bucket_is_a_warning(sweep, s3, storage, caplog):
    s3.adds = {"x-amz-version-id": "3sL4kqtJlcpXroDTDmJ"}
    ran = sweep("init", "space.yaml", "--storage", storage)
    assert ran.status == 0
    (line,) = (each.getMessage() for each in caplog.records if each.levelname == "WARNING")
    assert "keeps all versions" in line
    ran = sweep("doctor", "--storage", storage)
    assert ran.status == 0
    assert "keeps all versions" in ran.out
    s3.adds = {"x-amz-version-id": "null"}
    assert "keeps all versions" not in sweep("doctor", "--storage", storage).out


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (403, b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>", "access denied"),
        (403, b"<Error><Code>RequestTimeTooSkewed</Code></Error>", "this machine's clock is wrong"),
        (301, b"<Error><Code>PermanentRedirect</Code></Error>", "another region"),
        (400, b"<Error><Code>AuthorizationHeaderMalformed</Code></Error>", "another region"),
        (404, b"<Error><Code>NoSuchBucket</Code></Error>", "there is no bucket"),
    ],
    ids=["no-rights", "skewed-clock", "redirect", "malformed", "no-bucket"],
)
@pytest.mark.parametrize(
    "command", [("init", "space.yaml"), ("list",), ("status",)], ids=lambda command: command[0]
)
def test_refusals_of_the_service_are_one_line(sweep, s3, storage, command, status, body, says):
    s3.body = body
    s3.add(Fault(action="status", status=status, times=None))
    ran = sweep(*command, "--storage", storage)
    assert ran.status == 2, ran.err
    (line,) = ran.err.splitlines()
    assert says in line


class Website(BaseHTTPRequestHandler):
    """Answers everything with a page, as a proxy or a wrong endpoint does."""

    etag = ""

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        page = b"<!doctype html><html><body>Welcome</body></html>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.send_header("Last-Modified", self.date_time_string())
        if self.etag:
            self.send_header("ETag", self.etag)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = answer

    def log_message(self, *given: object) -> None: ...


@pytest.fixture(params=["HTTP/1.0", "HTTP/1.1", "etag"])
def website(request) -> Iterator[str]:
    tagged = {"etag": '"abc"'} if request.param == "etag" else {}
    version = "HTTP/1.1" if tagged else request.param
    handler = type("Site", (Website,), {"protocol_version": version, **tagged})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "command", [("init", "space.yaml"), ("list",), ("status",), ("doctor",)], ids=lambda command: command[0]
)
def test_website_is_no_storage(sweep, storage, website, monkeypatch, command):
    monkeypatch.setenv("AWS_ENDPOINT_URL", website)
    ran = sweep(*command, "--storage", storage)
    assert ran.status == 2, (ran.out, ran.err)
    assert "no storage service" in ran.out + ran.err
