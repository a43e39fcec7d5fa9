"""Attacks on the dashboard: other hosts and origins, tokens, forged forms, traversal, scripts in every field."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import pytest
from published import put
from served_dashboard import CountingStore, dashboard, make_sweep, record, run, run_file

from sweeps.dashboard.readonly import ReadOnlyStore
from sweeps.dashboard.security import POLICY, guard_for, host_of, is_loopback
from sweeps.errors import WriteRefused
from sweeps.storage.local import LocalStore
from sweeps.trials import control
from sweeps.trials.record import Attempt

EVIL = "<img src=x onerror=alert(1)>\"'><script>alert(1)</script>{{1234*4321}}"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example", "127.0.0.1@evil.example",
     "", "[::2]", "0.0.0.0", "127.0.0.1:x", "127.0.0.1/evil", "localhost, evil.example", "2130706433"],
)  # fmt: skip
def test_a_name_that_was_rebound_to_this_machine_is_refused(tmp_path, space, host):
    make_sweep(tmp_path, space)

    async def test() -> None:
        async with dashboard(tmp_path, control=True) as served:
            assert (await served.get("/sweep/toy", Host=host))[0] in (400, 403)
            assert (await served.get("/static/dashboard.js", Host=host))[0] in (400, 403)
            status, _ = await served.post("/sweep/toy/do/stop", {}, Host=host, Origin=f"http://{host}")
            assert status in (400, 403)

    run(test())
    assert control.read(LocalStore(tmp_path / "toy")) == "running"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9", "LOCALHOST", "[::1]:80", "localhost."])
def test_our_own_names_are_answered_through_any_port(tmp_path, space, host):
    make_sweep(tmp_path, space)

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            assert (await served.get("/", Host=host))[0] == 200

    run(test())


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1.evil.example"},
        {"Origin": "http://localhost:1"},  # another program's page on this machine
        {"Origin": "file://"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
    ],
    ids=str,
)
def test_requests_from_pages_of_other_sites_are_refused(tmp_path, space, headers):
    make_sweep(tmp_path, space)

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            assert (await served.get("/sweep/toy", **headers))[0] == 403
            assert (await served.get("/sweep/toy/events", **headers))[0] == 403

    run(test())


def test_cross_site_links_open_pages_only(tmp_path, space):
    make_sweep(tmp_path, space)
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}

    async def test() -> None:
        async with dashboard(tmp_path, control=True) as served:
            assert (await served.get("/sweep/toy", **link))[0] == 200
            csrf = served.site.guard.csrf("/sweep/toy/do/stop")
            assert (await served.post("/sweep/toy/do/stop", {"csrf": csrf}, **link))[0] == 403

    run(test())
    assert control.read(LocalStore(tmp_path / "toy")) == "running"


def test_form_needs_the_token_of_its_path(tmp_path, space):
    make_sweep(tmp_path, space)

    async def test() -> None:
        async with dashboard(tmp_path, control=True) as served:
            guard, path = served.site.guard, "/sweep/toy/do/stop"
            for csrf in ("", "x", guard.csrf("/sweep/toy/do/pause"), guard.csrf(path)[:-1], "é" * 64):
                assert (await served.post(path, {"csrf": csrf}))[0] == 403
            async with served.session.post(f"{served.url}{path}", data={"csrf": guard.csrf(path)}) as answer:
                assert answer.status == 403  # without an Origin
            assert (await served.post(path, {"csrf": guard.csrf(path)}))[0] == 303

    run(test())
    assert control.read(LocalStore(tmp_path / "toy")) == "stopped"


def test_token_is_needed_beyond_loopback(tmp_path, space):
    make_sweep(tmp_path, space)
    guard = guard_for("0.0.0.0", (), with_token=False)
    assert guard.token is not None
    assert len(guard.token) >= 40

    async def test() -> None:
        async with dashboard(tmp_path, guard=guard, control=True) as served:
            for path in (
                "/",
                "/sweep/toy",
                "/sweep/toy/points.json",
                "/sweep/toy/events",
                "/static/dashboard.js",
            ):
                status, text = await served.get(path)
                assert status == 401
                assert "toy" not in text
            for wrong in ("", "x", guard.token[:-1], guard.cookie):
                assert (await served.get(f"/?token={wrong}"))[0] == 401
            forged = {"Cookie": f"{guard.cookie_name}={guard.token}"}  # the token itself is no cookie
            assert (await served.get("/", **forged))[0] == 401
            assert (await served.post("/sweep/toy/do/stop", {"csrf": guard.csrf("/sweep/toy/do/stop")}))[
                0
            ] == 401
            address = f"{served.url}/sweep/toy?token={guard.token}&sort=loss"
            async with served.session.get(address, allow_redirects=False) as answer:
                assert (answer.status, answer.headers["Location"]) == (303, "/sweep/toy?sort=loss")
                cookie = answer.headers["Set-Cookie"]
                assert re.search("HttpOnly", cookie)
                assert re.search("SameSite=Strict", cookie)
                assert guard.token not in cookie
            sent = {"Cookie": cookie.partition(";")[0]}
            page = (await served.get("/sweep/toy", **sent))[1]
            assert "0 of 8 trials" in re.sub(r"\s+", " ", re.sub("<[^>]*>", "", page))
            assert guard.token not in page

    run(test())


def test_only_loopback_needs_no_token():
    assert guard_for("127.0.0.1", (), with_token=False).token is None
    assert guard_for("::1", (), with_token=False).token is None
    assert guard_for("127.0.0.1", (), with_token=True).token is not None
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "localhost.evil.example", "")))
    assert guard_for("10.0.0.1", ("Sweeps.Example",), with_token=False).hosts >= {
        "10.0.0.1",
        "sweeps.example",
    }
    assert host_of("a:1:2") == host_of("a b") == host_of("x@y") == ""


def test_every_answer_has_the_security_policy(tmp_path, space):
    store = make_sweep(tmp_path, space, record(0), record(1, "failed"))
    run_file(store, 0, "metrics.jsonl", [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}])
    paths = ["/", "/sweep/toy", "/sweep/toy/trial/0", "/sweep/toy/compare?t=0&t=1", "/sweep/toy/prefixes",
             "/sweep/toy/points.json", "/nothing", "/sweep/toy/do/stop", "/static/dashboard.css"]  # fmt: skip

    async def test() -> None:
        async with dashboard(tmp_path, control=True) as served:
            await served.page("/sweep/toy")
            for path in paths:
                async with served.session.get(f"{served.url}{path}") as answer:
                    assert answer.headers["Content-Security-Policy"] == POLICY
                    assert answer.headers["X-Content-Type-Options"] == "nosniff"
                    text = await answer.text()
                if "html" in answer.content_type:
                    assert not re.search(
                        r"<script(?! src=\"/static/dashboard.js\" defer></script>)|<style", text
                    )
                    assert not re.search(r"\s(style|on\w+)=|(src|href)=\"(https?:)?//|javascript:", text)
            async with served.session.get(f"{served.url}/", headers={"Host": "evil"}) as answer:
                assert answer.headers["Content-Security-Policy"] == POLICY

    run(test())


class Elements(HTMLParser):
    """Collects the elements and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_scripts_in_every_field_stay_text(tmp_path, space):
    space = replace(space, name="toy&<b>")
    hostile = {
        "generator": "sobol",
        "metrics": {"loss": 1.0, EVIL: 2.0},
        "parameters": {"x": 0.5, "n": 3, "mode": EVIL, EVIL: EVIL},
        "history": (Attempt(attempt=1, worker=EVIL, start=1.0, end=2.0, reason="completed", detail=EVIL),),
    }
    progress = {"stage": EVIL, "step": 1, "of": 2, EVIL: EVIL}
    running = record(
        1, "running", worker=EVIL, progress=progress, parameters={"x": 0.1, "n": 1, "mode": EVIL}
    )
    failed = record(2, "failed", error=f"{EVIL}\n{EVIL}", failure=None)
    store = make_sweep(tmp_path, space, record(0, **hostile), running, failed)
    control.write(store, "paused", EVIL)
    lines = [
        {"stage": EVIL, "step": step, EVIL: 1.0, "loss": 2.0, "warnings": [{"message": EVIL}, EVIL]}
        for step in (1, 2)
    ]
    for index in (0, 1, 2):
        run_file(store, index, "metrics.jsonl", lines)
        run_file(store, index, "log.txt", f"{EVIL}\n\x1b]0;title\x07\ud7ff")
        run_file(store, index, "a&<b>'\" c.txt", EVIL)
    name, q = quote(space.name), quote(EVIL)
    paths = [f"/sweep/{name}", f"/sweep/{name}?q={q}&sort={q}&by={q}&x={q}&y={q}&status={q}"]
    paths += [f"/sweep/{name}/trial/{index}?axis={q}" for index in (0, 1, 2)]
    paths += [f"/sweep/{name}/compare?t=0&t=1&t=2&m={q}&axis={q}", f"/sweep/{name}/compare?t={q}", f"/{q}"]
    paths += [
        f"/sweep/{q}",
        f"/sweep/{name}/do/abandon?t=1",
        f"/sweep/{name}/do/scale?runner={q}&workers={q}",
    ]

    async def test() -> None:
        async with dashboard(tmp_path, control=True) as served:
            assert (await served.do(f"/sweep/{name}/do/pause", who=EVIL))[0] == 303
            await served.page("/")
            for path in ["/", *paths]:
                async with served.session.get(f"{served.url}{path}") as answer:
                    page = await answer.text()
                parser = Elements()
                parser.feed(page)
                tags = {tag for tag, _ in parser.found}
                assert not tags & {"img", "b", "iframe", "style", "object", "base", "foreignobject"} - {"b"}
                assert [a for tag, a in parser.found if tag == "script"] in (
                    [{"src": "/static/dashboard.js", "defer": None}], [],
                )  # fmt: skip
                assert not [a for _, a in parser.found if any(key.startswith("on") for key in a)]
                assert "onerror=alert(1)>" not in page
                assert "5332114" not in page  # no template in a template

    run(test())


