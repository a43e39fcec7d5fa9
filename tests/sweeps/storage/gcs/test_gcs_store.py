"""Failures of buckets: lost responses, refusals, partitions, wrong clocks, hostile names."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fake_gcs import FakeGcs, Fault

from sweeps.errors import AlreadyExists, Conflict, InputError, StoreUnavailable
from sweeps.experiment import Experiment
from sweeps.storage.base import NotFound
from sweeps.storage.gcs.store import GcsStore
from sweeps.storage.objects.answers import Refusal
from sweeps.storage.retries import RetryPolicy, Transient

QUICK = RetryPolicy(total_s=3.0, attempt_s=0.5, first_wait_s=0.02, longest_wait_s=0.1)
SHORT = RetryPolicy(total_s=0.6, attempt_s=0.3, first_wait_s=0.02, longest_wait_s=0.1)


@pytest.fixture
def url() -> str:
    return f"gs://bucket/tests/{uuid.uuid4().hex}"


@pytest.fixture
def store(gcs: FakeGcs, url: str) -> GcsStore:
    return GcsStore(url, endpoint=gcs.door("a"), retries=QUICK)


@pytest.fixture
def other(gcs: FakeGcs, url: str) -> GcsStore:
    """Another client of the same sweep, through a door of its own."""
    return GcsStore(url, endpoint=gcs.door("b"), retries=QUICK)


def statuses(gcs: FakeGcs, operation: str) -> list[int]:
    return [entry.status for entry in gcs.journal.entries(operation)]


class TestLostAnswers:
    def test_create_with_a_lost_answer_makes_one_generation(self, gcs, store):
        gcs.faults.add(Fault(action="lose_response", operation="insert"))
        version = store.create("trials/000000.json", b'{"token": "t1"}')
        assert statuses(gcs, "insert") == [0]  # it was read back
        assert store.read("trials/000000.json") == (b'{"token": "t1"}', version)

    def test_replace_with_a_lost_answer_makes_one_generation(self, gcs, store):
        first = store.create("k", b"one")
        gcs.faults.add(Fault(action="lose_response", operation="insert"))
        second = store.replace("k", b"two", first)
        assert statuses(gcs, "insert") == [200, 0]
        assert store.read("k") == (b"two", second)
        assert second != first

    def test_a_delete_whose_answer_is_lost_succeeds(self, gcs, store):
        version = store.create("k", b"one")
        gcs.faults.add(Fault(action="lose_response", operation="delete"))
        store.delete("k", version)
        assert statuses(gcs, "delete") == [0, 404]

    def test_an_answer_that_never_comes_is_as_good_as_a_lost_one(self, gcs, store):
        gcs.faults.add(Fault(action="hang", operation="insert"))
        version = store.create("k", b"one")
        assert store.read("k") == (b"one", version)

    def test_answer_lost_again_and_again_is_recognised(self, gcs, store):
        gcs.faults.add(Fault(action="lose_response", operation="insert"))
        gcs.faults.add(Fault(action="lose_request", operation="get", times=3))
        version = store.create("k", b"one")
        assert statuses(gcs, "insert") == [0, 412, 412, 412]
        assert statuses(gcs, "get") == [0, 0, 0, 200]
        assert store.read("k") == (b"one", version)

    def test_a_write_that_arrives_late_is_done_once(self, gcs, store):
        """It is not there when it is looked for, and then another try is refused because of it."""
        first = store.create("k", b"one")
        gcs.faults.add(Fault(action="lose_response", operation="insert"))
        gcs.faults.add(Fault(action="status", status=503, operation="get"))
        second = store.replace("k", b"two", first)
        assert statuses(gcs, "insert") == [200, 0, 412]
        assert store.read("k") == (b"two", second)

    def test_a_lost_write_of_what_is_there_is_sent_again(self, gcs, store):
        first = store.create("k", b"one")
        gcs.faults.add(Fault(action="lose_request", operation="insert"))
        second = store.replace("k", b"one", first)
        assert statuses(gcs, "insert") == [200, 0, 200]
        assert store.read("k") == (b"one", second)

    def test_a_taken_key_is_not_mistaken_for_our_own_write(self, gcs, store, other):
        version = other.create("k", b"theirs")
        gcs.faults.add(Fault(action="lose_request", operation="insert", door="a"))
        with pytest.raises(AlreadyExists):
            store.create("k", b"ours")
        assert store.read("k") == (b"theirs", version)

    def test_equal_bytes_of_another_writer_are_a_conflict(self, store, other):
        other.create("k", b"same")
        with pytest.raises(AlreadyExists):
            store.create("k", b"same")

    def test_write_overwritten_before_its_echo_is_a_conflict(self, gcs, store, other):
        first = store.create("k", b"one")
        gcs.faults.add(Fault(action="lose_response", operation="insert", door="a"))
        gcs.faults.add(Fault(action="delay", delay_s=0.3, operation="get", door="a"))
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
    @pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
    def test_a_burst_of_refusals_is_waited_out(self, gcs, store, status):
        gcs.faults.add(Fault(action="status", status=status, operation="insert", times=4))
        version = store.create("k", b"one")
        assert statuses(gcs, "insert") == [status] * 4 + [200]
        gcs.faults.add(Fault(action="status", status=status, times=2))
        assert store.read("k") == (b"one", version)
        gcs.faults.add(Fault(action="status", status=status, times=2))
        assert [entry.key for entry in store.list("")] == ["k"]

    def test_the_limit_of_one_write_a_second_is_waited_out(self, gcs, store):
        version = store.create("k", b"one")
        gcs.objects.one_write_per_second = True
        version = store.replace("k", b"two", version)
        assert 429 in statuses(gcs, "insert")
        assert store.read("k") == (b"two", version)

    def test_lone_writer_waits_for_the_second_to_pass(self, gcs, url):
        store = GcsStore(url, endpoint=gcs.url)  # with the waits that users have
        version = store.create("k", b"one")
        gcs.objects.one_write_per_second = True
        began = time.monotonic()
        store.replace("k", b"two", version)
        assert 0.9 < time.monotonic() - began < 2.0
        assert statuses(gcs, "insert") == [200, 429, 200]

    def test_a_forbidden_bucket_is_one_line_with_the_role_to_grant(self, gcs, store):
        gcs.faults.add(Fault(action="status", status=403, times=None))
        with pytest.raises(InputError, match=r"gs://bucket/.*access denied.*objectUser") as caught:
            store.create("k", b"one")
        assert "\n" not in str(caught.value)
        assert statuses(gcs, "insert") == [403]

    def test_emulator_that_ignores_what_writes_expect_keeps_no_sweep(self, gcs, store, space, monkeypatch):
        monkeypatch.setattr("fake_gcs.objects._check", lambda *present, reading: None)
        with pytest.raises(InputError, match="no conditional writes") as caught:
            Experiment.create(store, space)
        assert "\n" not in str(caught.value)
        assert store.list("") == []

    def test_emulator_without_the_xml_api_keeps_no_sweep(self, gcs, store, space):
        gcs.faults.add(Fault(action="status", status=400, operation="insert", times=None))
        with pytest.raises(InputError, match=r"400 .*STORAGE_EMULATOR_HOST .*XML API"):
            Experiment.create(store, space)

    def test_unknown_caller_learns_how_to_sign_in(self, gcs, store, monkeypatch):
        monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
        gcs.faults.add(Fault(action="status", status=401, times=None))
        with pytest.raises(InputError, match="gcloud auth application-default login"):
            store.read("k")
        assert statuses(gcs, "get") == [401, 401]

    def test_many_refused_reads_sign_in_once_more(self, gcs, store):
        keys = [f"trials/{i:06d}.json" for i in range(5)]
        for key in keys:
            store.create(key, b"x")
        before = store.client._sign_ins
        gcs.faults.add(Fault(action="status", status=401, operation="get", times=5))
        assert [found and found[0] for found in store.read_many(keys)] == [b"x"] * 5
        assert store.client._sign_ins == before + 1

    def test_silent_service_is_told_before_it_is_given_up(self, gcs, url, monkeypatch, caplog):
        monkeypatch.setattr("sweeps.storage.retries.SILENCE_S", 0.1)
        store = GcsStore(url, endpoint="http://127.0.0.1:9", retries=SHORT)
        with pytest.raises(StoreUnavailable):
            store.read("k")
        (line,) = (each.getMessage() for each in caplog.records if each.levelname == "WARNING")
        assert "no answer so far" in line

    def test_credentials_that_were_refused_once_may_come_right(self, gcs, store):
        gcs.faults.add(Fault(action="status", status=401))
        version = store.create("k", b"one")
        assert statuses(gcs, "insert") == [401, 200]
        assert store.read("k") == (b"one", version)

    @pytest.mark.parametrize(
        "action",
        [
            lambda s: s.read("k"),
            lambda s: s.create("k", b"x"),
            lambda s: s.replace("k", b"x", "5"),
            lambda s: s.list("trials/"),
        ],
        ids=["read", "create", "replace", "list"],
    )
    def test_a_missing_bucket_is_told_from_a_missing_object(self, gcs, action):
        store = GcsStore("gs://no-such-bucket/x", endpoint=gcs.url, retries=QUICK)
        with pytest.raises(InputError, match="create gs://no-such-bucket"):
            action(store)

    def test_an_endpoint_that_is_no_url_is_the_users_mistake(self, url):
        with pytest.raises(InputError, match="STORAGE_EMULATOR_HOST"):
            GcsStore(url, endpoint="http://:::nonsense", retries=SHORT).read("k")


class TestPartitions:
    @pytest.mark.parametrize("how", ["hang", "lose_request"])
    def test_partition_ends_in_one_line_within_the_patience(self, gcs, url, how):
        store = GcsStore(url, endpoint=gcs.door("a"), retries=SHORT)
        version = store.create("k", b"one")
        cut = gcs.partition("a", how)
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="check the network") as caught:
            store.replace("k", b"two", version)
        assert time.monotonic() - began < SHORT.total_s + 2 * SHORT.attempt_s + 1
        assert "\n" not in str(caught.value)
        gcs.faults.remove(cut)
        assert store.read("k") == (b"one", version)

    def test_nobody_listening_is_unavailable_too(self, url):
        with pytest.raises(StoreUnavailable, match="check the network"):
            GcsStore(url, endpoint="http://127.0.0.1:9", retries=SHORT).read("k")

    def test_a_service_that_never_answered_is_given_up_sooner(self, gcs, url):
        """A person waits for the first answer; a request of a sweep that is under way has longer."""
        hurried = replace(QUICK, total_s=30.0, first_answer_s=0.5)
        store = GcsStore(url, endpoint=gcs.door("a"), retries=hurried)
        cut = gcs.partition("a", "lose_request")
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"within 0\.5 s"):
            store.read("k")
        assert time.monotonic() - began < 5
        gcs.faults.remove(cut)
        version = store.create("k", b"one")
        cut = gcs.partition("a", "lose_request")
        threading.Timer(2.0, gcs.faults.remove, [cut]).start()
        assert store.read("k") == (b"one", version)

    def test_endless_search_for_credentials_is_given_up(self, url, monkeypatch):
        looking = threading.Event()
        monkeypatch.setattr("google.auth.default", lambda **_: looking.wait(20))
        hurried = replace(QUICK, total_s=30.0, first_answer_s=0.3)
        with pytest.raises(StoreUnavailable, match=r"credentials .* 0\.3 s"):
            GcsStore(url, endpoint="https://127.0.0.1:9", retries=hurried).read("k")
        looking.set()

    def test_a_partition_of_one_client_leaves_the_other_alone(self, gcs, store, other):
        gcs.partition("a")
        version = other.create("k", b"one")
        assert other.read("k") == (b"one", version)

    def test_the_heartbeats_thread_works_while_another_request_hangs(self, gcs, store):
        version = store.create("beat", b"0")
        store.create("slow", b"x")
        gcs.faults.add(Fault(action="hang", operation="get", name="*/slow"))
        stuck = threading.Thread(target=store.read, args=("slow",))
        stuck.start()
        began = time.monotonic()
        store.replace("beat", b"1", version)
        assert time.monotonic() - began < 0.3
        stuck.join()


class TestClock:
    @pytest.mark.parametrize(
        "skew", [3600.0, -3600.0, 60.0], ids=["hour-ahead", "hour-behind", "minute-ahead"]
    )
    def test_the_stores_clock_is_the_servers_however_wrong(self, gcs, store, skew):
        gcs.objects.clock_skew_s = skew
        assert store.now() == pytest.approx(time.time() + skew, abs=1.2)

    def test_a_server_clock_that_is_set_while_we_run_is_followed(self, gcs, store, monkeypatch):
        store.now()
        monkeypatch.setattr("sweeps.storage.objects.bucket.CLOCK_FRESH_S", 0.0)
        gcs.objects.clock_skew_s = -3600.0
        assert store.now() == pytest.approx(time.time() - 3600, abs=1.2)

    def test_the_clock_costs_no_request_right_after_one(self, gcs, store):
        store.list("")
        gcs.journal.clear()
        first, second = store.now(), store.now()
        assert first <= second
        assert gcs.journal.entries() == []

    def test_two_clients_agree_whatever_their_own_clocks_say(self, store, other, monkeypatch):
        here = store.now()
        monkeypatch.setattr(time, "time", lambda: 5.0)
        assert other.now() == pytest.approx(here, abs=1.2)


class TestVisibility:
    def test_another_writers_objects_are_seen_at_once(self, store, other):
        assert store.list("trials/") == []
        version = other.create("trials/000000.json", b"one")
        assert [(e.key, e.version) for e in store.list("trials/")] == [("trials/000000.json", version)]
        assert store.read("trials/000000.json") == (b"one", version)

    def test_an_object_that_grew_is_read_whole(self, store, other):
        version = store.create("k", b"x")
        assert store.read("k")[0] == b"x"
        other.replace("k", b"y" * 3_000_000, version)
        assert store.read("k")[0] == b"y" * 3_000_000

    def test_listing_takes_a_request_per_thousand(self, gcs, store, url):
        prefix = url.removeprefix("gs://bucket/")
        for index in range(2300):
            gcs.objects.put("bucket", f"{prefix}/trials/{index:06d}.json", b"x", {}, {})
        assert [e.key for e in store.list("trials/")] == [f"trials/{i:06d}.json" for i in range(2300)]
        assert gcs.journal.bill()["A"] == 3

    def test_each_operation_is_one_request(self, gcs, store):
        version = store.create("k", b"1")
        version = store.replace("k", b"2", version)
        store.read("k")
        store.list("")
        store.delete("k", version)
        assert [e.operation for e in gcs.journal.entries()] == ["insert", "insert", "get", "list", "delete"]

    def test_records_are_stored_so_that_no_cache_keeps_them(self, gcs, store, url):
        store.create("k.json", b"{}")
        name = url.removeprefix("gs://bucket/") + "/k.json"
        resource = gcs.objects.get("bucket", name, {}).resource()
        assert (resource["cacheControl"], resource["contentType"]) == ("no-store", "application/json")


class TestNames:
    @pytest.mark.parametrize(
        "key",
        [
            "with space", "ümläut/日本", "per%cent/%2F/%2e%2e", "a?b=c#d&e+f", "quote'\"", "*[x]?", "#5",
            "--b--\\",
        ],
    )  # fmt: skip
    def test_any_key_comes_back_as_it_was_given(self, store, key):
        version = store.create(key, b"x")
        assert store.read(key) == (b"x", version)
        assert [(e.key, e.version) for e in store.list(key)] == [(key, version)]
        store.delete(key, store.replace(key, b"y", version))
        assert store.list("") == []

    @pytest.mark.parametrize(
        "key",
        [
            "",
            "../up",
            "a/../../b",
            "/abs",
            "a//b",
            "a/./b",
            ".",
            "..",
            "nul\0",
            "new\nline",
            "\ud800",
            "k" * 300,
        ],
        ids=repr,
    )
    def test_a_key_cannot_leave_the_sweeps_prefix(self, gcs, store, key):
        for action in (
            store.read,
            lambda k: store.create(k, b"x"),
            lambda k: store.delete(k, "1"),
            store.folder,
        ):
            with pytest.raises(ValueError, match="not a key"):
                action(key)
        assert gcs.journal.entries() == []

    @pytest.mark.parametrize(
        "bad",
        [
            "gs://",
            "gs:///x",
            "gs://UPPER/x",
            "gs://b",
            "gs://bucket/../x",
            "gs://bucket/a/./b",
            "gs://bucket//x",
            "gs://bucket/a//b",
            "gs://bucket/a\nb",
            "gs://bu cket/x",
            "gs://bucket:80/x",
            "gs://user@bucket/x",
            "s3://bucket/x",
            "gs://bucket/" + "p" * 900,
        ],
    )
    def test_a_hostile_url_is_refused_before_anything_is_sent(self, bad):
        with pytest.raises(InputError, match="gs://"):
            GcsStore(bad)

    def test_sweeps_whose_names_begin_alike_do_not_see_each_other(self, gcs, url):
        one, two = (GcsStore(url + tail, endpoint=gcs.url, retries=QUICK) for tail in ("", "-b"))
        two.create("k", b"x")
        assert one.list("") == []
        with pytest.raises(NotFound, match=url + "/k"):
            one.read("k")

    def test_generation_zero_does_not_turn_a_replace_into_a_create(self, store):
        for version in ("0", "00", "-1", "", "one", "٣"):
            with pytest.raises(Conflict):
                store.replace("k", b"x", version)
        assert store.list("") == []


class TestProcesses:
    def test_one_of_two_processes_creates_each_key(self, gcs, url, tmp_path):
        program = tmp_path / "race.py"
        program.write_text(
            "import sys, json\n"
            "from sweeps.errors import AlreadyExists\n"
            "from sweeps.storage.gcs.store import GcsStore\n"
            "from sweeps.storage.retries import RetryPolicy\n"
            "store, me = GcsStore(sys.argv[1], retries=RetryPolicy(first_wait_s=0.02)), sys.argv[2].encode()\n"
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
        environment = {
            **os.environ,
            "STORAGE_EMULATOR_HOST": gcs.url,
            "PYTHONPATH": str(Path(__file__).parents[4]),
        }
        racers = [
            subprocess.Popen(
                [sys.executable, str(program), url, name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for name in ("a", "b")
        ]
        for racer in racers:
            assert racer.stdout.readline() == "ready\n"
        # One lost answer in five, so that the race is not only run in fair weather.
        gcs.faults.add(Fault(action="lose_response", operation="insert", times=None, chance=0.2))
        won = {
            name: json.loads(racer.communicate("go\n", timeout=60)[0])
            for name, racer in zip("ab", racers, strict=True)
        }
        assert sorted(won["a"] + won["b"]) == list(range(40))
        store = GcsStore(url, endpoint=gcs.url, retries=QUICK)
        assert {f"k{i}": name.encode() for name in won for i in won[name]} == {
            e.key: store.read(e.key)[0] for e in store.list("")
        }

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_a_forked_child_is_refused_and_does_not_hang(self, gcs, url):
        code = (
            "import os, sys\n"
            "from sweeps.storage.gcs.store import GcsStore\n"
            "store = GcsStore(sys.argv[1], endpoint=sys.argv[2])\n"
            "store.create('k', b'x')\n"
            "if os.fork() == 0:\n"
            "    acts = (lambda: store.read('k'), lambda: store.list(''), lambda: store.create('l', b'x'))\n"
            "    for act in acts:\n"
            "        try:\n"
            "            act()\n"
            "        except Exception as error:\n"
            "            print(error, flush=True)\n"
            "    os._exit(0)\n"
            "os.wait()\n"
        )
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code, url, gcs.url],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stdout.count("was forked") == 3
        assert done.stdout.count("\n") == 3

    def test_clients_are_imported_only_by_a_request(self):
        check = (
            "import sys; from sweeps.storage.urls import open_store; open_store('./x').list('a/');"
            "open_store('gs://bucket/x');"
            "print([m for m in ('gcsfs', 'aiohttp', 'google.auth', 'obstore') if m in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"


class Credentials:
    """Stand-in of google-auth's credentials; they expire with their first token.

    Attributes:
        refresh: what refreshing does besides.
    """

    quota_project_id = "billed"

    def __init__(self, refresh: Callable[[], object] = lambda: None) -> None:
        self.tokens, self._refresh = 0, refresh
        self.token, self.expiry = "", datetime(2020, 1, 1)

    @property
    def valid(self) -> bool:
        return self.tokens > 1

    def refresh(self, request: object) -> None:
        self._refresh()
        self.tokens += 1
        self.token, self.expiry = f"token {self.tokens}", datetime(2030, 1, 1)


class TestCredentials:
    SECURE = "https://127.0.0.1:9"  # nobody answers there

    def test_no_token_travels_to_an_emulator(self, gcs, monkeypatch, url):
        monkeypatch.setattr("google.auth.default", lambda **_: pytest.fail("it looked for credentials"))
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url.removeprefix("http://"))
        store = GcsStore(url, retries=QUICK)
        version = store.create("k", b"x")
        assert [entry.version for entry in store.list("")] == [version]
        assert store.client.token() == {"token": "", "expires_at": None}

    def test_google_auth_finds_the_credentials_and_refreshes_them(self, url, monkeypatch):
        """Both clients have the present token: obstore asks for it again when it is about to expire."""
        found, scopes = Credentials(), []
        monkeypatch.setattr(
            "google.auth.default", lambda scopes_=scopes, **how: scopes_.append(how) or (found, None)
        )
        client = GcsStore(url, endpoint=self.SECURE, retries=QUICK).client
        client.sign_in(url)
        assert (found.tokens, found.valid) == (1, False)  # it expires at once, during an upload of hours
        assert client.token() == {"token": "token 2", "expires_at": datetime(2030, 1, 1, tzinfo=UTC)}
        client.sign_in(url)
        assert found.tokens == 2
        assert scopes == [{"scopes": ["https://www.googleapis.com/auth/devstorage.read_write"]}]

    def test_blocked_refresh_ends_with_the_patience(self, url, monkeypatch):
        blocked = threading.Event()
        found = Credentials(lambda: blocked.wait(20))
        monkeypatch.setattr("google.auth.default", lambda **_: (found, None))
        with pytest.raises(StoreUnavailable, match=r"no credentials were found within 0\.3 s"):
            GcsStore(url, endpoint=self.SECURE, retries=SHORT).create("late", b"x")
        blocked.set()

    @pytest.mark.parametrize("status", [401, 403])
    def test_who_has_no_credentials_learns_how_to_sign_in(self, url, monkeypatch, status):
        from google.auth.exceptions import DefaultCredentialsError

        def find(**_: object) -> None:
            raise DefaultCredentialsError("Your default credentials were not found. To set up …")

        monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
        monkeypatch.setattr("google.auth.default", find)
        client = GcsStore(url, endpoint=self.SECURE, retries=SHORT).client
        said = Refusal(status=status, code="AccessDenied", detail="Anonymous caller")
        client.sign_in(url)
        assert isinstance(client.verdict(said, url), Transient)  # they are looked for once more
        client.sign_in(url)
        assert "gcloud auth application-default login" in str(client.verdict(said, url))

    def test_other_threads_go_on_while_credentials_are_found_anew(self, url, monkeypatch):
        found = [Credentials(), Credentials()]
        monkeypatch.setattr("google.auth.default", lambda **_: (found.pop(0), None))
        client = GcsStore(url, endpoint=self.SECURE, retries=SHORT).client
        said = Refusal(status=401, code="", detail="Invalid Credentials")
        client.sign_in(url)
        opened = client.store()
        verdicts = [client.verdict(said, url) for _ in range(2)]  # requests of two threads were refused
        assert all(isinstance(verdict, Transient) for verdict in verdicts)
        assert client.token()["token"] == "token 2"  # of a third, which is under way
        assert client.store() is opened
        client.sign_in(url)
        assert client.store() is not opened
        assert found == []

    def test_late_refusal_of_replaced_credentials_is_none(self, url, monkeypatch):
        monkeypatch.setattr("google.auth.default", lambda **_: (Credentials(), None))
        client = GcsStore(url, endpoint=self.SECURE, retries=SHORT).client
        said = Refusal(status=401, code="", detail="Invalid Credentials")
        client.sign_in(url)
        with ThreadPoolExecutor(1) as other:
            other.submit(client.sign_in, url).result()
            assert isinstance(client.verdict(said, url), Transient)
            client.sign_in(url)
            late = other.submit(client.verdict, said, url).result()  # its request began before
        assert isinstance(late, Transient)
        assert isinstance(client.verdict(said, url), InputError)  # this one is of the new credentials

    def test_silent_metadata_server_is_asked_again(self, url, monkeypatch):
        from google.auth.exceptions import RefreshError, TransportError

        def fail() -> None:
            raise RefreshError("no answer") from TransportError("no answer")

        monkeypatch.setattr("google.auth.default", lambda **_: (Credentials(fail), None))
        client = GcsStore(url, endpoint=self.SECURE, retries=SHORT).client
        for _ in range(3):
            with pytest.raises(Transient, match="no answer"):
                client.sign_in(url)

    def test_expired_sign_in_is_one_line(self, url, monkeypatch):
        from google.auth.exceptions import RefreshError

        def refuse() -> None:
            raise RefreshError(
                "invalid_grant: Token has been expired or revoked.", {"error": "invalid_grant"}
            )

        monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
        found = Credentials(refuse)
        monkeypatch.setattr("google.auth.default", lambda **_: (found, None))
        store = GcsStore(url, endpoint=self.SECURE, retries=SHORT)
        for act in (lambda: store.read("k"), lambda: store.list("")):
            with pytest.raises(InputError, match=r"expired or revoked.*gcloud auth") as caught:
                act()
            assert "\n" not in str(caught.value)


USES_TEMPORARY_FOLDER = """
import sys
from sweeps.storage.gcs.store import GcsStore
store = GcsStore(sys.argv[1], endpoint=sys.argv[2])
(store.folder("runs/000000") / "checkpoint").write_bytes(bytes(1000))
print("made", flush=True)
sys.stdin.read()
"""


class TestScratch:
    def test_scratch_folder_has_files_under_bucket_and_prefix(self, store, url, tmp_path, monkeypatch):
        monkeypatch.setenv("SWEEP_SCRATCH", str(tmp_path / "scratch"))
        folder = store.folder("runs/000000")
        assert folder == tmp_path / "scratch" / url.removeprefix("gs://") / "runs" / "000000"
        assert folder.is_dir()

    def test_a_temporary_folder_goes_with_the_store(self, gcs, url, monkeypatch):
        monkeypatch.delenv("SWEEP_SCRATCH", raising=False)
        store = GcsStore(url, endpoint=gcs.url)
        folder = store.folder("runs/000000")
        assert folder.is_dir()
        del store
        gc.collect()
        assert not folder.exists()

    def test_temporary_folder_of_a_killed_process_goes_with_the_next(self, gcs, url, tmp_path, monkeypatch):
        monkeypatch.delenv("SWEEP_SCRATCH", raising=False)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        folders = {}
        for name, dies in (("dead", True), ("living", False), ("young", True)):
            before = set(tmp_path.iterdir())
            process = subprocess.Popen(
                [sys.executable, "-c", USES_TEMPORARY_FOLDER, url, gcs.url],
                env={**os.environ, "TMPDIR": str(tmp_path)},
                stdout=subprocess.PIPE,
                stdin=subprocess.PIPE,
            )
            assert process.stdout.readline() == b"made\n"
            (folders[name],) = set(tmp_path.iterdir()) - before
            if dies:
                process.kill()
                process.communicate()
            else:
                living = process
        for name in ("dead", "living"):
            os.utime(folders[name] / ".in-use.lock", (1, 1))
        try:
            assert (folders["dead"] / "runs").is_dir()
            own = GcsStore(url, endpoint=gcs.url).folder("runs/000000")
            assert {name for name, folder in folders.items() if folder.exists()} == {"living", "young"}
            assert own.is_relative_to(tmp_path)
        finally:
            living.communicate()
        assert not folders["living"].exists()  # it has ended by itself

    def test_a_scratch_that_is_a_file_is_one_line(self, store, tmp_path, monkeypatch):
        (tmp_path / "file").write_text("x")
        monkeypatch.setenv("SWEEP_SCRATCH", str(tmp_path / "file"))
        with pytest.raises(StoreUnavailable, match="SWEEP_SCRATCH"):
            store.folder("runs/000000")


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["total_s", "attempt_s", "first_wait_s", "longest_wait_s"])
def test_a_patience_that_is_no_time_is_refused(name, bad):
    with pytest.raises(ValueError, match=name):
        RetryPolicy(**{name: bad})
