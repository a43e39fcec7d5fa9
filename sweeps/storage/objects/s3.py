"""Requests to S3, or to a service that speaks its protocol."""

from __future__ import annotations

import http.client
import os
import re
import shlex
import urllib.error
import urllib.request
from abc import abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from sweeps.errors import InputError, StoreUnavailable, SweepError
from sweeps.storage.objects.answers import Refusal, not_a_service
from sweeps.storage.objects.client import ObjectClient, is_url
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
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run "
    '`eval "$(aws configure export-credentials --format env)"`'
)
NO_CONDITIONS = (
    "this storage service has no conditional writes (If-None-Match and If-Match), without which two workers "
    "could take one trial; use one that has them"
)
NO_SERVICE = (
    "what answers is no storage service (a web page, or a proxy); correct or unset the variable of its "
    "endpoint, such as AWS_ENDPOINT_URL"
)
_KEYS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)
"""Variables that say where credentials are; without one, obstore asks the machine for those of its role."""


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

    def expectation(self, version: str) -> Mapping[str, str]:
        return {"e_tag": f'"{version}"'}

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
                raise Transient(str(error), in_doubt=False) from None
            self.clock.observe(headers.get("Date"), sent, self.clock.local())
            return {name.lower(): value for name, value in headers.items()}

        return self.retry(attempt, url)


class S3Client(ETagClient):
    """Client of a bucket of S3.

    Args:
        endpoint: base URL of the service; None for AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, else AWS itself.

    Raises:
        InputError: the endpoint is not a URL, a variable unfit, or the credentials are in a profile alone.
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

        profile = os.environ.get("AWS_PROFILE", "")
        if profile and not any(os.environ.get(name) for name in _KEYS):
            raise InputError(
                "AWS_PROFILE: profiles and SSO are not read; sign in, then "
                f'`eval "$(aws configure export-credentials --profile {shlex.quote(profile)} --format env)"`'
                ", or unset AWS_PROFILE for the role of this machine"
            )

    def open(self, options: Mapping[str, Any]) -> Any:
        from obstore.store import S3Store

        given: dict[str, Any] = {"endpoint": self.endpoint} if self.endpoint else {}
        # Conditions are sent whatever AWS_CONDITIONAL_PUT says.
        return S3Store(self.bucket, conditional_put="etag", **given, **options)

    def fault(self, said: Refusal, url: str) -> Exception | None:
        # Before anything has worked, the fault is the user's input and not a passing one.
        fault: type[SweepError] = StoreUnavailable if self.answered else InputError
        if said.code == "NoSuchBucket":
            return InputError(
                f"{url}: there is no bucket {self.bucket}; make it with `aws s3 mb s3://{self.bucket}`, or "
                "correct --storage or AWS_ENDPOINT_URL"
            )
        if said.code in _EXPIRED:
            return fault(f"{url}: the credentials have expired ({said.detail}); renew them, then {SIGN_IN}")
        if said.code == "RequestTimeTooSkewed":
            return fault(f"{url}: this machine's clock is wrong ({said.detail}); let it follow a time server")
        if said.code in _OTHER_REGION or "without LOCATION" in said.text:
            return fault(
                f"{url}: the bucket is in another region ({said.detail}); set AWS_REGION to the bucket's"
            )
        if said.code in ("InvalidAccessKeyId", "SignatureDoesNotMatch") or said.status == 401:
            return fault(f"{url}: the credentials are refused ({said.detail}); {SIGN_IN}")
        if _CREDENTIALS.search(said.text):
            return fault(f"{url}: no credentials were found ({said.detail}); {SIGN_IN}")
        if said.status == 403:
            return fault(
                f"{url}: access denied ({said.detail}); workers need s3:GetObject, s3:PutObject, "
                f"s3:DeleteObject and s3:ListBucket on {self.bucket}"
            )
        if said.status in (501, 405):
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

        return await obstore.sign_async(self.store(), "HEAD", name, _SIGNED_FOR)