TRAVERSALS = [
    "../../../sweep.json", "../attempt-1/log.txt", "/etc/passwd", "..%2f..%2fsweep.json", "log.txt\x00.png", "",
    ".", "..", "./log.txt", "log.txt/", "sub/../log.txt", "..\\..\\sweep.json", ".hidden", "link.txt", "folder/link.txt",
    "linked/secret.txt", "pipe", "sub",
]  # fmt: skip


@pytest.mark.parametrize("name", TRAVERSALS, ids=ascii)
def test_no_name_leads_out_of_an_attempts_files(tmp_path, space, name):
    store = make_sweep(tmp_path, space, record(0))
    secret = tmp_path / "outside"
    secret.mkdir()
    (secret / "secret.txt").write_text("the secret")
    for file in ("log.txt", "sub/inside.txt", ".hidden"):
        path = store.folder("runs/000000/attempt-1") / file
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    run_folder = tmp_path / "toy/runs/000000/attempt-1"
    (run_folder / "link.txt").symlink_to(secret / "secret.txt")
    (run_folder / "folder").mkdir()
    (run_folder / "folder" / "link.txt").symlink_to(secret / "secret.txt")
    (run_folder / "linked").symlink_to(secret, target_is_directory=True)
    os.mkfifo(run_folder / "pipe")

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            await served.page("/sweep/toy")
            path = "/sweep/toy/trial/0/file?attempt=1&name="
            status, text = await served.get(path + quote(name, safe=""))
            assert status == 404
            assert "the secret" not in text
            assert await served.get(path + "log.txt") == (200, "mine")
            assert await served.get(path + "sub/inside.txt") == (200, "mine")
            for attempt in ("0", "2", "-1", "1/../1", "x", "٣"):
                status, _ = await served.get(f"/sweep/toy/trial/0/file?attempt={quote(attempt)}&name=log.txt")
                assert status == 404

    run(test())


