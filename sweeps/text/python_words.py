"""Commands and options in Python's words: what an operation's message says to somebody who called a function.

The operations word their messages for the command line, which most people use; `sweeps.api` passes them on.
"""

from __future__ import annotations

import re

_OPTION = r"(?<![\w/.-])--"
"""What begins an option, and stands in no path."""

_WORDS: tuple[tuple[str, str], ...] = (
    (r"`sweep worker --storage '?([^`]+?)'?`, or choose another name in the search space file or another "
     r"--storage", r"sweeps.open('\1') or skip_if_exists=True, or choose another name or another storage"),
    (r"`sweep extend --run-cap (\S+) --storage [^`]+`", r"`sweep.extend(run_cap=\1)`"),
    (r"`sweep extend --budget (\w+)=(\S+) --storage [^`]+`", r"`sweep.extend(\1=\2)`"),
    (r"`sweep extend --expected-gain (\S+) --storage [^`]+`", r"`sweep.extend(expected_gain=\1)`"),
    (r"`sweep extend --expected-gain none`", "`sweep.extend(expected_gain=None)`"),
    (r"make one with `sweep init SPACE.yaml`(, try `sweep quickstart`)?", "make one with sweeps.create({…})"),
    (r"point --storage(?: and --name)? at one", "give the folder of one to sweeps.open"),
    (r"`sweep status --storage [^`]+`|`sweep status`", "`sweep.status()`"),
    (r"`sweep trials`", "`sweep.trials()`"),
    (r"run `sweep resume`", "call `sweep.resume()`"),
    (r"`sweep (pause|resume|stop)`", r"`sweep.\1()`"),
    (r"`sweep extend`", "`sweep.extend(run_cap=…)`"),
    (r"`sweep confirm`", "`sweep.confirm()`"),
    (r"\bSay --name with one of", "Say name= with one of"),
    (r"leave out --name (\S+)", r"leave out name=\1"),
    (r", or with `sweep ask` and `sweep tell`", ""),
    (r" in Python, or add --plan and start your script again", ""),
    (r"by `sweeps\.open\(URL\)\.run\(function\)`", "by sweep.run(function)"),
    (r"the sizes by --size\b", "sizes="),
    (r"it by --size\b", "sizes="),
    (r"--at NAME=SIZE\b", "measure=NAME"),
    (r"--max METRIC=VALUE", "at_most={METRIC: VALUE}"),
    (_OPTION + r"max\b", "at_most"),
    (_OPTION + r"again\b", "again=True"),
    (r"--seed-name NAME", "seed_name=NAME"),
    (_OPTION + r"(top|seeds|budget|objective|seed-name) (?=[^\s:])", r"\1="),
    (_OPTION + r"(run|wall|seed|expected|skip-if)-([a-z]+)\b", r"\1_\2"),
    (_OPTION + r"(storage|name|top|seeds|budget|objective)\b", r"\1"),
    (r"seed-name=", "seed_name="),
)  # fmt: skip
"""What stands in a message, and what stands there in Python; the first that fit go first."""


def words(message: str) -> str:
    """Return the message with functions in place of commands, and arguments in place of options."""
    for pattern, replacement in _WORDS:
        message = re.sub(pattern, replacement, message)
    return message
