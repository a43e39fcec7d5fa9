"""Errors of obstore: worth a retry, or one line for a person. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sweeps.errors import InputError, StoreUnavailable, SweepError
from sweeps.storage.gcs.classification import Transient

_STATUS = re.compile(r"status code: (\d{3})")
_TAG = re.compile(r"<(Code|Message)>([^<]*)<")
_RETRIABLE = frozenset({408, 409, 429})
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


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """An error answer of the service, parsed.

    Args:
        status: HTTP status; 0 where there was no answer.
        code: S3's name of the error, or "".
        detail: one line for a person.
    """

    status: int
    code: str
    detail: str


def refusal(error: BaseException) -> Refusal:
    """Return what an error of obstore tells: its message has the answer's status and body in it."""
    text = str(error).partition("\n\nDebug source")[0]
    status = _STATUS.search(text)
    tags = dict(_TAG.findall(text))
    code = tags.get("Code", "")
    detail = " ".join(filter(None, (status and status[1], code, tags.get("Message", ""))))
    if not tags:
        detail = " ".join(text.rpartition(" - ")[2].split())
    return Refusal(status=int(status[1]) if status else 0, code=code, detail=detail[:300])


def is_missing_object(error: BaseException) -> bool:
    """Return whether the error says that there is no such object, in a bucket that exists."""
    return isinstance(error, FileNotFoundError) and refusal(error).code != "NoSuchBucket"


def raised_by(error: BaseException, url: str, bucket: str, *, first: bool) -> Exception:
    """Return the error to raise for one of obstore.

    Args:
        url: the object's, for messages.
        first: nothing has worked yet, so that the fault is the user's input and not a passing one.
    """
    said = refusal(error)
    fault: type[SweepError] = InputError if first else StoreUnavailable
    if said.code == "NoSuchBucket":
        return InputError(
            f"{url}: there is no bucket {bucket}; make it with `aws s3 mb s3://{bucket}`, or correct "
            "--storage or AWS_ENDPOINT_URL"
        )
    if said.code in _EXPIRED:
        return fault(f"{url}: the credentials have expired ({said.detail}); renew them, then {SIGN_IN}")
    if said.code == "RequestTimeTooSkewed":
        return fault(f"{url}: this machine's clock is wrong ({said.detail}); let it follow a time server")
    if said.code in _OTHER_REGION or "without LOCATION" in str(error):
        return fault(
            f"{url}: the bucket is in another region ({said.detail}); set AWS_REGION to the bucket's"
        )
    if said.code in ("InvalidAccessKeyId", "SignatureDoesNotMatch") or said.status == 401:
        return fault(f"{url}: the credentials are refused ({said.detail}); {SIGN_IN}")
    if _CREDENTIALS.search(str(error).partition("\n\nDebug source")[0]):
        return fault(f"{url}: no credentials were found ({said.detail}); {SIGN_IN}")
    if said.status == 403:
        return fault(
            f"{url}: access denied ({said.detail}); workers need s3:GetObject, s3:PutObject, s3:DeleteObject "
            f"and s3:ListBucket on {bucket}"
        )
    if said.status in (501, 405):
        return InputError(f"{url}: {NO_CONDITIONS} ({said.detail})")
    if "Generic Config error" in str(error):
        return InputError(f"{url}: {said.detail}; correct the variable AWS_… that says so")
    stalled = said.code == "RequestTimeout"  # its status is 400
    if said.status == 0 or stalled or said.status in _RETRIABLE or said.status >= 500:
        return Transient(said.detail, in_doubt=True, rate_limited=said.status in (429, 503))
    return fault(f"{url}: the storage service refused ({said.detail}); check --storage and AWS_ENDPOINT_URL")


NO_CONDITIONS = (
    "this storage service has no conditional writes (If-None-Match and If-Match), without which two workers "
    "could take one trial; use one that has them"
)
