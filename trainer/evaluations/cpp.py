"""C++ completions, compiled and run: the hook `cpp`, with the metrics `cpp_compile_rate` and `cpp_pass_rate`.

A problem's program is its prompt, which ends inside a function, the completion up to that function's end, and
its tests with `main`. It compiles, or not; and passes if it then exits with 0. Both run in the sandbox.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic_core import from_json

from trainer.config import Config
from trainer.config.evaluation import CppConfig
from trainer.data.contents import BOM, codec, other_kind
from trainer.errors import ConfigError, MachineError
from trainer.evaluations.sandbox import Limits, isolated, run
from trainer.evaluations.student import FinishedStudent
from trainer.text import atomic_write

PROBLEMS = Path(__file__).with_name("cpp_problems.jsonl")
COMPLETIONS = "cpp_completions.jsonl"
_FIELDS = ("name", "prompt", "tests")


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A C++ function to complete.

    Args:
        name: unique.
        prompt: source text that ends inside the function's body.
        tests: source text that follows it, with `main`, which returns 0 if the function is right.
    """

    name: str
    prompt: str
    tests: str


def evaluate(student: FinishedStudent) -> Mapping[str, float]:
    """Complete every problem greedily, and return the rates at which they compile and pass.

    Writes `cpp_completions.jsonl` into the run's folder: name, completion, compiled, passed, and why not.
    """
    asked = student.config.hooks.cpp
    problems = read_problems(asked)
    prompts = [problem.prompt for problem in problems]
    completions = student.continuations(prompts, asked.tokens, done=_is_complete)
    lines = []
    for problem, written in zip(problems, completions, strict=True):
        completion = written[: end_of_body(written)]
        compiled, passed, reason = verdict(problem, completion, asked)
        line = {"name": problem.name, "completion": completion, "compiled": compiled, "passed": passed}
        lines.append(line | {"reason": reason})
    with atomic_write(student.folder / COMPLETIONS) as draft:
        draft.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return {
        "compile_rate": sum(bool(line["compiled"]) for line in lines) / len(lines),
        "pass_rate": sum(bool(line["passed"]) for line in lines) / len(lines),
    }


def check_compiler(config: Config) -> None:
    """Raise ConfigError for problems that cannot be read, MachineError for a compiler that is not here."""
    asked = config.hooks.cpp
    read_problems(asked)
    if shutil.which(asked.compiler) is None:
        raise MachineError(
            f"there is no program {asked.compiler!r} in the PATH; install one (apt-get install g++)",
            key="hooks.cpp.compiler",
        )
    if not isolated():
        raise MachineError(
            "this machine permits no namespaces (user.max_user_namespaces, or a container's profile), "
            "without which completions would have a network; take cpp out, or run as root",
            key="hooks.names",
        )


evaluate.check = check_compiler  # type: ignore[attr-defined]  # read by `check_hooks`


def read_problems(asked: CppConfig) -> tuple[Problem, ...]:
    """Return the problems. Raises ConfigError, with the line that cannot be read."""
    path = Path(asked.problems) if asked.problems else PROBLEMS
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error}", key="hooks.cpp.problems") from error
    if compression := codec(data):
        raise ConfigError(
            f"{str(path)!r} is compressed by {compression}; unpack it", key="hooks.cpp.problems"
        )
    if kind := other_kind(data):
        raise ConfigError(f"{str(path)!r} is {': '.join(kind)}", key="hooks.cpp.problems")
    # Lines end in LF alone: U+2028 may be part of a program.
    lines = data.removeprefix(BOM).split(b"\n")
    found = [_problem(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise ConfigError(f"{str(path)!r} has no problems", key="hooks.cpp.problems")
    return tuple(found)


def _problem(line: bytes, where: str) -> Problem:
    try:
        values = from_json(line)
    except ValueError as error:
        raise ConfigError(f"{where}: no JSON ({error})", key="hooks.cpp.problems") from error
    fields = {name: values.get(name) for name in _FIELDS} if isinstance(values, dict) else {}
    if not fields or not all(isinstance(value, str) and value for value in fields.values()):
        raise ConfigError(
            f"{where}: not an object with the texts {', '.join(_FIELDS)}", key="hooks.cpp.problems"
        )
    return Problem(**{name: str(value) for name, value in fields.items()})


def verdict(problem: Problem, completion: str, asked: CppConfig) -> tuple[bool, bool, str | None]:
    """Compile and run a completion; return whether it compiled, whether it passed, and why not."""
    limits = Limits(seconds=asked.seconds, memory=asked.memory_mib * 2**20)
    compiler = shutil.which(asked.compiler) or asked.compiler
    with tempfile.TemporaryDirectory(prefix="cpp-") as name:
        folder = Path(name).resolve()
        source = folder / "program.cpp"
        source.write_text(f"{problem.prompt}{completion}\n{problem.tests}\n", "utf-8", errors="replace")
        options = ["-std=c++17", "-O1", "-w", "-o", str(folder / "program"), str(source)]
        built = run([compiler, *options], folder, limits)
        if not built.succeeded:
            return False, False, _reason("compiler", built.end, built.status, _first_error(built.output))
        ended = run([str(folder / "program")], folder, limits)
        if not ended.succeeded:
            return True, False, _reason("program", ended.end, ended.status, ended.output)
    return True, True, None


def _reason(what: str, end: str, status: int, output: str) -> str:
    how = {"timeout": "ran out of time", "limit": "wrote too much"}.get(end, f"ended with status {status}")
    shown = " ".join(output.split())[:200]
    return f"{what} {how}" + (f": {shown}" if shown else "")


def _first_error(output: str) -> str:
    return next((line for line in output.splitlines() if "error" in line), output)


def _is_complete(text: str) -> bool:
    return end_of_body(text) is not None


def end_of_body(text: str) -> int | None:
    """Return the length of the rest of a function's body, its closing brace included; None: it goes on.

    Braces in comments, strings and character literals do not count.
    """
    depth, position = 1, 0
    while position < len(text):
        rest = text[position:]
        if rest.startswith("//"):
            position += _skipped(rest, "\n", 2)
        elif rest.startswith("/*"):
            position += _skipped(rest, "*/", 2)
        elif text[position] in "\"'":
            position += _quoted(rest)
        else:
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            position += 1
            if depth == 0:
                return position
    return None


def _skipped(rest: str, end: str, start: int) -> int:
    found = rest.find(end, start)
    return len(rest) if found < 0 else found + len(end)


def _quoted(rest: str) -> int:
    """Return the length of a literal that begins with a quote, and ends with its line at the latest."""
    position = 1
    while position < len(rest) and rest[position] not in (rest[0], "\n"):
        position += 2 if rest[position] == "\\" else 1
    return min(position + 1, len(rest))
