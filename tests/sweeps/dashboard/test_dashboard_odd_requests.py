"""Odd values in every input of every route: refused or answered, in one line, and never with a traceback."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest
from served_dashboard import Dashboard, dashboard, make_sweep, record, run, run_file

from sweeps.dashboard.security import guard_for
from sweeps.trials import control

ODD = [
    b"", b"%", b"%00", b"%ff", b"%ed%a0%80", b"%0d%0aX-Evil:%201", b"%09", b"\xff\xfe", "ü".encode(), "٣".encode(),
    b"-1", b"1e999", b"nan", b"9" * 400, b"a" * 3000, b"../../etc/passwd", b"/", b"a=1;b=2", b"*", b"loss<nan",
]  # fmt: skip
ODD_PATHS = [b"/", b"//evil.example", b"/%5cevil.example", b"\\evil.example", b"/%09/evil.example", b"%2f",
             b"%0d%0aX-Evil:%201", b"http://evil.example", b"\xff\xfe", b"%ff", b"%00"]  # fmt: skip
QUERY = b"t page sort order q status by x y axis m attempt name all failed runner workers token".split()
GUARDED = b"Origin Sec-Fetch-Site Sec-Fetch-Mode".split()
HEADERS = (
    b"Cookie Accept-Encoding If-None-Match If-Modified-Since Range Content-Type Content-Encoding Referer Accept "
    b"Forwarded X-Forwarded-For X-Forwarded-Host X-Forwarded-Proto Upgrade TE Last-Event-ID X-Live"
).split()
FORM = b"who reason yes t runner workers".split()


async def exchange(served: Dashboard, request: bytes) -> tuple[int, dict[str, str], str]:
    """The status, the headers and the beginning of the body that a raw request is answered with."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    try:
        writer.write(request)
        head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).decode("latin-1")
        status, *lines = head.splitlines()
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines) if name}
        is_stream = headers.get("content-type", "").startswith("text/event-stream")
        size = 0 if is_stream else int(headers.get("content-length", 0))
        body = await asyncio.wait_for(reader.readexactly(size), 10)
        return int(status.split()[1]), headers, body.decode("utf-8", "replace")
    finally:
        writer.close()


def request(
    method: str, target: bytes, *headers: bytes, host: bytes = b"localhost", body: bytes = b""
) -> bytes:
    lines = (method.encode() + b" " + target + b" HTTP/1.1", b"Host: " + host, b"Connection: close", *headers)
    if body:
        lines = (*lines, b"Content-Length: " + str(len(body)).encode())
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def paths_of(served: Dashboard, odd: bytes) -> list[tuple[str, bytes, bytes]]:
    """Method and path of each route, with usual values and with the odd one in each place that is variable."""
    found = []
    for route in served.site.routes:
        usual = route.resource.canonical
        strange = re.sub(r"\{\w+\}", "ODD", usual).encode().replace(b"ODD", odd)
        for name, value in (("{name}", "toy"), ("{index}", "0"), ("{file}", "dashboard.css")):
            usual = usual.replace(name, value)
        for action in ("pause", "retry", "scale") if "{action}" in usual else ("",):
            found.append((route.method, usual.replace("{action}", action).encode(), strange))
    return found


async def is_harmless(served: Dashboard, sent: bytes) -> None:
    """Assert that the answer to a raw request is no fault, and leads nowhere else."""
    status, headers, body = await exchange(served, sent)
    assert status < 500, (sent, body)
    assert "Traceback" not in body
    assert "x-evil" not in headers, sent
    if "location" in headers:
        place = headers["location"]
        assert re.match(r"/(?![/\\])", place), (sent, place)
        assert not re.search(r"[\x00-\x20\x7f\\]", place), (sent, place)


@pytest.fixture
def quiet(caplog):
    """The log, in which nothing but lines may stand."""
    caplog.set_level(logging.INFO)
    yield caplog
    assert not [one for one in caplog.records if one.exc_info or one.levelno >= logging.ERROR], caplog.text


@pytest.fixture
def store(tmp_path, space):
    made = make_sweep(tmp_path, space, record(0), record(1, "failed"), record(2, "running"))
    run_file(made, 0, "log.txt", "done")
    return made


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: ascii(odd[:20]))
def test_odd_values_in_every_route(tmp_path, store, quiet, odd):
    async def test() -> None:
        async with dashboard(tmp_path, control=True) as served:
            query = b"&".join(name + b"=" + odd for name in QUERY)
            oddly = [[name + b": " + odd for name in names] for names in (GUARDED, HEADERS)]
            await is_harmless(served, request("GET", b"/", host=odd))
            csrf, origin = served.site.guard.csrf, b"Origin: http://localhost"
            form = b"Content-Type: application/x-www-form-urlencoded"
            for method, path, strange in paths_of(served, odd):
                body = b"csrf=" + csrf(path.decode()).encode() + b"".join(b"&" + n + b"=" + odd for n in FORM)
                if method == "GET":
                    for one in (path + b"?" + query, strange, path + b"?" + odd):
                        await is_harmless(served, request("GET", one))
                    for headers in oddly:
                        await is_harmless(served, request("GET", path, *headers))
                elif method == "POST":
                    for kind in (form, form + b"; charset=" + odd, b"Content-Type: " + odd):
                        await is_harmless(served, request("POST", path, origin, kind, body=body))
                    await is_harmless(served, request("POST", path, origin, form, body=b"csrf=" + odd))
                    await is_harmless(served, request("POST", strange, origin, form, body=body))

    run(test())


