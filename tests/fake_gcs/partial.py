"""`fields` parameter of the JSON API: `items(name,generation),nextPageToken`."""

from __future__ import annotations

import re
from typing import Any

from fake_gcs.objects import ApiError

_TOKEN = re.compile(r"[A-Za-z*][A-Za-z0-9]*|[(),/]")


def select(document: dict[str, Any], fields: str | None) -> dict[str, Any]:
    """Return the part of the document that `fields` selects. Raises `ApiError` 400 if it is malformed."""
    if fields is None:
        return document
    tokens = _TOKEN.findall(fields)
    if "".join(tokens) != fields:
        raise ApiError(400, "invalidParameter", f"Invalid field selection {fields}")
    tree = _selection(tokens, fields)
    if tokens:
        raise ApiError(400, "invalidParameter", f"Invalid field selection {fields}")
    return dict(_pick(document, tree))


def _selection(tokens: list[str], fields: str) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    while tokens and tokens[0] not in "(),/":
        name, inner = tokens.pop(0), None
        if tokens[:1] == ["("]:
            tokens.pop(0)
            inner = _selection(tokens, fields)
            if tokens[:1] != [")"]:
                raise ApiError(400, "invalidParameter", f"Invalid field selection {fields}")
            tokens.pop(0)
        chosen[name] = inner
        if tokens[:1] != [","]:
            return chosen
        tokens.pop(0)
    raise ApiError(400, "invalidParameter", f"Invalid field selection {fields}")


def _pick(document: Any, tree: dict[str, Any] | None) -> Any:
    if tree is None or "*" in tree:
        return document
    if isinstance(document, list):
        return [_pick(entry, tree) for entry in document]
    return {name: _pick(document[name], inner) for name, inner in tree.items() if name in document}
