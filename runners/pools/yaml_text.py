"""A manifest as YAML that people read, for the engines that take it so. Pure."""

from __future__ import annotations

from typing import Any

import yaml

_OTHER_ENDS = "\r\x85\u2028\u2029"  # of lines, in YAML 1.1


class _Dumper(yaml.SafeDumper):
    """No aliases, and a script in lines as it is."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _style(text: str) -> str | None:
    if any(mark in text for mark in _OTHER_ENDS):
        return '"'  # which escapes them: in any other style a reader takes them for the end of a line
    return "|" if "\n" in text else None


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style=_style(text)),
)


def yaml_text(manifest: dict[str, Any]) -> str:
    """The same values, whoever reads it back."""
    return yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
