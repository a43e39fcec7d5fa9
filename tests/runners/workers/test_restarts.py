"""Who is started again, when, and who never."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.workers.restarts import HEALTHY_S, LONGEST_WAIT_S, Again, after_exit, import_failure


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param(0, "done", id="no work left"),
        pytest.param(2, "poison", id="wrong input"),
        pytest.param(42, "poison", id="poison"),
        pytest.param(75, Again(after_s=1.0), id="preempted"),
        pytest.param(1, Again(after_s=4.0, crashes=3), id="crashed for the third time"),
        pytest.param(-9, Again(after_s=4.0, crashes=3), id="killed"),
    ],
)
def test_the_exit_status_decides(status: int, expected: object) -> None:
    assert after_exit(status, ran_s=5.0, crashes=2, restarts=5) == expected


@given(status=st.sampled_from([1, 3, 70, 137, -9, -11]), restarts=st.integers(0, 12))
def test_whoever_crashes_at_once_is_given_up_after_all_restarts(status: int, restarts: int) -> None:
    crashes, waits = 0, []
    while isinstance(next_ := after_exit(status, ran_s=0.1, crashes=crashes, restarts=restarts), Again):
        crashes = next_.crashes
        waits.append(next_.after_s)
    assert next_ == "given up"
    assert len(waits) == restarts
    assert waits == sorted(waits)
    assert all(wait <= LONGEST_WAIT_S for wait in waits)


@given(crashes=st.integers(0, 50))
def test_long_life_and_preemption_reset_the_count(crashes: int) -> None:
    assert after_exit(1, ran_s=HEALTHY_S, crashes=crashes, restarts=1) == Again(after_s=1.0, crashes=1)
    assert after_exit(75, ran_s=0.0, crashes=crashes, restarts=0) == Again(after_s=1.0, crashes=0)


START = (
    "Traceback (most recent call last):\n"
    '  File "<frozen runpy>", line 198, in _run_module_as_main\n'
    '  File "/home/me/sweeps.py", line 1, in <module>\n'
    "    sweeps.create({})\n"
)
IN_A_FUNCTION = '  File "/lib/torch/__init__.py", line 30, in _load\n    CDLL(name)\n'


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        pytest.param(
            f"{START}AttributeError: module 'sweeps' has no attribute 'create'\n",
            "AttributeError: module 'sweeps' has no attribute 'create' (/home/me/sweeps.py)",
            id="another module of that name",
        ),
        pytest.param(
            f"Loading modules\n{START}{IN_A_FUNCTION}ImportError: libcuda.so.1\n",
            "ImportError: libcuda.so.1 (/lib/torch/__init__.py)",
            id="a library is missing",
        ),
        pytest.param('  File "/lib/x.py", line 3\n    def f(:\n          ^\n', "", id="no traceback"),
        pytest.param(
            f'{START}  File "/lib/x.py", line 3\n    def f(:\n          ^\nSyntaxError: invalid syntax\n',
            "SyntaxError: invalid syntax (/lib/x.py)",
            id="syntax",
        ),
        pytest.param("/usr/bin/python3: No module named sweeps\n", "No module named sweeps", id="not installed"),
        pytest.param(
            "sweep: error: cannot import ax: No module named 'ax'\n",
            "cannot import ax: No module named 'ax'",
            id="in its own words",
        ),
        pytest.param(f"{START}{IN_A_FUNCTION}OSError: [Errno 5]\n", "", id="another error"),
        pytest.param(f"sweep: trial 3 started\n{START}ImportError: x\n", "", id="it had begun"),
        pytest.param("Killed\n", "", id="no python"),
        pytest.param("", "", id="nothing"),
    ],
)  # fmt: skip
def test_failed_imports_are_recognised(output: str, problem: str) -> None:
    assert import_failure(output) == problem
