"""Command `sweep`. Subcommands are imported when they are called, so that `--help` and `status` stay quick.

Exit status: 0 done; 1 the work failed; 2 the input is wrong; 75 preempted after handing the trial back; 130
interrupted by Ctrl-C.
"""

from __future__ import annotations

import importlib
import io
import os
import re
import sys
from typing import TYPE_CHECKING

import click

from sweeps.errors import EXIT_DONE, EXIT_FAILED, EXIT_INPUT, EXIT_INTERRUPTED, SweepError

if TYPE_CHECKING:
    from types import TracebackType

_COMMANDS = {
    "quickstart": ("sweeps.cli.quickstart", "Search a tiny ternary model on this CPU, in a few minutes."),
    "init": ("sweeps.cli.run", "Validate a search space and create the sweep; prints its URL."),
    "list": ("sweeps.cli.lifetime", "List the sweeps under a storage."),
    "worker": ("sweeps.cli.run", "Claim trials, run them and report, until none is left."),
    "launch": ("sweeps.cli.launch", "Start workers, and keep them going until no trial is left."),
    "pool": ("sweeps.cli.pool", "Inspect and resize the pools of workers that `sweep launch` started."),
    "down": ("sweeps.cli.pool", "Stop the pools of workers that `sweep launch` started."),
    "status": ("sweeps.cli.show", "Show how many trials have which status, what runs, and the best so far."),
    "trials": ("sweeps.cli.show", "Show the table of trials."),
    "show": ("sweeps.cli.trial", "Show all about one trial: attempts, error, log, how to run it again."),
    "snapshots": ("sweeps.cli.snapshots", "Show and remove the stored ends of stages that trials share."),
    "best": ("sweeps.cli.best", "Show the best trial and how to run it again."),
    "confirm": (
        "sweeps.cli.confirm",
        "Run the best trials again with fresh seeds, and say which is the best.",
    ),
    "pareto": (
        "sweeps.cli.pareto",
        "Show the Pareto front of loss against compute, of a sweep or any table.",
    ),
    "plan": ("sweeps.cli.plan", "Say what to run at another size, by finished sweeps at two or more."),
    "enqueue": ("sweeps.cli.asktell", "Add trials of your own, which are run before the search's."),
    "ask": ("sweeps.cli.asktell", "Claim a trial for a program that brings its own loop."),
    "tell": ("sweeps.cli.asktell", "Report the result of a trial that was asked for."),
    "pause": ("sweeps.cli.control", "Hand out no trials for now; workers wait."),
    "resume": ("sweeps.cli.control", "Hand out trials again."),
    "stop": ("sweeps.cli.control", "Hand out no more trials; workers finish theirs and leave."),
    "history": ("sweeps.cli.lifetime", "Show who did what to the sweep, and when."),
    "extend": ("sweeps.cli.extend", "Change the run cap or the budget of a sweep that exists."),
    "retry": ("sweeps.cli.control", "Put failed, stopped or abandoned trials back for another try."),
    "abandon": ("sweeps.cli.control", "Give up trials."),
    "archive": ("sweeps.cli.lifetime", "Stop a sweep and leave it out of `sweep list`."),
    "rename": ("sweeps.cli.lifetime", "Rename a sweep."),
    "copy": ("sweeps.cli.lifetime", "Copy a sweep into another folder or bucket, verified."),
    "delete": ("sweeps.cli.lifetime", "Delete a sweep with all that it holds."),
    "import": ("sweeps.cli.upkeep", "Import earlier results as completed trials."),
    "export": ("sweeps.cli.export", "Write the trials table to a CSV, Parquet or JSON file."),
    "report": ("sweeps.cli.export", "Write one self-contained HTML page about the sweep."),
    "dashboard": ("sweeps.cli.dashboard", "Serve live pages about the sweeps under a storage."),
    "doctor": ("sweeps.cli.upkeep", "Diagnose this machine, the storage and the sweep."),
    "repair": ("sweeps.cli.upkeep", "Repair what `sweep doctor` found, with --yes."),
}


_SECTIONS = {
    "Every day": "quickstart init worker launch status trials best pareto report dashboard",
    "Look closer": "list show confirm plan export history snapshots",
    "Steer": "pause resume stop extend enqueue retry abandon ask tell pool down",
    "Put in order": "doctor repair import archive rename copy delete",
}
"""Commands as `sweep --help` lists them: first what is used daily."""


class _LazyGroup(click.Group):
    """Group that knows its commands and their one-line help without importing them."""

    def invoke(self, ctx: click.Context) -> object:
        status = super().invoke(ctx)
        return ctx.meta.get("sweeps.damaged") or status

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            if not cmd_name.startswith("-"):
                import difflib

                close = difflib.get_close_matches(cmd_name, _COMMANDS, n=1)
                meant = close[0] if close else _OTHERS_WORDS.get(cmd_name, "")
                hint = f"; did you mean `sweep {meant}`?" if meant else ""
                ctx.fail(f"there is no command {cmd_name!r}{hint}")
            return None
        members = vars(importlib.import_module(_COMMANDS[cmd_name][0])).values()
        return next(c for c in members if isinstance(c, click.Command) and c.name == cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, _COMMANDS[name][1]) for name in names.split()])


