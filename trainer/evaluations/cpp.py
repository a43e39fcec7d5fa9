"""C++ completions, compiled and run: the hook `cpp`, with the metrics `cpp_compile_rate` and `cpp_pass_rate`.

A problem's program is its prompt, which ends inside a function, the completion up to that function's end, and
its tests with `main`. It compiles, or not; and passes if it then exits with 0. Both are done in the sandbox:
a source file can read what its compiler can.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic_core import from_json

from sweeps.text.atomic_file import atomic_write
from trainer.config import Config
from trainer.config.evaluation import CppConfig
from trainer.data.contents import BOM, codec, other_kind
from trainer.errors import ConfigError, MachineError, TrainerError
from trainer.evaluations.sandbox import LIBRARIES, SYSTEM, Limits, SandboxError, run
from trainer.evaluations.student import FinishedStudent

PROBLEMS = Path(__file__).with_name("cpp_problems.jsonl")
COMPLETIONS = "cpp_completions.jsonl"
_FIELDS = ("name", "prompt", "tests")
# The linker needs a file that it can seek in, and the program is handed over by a descriptor.
_BUILD = 'compiler=$0 && "$compiler" "$@" -std=c++17 -O1 -w -o program -x c++ - 1>&2 && exec cat program'
# A name, or a number, whose digits a quote may separate (1'000).
_WORD = re.compile(r"[^\W\d]\w*|\d(?:'?\w|\.)*")
_ON_TRUST = (
    "where the machine itself is the sandbox, and holds nothing of worth, write hooks.cpp.sandbox=machine"
)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A C++ function to complete.

    Args:
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
    completions = student.continuations(
        prompts, asked.tokens, done=lambda text: end_of_body(text) is not None
    )
    lines = []
    unknown = 0
    for problem, written in zip(problems, completions, strict=True):
        completion = written[: end_of_body(written)]
        try:
            compiled, passed, reason = verdict(problem, completion, asked)
        except TrainerError:  # of the run, such as a preemption, not of this program
            raise
        except Exception as error:  # noqa: BLE001 - the other problems keep their scores
            unknown += 1
            compiled, passed, reason = False, False, f"no verdict: {type(error).__name__}: {error}"
        line = {"name": problem.name, "completion": completion, "compiled": compiled, "passed": passed}
        lines.append(line | {"reason": reason})
    with atomic_write(student.folder / COMPLETIONS) as draft:
        draft.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    if unknown == len(lines):  # rates of 0 would say something about the student
        raise SandboxError(f"{lines[0]['reason']}; likewise for every problem")
    return {
        "compile_rate": sum(bool(line["compiled"]) for line in lines) / len(lines),
        "pass_rate": sum(bool(line["passed"]) for line in lines) / len(lines),
    }


def check_compiler(config: Config) -> None:
    """Compile and run a first program in the sandbox.

    Raises:
        ConfigError: the problems cannot be read.
        MachineError: there is no compiler or no bubblewrap here, or they do not work.
    """
    asked = config.hooks.cpp
    read_problems(asked)
    key = "hooks.cpp.sandbox"
    first = Problem(name="first", prompt="#include <string>\nint main() {\n", tests="")
    try:
        # 60 s, because a busy machine compiles slowly and must not be refused.
        _, passed, reason = verdict(first, 'return std::string("").size(); }', replace(asked, seconds=60.0))
    except (OSError, SandboxError) as error:
        problem = f"completions cannot be isolated on this machine ({error})"
        if asked.sandbox == "bwrap":
            problem += (
                "; permit users their namespaces (sysctl user.max_user_namespaces, "
                "kernel.apparmor_restrict_unprivileged_userns; in a container: its security profile), or "
                f"take cpp out; {_ON_TRUST}"
            )
        raise MachineError(problem, key=key) from error
    if not passed:
        raise MachineError(f"a first program fails: {reason}", key="hooks.cpp.compiler")


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
    found = []
    for number, line in enumerate(data.removeprefix(BOM).split(b"\n"), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            values = from_json(line)
        except ValueError as error:
            raise ConfigError(f"{where}: no JSON ({error})", key="hooks.cpp.problems") from error
        fields = {name: values.get(name) for name in _FIELDS} if isinstance(values, dict) else {}
        if not fields or not all(isinstance(value, str) and value for value in fields.values()):
            raise ConfigError(
                f"{where}: not an object with the texts {', '.join(_FIELDS)}", key="hooks.cpp.problems"
            )
        found.append(Problem(**{name: str(value) for name, value in fields.items()}))
    if not found:
        raise ConfigError(f"{str(path)!r} has no problems", key="hooks.cpp.problems")
    return tuple(found)


def verdict(problem: Problem, completion: str, asked: CppConfig) -> tuple[bool, bool, str | None]:
    """Compile and run a completion; return whether it compiled, whether it passed, and why not.

    Raises:
        MachineError: there is no compiler here, or no bubblewrap.
        SandboxError, OSError: the sandbox failed, and not the program.
    """
    compiler = shutil.which(asked.compiler)
    if compiler is None:
        raise MachineError(
            f"there is no program {asked.compiler!r} in the PATH; install one (apt-get install g++)",
            key="hooks.cpp.compiler",
        )
    bwrap = shutil.which("bwrap") if asked.sandbox == "bwrap" else None
    if bwrap is None and asked.sandbox == "bwrap":
        raise MachineError(
            "there is no program 'bwrap' in the PATH, which isolates what students write; install it "
            f"(apt-get install bubblewrap); {_ON_TRUST}",
            key="hooks.cpp.sandbox",
        )
    prefixes = [str(each) for each in _install_prefixes(Path(compiler))]
    libraries = [f"{prefix}/{name}" for prefix in prefixes for name in ("lib", "lib64")]
    limits = Limits(seconds=asked.seconds, memory=asked.memory_mib * 2**20)
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as program:
        text = f"{problem.prompt}{completion}\n{problem.tests}\n"
        source.write(text.encode("utf-8", errors="replace"))
        built = run(
            ["/bin/sh", "-c", _BUILD, compiler],
            limits,
            bwrap=bwrap,
            tree=(*SYSTEM, *prefixes),
            given=source,
            kept=program,
        )
        if not built.succeeded:
            error = next((line for line in built.output.splitlines() if "error" in line), built.output)
            return False, False, _reason("compiler", built.end, built.status, error)
        ended = run([], limits, bwrap=bwrap, tree=(*LIBRARIES, *libraries), program=program)
        if not ended.succeeded:
            return True, False, _reason("program", ended.end, ended.status, ended.output)
    return True, True, None


def _install_prefixes(compiler: Path) -> set[Path]:
    """Return the folders that hold the installation of a compiler; none for one of the system.

    Raises:
        MachineError: the installation is a folder that a user's home is in, which the sandbox would show.
    """
    found = set()
    try:
        home = Path.home()
    except RuntimeError:  # a user without a name
        home = Path("/")
    for each in (compiler, compiler.resolve()):
        if not any(each.is_relative_to(place) for place in SYSTEM):
            prefix = each.parent.parent
            if home.is_relative_to(prefix):
                raise MachineError(
                    f"to isolate {compiler} is to show completions all of {prefix}; install the compiler "
                    "in a folder of its own, such as /opt/gcc",
                    key="hooks.cpp.compiler",
                )
            found.add(prefix)
    return found


def _reason(what: str, end: str, status: int, output: str) -> str:
    how = {"timeout": "ran out of time", "limit": "wrote too much"}.get(end, f"ended with status {status}")
    shown = " ".join(output.split())[:200]
    return f"{what} {how}" + (f": {shown}" if shown else "")


def end_of_body(text: str) -> int | None:
    """Return the length of the rest of a function's body, its closing brace included; None: it goes on.

    Braces in comments, strings and character literals do not count.
    """
    depth, position = 1, 0
    while position < len(text):
        rest = text[position:]
        if rest.startswith("//"):
            position += _end_of(rest, "\n", 2)
        elif rest.startswith("/*"):
            position += _end_of(rest, "*/", 2)
        elif text[position] in "\"'":
            position += _literal_length(rest)
        elif word := _WORD.match(rest):
            position += word.end()
        else:
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            position += 1
            if depth == 0:
                return position
    return None


def _end_of(rest: str, end: str, start: int) -> int:
    found = rest.find(end, start)
    return len(rest) if found < 0 else found + len(end)


def _literal_length(rest: str) -> int:
    """Return the length of a literal that begins with a quote, and ends with its line at the latest."""
    position = 1
    while position < len(rest) and rest[position] not in (rest[0], "\n"):
        position += 2 if rest[position] == "\\" else 1
    return min(position + 1, len(rest))
