"""Commands that cannot start here, detected before they run and by how they ended."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sweeps.programs import startable

PYTHON = sys.executable


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise SystemExit(2)\n")
    (tmp_path / "plain.sh").write_text("exit 3\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "broken.py").write_text("import gone_dependency\n")


@pytest.mark.parametrize(
    ("argv", "missing"),
    [
        pytest.param([PYTHON, "train.py", "x=1"], "", id="there"),
        pytest.param([PYTHON, "-u", "-X", "utf8", "-Wdefault", "train.py"], "", id="there-behind-options"),
        pytest.param([PYTHON, "trian.py", "x=1"], "trian.py", id="misspelt"),
        pytest.param(["python3", "-uO", "-W", "error", "trian.py"], "trian.py", id="misspelt-behind-options"),
        pytest.param([PYTHON, "--check-hash-based-pycs", "never", "trian.py"], "trian.py", id="long-option"),
        pytest.param([PYTHON, "/nowhere/train.py"], "/nowhere/train.py", id="absolute"),
        pytest.param([PYTHON, "-c", "pass", "trian.py"], "", id="code"),
        pytest.param([PYTHON, "-Ic", "pass", "trian.py"], "", id="code-in-a-cluster"),
        pytest.param([PYTHON, "-m", "trian"], "", id="module-is-not-judged-before"),
        pytest.param([PYTHON, "-mtrian", "x.py"], "", id="module-attached"),
        pytest.param([PYTHON, "-", "trian.py"], "", id="standard-input"),
        pytest.param([PYTHON], "", id="nothing"),
        pytest.param([PYTHON, "${run_dir}/trian.py"], "", id="script-of-the-trial"),
        pytest.param(["${run_dir}/program"], "", id="program-of-the-trial"),
        pytest.param(["no-such-program", "train.py"], "no-such-program", id="program"),
        pytest.param(["./plain.sh"], "./plain.sh", id="not-executable"),
        pytest.param(["sh", "trian.sh"], "", id="no-guess-about-other-programs"),
    ],
)
def test_what_is_missing_is_named_before_anything_runs(argv, missing):
    problem = startable.problem(argv)
    assert bool(problem) == bool(missing)
    assert missing in problem


@pytest.mark.parametrize(
    ("argv", "never"),
    [
        pytest.param([PYTHON, "train.py"], False, id="its-own-2"),
        pytest.param([PYTHON, "trian.py"], True, id="no-script"),
        pytest.param(["sh", "-c", f"echo preparing; {PYTHON} trian.py"], True, id="no-script-in-a-shell"),
        pytest.param([PYTHON, "-m", "gone"], True, id="no-module"),
        pytest.param([PYTHON, "-m", "gone.child"], True, id="no-package-of-the-module"),
        pytest.param([PYTHON, "-m", "package.gone"], True, id="no-such-module-in-a-package"),
        pytest.param([PYTHON, "-m", "package"], True, id="a-package-without-main"),
        pytest.param([PYTHON, "-m", "package.broken"], False, id="a-module-that-misses-another"),
        pytest.param([PYTHON, "-c", "import gone"], False, id="code-that-misses-a-module"),
        pytest.param(["sh", "-c", "no-such-program"], True, id="127"),
        pytest.param(["sh", "-c", "./plain.sh"], True, id="126"),
        pytest.param(["sh", "plain.sh"], False, id="its-own-3"),
        pytest.param(
            [PYTHON, "-c", "print(\"python: can't open file 'a': [Errno 2] No\"); raise SystemExit(1)"],
            False,
            id="the-words-with-another-status",
        ),
    ],
)
def test_a_command_that_never_began_is_known_by_its_own_end(argv, never):
    ran = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    last = (ran.stdout.strip().splitlines() or [""])[-1]
    assert bool(startable.never_began(argv, ran.returncode, last)) is never
