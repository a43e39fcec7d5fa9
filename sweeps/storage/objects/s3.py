"""Requests to S3, or to a service that speaks its protocol."""

from __future__ import annotations

import http.client
import math
import os
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from abc import abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from sweeps.errors import InputError, StoreUnavailable, SweepError
from sweeps.storage.objects import profiles
from sweeps.storage.objects.answers import Refusal, not_a_service
from sweeps.storage.objects.client import ObjectClient, is_set, is_url, within
from sweeps.storage.retries import RetryPolicy, Transient

_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_IN_HEADERS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
)
_SIGNED_FOR = timedelta(minutes=15)
_CREDENTIALS = re.compile(
    r"169\.254\.|/latest/api/token|/latest/meta-data|CredentialProvider|AssumeRole"
    r"|Missing (AccessKeyId|SecretAccessKey)"
)
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"})
_OTHER_REGION = frozenset(
    {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
)
SIGN_IN = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or let AWS_PROFILE name a profile that is signed in"
)
NO_CONDITIONS = (
    "this storage service has no conditional writes (If-None-Match and If-Match), without which two workers "
    "could take one trial; use one that has them"
)
NO_CHANGES = (
    "this storage service refuses each conditional write, even one that names the right version (If-Match); "
    "use one that accepts them"
)
NO_SERVICE = (
    "what answers is no storage service (a web page, or a proxy); correct or unset the variable of its "
    "endpoint, such as AWS_ENDPOINT_URL"
)
_TOKEN_FILE = "AWS_WEB_IDENTITY_TOKEN_FILE"  # noqa: S105 - a variable
_NEEDS = (
    ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"),
    (_TOKEN_FILE, "AWS_ROLE_ARN"),
)
_CONTAINER = {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"}
_KEYS = {
    "AWS_SKIP_SIGNATURE": "nobody (AWS_SKIP_SIGNATURE)",
    "AWS_ACCESS_KEY_ID": "AWS_ACCESS_KEY_ID",
    _TOKEN_FILE: "web identity (AWS_ROLE_ARN)",
    **dict.fromkeys(_CONTAINER, "role of this container"),
}
"""Variables that say where credentials are, in words; else they are a profile's or the machine's role's."""
_RENEW_S = 60.0  # boto3 looks at most so often whether a profile's credentials are about to expire


class ETagClient(ObjectClient):
    """Client of a service whose versions are ETags."""

    @abstractmethod
    async def clock_url(self, name: str) -> str:
        """Return the URL of an object that an HTTP client without credentials may ask for its `Date`."""

    def version(self, about: Mapping[str, Any], url: str) -> str:
        if not (e_tag := about["e_tag"]):
            if not self.answered:
                raise InputError(f"{url}: {NO_SERVICE}")
            raise StoreUnavailable(
                f"{url}: the storage service names no ETag, without which no change is safe"
            )
        return str(e_tag).strip('"')

    _quote = '"'  # as HTTP wants it; Ceph, and with it DigitalOcean's Spaces, refuse each PUT that has any

    def expectation(self, version: str) -> Mapping[str, str]:
        return {"e_tag": f"{self._quote}{version}{self._quote}"}

    def respell(self) -> bool:
        self._quote = "" if self._quote else '"'
        return True

    def condition(self, version: str) -> Mapping[str, str]:
        return {"if_match": f'"{version}"'}

    def observe_clock(self, name: str, url: str) -> None:
        self.head(name, url)
        if self.clock.age() == float("inf"):
            raise not_a_service(f"{url}: the storage service's answers carry no Date, which leases need")

    def head(self, name: str, url: str) -> dict[str, str]:
        """Return the headers of an object or of its absence, by name in small letters, for the clock, too.

        obstore shows no headers, so a URL is asked for them.
        """

        def attempt() -> dict[str, str]:
            address = self.once(lambda: self.clock_url(name), url, holds_errors=True)  # nobody was asked
            request = urllib.request.Request(address, method="HEAD")  # noqa: S310 - the service's
            sent = self.clock.local()
            try:
                with urllib.request.urlopen(request, timeout=self.retries.attempt_s) as answer:  # noqa: S310 - likewise
                    headers = answer.headers
            except urllib.error.HTTPError as error:  # such as 404: it has a Date, too
                headers = error.headers
                error.close()
            except (OSError, http.client.HTTPException) as error:
                raise self.verdict(Refusal(status=0, code="", detail=str(error)), url) from None
            self.clock.observe(headers.get("Date"), sent, self.clock.local())
            return {key.lower(): value for key, value in headers.items()}

        return self.retry(attempt, url)


class S3Client(ETagClient):
    """Client of a bucket of S3.

    Args:
        endpoint: base URL of the service; None for AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, else AWS itself.

    Raises:
        InputError: the endpoint is not a URL, or a variable unfit or without its fellow.
    """

    def __init__(self, bucket: str, *, endpoint: str | None, retries: RetryPolicy) -> None:
        name = next((name for name in _ENDPOINTS if os.environ.get(name)), "")
        super().__init__(bucket, endpoint=endpoint or os.environ.get(name, ""), retries=retries)
        if self.endpoint and not is_url(self.endpoint):
            raise InputError(
                f"{name}: {self.endpoint!r} is not the URL of a storage service; correct or unset it"
            )
        for name in _IN_HEADERS:
            value = os.environ.get(name, "")
            if not (value.isascii() and value.isprintable()):  # obstore would panic
                raise InputError(f"{name}: it holds a line break or another unfit character; set it anew")

        for one, other in _NEEDS:
            if os.environ.get(one) and not os.environ.get(other):  # obstore would take another kind
                raise InputError(f"{other}: it is not set, but {one} is; set both or neither")
        token = os.environ.get(_TOKEN_FILE)
        if token and not os.path.exists(token):  # noqa: PTH110 - as the environment spells it
            raise InputError(f"{_TOKEN_FILE}: {token} does not exist; mount the token, or unset the variable")
        # A profile that is named goes before the role that a container was given, as in AWS's own tools.
        first = set(_KEYS) - _CONTAINER if os.environ.get("AWS_PROFILE") else set(_KEYS)
        self._profile = "" if any(map(is_set, first)) else profiles.chosen()
        self._provider: Any = None
        self._renewed, self._signing_in = -math.inf, threading.Lock()

    def open(self, options: Mapping[str, Any]) -> Any:
        from obstore.store import S3Store

        given: dict[str, Any] = {"endpoint": self.endpoint} if self.endpoint else {}
        if self._provider is not None:
            given["credential_provider"] = self._provider.__call__  # without the region that it prescribes
            region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
            given["region"] = region or self._provider.config.get("region", "us-east-1")
        # Conditions are sent whatever AWS_CONDITIONAL_PUT says.
        return S3Store(self.bucket, conditional_put="etag", **given, **options)

    def sign_in(self, url: str) -> None:
        """Have boto3 read the profile, if the credentials are in one, and renew them."""
        if not self._profile or time.monotonic() - self._renewed < _RENEW_S:
            return

        def renew() -> None:
            with self._signing_in:
                if self._provider is None:
                    self._provider = profiles.provider(self._profile)
                profiles.renew(self._provider, self._profile)
                self._renewed = time.monotonic()

        # boto3 is slow to import, and a program of the profile may be slow to sign in.
        limit_s = self.retries.first_answer_s if self._provider is None else self.retries.attempt_s
        try:
            within(limit_s, renew)
        except profiles.Unsigned as error:
            what = f"AWS profile {self._profile}: {error}"
            if self.answered:  # it has worked before: a program may fail once, or a person sign in again
                raise Transient(what, in_doubt=False) from None
            raise InputError(f"{url}: {what}") from None

    def signed_in_as(self) -> str:
        if self._profile:
            method = f" ({self._provider.credentials.method})" if self._provider else ""
            return f"AWS profile {self._profile}{method}"
        return next((words for name, words in _KEYS.items() if is_set(name)), "role of this machine")

    def fault(self, said: Refusal, url: str) -> Exception | None:
        # Before anything has worked, the fault is the user's input and not a passing one.
        fault: type[SweepError] = StoreUnavailable if self.answered else InputError
        if said.code == "NoSuchBucket":
            return InputError(
                f"{url}: there is no bucket {self.bucket}; make it with `aws s3 mb s3://{self.bucket}`, or "
                "correct --storage or AWS_ENDPOINT_URL"
            )
        # With a variable and a profile people look at one. What follows `AWS_ACCESS_KEY_ID: ` is hidden.
        whose = f"{said.detail}, as {self.signed_in_as()}"
        if said.code in _EXPIRED:
            return fault(f"{url}: the credentials have expired ({whose}); renew them, then {SIGN_IN}")
        if said.code == "RequestTimeTooSkewed":
            return fault(f"{url}: this machine's clock is wrong ({said.detail}); let it follow a time server")
        if said.code in _OTHER_REGION or "without LOCATION" in said.text:
            return fault(
                f"{url}: the bucket is in another region ({said.detail}); set AWS_REGION to the bucket's"
            )
        if said.code in ("InvalidAccessKeyId", "SignatureDoesNotMatch") or said.status == 401:
            return fault(f"{url}: the credentials are refused ({whose}); {SIGN_IN}")
        if _CREDENTIALS.search(said.text):
            return fault(f"{url}: no credentials were found ({said.detail}); {SIGN_IN}")
        if said.status == 403:
            return self.denied(said)(
                f"{url}: access denied ({whose}); workers need s3:GetObject, s3:PutObject, "
                f"s3:DeleteObject and s3:ListBucket on {self.bucket}"
            )
        if said.status in (501, 405) and "performing PUT" in said.text:
            return InputError(f"{url}: {NO_CONDITIONS} ({said.detail})")
        if "Generic Config error" in said.text:
            return InputError(f"{url}: {said.detail}; correct the variable AWS_… that says so")
        if not said.is_passing:
            return fault(
                f"{url}: the storage service refused ({said.detail}); check --storage and AWS_ENDPOINT_URL"
            )
        return None

    async def clock_url(self, name: str) -> str:
        import obstore

        if is_set("AWS_SKIP_SIGNATURE"):  # obstore would look for credentials; a refusal has a Date, too
            region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
            service = self.endpoint.rstrip("/") or f"https://s3.{region}.amazonaws.com"
            return f"{service}/{self.bucket}/{urllib.parse.quote(name)}"
        return await obstore.sign_async(self.store(), "HEAD", name, _SIGNED_FOR)
