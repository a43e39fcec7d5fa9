"""Size, speed and exactness of each form that a student leaves in, on this CPU, and of its teacher.

Each form is read by what it is made for: checkpoints by transformers, GGUF files by llama.cpp's own code (the
package xllamacpp; without it their rows are left out). The teacher's GGUF file is in float16.

Columns: size of all files; tokens/s of a prompt and of greedy generation after it, the fastest of several
rounds over all forms; and the root mean square difference, in nats, of the log probabilities of the reader's
20 likeliest next tokens from those that this package computes, after several prompts.
"""

from __future__ import annotations

import inspect
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from trainer.data.encoder import Encoder
from trainer.export.checkpoint import export
from trainer.export.gguf_file import FORMATS, export_file
from trainer.export.readback import quiet
from trainer.models.adapters import adapters_of, remove_adapters
from trainer.models.causal_lm import load_pretrained, run
from trainer.models.student_folder import SavedStudent

CHECKPOINTS: tuple[Literal["packed", "dense", "master"], ...] = ("packed", "dense", "master")
LIKELIEST = 20

Report = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What each form computes.

    Args:
        prompts: token ids of texts.
        generated: tokens after the first prompt.
        rounds: over all forms; the fastest counts.
        threads: of the CPU.
    """

    prompts: Sequence[Sequence[int]]
    generated: int = 32
    rounds: int = 3
    threads: int = 1


class Reader(Protocol):
    """A form that is loaded."""

    name: str

    def likeliest(self, prompt: Sequence[int]) -> dict[int, float]:
        """Return the log probabilities of the likeliest next tokens, by id."""

    def speed(self, prompt: Sequence[int], generated: int) -> tuple[float, float]:
        """Return tokens/s of the prompt and of the generation."""


@dataclass(kw_only=True)
class Row:
    """What was found of a form.

    Args:
        name: of the form.
        reader: what read it.
        size: bytes of all its files.
        difference: in nats, see above.
        prompts, generations: tokens/s in each round.
    """

    name: str
    reader: str
    size: int
    difference: float
    prompts: list[float] = field(default_factory=list)
    generations: list[float] = field(default_factory=list)

    def line(self) -> str:
        """Return the row of a Markdown table."""
        cells = (
            self.name,
            self.reader,
            f"{self.size / 2**20:,.1f} MiB",
            f"{max(self.prompts):,.1f}",
            f"{max(self.generations):,.1f}",
            f"{self.difference:.2g}",
        )
        return f"| {' | '.join(cells)} |"


HEADER = (
    "| form | read by | size | prompt, tokens/s | generation, tokens/s | difference, nats |\n"
    "|---|---|---:|---:|---:|---:|"
)


class InTransformers:
    """A checkpoint, loaded by transformers."""

    name = "transformers"

    def __init__(self, folder: Path) -> None:
        with quiet():
            self._model: Any = load_pretrained(str(folder), dtype="auto", attention="sdpa").eval()

    def likeliest(self, prompt: Sequence[int]) -> dict[int, float]:
        best = log_probabilities(self._model, prompt).topk(LIKELIEST)
        return dict(zip(best.indices.tolist(), best.values.tolist(), strict=True))

    @torch.no_grad()
    def speed(self, prompt: Sequence[int], generated: int) -> tuple[float, float]:
        # transformers 5.24 has renamed the argument, and warns of the old name.
        known = inspect.signature(self._model.forward).parameters
        cache = {"cache" if "cache" in known else "past_key_values": DynamicCache()}
        began = time.perf_counter()
        found = self._model(input_ids=torch.tensor([prompt]), use_cache=True, logits_to_keep=1, **cache)
        read = time.perf_counter()
        for _ in range(generated):
            token = found.logits[:, -1:].argmax(-1)
            found = self._model(input_ids=token, use_cache=True, **cache)
        done = time.perf_counter()
        return len(prompt) / (read - began), generated / (done - read)


class InLlamaCpp:
    """A GGUF file, loaded by llama.cpp.

    Raises:
        ImportError: xllamacpp is not installed.
    """

    name = "llama.cpp"

    def __init__(self, file: Path, threads: int) -> None:
        import xllamacpp

        settings = xllamacpp.CommonParams()
        settings.model.path = str(file)
        settings.n_ctx, settings.n_parallel, settings.n_gpu_layers = 512, 1, 0
        settings.warmup, settings.verbosity = False, -1
        settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads
        self._server = xllamacpp.Server(settings)

    def likeliest(self, prompt: Sequence[int]) -> dict[int, float]:
        found = self._completed(prompt, 1, n_probs=LIKELIEST, post_sampling_probs=False)
        (first,) = found["choices"][0]["logprobs"]["content"]
        return {each["id"]: each["logprob"] for each in first["top_logprobs"]}

    def speed(self, prompt: Sequence[int], generated: int) -> tuple[float, float]:
        timings = self._completed(prompt, generated, ignore_eos=True)["timings"]
        return timings["prompt_per_second"], timings["predicted_per_second"]

    def _completed(self, prompt: Sequence[int], tokens: int, **more: object) -> dict[str, Any]:
        asked = {"prompt": list(prompt), "n_predict": tokens, "temperature": -1, "cache_prompt": False}
        found = self._server.handle_completions(asked | more)
        return cast(dict[str, Any], json.loads(found) if isinstance(found, str) else found)


@dataclass(frozen=True, kw_only=True)
class Form:
    """A form on the disk.

    Args:
        name: of it.
        path: its folder or file.
        expected: log probabilities [V] after each prompt, as this package computes them.
    """

    name: str
    path: Path
    expected: Sequence[Tensor]

    def opened(self, threads: int) -> Reader:
        """Return it, loaded. Raises ImportError if what loads it is not installed."""
        return InLlamaCpp(self.path, threads) if self.path.is_file() else InTransformers(self.path)

    @property
    def size(self) -> int:
        """Return the bytes of all its files."""
        files = [self.path] if self.path.is_file() else self.path.rglob("*")
        return sum(file.stat().st_size for file in files if file.is_file())


def measured(saved: SavedStudent, teacher: Path, workload: Workload, report: Report) -> list[Row]:
    """Write each form of a student into a temporary folder, and measure it.

    Args:
        saved: the student; it loses its adapters.
        teacher: folder of its teacher.
        workload: what is computed.
        report: called with lines for people.

    Raises:
        TrainerError: a form cannot hold the student.
    """
    torch.set_num_threads(workload.threads)
    if adapters_of(saved.model) is not None:
        report("the student's adapters are left out")
        remove_adapters(saved.model)
    with tempfile.TemporaryDirectory(prefix="forms-") as folder:
        rows: list[tuple[Form, Row]] = []
        for form in forms(saved, teacher, Path(folder), workload.prompts):
            try:
                reader = form.opened(workload.threads)
            except ImportError:
                report(f"{form.name}: left out, as xllamacpp is not installed; pip install xllamacpp")
                continue
            difference = difference_of(reader, workload.prompts, form.expected)
            rows.append(
                (form, Row(name=form.name, reader=reader.name, size=form.size, difference=difference))
            )
        for number in range(1, workload.rounds + 1):
            for form, row in rows:
                reader = form.opened(workload.threads)
                reader.speed(workload.prompts[0], 2)  # what is made at first use
                prompt, generation = reader.speed(workload.prompts[0], workload.generated)
                row.prompts.append(prompt)
                row.generations.append(generation)
                report(f"round {number}, {form.name}: {prompt:.1f} and {generation:.1f} tokens/s")
        return [row for _, row in rows]


def forms(
    saved: SavedStudent, teacher: Path, folder: Path, prompts: Sequence[Sequence[int]]
) -> Iterator[Form]:
    """Yield each form, written into the folder; the teacher's come first."""
    full: Any = load_pretrained(str(teacher), dtype="float32", attention="sdpa").eval()
    theirs = [log_probabilities(full, prompt) for prompt in prompts]
    yield Form(name="teacher, float32", path=teacher, expected=theirs)
    # A model without ternary layers: all its matrices are written in float16, whatever the form.
    as_saved = SavedStudent(model=full, tokenizer=saved.tokenizer, config_sha256="")
    file = folder / "teacher.gguf"
    export_file(as_saved, file, form=FORMATS[0])
    yield Form(name="teacher, GGUF float16", path=file, expected=theirs)
    del full, as_saved
    ours = [log_probabilities(saved.model, prompt) for prompt in prompts]
    for form in CHECKPOINTS:
        export(saved, folder / form, form=form)
        yield Form(name=form, path=folder / form, expected=ours)
    for name in FORMATS:
        file = folder / f"{name}.gguf"
        done = export_file(saved, file, form=name)
        wide = f" ({done.wide} of {done.ternary + done.wide} matrices in Q8_0)" if done.wide else ""
        yield Form(name=name + wide, path=file, expected=ours)


