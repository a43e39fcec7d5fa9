"""Requests to Azure Blob Storage."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from sweeps.errors import InputError, StoreUnavailable, SweepError
from sweeps.storage.objects.answers import Refusal
from sweeps.storage.objects.client import is_set, is_url
from sweeps.storage.objects.s3 import ETagClient
from sweeps.storage.retries import RetryPolicy

_ENDPOINTS = ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
_ACCOUNT = "AZURE_STORAGE_ACCOUNT_NAME"
_CREDENTIALS = re.compile(
    r"169\.254\.|token request|account get-access-token|Invalid Access Key|UnauthorizedManagedIdentity"
    r"|SAS query"
)
_SIGN_IN = (
    "set AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, "
    "or run `az login` and set AZURE_USE_AZURE_CLI=true"
)
_KINDS = (
    ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCOUNT_KEY"),
    ("AZURE_CLIENT_SECRET", "service principal (AZURE_CLIENT_ID)"),
    ("AZURE_FEDERATED_TOKEN_FILE", "workload identity (AZURE_CLIENT_ID)"),
    ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_TOKEN"),
    ("AZURE_USE_AZURE_CLI", "account of `az login`"),
)
"""Variables of credentials, in the order in which obstore takes them, and in words."""


class AzureClient(ETagClient):
    """Client of a container of Azure.

    Args:
        endpoint: base URL of the account; None for AZURE_STORAGE_ENDPOINT, else that of
            AZURE_STORAGE_ACCOUNT_NAME in Azure.

    Raises:
        InputError: the environment names no account, or the endpoint is not a URL.
    """

    def __init__(self, bucket: str, *, endpoint: str | None, retries: RetryPolicy) -> None:
        name = next((name for name in _ENDPOINTS if os.environ.get(name)), "")
        self._account = os.environ.get(_ACCOUNT, "")
        if not re.fullmatch("[a-z0-9]{3,24}", self._account):  # obstore would panic over a line break
            raise InputError(
                f"az://{bucket}: {_ACCOUNT} is {self._account!r}; set it to the name of the storage account, "
                "3 to 24 lower-case letters and digits"
            )
        given = endpoint or os.environ.get(name) or f"https://{self._account}.blob.core.windows.net"
        super().__init__(bucket, endpoint=given.rstrip("/"), retries=retries)
        if not is_url(self.endpoint):
            raise InputError(f"{name}: {given!r} is not the URL of a storage service; correct or unset it")

    def open(self, options: Mapping[str, Any]) -> Any:
        from obstore.store import AzureStore

        return AzureStore(self.bucket, account_name=self._account, endpoint=self.endpoint, **options)

    def signed_in_as(self) -> str:
        return next((words for name, words in _KINDS if is_set(name)), "identity of this machine")

    async def clock_url(self, name: str) -> str:
        return f"{self.endpoint}/{self.bucket}?restype=container"  # an unsigned request's refusal has a Date

    def fault(self, said: Refusal, url: str) -> Exception | None:
        fault: type[SweepError] = StoreUnavailable if self.answered else InputError
        if said.code == "ContainerNotFound":
            return InputError(
                f"{url}: there is no container {self.bucket} in {self._account}; make it with `az storage "
                f"container create --account-name {self._account} --name {self.bucket}`, or correct --storage"
            )
        if _CREDENTIALS.search(said.text):
            return fault(f"{url}: no credentials were found ({said.detail}); {_SIGN_IN}")
        if said.status == 401 or said.code in ("AuthenticationFailed", "AuthorizationFailure"):
            return fault(f"{url}: the credentials are refused ({said.detail}); renew them, or {_SIGN_IN}")
        if said.status == 403:
            return self.denied(said)(
                f"{url}: access denied ({said.detail}); "
                f"give this account Storage Blob Data Contributor on {self.bucket}"
            )
        if said.code in ("BlobImmutableDueToPolicy", "BlobTypeNotSupported"):
            return InputError(f"{url}: the container does not let objects change ({said.detail})")
        if not said.is_passing:
            return fault(
                f"{url}: the storage service refused ({said.detail}); check --storage and {_ACCOUNT}"
            )
        return None
