"""The C++ hook: where a completion ends, what compiles and passes, and what is refused before training."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isolation import ISOLATED

from trainer.api import check
from trainer.errors import ConfigError, MachineError
from trainer.evaluations import cpp
from trainer.evaluations.cpp import COMPLETIONS, end_of_body, read_problems, verdict
from trainer.evaluations.sandbox import Ended, SandboxError

ASKED = check(["hooks.cpp.seconds=30"]).hooks.cpp
SOLUTIONS = {
    "add": "return a + b; }",
    "largest": "return *max_element(values.begin(), values.end()); }",
    "is_even": "return n % 2 == 0; }",
    "reversed": "return string(text.rbegin(), text.rend()); }",
    "factorial": "long long r = 1; for (int i = 2; i <= n; ++i) r *= i; return r; }",
    "count_vowels": 'int k = 0; for (char c : text) k += string("aeiouAEIOU").find(c) != string::npos; return k; }',
    "fibonacci": "long long a = 0, b = 1; while (n--) { long long c = a + b; a = b; b = c; } return a; }",
    "is_prime": "if (n < 2) return false; for (int d = 2; d * d <= n; ++d) if (n % d == 0) return false; return true; }",
    "gcd": "return b == 0 ? a : greatest_common_divisor(b, a % b); }",
    "unique_sorted": "sort(values.begin(), values.end()); "
    "values.erase(unique(values.begin(), values.end()), values.end()); return values; }",
    "binary_search_index": "auto at = lower_bound(sorted_values.begin(), sorted_values.end(), target); "
    "return at != sorted_values.end() && *at == target ? at - sorted_values.begin() : -1; }",
    "balanced": "string open; map<char, char> of{{')', '('}, {']', '['}, {'}', '{'}}; for (char c : text) "
    "{ if (!of.count(c)) open += c; else { if (open.empty() || open.back() != of[c]) return false; "
    "open.pop_back(); } } return open.empty(); }",
    "longest_common_prefix": 'if (words.empty()) return ""; string p = words[0]; for (auto& w : words) '
    "while (w.compare(0, p.size(), p) != 0) p.pop_back(); return p; }",
    "edit_distance": "vector<int> row(b.size() + 1); for (size_t j = 0; j <= b.size(); ++j) row[j] = j; "
    "for (size_t i = 1; i <= a.size(); ++i) { int diagonal = row[0]; row[0] = i; "
    "for (size_t j = 1; j <= b.size(); ++j) { int above = row[j]; "
    "row[j] = min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])}); diagonal = above; } } "
    "return row[b.size()]; }",
}
ALL = ""  # of a text, which ends with the function
PROBLEMS = {problem.name: problem for problem in read_problems(ASKED)}


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("return 1; }\nint main() {}", "return 1; }"),
        ("if (a) { b(); } }; more", "if (a) { b(); } }"),
        ('// }\n/* } */ c(\'}\', "}\\"}"); }x', '// }\n/* } */ c(\'}\', "}\\"}"); }'),
        # A quote in a number separates its digits; behind a name or after a number it begins a literal.
        ("for (int i = 0; i < 1'000; ++i) {\n s += i;\n }\n return s;\n}", ALL),
        ("if (a & 0xFF'FF) {\n b(); }\n}", ALL),
        ("if (a < 1.e1'0 + .5'0f) {\n b(); }\n}", ALL),
        ("if (c == u8'{' || c == L'{' || c == x2'{') {\n b(); }\n}", ALL),
        ("if (c == 5'{') {\n b(); }\n}", ALL),
        ("it's } fine", None),
        ("it's\n} fine", "it's\n}"),
    ],
)
def test_a_completion_ends_with_the_function(text: str, body: str | None) -> None:
    end = end_of_body(text)
    assert (None if end is None else text[:end]) == (text if body == ALL else body)


@given(st.text(alphabet="{}\"'\\/*\na", max_size=40))
def test_any_text_has_an_end_or_none(text: str) -> None:
    end = end_of_body(text)
    assert end is None or text[end - 1] == "}"


def test_there_is_a_solution_for_each_problem() -> None:
    assert set(SOLUTIONS) == set(PROBLEMS)


@ISOLATED
@pytest.mark.slow
@pytest.mark.parametrize("name", SOLUTIONS)
def test_a_right_solution_passes(name: str) -> None:
    assert end_of_body(SOLUTIONS[name]) == len(SOLUTIONS[name])
    assert verdict(PROBLEMS[name], SOLUTIONS[name], ASKED) == (True, True, None)


@ISOLATED
@pytest.mark.parametrize(
    ("completion", "compiled", "reason"),
    [
        ("return 2; }", True, "program ended with status 134"),
        ("return c; }", False, "error: ‘c’ was not declared"),
        ("while (true) {} }", True, "program ran out of time"),
        ('return 0; }\n#include "{secret}"', False, "No such file or directory"),
    ],
    ids=["wrong", "undeclared", "endless", "include"],
)
def test_wrong_completion_is_counted_with_a_reason(
    completion: str, compiled: bool, reason: str, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("kept")
    asked = check(["hooks.cpp.seconds=3" if "while" in completion else "hooks.cpp.seconds=20"]).hooks.cpp
    problem = cpp.Problem(
        name="f", prompt="int f() {\n", tests="int main() { if (f() != 1) __builtin_abort(); }"
    )
    found, passed, why = verdict(problem, completion.replace("{secret}", str(secret)), asked)
    assert (found, passed) == (compiled, False)
    assert why is not None
    assert reason in why
    assert "kept" not in why


class Scripted:
    """A student with written completions."""

    def __init__(self, folder: Path, write: Callable[[str], str], *overrides: str) -> None:
        self.folder, self.config, self._write = folder, check(list(overrides)), write

    def continuations(self, prompts: Sequence[str], tokens: int, *, done: Callable[[str], bool]) -> list[str]:
        return [self._write(prompt) for prompt in prompts]


@ISOLATED
def test_rates_count_all_problems(tmp_path: Path) -> None:
    problems = tmp_path / "problems.jsonl"
    problems.write_text(
        "\n".join(
            json.dumps(
                {"name": name, "prompt": "int f() {\n", "tests": f"int main() {{ return f() {test}; }}"}
            )
            for name, test in (("one", "!= 1"), ("two", "!= 2"), ("broken", "!= ;"))
        )
    )
    student: Any = Scripted(
        tmp_path, lambda prompt: "return 1; }\nint g() {}", f"hooks.cpp.problems={problems}"
    )
    assert cpp.evaluate(student) == {"compile_rate": 2 / 3, "pass_rate": 1 / 3}
    lines = [json.loads(line) for line in (tmp_path / COMPLETIONS).read_text().splitlines()]
    assert [(line["name"], line["compiled"], line["passed"]) for line in lines] == [
        ("one", True, True),
        ("two", True, False),
        ("broken", False, False),
    ]
    assert {line["completion"] for line in lines} == {"return 1; }"}


@pytest.mark.parametrize("failing", [["two"], ["one", "two"]], ids=["one", "all"])
def test_a_missing_verdict_is_one_problems_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: list[str]
) -> None:
    problems = tmp_path / "problems.jsonl"
    line = {"prompt": "int main() {\n", "tests": "//"}
    problems.write_text("".join(json.dumps(line | {"name": name}) + "\n" for name in ("one", "two")))

    def judged(problem: cpp.Problem, completion: str, asked: object) -> tuple[bool, bool, None]:
        if problem.name in failing:
            raise RecursionError("too deep")
        return True, True, None

    monkeypatch.setattr(cpp, "verdict", judged)
    student: Any = Scripted(tmp_path, lambda prompt: "return 0; }", f"hooks.cpp.problems={problems}")
    if len(failing) == 1:
        assert cpp.evaluate(student) == {"compile_rate": 0.5, "pass_rate": 0.5}
    else:
        with pytest.raises(SandboxError, match="too deep"):
            cpp.evaluate(student)
    lines = map(json.loads, (tmp_path / COMPLETIONS).read_text().splitlines())
    reasons = {line["name"]: line["reason"] for line in lines if line["reason"]}
    assert reasons == dict.fromkeys(failing, "no verdict: RecursionError: too deep")


def test_missing_compiler_is_a_machine_error() -> None:
    with pytest.raises(MachineError, match=r"^hooks\.cpp\.compiler: .*'clang-99'"):
        cpp.check_compiler(check(["hooks.cpp.compiler=clang-99"]))


@ISOLATED
@pytest.mark.parametrize("sandbox", ["bwrap", "machine"])
def test_a_first_program_is_tried(sandbox: str) -> None:
    cpp.check_compiler(check([f"hooks.cpp.sandbox={sandbox}"]))


@pytest.fixture
def compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in the PATH, with a compiler that fails."""
    folder = tmp_path / "gcc" / "bin"
    folder.mkdir(parents=True)
    (folder / "g++").write_text("#!/bin/sh\nexit 1\n")
    (folder / "g++").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_without_bubblewrap_it_is_refused(compilers: Path) -> None:
    with pytest.raises(MachineError) as caught:
        cpp.check_compiler(check([]))
    assert caught.value.key == "hooks.cpp.sandbox"
    assert "apt-get install bubblewrap" in caught.value.problem
    assert "hooks.cpp.sandbox=machine" in caught.value.problem
    assert "\n" not in caught.value.problem


