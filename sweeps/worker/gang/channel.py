"""Messages between two hosts of a gang: a line of JSON each, over one connection.

The kernel finds out that the other machine is gone (keepalive); that its process is, it learns at once.
"""

from __future__ import annotations

import json
import socket
import tarfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from sweeps.text import json_reader

LONGEST = 1 << 20  # bytes of a message: the end of a log, at most
_CONNECT_S = 5.0
_LAST = ".all"  # an archive that was cut off between two files would look complete
_KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 55_000}
"""A machine that does not answer for 55 seconds is gone. The last one is in ms, and for data under way."""


def listen(address: str, port: int) -> socket.socket:
    """Return a socket that the hosts of a gang reach; for a loopback, of this machine alone."""
    if address in ("localhost", "127.0.0.1"):
        return socket.create_server(("127.0.0.1", port))
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def connect(address: str, port: int) -> Channel:
    """Connect to a leader, which then has as long for each message. Raises `OSError`."""
    return Channel(socket.create_connection((address, port), timeout=_CONNECT_S))


class Channel:
    """Connection to another host. One thread receives, any may send."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._connection = connection
        self._reader = connection.makefile("rb")
        self._sending = threading.Lock()
        self.was_cut_off = False
        """Whether `receive` has ended because nothing came; else the other process has ended."""

    def limit_silence(self, seconds: float | None) -> None:
        """Take the connection for ended after so much silence; None: however long nothing comes."""
        self._connection.settimeout(seconds)

    def send(self, **message: Any) -> None:
        """Send a message; one to a host that is gone is lost: whoever receives from it learns so."""
        with self._sending, suppress(OSError):
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> Mapping[str, Any] | None:
        """Wait for a message and return it; None: the connection has ended, or this is no host of a gang."""
        try:
            line = self._reader.readline(LONGEST + 1)
            message = json_reader.parse(line) if line.endswith(b"\n") else None
        except (OSError, ValueError) as error:
            # A process that ends closes or resets it; a machine or a network that is gone times out, or is
            # said to be unreachable.
            self.was_cut_off = isinstance(error, OSError) and not isinstance(error, ConnectionError)
            return None
        return message if isinstance(message, dict) else None

    def send_files(self, root: Path, folders: tuple[str, ...]) -> None:
        """Send all files of these folders below `root`, and end the connection. Raises `OSError`."""
        with (
            self._sending,
            self._connection.makefile("wb") as stream,
            tarfile.open(fileobj=stream, mode="w|", dereference=True) as tar,
        ):
            for folder in folders:
                for path in sorted((root / folder).rglob("*")):
                    if path.is_file():
                        tar.add(path, arcname=path.relative_to(root).as_posix(), recursive=False)
            tar.addfile(tarfile.TarInfo(_LAST))
        self.close()

    def receive_files(self, root: Path, should_stop: Callable[[], bool]) -> bool:
        """Write what `send_files` sends to `root`; return whether all of it came.

        Args:
            should_stop: asked after every piece of a file.

        Raises:
            OSError: the disk refuses it.
        """
        try:
            with tarfile.open(fileobj=self._reader, mode="r|") as tar:
                for entry in tar:
                    place = PurePosixPath(entry.name)
                    if entry.name == _LAST:
                        return True
                    source = tar.extractfile(entry) if entry.isfile() else None
                    if source is None or place.is_absolute() or ".." in place.parts:
                        return False
                    (root / place).parent.mkdir(parents=True, exist_ok=True)
                    with (root / place).open("wb") as file:
                        while piece := source.read(LONGEST):
                            file.write(piece)
                            if should_stop():
                                return False
        except (tarfile.TarError, EOFError, ConnectionError, TimeoutError):
            pass
        return False

    def close(self) -> None:
        """End the connection, for a thread that waits in `receive` too."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            self._reader.close()
        self._connection.close()
