"""Guard of the dashboard: hosts, origins, the token, CSRF tokens, and the headers of each answer.

A page of another site can make a browser send requests here, and by DNS rebinding even under a name of its
own. So the host of every request must be one of ours, a request that names its origin must come from our own
pages, and on any address but loopback a cookie with the token is needed.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from aiohttp import web

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
TOKEN = "token"  # noqa: S105 - the name of a parameter
CSRF = "csrf"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
# Browsers drop tabs and line ends from an address, take `\` for `/`, and `//host` for another host.
_PLAIN_PATH = re.compile(r"/(?!/)[^\x00-\x1f\x7f\\]*")


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a server that listens on the host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def names_of(host: str) -> frozenset[str]:
    """Return the names under which a server that listens on the host may be asked for."""
    names = {host, *LOOPBACK}
    if host in ("0.0.0.0", "::", ""):  # noqa: S104 - compared, not bound
        import psutil

        names |= {socket.gethostname(), socket.getfqdn()}
        addresses = (one.address for some in psutil.net_if_addrs().values() for one in some)
        names |= {address.partition("%")[0] for address in addresses}
    return frozenset(name.lower() for name in names if name)


def host_of(header: str) -> str:
    """Return the host in a Host header or behind `http://`, without its port; "" if it is none."""
    if not header or any(sign in header for sign in "/\\@?#, \t"):
        return ""
    try:
        parts = urlsplit(f"//{header}")
        _ = parts.port  # raises for what is no port
    except ValueError:
        return ""
    return (parts.hostname or "").lower().rstrip(".")


@dataclass(frozen=True, kw_only=True)
class Guard:
    """Check of every request.

    Args:
        hosts: names under which the server may be asked for, in lower case.
        token: of the server; None if everybody who reaches it may read it.
        key: secret of this process, from which cookies and CSRF tokens are made.
    """

    hosts: frozenset[str]
    token: str | None = None
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32))

    def csrf(self, path: str) -> str:
        """Return the token that a form must send to a path."""
        return self._signed("csrf", path)

    @property
    def cookie_name(self) -> str:
        """Return the name of the cookie: servers on other ports of this host have cookies of their own."""
        return f"stagesweep_{self._signed('name', '')[:8]}"

    @property
    def cookie(self) -> str:
        """Return the value of the cookie of those who know the token; it does not give the token away."""
        return self._signed("cookie", self.token or "")

    def _signed(self, purpose: str, text: str) -> str:
        return hmac.new(self.key, f"{purpose}\0{text}".encode(), hashlib.sha256).hexdigest()

    def refuse_strangers(self, request: web.Request) -> None:
        """Raise HTTPForbidden unless the request is for one of our hosts and not from another site.

        A path that a browser would take for another host's raises HTTPBadRequest: pages lead back to it.
        """
        if not _PLAIN_PATH.fullmatch(unquote(request.rel_url.raw_path)):
            raise web.HTTPBadRequest(text="the address has a path that no page here has\n")
        if host_of(request.headers.get("Host", "")) not in self.hosts:
            raise web.HTTPForbidden(text="this dashboard is not asked for by that name; see --allow-host\n")
        origin = request.headers.get("Origin")
        if origin is not None:
            scheme, _, place = origin.partition("://")
            is_ours = scheme in ("http", "https") and host_of(place) in self.hosts
            if not is_ours or place.lower() != request.headers.get("Host", "").lower():
                raise web.HTTPForbidden(text="requests from pages of other sites are refused\n")
        site = request.headers.get("Sec-Fetch-Site", "none")
        is_link = request.method == "GET" and request.headers.get("Sec-Fetch-Mode") == "navigate"
        if site not in ("none", "same-origin") and not is_link:
            raise web.HTTPForbidden(text="requests from pages of other sites are refused\n")

    def is_known(self, request: web.Request) -> bool:
        """Return whether the request may read: it has the cookie, or none is needed."""
        if self.token is None:
            return True
        return _same(request.cookies.get(self.cookie_name, ""), self.cookie)

    def has_token(self, request: web.Request) -> bool:
        """Return whether the request's address has the token."""
        if self.token is None:
            return False
        return _same(request.query.get(TOKEN, ""), self.token)

    def require_own_form(self, request: web.Request, sent: str) -> None:
        """Raise HTTPForbidden unless a form of ours, for this very path, was sent from our own page."""
        if "Origin" not in request.headers and request.headers.get("Sec-Fetch-Site") != "same-origin":
            raise web.HTTPForbidden(text="a form is taken from the dashboard's own pages only\n")
        if not _same(sent, self.csrf(request.path)):
            raise web.HTTPForbidden(text="this form is out of date; open its page again\n")


def _same(given: str, expected: str) -> bool:
    # What is no UTF-8 in a header arrives as surrogates, which `encode` alone refuses.
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode())


def guard_for(host: str, allowed: Iterable[str], *, with_token: bool) -> Guard:
    """Return the guard of a server on the host.

    Args:
        with_token: whether a token is needed on loopback, too.
    """
    needed = with_token or not is_loopback(host)
    return Guard(
        hosts=names_of(host) | frozenset(name.lower() for name in allowed),
        token=secrets.token_urlsafe(32) if needed else None,
    )
