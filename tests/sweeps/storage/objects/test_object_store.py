"""Failures of an S3 bucket: lost responses, refusals, partitions, missing rights, services without conditions."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from s3_server import Doors, Fault

from sweeps.errors import AlreadyExists, Conflict, InputError, StoreUnavailable
from sweeps.experiment import Experiment
from sweeps.storage.base import NotFound
from sweeps.storage.objects.answers import refusal_of
from sweeps.storage.objects.s3 import S3Client
from sweeps.storage.objects.store import ObjectStore
from sweeps.storage.retries import RetryPolicy, Transient
from sweeps.trials.lifecycle import Complete

QUICK = RetryPolicy(total_s=10.0, attempt_s=2.0, first_wait_s=0.02, longest_wait_s=0.1)
SHORT = RetryPolicy(total_s=0.8, first_answer_s=0.8, attempt_s=0.3, first_wait_s=0.02, longest_wait_s=0.1)


@pytest.fixture
def url() -> str:
    return f"s3://bucket/tests/{uuid.uuid4().hex}"


@pytest.fixture
def store(s3: Doors, url: str) -> ObjectStore:
    return ObjectStore(url, endpoint=s3.door("a"), retries=QUICK)


@pytest.fixture
def other(s3: Doors, url: str) -> ObjectStore:
    """Another client of the same sweep, through a door of its own."""
    return ObjectStore(url, endpoint=s3.door("b"), retries=QUICK)


class TestLostAnswers:
    @pytest.mark.parametrize("action", ["lose_response", "lose_request", "hang"])
    def test_a_write_without_an_answer_is_done_once(self, s3, store, action):
        s3.faults.add(Fault(action=action, operation="put"))
        first = store.create("k", b"one")
        s3.faults.add(Fault(action=action, operation="put"))
        second = store.replace("k", b"two", first)
        assert store.read("k") == (b"two", second)
        assert second != first

    def test_a_lost_answer_is_not_followed_by_a_second_write(self, s3, store):
        s3.faults.add(Fault(action="lose_response", operation="put"))
        store.create("k", b"one")
        assert s3.statuses("put") == [0]
        assert s3.statuses("get") == [200]

    def test_a_delete_whose_answer_is_lost_succeeds(self, s3, store):
        version = store.create("k", b"one")
        s3.faults.add(Fault(action="lose_response", operation="put"))
        store.delete("k", version)
        with pytest.raises(NotFound):
            store.read("k")

    def test_a_create_over_a_tombstone_may_lose_its_answer(self, s3, store, other):
        store.delete("k", store.create("k", b"one"))
        s3.faults.add(Fault(action="lose_response", operation="put", door="b", times=2))
        version = other.create("k", b"two")
        assert store.read("k") == (b"two", version)

    def test_a_taken_key_is_not_mistaken_for_our_own_write(self, s3, store, other):
        version = other.create("k", b"same")
        s3.faults.add(Fault(action="lose_request", operation="put", door="a"))
        with pytest.raises(AlreadyExists):
            store.create("k", b"same")
        assert store.read("k") == (b"same", version)

    def test_write_overwritten_before_its_echo_is_a_conflict(self, s3, store, other):
        first = store.create("k", b"one")
        s3.faults.add(Fault(action="lose_response", operation="put", door="a"))
        s3.faults.add(Fault(action="delay", delay_s=0.5, operation="get", door="a"))
        outcome: list[BaseException] = []

        def write() -> None:
            try:
                store.replace("k", b"ours", first)
            except Conflict as error:
                outcome.append(error)

        writer = threading.Thread(target=write)
        writer.start()
        while (found := other.read("k"))[0] != b"ours":
            time.sleep(0.005)
        last = other.replace("k", b"theirs", found[1])
        writer.join()
        assert [type(error) for error in outcome] == [Conflict]
        assert store.read("k") == (b"theirs", last)


class TestRefusals:
    @pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
    def test_a_burst_of_refusals_is_waited_out(self, s3, store, status):
        s3.faults.add(Fault(action="status", status=status, operation="put", times=3))
        version = store.create("k", b"one")
        assert s3.statuses("put") == [status] * 3 + [200]
        s3.faults.add(Fault(action="status", status=status, times=2))
        assert store.read("k") == (b"one", version)
        s3.faults.add(Fault(action="status", status=status, times=2))
        assert [entry.key for entry in store.list("")] == ["k"]
        s3.faults.add(Fault(action="status", status=status, operation="get", times=2))
        assert store.read_many(["k", "none", "k"]) == [(b"one", version), None, (b"one", version)]

    def test_partition_ends_in_one_line_within_the_patience(self, s3, url):
        store = ObjectStore(url, endpoint=s3.door("a"), retries=SHORT)
        version = store.create("k", b"one")
        for action in ("lose_request", "hang"):
            number = s3.faults.add(Fault(action=action, door="a", times=None))
            for act in (
                lambda: store.read("k"),
                lambda: store.replace("k", b"two", version),
                lambda: store.list(""),
            ):
                start = time.monotonic()
                with pytest.raises(StoreUnavailable, match=r"within 0\.8 s") as raised:
                    act()
                assert "\n" not in str(raised.value)
                assert time.monotonic() - start < 8
            s3.faults.remove(number)
        assert store.read("k") == (b"one", version)

    def test_nobody_listening_is_unavailable_too(self, s3, url):
        with pytest.raises(StoreUnavailable, match="check the network"):
            ObjectStore(url, endpoint="http://127.0.0.1:1", retries=SHORT).read("k")

    def test_refused_credentials_are_one_line(self, s3, url, monkeypatch):
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        with pytest.raises(InputError, match=r"SignatureDoesNotMatch.*AWS_PROFILE") as raised:
            ObjectStore(url, endpoint=s3.door("a"), retries=QUICK).read("k")
        assert "\n" not in str(raised.value)

    def test_refused_credentials_are_so_for_many_reads_too(self, s3, url, monkeypatch):
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        with pytest.raises(InputError, match="the credentials are refused"):
            ObjectStore(url, endpoint=s3.door("a"), retries=SHORT).read_many(["a", "b", "c"])

    def test_missing_credentials_are_one_line(self, s3, url, monkeypatch):
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")
        with pytest.raises(InputError, match=r"no credentials were found .*AWS_ACCESS_KEY_ID") as raised:
            ObjectStore(url, endpoint=s3.door("a"), retries=QUICK).read("k")
        assert "\n" not in str(raised.value)

    @pytest.mark.parametrize(
        ("status", "body", "says"),
        [
            (400, "<Code>ExpiredToken</Code>", r"have expired \(400 ExpiredToken, as AWS_ACCESS_KEY_ID\)"),
            (
                403,
                "<Code>AccessDenied</Code><Message>No.</Message>",
                r"access denied \(403 AccessDenied No., as AWS_ACCESS_KEY_ID\).*s3:PutObject",
            ),
            (400, "<Code>AuthorizationHeaderMalformed</Code>", "another region .*AWS_REGION"),
            (301, "<Code>PermanentRedirect</Code>", "another region .*AWS_REGION"),
            (403, "<Code>RequestTimeTooSkewed</Code>", "clock is wrong"),
        ],
    )
    def test_what_a_service_refuses_is_one_line(self, s3, store, status, body, says):
        s3.faults.add(Fault(action="status", status=status, times=None))
        s3.body = f"<Error>{body}</Error>".encode()
        with pytest.raises(InputError, match=says) as raised:
            store.read("k")
        assert "\n" not in str(raised.value)

    def test_a_fault_after_the_first_answer_may_pass(self, s3, store):
        store.list("")
        s3.faults.add(Fault(action="status", status=403, times=None))
        with pytest.raises(StoreUnavailable, match="access denied"):
            store.read("k")

    def test_a_missing_bucket_is_told_from_a_missing_object(self, s3):
        store = ObjectStore("s3://nobucket/x", endpoint=s3.door("a"), retries=QUICK)
        for act in (lambda: store.read("k"), lambda: store.list(""), lambda: store.read_many(["k", "l"])):
            with pytest.raises(InputError, match="no bucket nobucket"):
                act()

    def test_an_endpoint_that_is_no_url_is_the_users_mistake(self, s3, url, monkeypatch):
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "minio:9000")
        with pytest.raises(InputError, match="AWS_ENDPOINT_URL_S3"):
            ObjectStore(url)

    @pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"])
    def test_the_endpoint_is_found_in_the_environment(self, s3, url, monkeypatch, variable):
        monkeypatch.setenv(variable, s3.door("a"))
        assert ObjectStore(url, retries=QUICK).list("") == []

    @pytest.mark.parametrize("ignored", ["if-none-match", "if-match"])
    def test_service_without_conditional_writes_is_refused(self, s3, store, space, ignored):
        s3.ignores = (ignored,)
        with pytest.raises(InputError, match="no conditional writes"):
            Experiment.create(store, space)
        s3.ignores = ()
        assert store.list("") == []

    def test_service_that_refuses_every_version_is_refused_at_once(self, s3, store, space):
        s3.refuses_versions = re.compile(".")
        began = time.monotonic()
        with pytest.raises(InputError, match="even one that names the right version"):
            Experiment.create(store, space)
        assert time.monotonic() - began < 5
        s3.refuses_versions = None
        assert store.list("") == []

    def test_service_that_finds_no_version_in_quotes_keeps_a_sweep(self, s3, store, other, space):
        """Ceph and DigitalOcean's Spaces."""
        s3.refuses_versions = re.compile('"')
        Experiment.create(store, space)
        version = other.replace("k", b"two", other.create("k", b"one"))
        s3.entries.clear()
        version = other.replace("k", b"three", version)
        assert s3.statuses("put") == [200]  # it is tried once by each client
        with pytest.raises(Conflict):
            other.replace("k", b"four", "0" * 32)
        assert other.read("k") == (b"three", version)
        other.delete("k", version)
        again = ObjectStore(store.url, endpoint=s3.door("c"), retries=QUICK).create("k", b"again")
        assert store.read("k") == (b"again", again)

    def test_place_that_does_not_exist_is_refused_at_once(self, s3, store, space):
        """Such as an endpoint whose path is wrong."""
        s3.faults.add(Fault(action="status", status=404, times=None))
        s3.body = b'{"detail": "Not Found"}'
        began = time.monotonic()
        with pytest.raises(InputError, match=r"refused \(.*404 Not Found.*\); check --storage") as caught:
            Experiment.create(store, space)
        assert time.monotonic() - began < 5
        assert "\n" not in str(caught.value)

    def test_cause_is_said_of_a_service_that_removes_nothing_either(self, s3, store, space):
        s3.ignores = ("if-match",)
        s3.faults.add(Fault(action="status", status=501, operation="post", times=None))
        with pytest.raises(InputError, match="no conditional writes"):
            Experiment.create(store, space)

    def test_service_that_knows_no_such_header_is_refused(self, s3, store, space):
        s3.faults.add(Fault(action="status", status=501, operation="put", times=None))
        with pytest.raises(InputError, match="no conditional writes"):
            Experiment.create(store, space)