@pytest.mark.parametrize("odd", ODD_PATHS, ids=lambda odd: ascii(odd[:20]))
def test_odd_values_with_the_token(tmp_path, store, quiet, odd):
    guard = guard_for("127.0.0.1", (), with_token=True)

    async def test() -> None:
        async with dashboard(tmp_path, control=True, guard=guard) as served:
            token = b"?token=" + (guard.token or "").encode() + b"&q=" + odd
            for method, path, strange in paths_of(served, odd):
                if method == "GET":
                    for one in (
                        strange + token,
                        b"/" + strange + token,
                        odd + path + token,
                        path + b"?token=" + odd,
                    ):
                        await is_harmless(served, request("GET", one))
                    cookie = b"Cookie: " + guard.cookie_name.encode() + b"=" + odd
                    await is_harmless(served, request("GET", path, cookie))

    run(test())


@pytest.mark.parametrize(
    "target",
    ["//evil.example/", "///evil.example", "/%2Fevil.example/", "/%2f%2fevil.example", "/%5Cevil.example",
     "/%09/evil.example", "/%0a/evil.example", "/\\evil.example", "//evil.example/..", "http:evil.example",
     "http://localhost//evil.example/", "javascript:alert(1)", "evil.example"],
)  # fmt: skip
def test_token_leads_to_no_other_host(tmp_path, store, target):
    guard = guard_for("127.0.0.1", (), with_token=True)

    async def test() -> None:
        async with dashboard(tmp_path, guard=guard) as served:
            sent = request("GET", f"{target}?token={guard.token}".encode())
            status, headers, _ = await exchange(served, sent)
            assert status == 400
            assert "location" not in headers
            status, headers, _ = await exchange(
                served, request("GET", f"/sweep/a%3Fb%20c?token={guard.token}".encode())
            )
            assert (status, headers["location"]) == (303, "/sweep/a%3Fb%20c")

    run(test())


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("application/x-www-form-urlencoded; charset=evil", b"who=a", 415),
        ("application/x-www-form-urlencoded; charset=utf-16", b"who=a", 415),
        ("multipart/form-data", b"who=a", 415),
        ("multipart/form-data; boundary=x", b"--x\r\n\r\n", 415),
        ("text/plain", b"who=a", 415),
        ("application/json", b"{}", 415),
        ("application/x-www-form-urlencoded", b"who=\xff", 400),
        ("application/x-www-form-urlencoded", b"t=1&" * 5000, 400),
    ],
)
def test_form_that_cannot_be_read_is_refused_in_a_line(tmp_path, store, quiet, kind, body, status):
    async def test() -> None:
        async with dashboard(tmp_path, control=True) as served:
            headers = (b"Origin: http://localhost", b"Content-Type: " + kind.encode())
            found, _, text = await exchange(
                served, request("POST", b"/sweep/toy/do/stop", *headers, body=body)
            )
            assert found == status
            assert re.fullmatch(r"[^\n]{10,100}\n", text)

    run(test())


FORM_HEAD = b"POST /sweep/toy/do/stop HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n"
FORM_TYPE = FORM_HEAD + b"Content-Type: application/x-www-form-urlencoded\r\n"
MALFORMED = {
    "no HTTP": b"hello\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "version": b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
    "long target": b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "long header": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
    "no colon": b"GET / HTTP/1.1\r\nHost localhost\r\n\r\n",
    "NUL": b"GET / HTTP/1.1\r\nHost: local\x00host\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "length": FORM_TYPE + b"Content-Length: x\r\n\r\n",
    "negative length": FORM_TYPE + b"Content-Length: -1\r\n\r\n",
    "length and chunks": FORM_TYPE + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunk": FORM_TYPE + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nwho=a\r\n0\r\n\r\n",
    "gzip": FORM_TYPE + b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nwho=a",
    "brotli": FORM_TYPE + b"Content-Encoding: br\r\nContent-Length: 5\r\n\r\nwho=a",
    "expectation": FORM_TYPE + b"Expect: wonders\r\nContent-Length: 5\r\n\r\nwho=a",
    "method": b"\xff\xfe / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "port": b"GET http://localhost:99999/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "bracket": b"GET http://[::1/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "star": b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "authority": b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("sent", MALFORMED.values(), ids=MALFORMED)
def test_malformed_request_is_refused_without_a_traceback(tmp_path, store, quiet, sent):
    async def test() -> None:
        async with dashboard(tmp_path, control=True) as served:
            status, _, body = await exchange(served, sent)
            assert 400 <= status < 500
            assert "Traceback" not in body
            assert (await served.get("/static/dashboard.css"))[0] == 200

    run(test())
    assert control.read(store) == "running"


def test_form_that_does_not_arrive_is_given_up(tmp_path, store, quiet, monkeypatch):
    monkeypatch.setattr("sweeps.dashboard.actions._FORM_S", 0.2)

    async def test() -> None:
        async with dashboard(tmp_path, control=True) as served:
            status, _, text = await exchange(served, FORM_TYPE + b"Content-Length: 50\r\n\r\nwho=a")
            assert status == 408
            assert "0.2 s" in text

    run(test())