def test_linked_curves_and_logs_are_not_read(tmp_path, space):
    store = make_sweep(tmp_path, space, record(0))
    (tmp_path / "secret.txt").write_text('{"step": 1, "secret_number": 12}\n')
    for name in ("log.txt", "metrics.jsonl"):
        (store.folder("runs/000000/attempt-1") / name).symlink_to(tmp_path / "secret.txt")

    async def test() -> None:
        async with dashboard(tmp_path) as served:
            assert "secret" not in await served.page("/sweep/toy/trial/0")

    run(test())


@pytest.mark.parametrize("linked", ["attempt-1", "000000", "runs"])
def test_no_folder_that_is_a_link_is_listed(tmp_path, space, linked):
    store = make_sweep(tmp_path / "store", space, record(0))
    outside = tmp_path / "outside/000000/attempt-1"
    outside.mkdir(parents=True)
    (outside / "secret-name.txt").write_text("the secret")
    (outside / "log.txt").write_text("the secret")
    targets = {"attempt-1": outside, "000000": outside.parent, "runs": outside.parent.parent}
    places = {"attempt-1": "runs/000000/attempt-1", "000000": "runs/000000", "runs": "runs"}
    place = tmp_path / "store/toy" / places[linked]
    store.folder("runs/000000")
    if place.exists():
        shutil.rmtree(place)
    place.symlink_to(targets[linked], target_is_directory=True)

    async def test() -> None:
        async with dashboard(tmp_path / "store") as served:
            page = await served.page("/sweep/toy/trial/0")
            assert "secret" not in page
            for name in ("secret-name.txt", "log.txt"):
                status, text = await served.get(f"/sweep/toy/trial/0/file?attempt=1&name={name}")
                assert status == 404
                assert "the secret" not in text

    run(test())