_OTHERS_WORDS = {"cp": "copy", "move": "copy", "sync": "copy"}
_OTHERS_WORDS |= {"agent": "worker", "run": "worker", "start": "worker", "create": "init", "new": "init"}
_OTHERS_WORDS |= {"ls": "list", "rm": "delete", "remove": "delete", "mv": "rename", "logs": "show"}
_OTHERS_WORDS |= {"info": "show", "cancel": "abandon", "kill": "abandon", "plot": "report", "check": "doctor"}
"""Words of other tools, and the command that does the same."""


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Without --storage and --name: SWEEP_STORAGE and SWEEP_NAME, else ./sweep-store and the sweep "
    "initialised there last. Exit status: 0 done, 1 failed, 2 wrong input, 75 preempted, 130 interrupted.",
)
@click.version_option(package_name="stagesweep", prog_name="sweep")
@click.option("-v", "--verbose", count=True, help="Log details to stderr; twice for more.")
def cli(verbose: int) -> None:
    """Hyperparameter sweeps of training runs, on machines that may disappear.

    A sweep is a folder that workers share: no server, no database. Start with `sweep quickstart`, or
    `sweep init SPACE.yaml` and then `sweep worker` as often and wherever you like.
    """
    import logging

    from sweeps.trials.redaction import RedactingFormatter

    level = {0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(RedactingFormatter("sweep: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
    _note_misspelt_variables()


def main() -> None:
    """Run the command line; an expected error is one line on stderr and an exit status."""
    # A stream is None if the process was started with `>&-` or `2>&-`.
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - it stays open as long as we run
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - so does this one
    # Else a command ends with a traceback after its work, where the locale lacks an arrow of the message.
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.excepthook = _print_traceback
    try:
        status = cli.main(prog_name="sweep", standalone_mode=False)
        sys.stdout.flush()
    except (click.exceptions.Abort, KeyboardInterrupt):
        print("sweep: interrupted", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    except click.ClickException as error:
        _print_usage_error(error)
        sys.exit(error.exit_code)
    except SweepError as error:
        _print_error(str(error))
        sys.exit(error.exit_status)
    except ImportError as error:
        problem = " ".join(str(error).split())
        _print_error(f"cannot import {error.name or 'a module'}: {problem}; see `sweep doctor`")
        sys.exit(EXIT_INPUT)  # another start would end in the same way
    except BrokenPipeError:
        # `sweep trials | head`: the reader has closed the pipe. Keep the interpreter from flushing into it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILED)
    except OSError as error:
        # Such as a full disk under a redirected stdout; errors of stores have messages of their own.
        _print_error(f"{error.filename or 'output'}: {error.strerror or error}")
        sys.stdout = sys.stderr  # the interpreter must not flush the failed output at exit
        sys.exit(EXIT_FAILED)
    sys.exit(status if isinstance(status, int) else EXIT_DONE)


_CLICKS_WORDS = (
    ("a valid integer range", "a whole number"),
    ("a valid float range", "a number"),
    (r"^No such option:? '?([^' ]+)'?", r"there is no option \1"),
    (r"\.? \(?Did you mean (?:one of: )?'?([^',?]+)'?[^?]*\?\)?", r"; did you mean \1?"),
    (r"^No such command '([^']+)'", r"there is no command '\1'"),
    (r"^Option '([^']+)' requires an argument", r"\1: a value is missing"),
    (r"^Missing argument '([^']+)'", r"\1 is missing"),
    (r"^Missing option '([^']+)'", r"\1 is missing"),
    (r"^Invalid value for '([^']+)': '(.+)' is (?=not |none )", r"\1 \2: "),
    (r"^Invalid value for '([^']+)': (\S+) is ", r"\1 \2: "),
    (r"^Got unexpected extra arguments? \((.+)\)", r"\1: too much; quote what belongs together"),
)
"""Messages of click, and the same as every other message of ours: what, and what is wrong with it."""


def _print_usage_error(error: click.ClickException) -> None:
    """Print an error of click in one line; a group without a subcommand shows its help."""
    context = getattr(error, "ctx", None)
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
        error.show()
        return
    message = " ".join(error.format_message().split()).rstrip(".")
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        # Nearest first; click's message has them by the alphabet.
        message = f"No such option: {error.option_name} Did you mean {error.possibilities[0]}?"
    for clicks, ours in _CLICKS_WORDS:
        message = re.sub(clicks, ours, message)
    see = " See" if message.endswith("?") else "; see"
    if context is None:  # the parser knows no command yet
        command = " ".join(["sweep", *[word for word in sys.argv[1:] if word in _COMMANDS][:1]])
    else:
        command = context.command_path
    _print_error(f"{message}{see} `{command} --help`")


_VARIABLES = (
    "SWEEP_STORAGE", "SWEEP_NAME", "SWEEP_USER", "SWEEP_SCRATCH", "STAGESWEEP_CACHE", "STAGESWEEP_WARM_START"
)  # fmt: skip
"""Variables that people set; those of a trial, such as SWEEP_RUN_DIR, are set for programs."""


def _note_misspelt_variables() -> None:
    """Say which variables of the environment look like ours and are not: nothing would read them."""
    import difflib

    for name in sorted(os.environ.keys() - {*_VARIABLES, "SWEEP_RUN_DIR", "SWEEP_TRIAL"}):
        if not name.startswith(("SWEEP_", "SWEEPS_", "STAGESWEEP_")):
            continue
        # Without the prefix, which makes all of them alike.
        endings = {each.partition("_")[2]: each for each in _VARIABLES}
        if close := difflib.get_close_matches(name.partition("_")[2], endings, n=1, cutoff=0.75):
            print(f"sweep: {name} is not read; did you mean {endings[close[0]]}?", file=sys.stderr)


def _print_error(message: str) -> None:
    from sweeps.trials.redaction import printable

    print(printable(f"sweep: error: {message}"), file=sys.stderr)


def _print_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the traceback of an unexpected error, without secrets."""
    import traceback

    from sweeps.trials.redaction import printable

    print(printable("".join(traceback.format_exception(kind, error, trace))), end="", file=sys.stderr)
