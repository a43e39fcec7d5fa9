"""Which ends of a program may go better next time, on this machine or another: lost networks.

`result` and `objective` ask. An ordinary exception comes again, and is not worth another attempt; so only
what libraries say of a broken connection counts, and not, for example, every word "timeout".
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
"""As the last line of a traceback names it."""

_WORDS = re.compile(
    r"\b(?:connection (?:was )?(?:reset|refused|aborted|timed out|closed by (?:the )?(?:peer|remote))"
    r"|remote end closed connection|network is (?:unreachable|down)|no route to host"
    r"|temporary failure in name resolution|name or service not known"
    r"|ncclRemoteError|ncclSystemError|watchdog caught collective operation timeout)",
    re.IGNORECASE,
)
_LINES = 5  # such a message may have some lines more than the exception's own


def network_was_lost(last_words: str) -> bool:
    """Whether a program's last words, or an exception's with its name, tell of a lost connection."""
    end = "\n".join(last_words.splitlines()[-_LINES:])
    return bool(_EXCEPTION.search(end) or _WORDS.search(end))
