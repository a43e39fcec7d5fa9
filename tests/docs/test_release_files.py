"""What a release says of itself: version, citation, changelog, and the page of what is public."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_version_is_the_same_everywhere() -> None:
    citation = yaml.safe_load((ROOT / ".github" / "CITATION.cff").read_text(encoding="utf-8"))
    stability = (ROOT / "docs" / "reference" / "stability.md").read_text(encoding="utf-8")
    assert citation["version"] == PROJECT["version"]
    assert f"version = {{{PROJECT['version']}}}" in stability
    assert citation["license"] == PROJECT["license"]


def test_both_commands_are_one() -> None:
    assert set(PROJECT["scripts"]) == {"sweep", PROJECT["name"]}
    assert len(set(PROJECT["scripts"].values())) == 1


def test_every_extra_is_tried_before_a_release() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    small = re.search(r"^SMALL_EXTRAS := (.+)$", makefile, re.MULTILINE)
    large = re.search(r"^LARGE_EXTRAS := (.+)$", makefile, re.MULTILINE)
    assert small is not None
    assert large is not None
    tried = {each.partition(":")[0] for each in small[1].split()} | set(large[1].split())
    assert tried == set(PROJECT["optional-dependencies"]) - {"dev", "docs", "test"}


def test_templates_of_issues_have_a_name_and_what_they_are_about() -> None:
    templates = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.md"))
    assert len(templates) >= 2
    for template in templates:
        _, front, body = template.read_text(encoding="utf-8").split("---\n", 2)
        assert {"name", "about"} <= set(yaml.safe_load(front))
        assert body.strip()