class TestTheClock:
    def test_the_clock_is_the_services(self, s3, store):
        assert abs(store.now() - time.time()) < 1.5  # the server is on this machine

    def test_the_clock_costs_a_request_in_ten_seconds(self, s3, store):
        store.now()
        s3.entries.clear()
        assert store.now() <= store.now()
        assert s3.entries == []

    def test_a_signed_url_is_no_answer(self, s3, url):
        hasty = RetryPolicy(total_s=20.0, first_answer_s=0.3, attempt_s=0.3, first_wait_s=0.02)
        silent = ObjectStore(url, endpoint="http://127.0.0.1:9", retries=hasty)
        with pytest.raises(StoreUnavailable, match=r"within 0\.3 s"):
            silent.now()

    def test_the_clock_waits_out_a_bad_answer(self, s3, store):
        s3.faults.add(Fault(action="lose_request", operation="head", times=2))
        assert abs(store.now() - time.time()) < 1.5


class TestStored:
    def test_a_record_stays_json_for_other_readers(self, s3, store, url):
        import obstore

        store.create("a.json", b'{"x": 1}')
        raw = bytes(obstore.get(store.client.store(), store.name("a.json")).bytes())
        assert json.loads(raw) == {"x": 1}
        assert raw != b'{"x": 1}'

    def test_what_others_stored_is_read_as_it_is(self, s3, store):
        import obstore

        obstore.put(store.client.store(), store.name("a"), b"plain\n")
        assert store.read("a")[0] == b"plain\n"

    @pytest.mark.parametrize("data", [b"", b"x", b"\n", b" \t" * 200, b"\n" + b" " * 128, bytes(range(256))])
    def test_any_bytes_come_back(self, s3, store, data):
        version = store.create("k", data)
        assert store.read("k") == (data, version)
        assert store.read_many(["k", "k"]) == [(data, version)] * 2

    def test_deleted_records_are_gone_for_another_client(self, s3, store, other):
        version = store.create("a/k", b"x")
        store.create("a/l", b"y")
        store.delete("a/k", version)
        assert [entry.key for entry in other.list("a/")] == ["a/l"]
        assert [entry.key for entry in other.list("a/")] == ["a/l"]
        assert other.sizes("a/").keys() == {"a/l"}

    def test_clearing_leaves_nothing_but_the_kept(self, s3, store):
        import obstore

        for key in ("a", "b", "sweep.json"):
            store.delete(key, store.create(key, b"x"))
        store.clear(["sweep.json"])
        names = [item["path"] for item in obstore.list(store.client.store(), store.name("x")[:-2]).collect()]
        assert names == [store.name("sweep.json")]

    @pytest.mark.parametrize("key", ["a b", "a%2eb", "ü", "a#b?c&d+e", "x=1", "a/b/c d/e.json", "'q'"])
    def test_any_key_comes_back_as_it_was_given(self, s3, store, key):
        version = store.create(key, b"x")
        assert store.read(key) == (b"x", version)
        assert [entry.key for entry in store.list("")] == [key]

    @pytest.mark.parametrize("key", ["", "/a", "a//b", "../a", "a/..", "a\x00b", "x" * 300])
    def test_a_key_cannot_leave_the_sweeps_prefix(self, s3, store, key):
        for act in (lambda: store.read(key), lambda: store.create(key, b"x"), lambda: store.delete(key, "1")):
            with pytest.raises(ValueError, match="not a key"):
                act()
        assert s3.entries == []

    def test_folder_made_in_a_console_is_no_object(self, store, monkeypatch):
        """It is an object whose name ends with a slash, which obstore lists, but cannot write."""
        import obstore

        version = store.create("k", b"x")
        real = obstore.list

        class Listing:
            async def collect_async(self):
                found = await real(store.client.store(), store.name("k").rpartition("/")[0]).collect_async()
                return [{**found[0], "path": store.name("k").rpartition("/")[0], "size": 0}, *found]

        monkeypatch.setattr(obstore, "list", lambda *_: Listing())
        assert [(entry.key, entry.version) for entry in store.list("")] == [("k", version)]

    def test_listing_goes_on_behind_a_thousand(self, s3, store):
        import obstore

        from sweeps.storage.objects.client import start

        async def fill() -> None:
            for i in range(1005):
                await obstore.put_async(store.client.store(bulk=True), store.name(f"t/{i:04}"), b"x")

        start(fill).result(timeout=60)
        assert len(store.list("t/")) == 1005
        assert s3.statuses("list") == [200, 200]