@torch.no_grad()
def log_probabilities(model: nn.Module, prompt: Sequence[int]) -> Tensor:
    """Return those of the token after a prompt, [V]."""
    return run(model, torch.tensor([prompt])).logits[0, -1].float().log_softmax(-1)


def difference_of(reader: Reader, prompts: Sequence[Sequence[int]], expected: Sequence[Tensor]) -> float:
    """Return the root mean square difference, in nats, over the likeliest tokens after all prompts."""
    squares = [
        (found - float(ours[token])) ** 2
        for prompt, ours in zip(prompts, expected, strict=True)
        for token, found in reader.likeliest(prompt).items()
    ]
    return math.sqrt(statistics.fmean(squares))


def prompts_of(text: Path, tokenizer: Path, *, number: int, tokens: int) -> list[list[int]]:
    """Return the beginnings of the first long documents of a text, JSON lines, as token ids."""
    encoder = Encoder.open(tokenizer)
    found: list[list[int]] = []
    with text.open(encoding="utf-8") as lines:
        for line in lines:
            ids = encoder.backend.encode(json.loads(line)["text"], add_special_tokens=False).ids
            if len(ids) >= tokens:
                found.append(ids[:tokens])
            if len(found) == number:
                return found
    raise ValueError(f"{text} has no {number} documents of {tokens} tokens")
