"""What is written as YAML is read back as it was, whatever ends lines in it."""

from __future__ import annotations

import pytest
import yaml

from runners.pools.yaml_text import yaml_text


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\x85", "\u2028", "\u2029"])
def test_text_is_read_back_as_it_is_with_every_end_of_a_line(end: str) -> None:
    manifest = {"alone": f"a{end}", "script": f"#!/bin/bash\necho 'x{end}'\n"}
    assert yaml.safe_load(yaml_text(manifest)) == manifest