@pytest.mark.parametrize(
    "bad", ["s3://", "s3:///x", "s3://UPPER/x", "s3://a_b/x", "s3://b/../x", "s3://b/a//c"]
)
def test_a_hostile_url_is_refused_before_anything_is_sent(bad):
    with pytest.raises(InputError, match="s3://"):
        ObjectStore(bad)


class TestProcesses:
    def test_one_of_two_processes_creates_each_key(self, s3, url, tmp_path):
        """Every other key was deleted before, so that its creators race for a tombstone."""
        store = ObjectStore(url, endpoint=s3.door("a"), retries=QUICK)
        for i in range(0, 40, 2):
            store.delete(f"k{i}", store.create(f"k{i}", b"old"))
        program = tmp_path / "race.py"
        program.write_text(
            "import sys, json\n"
            "from sweeps.errors import AlreadyExists\n"
            "from sweeps.storage.objects.store import ObjectStore\n"
            "from sweeps.storage.retries import RetryPolicy\n"
            "store = ObjectStore(sys.argv[1], endpoint=sys.argv[3], retries=RetryPolicy(first_wait_s=0.02))\n"
            "me = sys.argv[2].encode()\n"
            "store.list('')\n"
            "print('ready', flush=True)\n"
            "sys.stdin.readline()\n"
            "won = []\n"
            "for i in range(40):\n"
            "    try:\n"
            "        store.create(f'k{i}', me)\n"
            "        won.append(i)\n"
            "    except AlreadyExists:\n"
            "        pass\n"
            "print(json.dumps(won))\n"
        )
        racers = [
            subprocess.Popen(
                [sys.executable, str(program), url, name, s3.door(name)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])},
            )
            for name in ("a", "b")
        ]
        for racer in racers:
            assert racer.stdout.readline() == "ready\n"
        s3.faults.add(Fault(action="lose_response", operation="put", times=None, chance=0.2))
        won = {
            name: json.loads(racer.communicate("go\n", timeout=60)[0])
            for name, racer in zip("ab", racers, strict=True)
        }
        s3.faults.clear()
        assert sorted(won["a"] + won["b"]) == list(range(40))
        assert {f"k{i}": name.encode() for name in won for i in won[name]} == {
            entry.key: store.read(entry.key)[0] for entry in store.list("")
        }

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_a_forked_child_is_refused_and_does_not_hang(self, s3, url):
        code = (
            "import os, sys\n"
            "from sweeps.storage.objects.store import ObjectStore\n"
            "store = ObjectStore(sys.argv[1], endpoint=sys.argv[2])\n"
            "store.create('k', b'x')\n"
            "if os.fork() == 0:\n"
            "    try:\n"
            "        store.read('k')\n"
            "    except Exception as error:\n"
            "        print(error, flush=True)\n"
            "    os._exit(0)\n"
            "os.wait()\n"
        )
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code, url, s3.door("a")],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "was forked" in done.stdout
        assert done.stdout.count("\n") == 1

    def test_an_answer_as_the_interpreter_ends_aborts_nothing(self, s3, url):
        code = (
            "import sys, time\n"
            "from asyncio.selector_events import BaseSelectorEventLoop as Loop\n"
            "from sweeps.storage.objects.store import ObjectStore\n"
            "write = Loop._write_to_self\n"
            "Loop._write_to_self = lambda self: (write(self), time.sleep(0.03))\n"
            "class Slow:\n"
            "    def __del__(self, sleep=time.sleep):\n"
            "        sleep(0.5)\n"
            "slow = Slow()\n"
            "ObjectStore(sys.argv[1], endpoint=sys.argv[2]).create('k', b'x')\n"
        )
        done = subprocess.run([sys.executable, "-c", code, url, s3.door("a")], timeout=60)
        assert done.returncode == 0


