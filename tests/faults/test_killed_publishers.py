"""A worker that is killed between any two writes of a publication: the stage is charged once, and published in the end.

Real processes on a folder, killed with SIGKILL by themselves at each change of the file system that they make.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)  # about sixty short processes


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict]]:
    script = Path(__file__).with_name("killed_publishers.py")
    command = [sys.executable, str(script), str(tmp_path_factory.mktemp("killed"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def stories(both) -> list[dict]:
    return both["stage"]


@pytest.fixture(params=["stage", "point"])
def of_either(both, request) -> list[dict]:
    return both[request.param]


def test_workers_are_killed_at_every_write_of_a_publication(of_either) -> None:
    stories = of_either
    at = [story["at"] for story in stories if story["killed"]]
    assert {"open weights", "open optimizer", "open stage.json"} <= set(at)
    assert any(point.startswith("os.link") and "manifest.json" in point for point in at)
    assert at[-2:] == ["after the manifest", "after the heartbeat"]
    assert [story["killed"] for story in stories].count(False) == 1  # past the last write


def test_killed_publisher_changes_no_result(stories) -> None:
    for story in stories:
        assert (story["ended"], story["losses"]) == (0, [3.0, 4.0]), story


def test_killed_publishers_stage_is_charged_once(stories) -> None:
    for story in stories:
        assert story["paid"] == [101.0, 1.0], story
        assert story["reused_from"] == [None, 0], story
        assert story["snapshot"] == [True, False], story
        computed_anew = story["killed"] and not story["published"]
        assert story["computed"] == 1 + computed_anew, story


@pytest.mark.slow
def test_killed_publishers_point_is_branched_off(both) -> None:
    """Trials of 2 and 3 steps, in whichever order, save the step that they share."""
    for story in both["point"]:
        assert (story["ended"], story["losses"]) == (0, [3.0, 3.0]), story
        assert sum(story["paid"]) == 200 + 300 + 2 - 100, story
        assert story["branched_from"] == [None, 0], story
        assert (story["reused_from"], story["snapshot"]) == ([None, 0], [True, False]), story
        computed_anew = story["killed"] and not story["published"]
        assert story["computed"] == 1 + computed_anew, story


def test_what_a_killed_publisher_published_is_complete(of_either) -> None:
    for story in of_either:
        attempt = 2 if story["killed"] and not story["published"] else 1
        assert story["by"] == f"000000-{attempt}", story
        assert len(story["files"]) == 3, story
        assert all(name.startswith("000000-1/") for name in story["foreign"]), story
