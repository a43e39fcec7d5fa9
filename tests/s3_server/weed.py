"""SeaweedFS in a process of its own, in a temporary folder and on free ports."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
_READY_S = 60
_FLAGS = (
    *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3", "-s3.iam=false", "-metricsPort=0"),
    *("-s3.port.iceberg=0", "-s3.port.lance=0", "-volume.max=20", "-master.volumeSizeLimitMB=4096"),
)
# Ends the server once its standard input is closed: when this process is gone, even by SIGKILL.
_WITH_US = """
exec 3<&0
"$@" < /dev/null 3<&- &
server=$!
(cat <&3 > /dev/null; kill -9 $server; rm -rf "$FOLDER") &
wait $server
"""
_TRIES = 3  # another process may take one of the free ports first


def weed_binary() -> str | None:
    return shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")


class Weed:
    """Running server, as a context manager; its bucket is `bucket`."""

    def __init__(self) -> None:
        self.url = ""
        self._ports: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.mkdtemp(prefix="stagesweep-weed-")

    def __enter__(self) -> Weed:
        for _ in range(_TRIES):
            if self._start():
                self._make_bucket()
                return self
        said = Path(self._folder, "log").read_text(errors="replace")[-2000:]
        shutil.rmtree(self._folder, ignore_errors=True)
        raise RuntimeError(f"weed did not start: {said}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self) -> bool:
        self._ports = ports = _free_ports(8)
        numbers = iter(ports)
        names = ("s3", "master", "filer", "volume")
        flags = [f"-{name}.port{kind}={next(numbers)}" for name in names for kind in ("", ".grpc")]
        port = next(flag for flag in flags if flag.startswith("-s3.port=")).partition("=")[2]
        self.url = f"http://127.0.0.1:{port}"
        binary = weed_binary()
        assert binary is not None
        with Path(self._folder, "log").open("wb") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", _WITH_US, "sh", binary, "server", *_FLAGS, f"-dir={self._folder}", *flags],
                # One volume for the first write, which otherwise waits for seven: 5 s.
                env={
                    **os.environ,
                    **ENVIRONMENT,
                    "WEED_MASTER_VOLUME_GROWTH_COPY_1": "1",
                    "FOLDER": self._folder,
                },
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                urllib.request.urlopen(self.url, timeout=1).close()
            except urllib.error.HTTPError as error:
                error.close()
                return True
            except OSError:
                time.sleep(0.05)
            else:
                return True
        self._stop()
        return False

    def _make_bucket(self) -> None:
        import obstore
        from obstore.store import S3Store

        names = {name.lower(): value for name, value in ENVIRONMENT.items()}
        store = S3Store("bucket", endpoint=self.url, client_options={"allow_http": True}, **names)
        # This makes the bucket and, in up to 5 s, the volume that later writes go to.
        obstore.put(store, "first", b"x")

    def _stop(self) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)  # nothing in it is kept
            self._process.wait(timeout=30)
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process = None
        for port in self._ports:  # it makes sockets there, whatever its folder is
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink(missing_ok=True)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