@pytest.mark.parametrize(
    "endpoint", ["localhost:9000", "http://a b", "http://h:99999999", "http://h:x", "http://[", "http://:80"]
)
def test_an_unfit_endpoint_is_one_line(endpoint, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(InputError, match=r"AWS_ENDPOINT_URL: .* is not the URL of a storage service"):
        ObjectStore("s3://bucket/x")


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "AWS_REGION"])
def test_a_line_break_in_a_variable_is_one_line(name, monkeypatch):
    monkeypatch.setenv(name, "value\r")
    with pytest.raises(InputError, match=f"{name}: it holds a line break"):
        ObjectStore("s3://bucket/x")


def test_a_variable_that_obstore_cannot_read_is_one_line(s3, url, monkeypatch):
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "perhaps")
    with pytest.raises(InputError, match="AWS_") as raised:
        ObjectStore(url, endpoint=s3.door("a"), retries=QUICK).read("k")
    assert "\n" not in str(raised.value)


def test_conditions_are_sent_whatever_the_environment_says(s3, url, monkeypatch):
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    store = ObjectStore(url, endpoint=s3.door("a"), retries=QUICK)
    store.create("k", b"one")
    with pytest.raises(AlreadyExists):
        store.create("k", b"two")


def test_refused_delete_of_a_batch_is_a_refusal():
    """Azure answers 202 to a batch, and refuses each delete in it."""
    text = "Generic MicrosoftAzure error: Bulk delete request failed for key a: not permitted (code: 403)"
    assert (refusal_of(OSError(text)).status, refusal_of(OSError(text)).is_passing) == (403, False)


