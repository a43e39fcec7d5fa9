"""A manifest as YAML that people read, for the engines that take it so. Pure."""

from __future__ import annotations

from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    """No aliases, and a script in lines as it is."""

    def ignore_aliases(self, data: object) -> bool:
        return True


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    ),
)


def yaml_text(manifest: dict[str, Any]) -> str:
    """The same values, whoever reads it back."""
    return yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