@pytest.mark.parametrize(
    "path",
    ["/static/../server.py", "/static/%2e%2e%2fserver.py", "/static/..%2f..%2f..%2fetc%2fpasswd", "/sweep/..",
     "/sweep/%2e%2e", "/sweep/..%2ftoy", "/sweep/toy%2ftrials", "/sweep/.", "/sweep/toy/trial/0%2f..%2f1",
     "/sweep/toy%00", "/static/dashboard.js/", "/static/"],
)  # fmt: skip
def test_addresses_do_not_lead_to_other_files_or_sweeps(tmp_path, space, path):
    make_sweep(tmp_path / "store", space)
    make_sweep(tmp_path, replace(space, name="outside"))

    async def test() -> None:
        async with dashboard(tmp_path / "store") as served:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", served.port
            )  # nothing tidies the path
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            answer = (await reader.read()).decode()
            writer.close()
            assert answer.split()[1] in ("400", "404")
            assert "outside" not in answer

    run(test())


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_server_without_control_writes_nothing(tmp_path, space):
    store = make_sweep(tmp_path, space, record(0), record(1, "failed"), record(2, "running"))
    (tmp_path / "toy/.clock-0").unlink(missing_ok=True)
    before = contents(tmp_path)
    stores: list[CountingStore] = []

    def open_at(url: str) -> ReadOnlyStore:
        stores.append(CountingStore(LocalStore(url)))
        return ReadOnlyStore(stores[-1])

    async def test() -> None:
        async with dashboard(tmp_path, open_at=open_at) as served:
            for path in ("/", "/sweep/toy", "/sweep/toy/trial/0", "/sweep/toy/compare?t=0&t=1"):
                await served.page(path)
            routes = {(route.method, route.resource.canonical) for route in served.site.routes}
            assert {method for method, _ in routes} == {"GET", "HEAD"}
            assert not [path for _, path in routes if "/do/" in path]
            for action in ("pause", "resume", "stop", "retry", "abandon", "confirm", "scale"):
                path = f"/sweep/toy/do/{action}"
                assert (await served.get(f"{path}?t=1"))[0] == 404
                assert (await served.post(path, {"csrf": served.site.guard.csrf(path), "t": "1"}))[0] == 404
            for method in ("PUT", "DELETE", "PATCH", "POST"):
                async with served.session.request(
                    method, f"{served.url}/sweep/toy", headers={"Origin": served.url}, data=b"{}"
                ) as answer:
                    assert answer.status == 405

    run(test())
    assert [one.writes for one in stores] == [[]]
    assert contents(tmp_path) == before
    with pytest.raises(WriteRefused, match="only reads"):
        ReadOnlyStore(store).create("control.json", b"{}")
    put(store, record(3))  # the test's own store can


@pytest.mark.parametrize("size", [70_000, 900_000])
def test_a_large_form_is_refused(tmp_path, space, size):
    make_sweep(tmp_path, space)

    async def test() -> None:
        async with dashboard(tmp_path, control=True) as served:
            path = "/sweep/toy/do/stop"
            status, _ = await served.post(path, {"csrf": served.site.guard.csrf(path), "who": "x" * size})
            assert status == 413

    run(test())
