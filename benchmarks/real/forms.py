"""Size and speed of the forms in which a student leaves: `python -m benchmarks.real forms RUN_DIR`.

RUN_DIR is a run on the real model with `save_model=true`. Each form is exported and read by what runs it: the
checkpoints by transformers, the GGUF files by llama.cpp (`pip install xllamacpp`; without it their rows have
sizes alone). Tokens per second of a prompt, and of the tokens generated after it, with one thread; and the
largest difference of a log probability from the student's own, over the 20 likeliest next tokens.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainer.layout import MODEL_FOLDER
from trainer.models.student_folder import load

CHECKPOINTS = ("dense", "packed", "master")
FILES = ("gguf-tq1_0", "gguf-tq2_0")
PROMPT, GENERATED, LIKELIEST = 128, 32, 20


@dataclass(frozen=True, kw_only=True)
class Row:
    """A form: bytes on disk, tokens per second, largest difference; None: nothing here reads it."""

    form: str
    size: int
    prompt: float | None = None
    generated: float | None = None
    difference: float | None = None


def main(run_dir: Path, teacher: Path) -> None:
    """Print the table of all forms, full precision first.

    Args:
        run_dir: of a finished run.
        teacher: the model in full precision, a folder.
    """
    torch.set_num_threads(1)
    saved = load(run_dir / MODEL_FOLDER)
    ids = _ids(saved.tokenizer)
    ours = _log_probabilities(saved.model, ids)
    rows = [_by_transformers("full precision", teacher, ids, None)]
    with tempfile.TemporaryDirectory() as folder:
        for form in (*CHECKPOINTS, *FILES):
            out = Path(folder) / form
            command = [sys.executable, "-m", "trainer.export", str(run_dir), str(out), "--format", form]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            read = _by_llama_cpp if form in FILES else _by_transformers
            rows.append(read(form, out, ids, ours))
    print(table(rows))


def table(rows: list[Row]) -> str:
    """Return the rows in Markdown."""
    head = "| form | MB on disk | prompt, tokens/s | generated, tokens/s | largest difference |"
    lines = [
        f"| {row.form} | {row.size / 1e6:.1f} | {_cell(row.prompt, '.0f')} | {_cell(row.generated, '.1f')} "
        f"| {_cell(row.difference, '.2g')} |"
        for row in rows
    ]
    return "\n".join([head, "|---|---|---|---|---|", *lines])


def _cell(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _ids(tokenizer: Path) -> list[int]:
    from tokenizers import Tokenizer

    text = "The committee met in the old town hall, and nobody could remember who had asked for it. " * 20
    return list(Tokenizer.from_file(str(tokenizer / "tokenizer.json")).encode(text).ids[:PROMPT])


@torch.no_grad()
def _log_probabilities(model: Any, ids: list[int]) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
    return logits.float().log_softmax(-1)


def _size(path: Path) -> int:
    """Return the bytes of a file, or of a folder's weights."""
    return (
        path.stat().st_size if path.is_file() else sum(f.stat().st_size for f in path.glob("*.safetensors"))
    )


@torch.no_grad()
def _by_transformers(form: str, folder: Path, ids: list[int], ours: torch.Tensor | None) -> Row:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", trust_remote_code=True).eval()
    prompt_1T = torch.tensor([ids])
    model(input_ids=prompt_1T)  # warms up
    began = time.perf_counter()
    cache = model(input_ids=prompt_1T, use_cache=True).past_key_values
    read = time.perf_counter()
    token = prompt_1T[:, -1:]
    for _ in range(GENERATED):
        out = model(input_ids=token, past_key_values=cache, use_cache=True)
        token = out.logits[:, -1:].argmax(-1)
    ended = time.perf_counter()
    difference = None
    if ours is not None:
        best = ours.topk(LIKELIEST).indices
        difference = float((_log_probabilities(model, ids)[best] - ours[best]).abs().max())
    return Row(
        form=form,
        size=_size(folder),
        prompt=len(ids) / (read - began),
        generated=GENERATED / (ended - read),
        difference=difference,
    )


def _by_llama_cpp(form: str, file: Path, ids: list[int], ours: torch.Tensor) -> Row:
    try:
        import xllamacpp  # type: ignore[import-not-found]  # not a dependency
    except ImportError:
        return Row(form=form, size=_size(file))
    asked = xllamacpp.CommonParams()
    asked.model.path, asked.n_ctx, asked.n_gpu_layers, asked.n_parallel = str(file), 512, 0, 1
    asked.cpuparams.n_threads, asked.warmup = 1, True
    server = xllamacpp.Server(asked)
    settings = {"prompt": ids, "temperature": -1, "cache_prompt": False, "n_probs": LIKELIEST}
    answer = server.handle_completions(settings | {"n_predict": GENERATED, "ignore_eos": True})
    answer = json.loads(answer) if isinstance(answer, str) else answer
    likeliest = answer["completion_probabilities"][0]["top_logprobs"]
    return Row(
        form=form,
        size=_size(file),
        prompt=answer["timings"]["prompt_per_second"],
        generated=answer["timings"]["predicted_per_second"],
        difference=max(abs(each["logprob"] - float(ours[each["id"]])) for each in likeliest),
    )