def test_a_request_that_stalled_is_worth_a_retry():
    said = "Client error with status code: 400 Bad Request: <Error><Code>RequestTimeout</Code></Error>"
    client = S3Client("bucket", endpoint=None, retries=QUICK)
    found = client.verdict(refusal_of(OSError(said)), "s3://bucket/k")
    assert isinstance(found, Transient)


@pytest.mark.parametrize(
    ("certificate", "says"),
    [
        ("UnknownIssuer", "certificate UnknownIssuer"),
        ("Other(\n    OtherError(\n        CaUsedAsEndEntity", "certificate CaUsedAsEndEntity"),
        ('NotValidForNameContext {\n  presented: [\n  "a"', "certificate NotValidForNameContext"),
    ],
)
def test_untrusted_certificate_is_said_at_once(certificate, says):
    error = OSError(
        "Generic S3 error: Error performing GET https://s3/k in 1ms - HTTP error: error sending request\n\n"
        f"Debug source:\nGeneric {{ error: InvalidCertificate(\n  {certificate},\n  ) }}"  # of obstore 0.12.1
    )
    found = S3Client("bucket", endpoint=None, retries=QUICK).verdict(refusal_of(error), "s3://bucket/k")
    assert isinstance(found, InputError)
    assert re.search(rf"not trusted \(.*{says}\); .*SSL_CERT_FILE", str(found))
    assert "\n" not in str(found)


