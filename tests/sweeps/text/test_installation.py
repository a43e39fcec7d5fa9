"""The command that adds an extra, from where this package was installed."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sweeps.text.installation import install_command

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    install_command.cache_clear()
    yield
    install_command.cache_clear()


@pytest.fixture
def origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[object], None]:
    """Pretend an installation whose installer has recorded this."""

    def record(document: object) -> None:
        about = tmp_path / "site" / "stagesweep-9.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: stagesweep\nVersion: 9\n")
        if document is not None:
            (about / "direct_url.json").write_text(json.dumps(document))
        monkeypatch.setattr(sys, "path", [str(about.parent)])

    return record


def test_clone_is_named_by_its_folder(origin):
    origin({"url": "file:///srv/my%20clone", "dir_info": {"editable": True}})
    assert install_command("bnb") == "pip install -e '/srv/my clone[bnb]'"


def test_copy_of_a_clone_stays_a_copy(origin):
    origin({"url": "file:///srv/stagesweep", "dir_info": {}})
    assert install_command("aws") == "pip install '/srv/stagesweep[aws]'"


def test_wheel_is_named_by_its_url(origin):
    url = "https://example.org/stagesweep-1.0.0-py3-none-any.whl"
    origin({"url": url, "archive_info": {}})
    assert install_command("tpu") == f"pip install 'stagesweep[tpu] @ {url}'"


@pytest.mark.parametrize("document", [None, {"url": "https://example.org/x", "vcs_info": {"vcs": "git"}}])
def test_unknown_origin_is_left_to_the_reader(origin, document):
    origin(document)
    assert install_command("hub") == "pip install '/path/to/stagesweep[hub]'"


def test_sources_that_are_not_installed_say_where_they_are(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    assert shlex.split(install_command("hub")) == ["pip", "install", "-e", f"{ROOT}[hub]"]


def test_nothing_names_the_package_as_if_an_index_had_it():
    """No package index has this project, and a package of its name there would be somebody else's."""
    wrong = re.compile(r"pip install .*(?<![\w/])stagesweep\b(?!-)")
    files = [
        file
        for folder in ("sweeps", "trainer", "runners", "analysis", "search_spaces", "docs")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in (".py", ".yaml", ".md")
    ]
    assert [str(file) for file in files if wrong.search(file.read_text(encoding="utf-8"))] == []
