"""End to end: a run that keeps its model, its export, and the loss that transformers measures with it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from trainer.__main__ import main as train
from trainer.api import check, quote
from trainer.export.__main__ import main


def run(overrides: list[str], folder: Path) -> None:
    """What `python -m trainer` does, in this process, which gets its own handlers back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        assert train([*overrides, f"run_dir={quote(str(folder))}"]) == 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.fixture(scope="module")
def run_dir(small: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory, cache_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as context:
        context.setenv("STAGESWEEP_CACHE", str(cache_folder))
        run([*small, "device.dtype=float32", "save_model=true"], folder)
    return folder


@pytest.mark.parametrize("form", ["packed", "dense", "master"])
def test_transformers_measures_the_loss_of_the_run(
    form: str, run_dir: Path, small: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from trainer.data.inputs import prepare_inputs

    out = tmp_path / "out"
    assert main([str(run_dir), str(out), "--format", form]) == 0
    output = capsys.readouterr().out
    words = "as master weights" if form == "master" else form
    assert f"BitNetForCausalLM, 14 ternary matrices {words}" in output
    assert f"AutoModelForCausalLM.from_pretrained({str(out)!r})" in output
    model = AutoModelForCausalLM.from_pretrained(out)
    held_out = prepare_inputs(check([*small, "device.dtype=float32"])).held_out
    with torch.no_grad():
        losses = [model(input_ids=ids, labels=ids).loss.item() for ids in held_out]
    result = json.loads((run_dir / "result.json").read_text())["metrics"]
    assert sum(losses) / len(losses) == pytest.approx(result["final_loss"], abs=1e-3)
    tokenizer = AutoTokenizer.from_pretrained(out)
    prompt = tokenizer("def f(x):", return_tensors="pt")["input_ids"]
    assert model.generate(prompt, max_new_tokens=3, do_sample=False).shape[1] <= prompt.shape[1] + 3


def test_adapters_are_exported_or_left_out(
    small: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("peft")
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from trainer.data.inputs import prepare_inputs

    float32 = [*small, "device.dtype=float32"]
    recovery = ["recovery.max_steps=6", "recovery.batch_size=4", "recovery.schedule.warmup_steps=1"]
    run([*float32, *recovery, "save_model=true"], tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]
    held_out = prepare_inputs(check(float32)).held_out

    @torch.no_grad()
    def loss(model: torch.nn.Module) -> float:
        return sum(model(input_ids=ids, labels=ids).loss.item() for ids in held_out) / len(held_out)

    assert main([str(tmp_path / "run"), str(tmp_path / "with")]) == 0
    assert f"PeftModel.from_pretrained(model, '{tmp_path / 'with' / 'adapter'}')" in capsys.readouterr().out
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by earlier names
        base = AutoModelForCausalLM.from_pretrained(tmp_path / "with")
        adapted = PeftModel.from_pretrained(base, str(tmp_path / "with" / "adapter"))
    assert loss(adapted) == pytest.approx(result["final_loss"], abs=1e-3)
    arguments = [str(tmp_path / "run"), str(tmp_path / "without"), "--without-adapters"]
    assert main([*arguments, "--format", "master"]) == 0
    without = loss(AutoModelForCausalLM.from_pretrained(tmp_path / "without"))
    assert without == pytest.approx(result["recovery_start_loss"], abs=1e-3)
    assert result["recovery_start_loss"] - result["final_loss"] > 3e-3  # more than both tolerances
    assert not (tmp_path / "without" / "adapter").exists()


def test_without_save_model_nothing_is_kept(small: tuple[str, ...], tmp_path: Path) -> None:
    run([*small, "stage1_9.max_steps=0", "stage2.max_steps=0"], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} >= {"result.json", "metrics.jsonl"}
    assert not (tmp_path / "model").exists()
    assert main([str(tmp_path), str(tmp_path / "out")]) == 2


def refusals(run_dir: Path, tmp_path: Path) -> dict[str, tuple[list[str], str]]:
    (tmp_path / "empty").mkdir(exist_ok=True)
    (tmp_path / "taken").mkdir(exist_ok=True)
    (tmp_path / "taken" / "file").touch()
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir(exist_ok=True)
    other = tmp_path / "other"
    other.mkdir(exist_ok=True)
    (other / "model").symlink_to(run_dir / "model")
    (other / "result.json").write_text(json.dumps({"provenance": {"config_sha256": "of another"}}))
    kept = tmp_path / "kept nothing"
    kept.mkdir(exist_ok=True)
    (kept / "result.json").write_text("{}")
    new = str(tmp_path / "new")
    return {
        "no run": ([str(tmp_path / "nowhere"), new], "RUN_DIR: there is no folder"),
        "unfinished": ([str(unfinished), new], "holds no finished run: no result.json"),
        "no model": ([str(kept), new], "kept no model; run it again with save_model=true"),
        "other run's model": ([str(other), new], "is of another run than its result"),
        "taken": ([str(run_dir), str(tmp_path / "taken")], "OUT: .* is there already; name a new folder"),
        "a file": ([str(run_dir), str(tmp_path / "taken" / "file")], "OUT: .* is there already"),
        "a folder for a file": (
            [str(run_dir), str(tmp_path / "empty"), "--format", "gguf-tq1_0"],
            "OUT: .* is there already; name a new file",
        ),
        "i2_s": ([str(run_dir), new, "--format", "i2_s"], "--format: the layout of i2_s depends on the CPU"),
        "no adapters": (
            [str(run_dir), new, "--without-adapters"],
            "--without-adapters: this student has none",
        ),
        "no architecture": ([str(run_dir), new, "--format", "gguf-tq2_0"], "has a head of its own"),
    }


CASES = ("no run", "unfinished", "no model", "other run's model", "taken", "a file")


@pytest.mark.parametrize("case", [*CASES, "a folder for a file", "no architecture", "i2_s", "no adapters"])
def test_misuse_is_refused_in_one_line(
    case: str, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, problem = refusals(run_dir, tmp_path)[case]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert re.search(f"^export: error: .*{problem}", error)
    assert error.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_an_empty_folder_is_taken(run_dir: Path, tmp_path: Path) -> None:
    assert main([str(run_dir), str(tmp_path), "--format", "dense"]) == 0
    assert (tmp_path / "model.safetensors").is_file()


def test_it_is_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trainer.export", "nowhere", "out"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.startswith("export: error: RUN_DIR: ")) == (2, True)


def test_help_and_misuse_load_no_torch() -> None:
    code = (
        "import sys; from trainer.export.__main__ import main\n"
        "status = main(['nowhere', 'out'])\n"
        "sys.exit(9 if 'torch' in sys.modules else status)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 2
