"""`python -m trainer`: files, streams and exit statuses.

`checkpoint/test_checkpoint_process.py` has the process that writes its result and metrics and nothing else, and
the one that is told to go in a stage.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
import torch
from forked import Forked

from sweeps.programs.result import network_was_lost
from trainer import __main__ as program
from trainer import api
from trainer.config.compose import groups, keys
from trainer.config.usage import meanings
from trainer.errors import HangingDiskError, UnreachableError

pytestmark = pytest.mark.usefixtures("keep_signals")
NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


def run_trainer(*overrides: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, PYTHONPATH=str(Path(api.__file__).parents[1]))
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "trainer", *overrides],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_refused_config_is_one_line_and_status_2_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from trainer.__main__ import main; status = main(['stage2.max_stps=3', 'run_dir=x']); "
        "print(status, 'torch' in sys.modules)"
    )
    environment = dict(os.environ, PYTHONPATH=str(Path(api.__file__).parents[1]))
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "2 False\n"
    assert done.stderr.startswith("trainer: error: stage2.max_stps: ")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["seed=3"], "run_dir: needs a value"),
        (["--multirun", "run_dir=x"], "there is no option --multirun"),
        (["--cfg", "hydra"], "--cfg takes one word"),
        (["--cfg=hydra"], "--cfg takes one word"),
        (["--cfg", "job", "stage2.max_steps=many"], "stage2.max_steps: input should be a valid integer"),
        pytest.param(["device=cuda", "run_dir=RUN"], "there is no CUDA device here", marks=NO_CUDA),
    ],
)
def test_other_wrong_command_lines_end_with_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = [argument.replace("RUN", str(tmp_path / "run")) for argument in arguments]
    assert program.main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_a_folder_that_cannot_be_written_ends_with_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    assert program.main([f"run_dir={tmp_path}/file/run"]) == 1
    assert "cannot write to run_dir" in capsys.readouterr().err


def test_divergence_ends_with_70(
    small: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    assert program.main([*small, f"run_dir={run_dir}"]) == 0
    assert (run_dir / api.RESULT_FILE).exists()
    capsys.readouterr()
    wild = [
        "stage2.optimizer.lr=1e30",
        "stage2.optimizer.type=adamw",
        "stage2.max_steps=20",
        "overwrite=true",
    ]
    assert program.main([*small, *wild, f"run_dir={run_dir}"]) == 70
    error = capsys.readouterr().err
    assert error.startswith("trainer: diverged: ")
    assert " of stage2; " in error
    assert error.count("\n") == 1
    assert not (run_dir / api.RESULT_FILE).exists()  # not even the earlier run's


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            UnreachableError("cannot read gs://b/x.parquet: HttpError: 503"),
            "lost the network: cannot read gs://",
        ),
        (HangingDiskError("no training text has come"), "a disk or a mount hangs: no training text has come"),
    ],
)
def test_what_may_pass_is_said_in_the_words_that_a_sweep_reads(
    error: UnreachableError,
    words: str,
    small: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def prepare_inputs(*_: object) -> None:
        raise error

    monkeypatch.setattr("trainer.data.inputs.prepare_inputs", prepare_inputs)
    assert program.main([*small, f"run_dir={tmp_path}/run"]) == 1
    line = capsys.readouterr().err
    assert line.startswith(f"trainer: error: {words}")
    assert line.count("\n") == 1
    assert network_was_lost(line)


@pytest.mark.parametrize(
    ("refused", "key"),
    [
        pytest.param(["device=cuda"], "not on this machine: device.type", marks=NO_CUDA),
        (["eval.batches=5000"], "eval.batches"),
        (["model=hf", "model.name=/no/such/model"], "model.name"),
    ],
    ids=" ".join,
)
def test_refused_configuration_leaves_earlier_files(
    refused: list[str],
    key: str,
    small: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in (api.RESULT_FILE, api.METRICS_FILE):
        (tmp_path / name).write_text(f"earlier {name}\n")
    given = [x for x in small if not (refused[0] == "model=hf" and x.startswith("model."))]
    assert program.main([*given, *refused, f"run_dir={tmp_path}"]) == 2
    assert capsys.readouterr().err.startswith(f"trainer: error: {key}: ")
    assert (tmp_path / api.RESULT_FILE).read_text() == "earlier result.json\n"
    assert (tmp_path / api.METRICS_FILE).read_text() == "earlier metrics.jsonl\n"


def test_a_refusal_that_only_a_later_process_may_have_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is wrong on its machine may be right on the first one's; overrides are wrong in all of them."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    shared = ["device=cpu", "device.parallel=ddp", f"run_dir={tmp_path / 'run'}"]
    assert program.main([*shared, "data=text", f"data.files=[{tmp_path}/nowhere/*.txt]"]) == 2
    assert re.fullmatch(r"trainer: process 1: error: data\.files: .*\n", capsys.readouterr().err)
    assert program.main([*shared, "stage2.max_stps=3"]) == 2
    assert capsys.readouterr().err == ""  # the first one has said it


def test_refusal_restores_nothing_of_a_killed_run(small: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / f".{api.RESULT_FILE}.earlier").write_text("older than the run that was killed\n")
    assert program.main([*small, "eval.batches=5000", f"run_dir={tmp_path}"]) == 2
    assert {path.name for path in tmp_path.iterdir()} == {api.METRICS_FILE}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_ends_with_1_and_one_line(small: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / api.METRICS_FILE).symlink_to("/dev/full")
    done = run_trainer(*small, f"run_dir={tmp_path}", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("trainer: error: cannot write ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / api.RESULT_FILE).exists()


@pytest.mark.slow
@pytest.mark.parametrize("both", [pytest.param(False, id="stdout"), pytest.param(True, id="both")])
def test_a_reader_who_leaves_does_not_end_the_run(both: bool, small: tuple[str, ...], tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    environment = dict(os.environ, PYTHONPATH=str(Path(api.__file__).parents[1]))
    environment.pop("PYTHONUNBUFFERED", None)  # what is buffered is tried once more at exit
    process = subprocess.Popen(
        api.command([*small, "model.teacher.seed=14"], tmp_path),
        env=environment,
        stdout=writer,
        stderr=writer if both else subprocess.PIPE,
    )
    os.close(writer)
    _, stderr = process.communicate(timeout=110)
    assert (process.returncode, stderr) == (0, None if both else b"")
    assert (tmp_path / api.RESULT_FILE).exists()


def test_sigterm_while_the_teacher_trains_caches_nothing(
    small: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forkserver: ForkServerContext
) -> None:
    monkeypatch.setenv("STAGESWEEP_CACHE", str(tmp_path / "cache"))
    argv = [*small, "model.teacher.max_steps=100000", f"run_dir={tmp_path / 'run'}"]
    process = Forked(forkserver, "trainer.__main__", argv, cwd=tmp_path, folder=tmp_path)
    deadline = time.monotonic() + 60
    while not (process.stdout.exists() and "preparing teacher: 0 %\n" in process.stdout.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=100)
    assert stdout.startswith("preflight: memory below ")
    assert process.returncode == 75
    # The first line is there before the first step.
    assert re.fullmatch(r"trainer: stopped by SIGTERM( after step \d+ of teacher)?\n", stderr)
    kept = (tmp_path / "cache" / "teachers").iterdir()
    assert [path.name for path in kept if not path.name.endswith(".lock")] == []


def test_help_names_groups_and_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--help"]) == 0
    text = capsys.readouterr().out
    for expected in (
        "usage: python -m trainer",
        "optimizer: adamw, adamw_8bit, apollo, apollo_mini, muon, muonclip",
        "  stage2.optimizer.lr=0.004                   peak learning rate.\n",
    ):
        assert expected in text
    assert max(map(len, text.splitlines())) <= 110
    assert len(text.splitlines()) <= 50


def test_help_all_names_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--help", "all"]) == 0
    text = capsys.readouterr().out
    assert "  stage1_9.saliency.ema_decay=0.99            of the columns' L-infinity norms.\n" in text
    assert [key for key in keys() if f"  {key}=" not in text] == []
    assert max(map(len, text.splitlines())) <= 110


def test_help_of_the_end_of_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--help", "lr"]) == 0
    shown = [line.partition("=")[0] for line in capsys.readouterr().out.splitlines() if line[:1].strip()]
    assert {"stage1_9.optimizer.lr", "stage2.optimizer.lr"} <= set(shown)
    assert all(name.endswith(".lr") for name in shown)


def test_help_of_a_group_says_which_options_have_a_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--help", "data"]) == 0
    parts = re.split(r"^with (.+):$", capsys.readouterr().out, flags=re.MULTILINE)[1:]
    of = {
        title: re.findall(r"^data\.(\w+)=", text, re.MULTILINE)
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    }
    assert next(iter(of)) == "any data"
    assert "sequence_length" in of["any data"]
    assert "files" in of["data=parquet or data=text"]
    assert sum(map(len, of.values())) == len({name for names in of.values() for name in names})


def test_help_of_a_key_has_its_default_values_and_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--help", "stage2.optimizer.type", "data.files"]) == 0
    assert capsys.readouterr().out == (
        "stage2.optimizer.type=muon\n  muon | muonclip | adamw | adamw_8bit | apollo | apollo_mini\n"
        "  `muon`, `muonclip`, `apollo`, `apollo_mini`: that one for the hidden matrices and AdamW for the\n"
        "  rest; `adamw`: AdamW for everything; `adamw_8bit`: the same with its state in 8 bits.\n\n"
        "with data=parquet or data=text:\n\ndata.files=(required)\n  a list of: text\n"
        "  paths, globs or folders, URLs too; one or a list.\n"
    )


def test_help_of_a_section_has_all_keys_below_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["stage2.lambda_warmup", "--help"]) == 0
    text = capsys.readouterr().out
    shown = [line.partition("=")[0] for line in text.splitlines() if line.startswith("stage2.lambda_warmup.")]
    assert set(shown) == {key for key in keys() if key.startswith("stage2.lambda_warmup.")}


def test_help_of_an_unknown_key_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--help", "stage2.optimiser.lr"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("trainer: error: stage2.optimiser.lr: ")
    assert "'stage2.optimizer.lr'" in error


def test_every_key_has_a_meaning() -> None:
    choices = [
        f"{name}={option}" for name in ("data", "model", "stage3/teacher") for option in groups()[name]
    ]
    every = {key for choice in ([], *([each] for each in choices)) for key in keys(choice)}
    assert [key for key in sorted(every) if not meanings(key)] == []


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_path_to_nothing_is_no_name_on_the_hub(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "./nothere" + ".gguf" * (kind == "file")
    assert program.main(["model=hf", f"model.name={name}", f"run_dir={tmp_path}/run"]) == 2
    assert capsys.readouterr().err.startswith(f"trainer: error: model.name: there is no {kind} '{name}'")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("flag", [["--cfg", "job"], ["--cfg=job"]], ids=" ".join)
def test_cfg_job_prints_the_composed_configuration(
    flag: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(["seed=7", *flag]) == 0
    assert "seed: 7\n" in capsys.readouterr().out
