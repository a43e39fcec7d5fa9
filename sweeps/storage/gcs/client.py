"""Requests to Google Cloud Storage: data by the XML API through obstore, the rest by the JSON API.

obstore lists no generations, deletes no version and shows no header `Date`. Those requests go over
google-auth's own session. Both have the credentials that google-auth finds.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC
from typing import Any
from urllib.parse import quote, urlencode

from sweeps.errors import InputError, StoreUnavailable, SweepError
from sweeps.storage.objects.answers import Refusal, not_a_service
from sweeps.storage.objects.client import ObjectClient, event_loop, is_url, within
from sweeps.storage.retries import RetryPolicy, Transient
from sweeps.text import json_reader
from sweeps.text.shorten import one_line

_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_EXPECTED = frozenset({200, 204, 404, 412})
_QUOTA = frozenset({"rateLimitExceeded", "userRateLimitExceeded"})
_NONE_FOUND = "Your default credentials were not found"  # google-auth's, where nothing says where they are
_LOGIN = "run `gcloud auth application-default login`, or let GOOGLE_APPLICATION_CREDENTIALS name a key file"
_FEDERATION = (
    "workload identity federation",
    "correct the file that GOOGLE_APPLICATION_CREDENTIALS names, or what its credential_source gives",
)
_KINDS = {
    "google.oauth2.service_account": ("service account", "its key may have been removed: make a new one"),
    "google.auth.impersonated_credentials": (
        "impersonated service account",
        "sign in again, and have roles/iam.serviceAccountTokenCreator on the account to impersonate",
    ),
    "google.auth.identity_pool": _FEDERATION,
    "google.auth.aws": _FEDERATION,
    "google.auth.pluggable": _FEDERATION,
    "google.auth.compute_engine.credentials": (
        "service account of this machine",
        "give the machine one, with --scopes=cloud-platform",
    ),
}
"""What credentials are by their module, and what to do if they are refused."""


class GoogleClient(ObjectClient):
    """Client of a bucket of Google Cloud Storage.

    Args:
        endpoint: base URL of the service; None for STORAGE_EMULATOR_HOST, else Google.

    Raises:
        InputError: the endpoint is not a URL.
    """

    def __init__(self, bucket: str, *, endpoint: str | None, retries: RetryPolicy) -> None:
        given = endpoint or os.environ.get("STORAGE_EMULATOR_HOST", "")
        address = given if "://" in given else f"http://{given}"
        if given in ("", "default"):
            address = f"https://storage.{os.environ.get('GOOGLE_CLOUD_UNIVERSE_DOMAIN') or 'googleapis.com'}"
        super().__init__(bucket, endpoint=address.rstrip("/"), retries=retries)
        if not is_url(self.endpoint):
            raise InputError(
                f"gs://{bucket}: {given!r} is not the URL of a storage service; "
                "correct or unset STORAGE_EMULATOR_HOST"
            )
        self.is_google = given in ("", "default")
        self._signing_in = threading.Lock()
        self._session: Any = None  # google-auth's, with the credentials
        self._signed_out = True  # other threads go on with the old session meanwhile
        self._sign_ins = 0
        self._thread = threading.local()  # the number of the last sign-in that the thread has seen

    # ---- obstore

    def open(self, options: Mapping[str, Any]) -> Any:
        from obstore.store import GCSStore

        client_options = dict(options["client_options"])
        if project := getattr(self._session.credentials, "quota_project_id", None):
            client_options["default_headers"] = {"x-goog-user-project": project}
        return GCSStore(
            self.bucket,
            base_url=self.endpoint,
            credential_provider=self.token,
            **{**options, "client_options": client_options},
        )

    def token(self) -> Any:
        """Return the access token; without credentials "", which obstore leaves out of what it reads.

        obstore asks whenever the last one is about to expire, also during an upload of hours.
        """
        with self._signing_in:
            with suppress(Exception):  # then the old one may still serve, or the service refuses it
                self._renew()
            credentials = self._session.credentials
            token, expiry = credentials.token or "", credentials.expiry
        return {"token": token, "expires_at": expiry and expiry.replace(tzinfo=UTC)}

    def version(self, about: Mapping[str, Any], url: str) -> str:
        if not (generation := about.get("version")):
            raise not_a_service(
                f"{url}: the storage service's answer carries no X-Goog-Generation, which records need"
            )
        return str(generation)

    def expectation(self, version: str) -> Mapping[str, str]:
        return {"version": version}

    condition = expectation

    # ---- the JSON API

    def request(self, method: str, path: str, url: str, query: Mapping[str, str]) -> Any:
        """Send once and return the response, whose status is one of 200, 204, 404 and 412.

        Args:
            path: below that of the bucket, quoted.

        Raises: as `once`.
        """
        from google.auth.exceptions import GoogleAuthError
        from requests.exceptions import RequestException

        event_loop()  # refuses in a forked child, which has the connections of its parent
        self.sign_in(url)
        sent = self.clock.local()
        try:
            response = self._session.request(
                method,
                f"{self.endpoint}/storage/v1/b/{quote(self.bucket, safe='')}/{path}"
                f"?{urlencode(query, quote_via=quote)}",
                timeout=(min(self.retries.attempt_s, self.retries.first_answer_s), self.retries.attempt_s),
                allow_redirects=False,
            )
        except (RequestException, GoogleAuthError, OSError) as error:
            said = Refusal(status=0, code="", detail=f"{type(error).__name__}: {one_line(error)}"[:300])
            raise self.verdict(said, url) from None
        self.clock.observe(response.headers.get("Date"), sent, self.clock.local())
        if response.status_code in _EXPECTED:
            self.answered, self.refused = True, False
            return response
        raise self.verdict(_refusal(response), url)

    def observe_clock(self, name: str, url: str) -> None:
        """Learn the server's time from the cheapest request that any account with access may send."""
        self.retry(lambda: self.request("GET", object_path(name), url, {"fields": "generation"}), url)
        if self.clock.age() == float("inf"):
            raise not_a_service(f"{url}: the storage service's answers carry no Date, which leases need")

    def no_bucket(self, url: str) -> InputError:
        """Return the error for a bucket that does not exist."""
        return InputError(
            f"{url}: there is no bucket {self.bucket}; make it with `gcloud storage buckets create "
            f"gs://{self.bucket} --uniform-bucket-level-access`, or correct --storage"
        )

    def fault(self, said: Refusal, url: str) -> Exception | None:
        if said.code == "NoSuchBucket":
            return self.no_bucket(url)
        # The XML API answers 403, not 401, to who has no credentials.
        session, is_secure = self._session, self.endpoint.startswith("https://")
        is_anonymous = is_secure and session is not None and not session.credentials.token
        if said.status == 401 or (said.status == 403 and is_anonymous):
            return self._unauthorized(said.detail, url)
        if said.status == 403 and said.code in _QUOTA:
            return Transient(said.detail, in_doubt=False, rate_limited=True)
        if said.status == 403:
            return self.denied(said)(
                f"{url}: access denied ({said.detail}); "
                f"give this account roles/storage.objectUser on gs://{self.bucket}"
            )
        if not self.is_google and not said.is_passing:
            return InputError(
                f"{url}: the storage service refused ({said.detail}); STORAGE_EMULATOR_HOST has to name "
                "one that speaks Google's XML API as well as its JSON API"
            )
        if "credential error" in said.text:
            return InputError(f"{url}: {said.detail}; correct the variable GOOGLE_… that says so")
        return None

    # ---- credentials

    def sign_in(self, url: str) -> None:
        from google.auth.exceptions import GoogleAuthError, OAuthError, RefreshError, TransportError
        from google.auth.transport.requests import AuthorizedSession

        try:
            with self._signing_in:
                if self._signed_out:
                    credentials = within(self.retries.first_answer_s, self._credentials)
                    # It must not refresh and repeat: a 401 is for `fault`.
                    self._session = AuthorizedSession(credentials, refresh_status_codes=())  # type: ignore[no-untyped-call]  # google-auth ships no types
                    self._signed_out = False
                    self._sign_ins += 1
                    self._stores.clear()  # they remember a token
                self._thread.sign_in = self._sign_ins
                self._renew()
        except GoogleAuthError as error:
            # Where the metadata server did not answer, or Google's had a fault, nobody has refused anything.
            is_passing = error.retryable or isinstance(error.__cause__, TransportError)
            if isinstance(error, RefreshError | OAuthError) and not is_passing:
                if self._session is None:  # a federation's are tried as they are found
                    raise InputError(f"{url}: not signed in ({one_line(error)}); {_FEDERATION[1]}") from None
                raise self._unauthorized(one_line(error), url) from None
            raise Transient(f"{type(error).__name__}: {one_line(error)}", in_doubt=False) from None
        except (OSError, ValueError) as error:  # of a federation's program, such as one that is not there
            raise self._unauthorized(f"{type(error).__name__}: {one_line(error)}", url) from None

    def _renew(self) -> None:
        """Refresh an access token that ends soon. Raises `GoogleAuthError`."""
        from google.auth.transport.requests import Request

        credentials = self._session.credentials
        if not credentials.valid:
            within(self.retries.attempt_s, lambda: credentials.refresh(Request()))

    def _credentials(self) -> Any:
        import google.auth
        from google.auth.credentials import AnonymousCredentials
        from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError

        # As in Google's own client: no token is sent to an emulator, least of all in clear text.
        if not self.endpoint.startswith("https://"):
            return AnonymousCredentials()  # type: ignore[no-untyped-call]  # as above
        try:
            return google.auth.default(scopes=[_SCOPE])[0]
        except DefaultCredentialsError as error:
            if str(error.args[0]).startswith(_NONE_FOUND):  # a public bucket can be read
                return AnonymousCredentials()  # type: ignore[no-untyped-call]  # as above
            why = str(error.args[0]).rstrip(".")
        except GoogleAuthError:
            raise
        except Exception as error:  # noqa: BLE001 - a file may hold anything
            why = f"{type(error).__name__}: {one_line(error)}"
        variable = "GOOGLE_APPLICATION_CREDENTIALS"
        named = os.environ.get(variable)
        # Not `NAME_CREDENTIALS: …`: what stands behind that is hidden as a secret.
        where = f"the file that {variable} names" if named else "gcloud's application default credentials"
        raise InputError(f"{where}: {' '.join(why.split())}; correct it, or {_LOGIN}")

    def _kind(self) -> tuple[str, str]:
        """Return what the credentials are, and what to do if they are refused."""
        module = type(getattr(self._session, "credentials", None)).__module__
        return _KINDS.get(module, ("application default credentials", _LOGIN))

    def signed_in_as(self) -> str:
        credentials = getattr(self._session, "credentials", None)
        if credentials is not None and not credentials.token:
            return "nobody (anonymous)"
        email = getattr(credentials, "service_account_email", "")
        return f"{self._kind()[0]} {email or ''}".rstrip()

    def _unauthorized(self, detail: str, url: str) -> Exception:
        """Return the error of a refusal; after a first one the credentials are found anew.

        The metadata server may have been slow. A refusal of what another thread has replaced since is none.
        """
        if getattr(self._thread, "sign_in", 0) != self._sign_ins:
            return Transient(f"not signed in ({detail})", in_doubt=False)
        if self.refused and not self._signed_out:
            fault: type[SweepError] = StoreUnavailable if self.answered else InputError
            return fault(f"{url}: not signed in ({detail}); {self._kind()[1]}")
        self.refused = self._signed_out = True
        return Transient(f"not signed in ({detail})", in_doubt=False)


def object_path(name: str) -> str:
    """Return the path of an object's requests below that of its bucket, quoted."""
    return f"o/{quote(name, safe='')}"


def _refusal(response: Any) -> Refusal:
    text = response.content.decode("utf-8", "replace")
    try:
        error = json_reader.parse(text)["error"]
        code = str((error.get("errors") or [{}])[0].get("reason", ""))
        message = str(error.get("message", ""))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        code, message = "", text
    detail = " ".join(f"{response.status_code} {message}".split())[:300]
    return Refusal(status=response.status_code, code=code, detail=detail)