def test_what_cannot_be_isolated_is_refused(compilers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (compilers / "bwrap").symlink_to(compilers / "g++")

    def refused(*arguments: object, **named: object) -> Ended:
        raise SandboxError("no user namespace may be made: No space left on device")

    monkeypatch.setattr(cpp, "run", refused)
    with pytest.raises(MachineError, match=r"user\.max_user_namespaces") as caught:
        cpp.check_compiler(check([]))
    assert caught.value.key == "hooks.cpp.sandbox"
    monkeypatch.setattr(cpp, "run", lambda *_, **named: Ended(end="exited", status=1, output="no header"))
    with pytest.raises(MachineError, match="no header") as caught:
        cpp.check_compiler(check([]))
    assert caught.value.key == "hooks.cpp.compiler"


def test_a_home_is_not_shown_for_its_compiler(compilers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (compilers / "bwrap").symlink_to(compilers / "g++")
    trees = []

    def record(*arguments: object, tree: Sequence[str], **named: object) -> Ended:
        trees.append(tree)
        return Ended(end="exited", status=0, output="")

    monkeypatch.setattr(cpp, "run", record)
    cpp.check_compiler(check([]))
    assert str(compilers.parent) in trees[0]
    assert str(compilers.parent / "lib") in trees[1]
    monkeypatch.setenv("HOME", str(compilers.parent))
    with pytest.raises(MachineError, match="folder"):
        cpp.check_compiler(check([]))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "has no problems"),
        (b"{", ":1: no JSON"),
        (b'{"name": "a", "prompt": "b"}', ":1: not an object with the texts name, prompt, tests"),
        (b'\n{"name": 1, "prompt": "b", "tests": "c"}', ":2: not an object"),
        (b'\n{"name": "caf\xe9", "prompt": "b", "tests": "c"}', ":2: no JSON"),
        ("{}".encode("utf-16"), "is UTF-16: convert it"),
        (b"\x1f\x8b\x08\0", "is compressed by gzip; unpack it"),
    ],
)
def test_unreadable_problems_are_refused_with_their_line(tmp_path: Path, text: bytes, says: str) -> None:
    file = tmp_path / "p.jsonl"
    file.write_bytes(text)
    with pytest.raises(ConfigError) as caught:
        cpp.check_compiler(check([f"hooks.cpp.problems={file}"]))
    assert caught.value.key == "hooks.cpp.problems"
    assert says in caught.value.problem


def test_problems_are_read_as_other_programs_write_them(tmp_path: Path) -> None:
    line = '{"name": "%s", "prompt": "// \u2028", "tests": "c"}\r\n'
    (tmp_path / "p.jsonl").write_text("\ufeff" + line % "a" + line % "b", encoding="utf-8", newline="")
    found = read_problems(check([f"hooks.cpp.problems={tmp_path}/p.jsonl"]).hooks.cpp)
    assert [(problem.name, problem.prompt) for problem in found] == [("a", "// \u2028"), ("b", "// \u2028")]