@pytest.mark.parametrize(
    ("endpoint", "says"),
    [
        ("http://127.0.0.1:9", r"Connection refused \(127\.0\.0\.1:9\)"),
        ("https", "no TLS is spoken there, http:// may be meant"),
        ("hang", "timed out"),
    ],
)
def test_silence_has_its_cause(s3, url, endpoint, says):
    if endpoint == "hang":
        s3.faults.add(Fault(action="hang", times=None))
    endpoint = {"https": s3.door("a").replace("http:", "https:"), "hang": s3.door("a")}.get(
        endpoint, endpoint
    )
    with pytest.raises(StoreUnavailable, match=rf"\(last: HTTP error: error sending request: {says}\)"):
        ObjectStore(url, endpoint=endpoint, retries=SHORT).read("k")


def test_obstore_is_imported_only_by_a_request():
    code = (
        "import sys; from sweeps.storage.urls import open_store; open_store('s3://bucket/x'); "
        "assert 'obstore' not in sys.modules and 'aiohttp' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_workers_in_bad_weather_end_every_trial_once(s3, url, space):
    Experiment.create(ObjectStore(url, endpoint=s3.door("a"), retries=QUICK), replace(space, run_cap=12))
    for fault in (
        Fault(action="lose_response", times=None, chance=0.1),
        Fault(action="lose_request", times=None, chance=0.1),
        Fault(action="status", status=503, times=None, chance=0.05),
        Fault(action="status", status=429, times=None, chance=0.05),
    ):
        s3.faults.add(fault)
    reported: list[int] = []

    def work(name: str) -> None:
        experiment = Experiment.open(ObjectStore(url, endpoint=s3.door(name), retries=QUICK))
        while (record := experiment.ask(name)) is not None:
            done = Complete(worker=name, attempt=record.attempt, metrics={"loss": float(record.trial)})
            experiment.apply(record.trial, done)
            reported.append(record.trial)

    workers = [threading.Thread(target=work, args=(name,)) for name in ("w1", "w2", "w3")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    s3.faults.clear()
    records = Experiment.open(ObjectStore(url, endpoint=s3.door("a"), retries=QUICK)).trials()
    assert Counter(reported) == Counter(range(12))
    assert [record.trial for record in records] == list(range(12))
    assert {record.status for record in records} == {"completed"}
    assert {record.attempt for record in records} == {1}  # no lost answer cost a takeover
    assert len({tuple(sorted(record.parameters.items())) for record in records}) == 12
