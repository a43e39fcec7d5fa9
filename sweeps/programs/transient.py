"""Detection of transient failures: lost network connections, after which another attempt may succeed.

An ordinary exception would come again. So only what libraries report of a broken connection counts, and not,
for example, every word "timeout".
"""

from __future__ import annotations

import re

_NAMES = (
    r"Connection(?:Error|ResetError|RefusedError|AbortedError|Timeout)|(?:Connect|Read|Write)Timeout(?:Error)?"
    r"|TimeoutError|NewConnectionError|MaxRetryError|NameResolutionError|ProtocolError|IncompleteRead"
    r"|RemoteDisconnected|RemoteProtocolError|ConnectError|ReadError"
    r"|ServerDisconnectedError|ServerTimeoutError|ClientConnect\w*Error|ClientOSError|ClientPayloadError"
    r"|EndpointConnectionError|LocalEntryNotFoundError|gaierror|DistNetworkError"
)
_EXCEPTION = re.compile(rf"^(?:\w+\.)*(?:{_NAMES})(?::|$)", re.MULTILINE)
"""Exception in the last line of a traceback."""

_WORDS = re.compile(
    r"\b(?:connection (?:was )?(?:reset|refused|aborted|timed out|closed by (?:the )?(?:peer|remote))"
    r"|remote end closed connection|network is (?:unreachable|down)|no route to host"
    r"|temporary failure in name resolution|name or service not known"
    r"|ncclRemoteError|ncclSystemError|watchdog caught collective operation timeout)",
    re.IGNORECASE,
)
_LINES = 5  # the message of such an exception may have several lines


def network_was_lost(output: str) -> bool:
    """Return whether the end of a program's output, or a traceback, reports a lost connection."""
    end = "\n".join(output.splitlines()[-_LINES:])
    return bool(_EXCEPTION.search(end) or _WORDS.search(end))
