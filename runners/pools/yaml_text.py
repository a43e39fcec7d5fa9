"""Manifests as readable YAML. Pure."""

from __future__ import annotations

from typing import Any

import yaml

_LINE_BREAKS = "\r\x85\u2028\u2029"  # of YAML 1.1, besides \n


class _Dumper(yaml.SafeDumper):
    """Dumper without aliases that writes scripts as literal blocks."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _style(text: str) -> str | None:
    if any(mark in text for mark in _LINE_BREAKS):
        return '"'  # escapes them: in any other style a parser reads them as line ends
    return "|" if "\n" in text else None


_Dumper.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style=_style(text))
)


def yaml_text(manifest: dict[str, Any]) -> str:
    """Return the manifest as YAML that any parser reads back as the same values."""
    return yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
