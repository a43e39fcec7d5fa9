"""The full-precision model that a student is made from and aligned with, and what else runs share.

`model=tiny`: trained once on the corpus, kept in the cache. `model=hf`: the pretrained model itself.
Called by `pipeline`, and by `api.prepare` ahead of many runs.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import nn

from trainer.api import Prepared, Progress
from trainer.cache import artifact
from trainer.config import Config, TinyModelConfig
from trainer.data import Corpus, batches, eval_batches, load, load_with_tokenizer
from trainer.device import Device, open_device
from trainer.errors import ConfigError
from trainer.evaluate import held_out_loss
from trainer.loop import StagePlan, train
from trainer.model import build_tiny, freeze, load_pretrained, load_tiny, save, seed_everything
from trainer.preemption import StopSignal
from trainer.stages.pretrain import cross_entropy

NAME = "teacher"
_LOSS_FILE = "held_out.json"
_MODEL_FOLDER = "model"


@dataclass(frozen=True, kw_only=True)
class Ground:
    """What a run starts from."""

    corpus: Corpus
    teacher: nn.Module


def load_corpus(config: Config) -> Corpus:
    """The text, in the ids that the model reads."""
    if config.model.kind == "hf":
        return load_with_tokenizer(config.data, config.model.name)
    return load(config.data)


def load_ground(config: Config, *, device: Device, stop: StopSignal, progress: Progress) -> Ground:
    """Corpus and frozen teacher, built if they are not there yet. Raises TrainerError."""
    progress("corpus", None)
    corpus = load_corpus(config)
    if config.model.kind == "hf":
        progress(f"loading {config.model.name}", None)
        teacher = load_pretrained(config.model.name, dtype=config.model.dtype, attention=device.attention)
        _check_length(teacher, config.data.sequence_length)
    else:
        folder = _trained(config, config.model, corpus, device=device, stop=stop, progress=progress)
        teacher = load_tiny(folder / _MODEL_FOLDER, attention=device.attention)
    return Ground(corpus=corpus, teacher=freeze(teacher.to(device.torch_device)))


def _check_length(model: nn.Module, sequence_length: int) -> None:
    """Positions that a model was never trained on give losses that mean nothing."""
    longest = getattr(model.config, "max_position_embeddings", None)
    if isinstance(longest, int) and sequence_length > longest:
        raise ConfigError(
            f"{sequence_length} is more than the model's longest sequence ({longest})",
            key="data.sequence_length",
        )


def prepare_all(config: Config, progress: Progress) -> Prepared:
    """What `api.prepare` promises."""
    device, stop = open_device(config.device), StopSignal()
    progress("corpus", None)
    corpus = load_corpus(config)
    if config.model.kind == "hf":
        return Prepared(
            data_sha256=corpus.sha256,
            tokenizer=corpus.tokenizer_dir,
            teacher=config.model.name,
            teacher_loss=None,
        )
    folder = _trained(config, config.model, corpus, device=device, stop=stop, progress=progress)
    return Prepared(
        data_sha256=corpus.sha256,
        tokenizer=corpus.tokenizer_dir,
        teacher=str(folder / _MODEL_FOLDER),
        teacher_loss=float(json.loads((folder / _LOSS_FILE).read_text())["loss"]),
    )


def _trained(
    config: Config,
    model: TinyModelConfig,
    corpus: Corpus,
    *,
    device: Device,
    stop: StopSignal,
    progress: Progress,
) -> Path:
    spec = {
        "recipe": 1,  # raise it when the training of teachers changes
        "model": asdict(model),
        "data": corpus.sha256,
        "vocab_size": corpus.vocab_size,
        "sequence_length": config.data.sequence_length,
        "device": device.kind,  # not its threads: runs with one and with two share a teacher
        "dtype": config.device.dtype,
    }

    def build(folder: Path) -> None:
        _train(config, model, corpus, folder, device=device, stop=stop, progress=progress)

    progress(NAME, None)
    return artifact("teachers", spec, build)


def _train(
    config: Config,
    model: TinyModelConfig,
    corpus: Corpus,
    folder: Path,
    *,
    device: Device,
    stop: StopSignal,
    progress: Progress,
) -> None:
    recipe, length = model.teacher, config.data.sequence_length
    seed_everything(recipe.seed)
    teacher = build_tiny(
        model, vocab_size=corpus.vocab_size, sequence_length=length, attention=device.attention
    ).to(device.torch_device)
    train(
        StagePlan(name=NAME, steps=recipe.max_steps, optimizer=recipe.optimizer, schedule=recipe.schedule),
        teacher,
        cross_entropy(teacher),
        batches(corpus.train, batch_size=recipe.batch_size, sequence_length=length, seed=recipe.seed),
        device=device,
        stop=stop,
        watch=lambda step: progress(NAME, step.step / step.of),
    )
    held_out = eval_batches(
        corpus.held_out,
        batch_size=config.eval.batch_size,
        sequence_length=length,
        batches=config.eval.batches,
    )
    measured = held_out_loss(teacher, held_out, device=device, stage=NAME)
    (folder / _LOSS_FILE).write_text(json.dumps({"loss": measured.mean, "sem": measured.sem}) + "\n")
    save(teacher, folder / _MODEL_FOLDER)
