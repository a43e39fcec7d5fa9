"""The full-precision teacher that a student is initialised from, and the other inputs that runs share.

`model=tiny` is trained once on the corpus and cached; `model=hf` is the pretrained model itself. Called by
`__main__` before `pipeline`, and by `api.prepare` ahead of many runs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from pydantic_core import from_json
from torch import Tensor, nn

from sweeps.text.regular_file import read_regular
from trainer.cache import artifact
from trainer.config import Config, TinyModelConfig
from trainer.config.added_keys import without_added
from trainer.data import (
    Corpus,
    DataError,
    MissingError,
    TokenizerError,
    eval_batches,
    load,
    local_folder,
    scored_bytes,
)
from trainer.devices.device import Device, open_device
from trainer.devices.dtypes import dtype_name
from trainer.distributed.ranks import ALONE
from trainer.errors import ConfigError, joined
from trainer.layout import Prepared, Progress
from trainer.losses.next_token import cross_entropy
from trainer.models.causal_lm import (
    build_tiny,
    depth,
    embedding_count,
    freeze,
    load_pretrained,
    load_tiny,
    output_head,
    save,
    seed_everything,
)
from trainer.models.documents import separate_documents
from trainer.optim.muon import muon_dtype
from trainer.optim.validate import require_packages
from trainer.teachers.cached import compatibility
from trainer.teachers.cached.compatibility import weights_sha256
from trainer.training.context import StageContext, StagePlan
from trainer.training.evaluation import held_out_loss
from trainer.training.loop import train
from trainer.training.preemption import StopSignal

NAME = "teacher"
_LOSS_FILE = "held_out.json"
_MODEL_FOLDER = "model"


@dataclass(frozen=True, kw_only=True)
class PreparedInputs:
    """The inputs of a run.

    Args:
        corpus: the text.
        held_out: the batches [B, T] that losses are measured on, int64.
        held_out_bytes: bytes of text of the tokens scored in them; None if the tokenizer does not tell.
        test: batches [B, T] of the test text; none unless `eval.test` asks for them.
        teacher: frozen, on the device.
        caches: digests of the caches that Stage 3 reads.
    """

    corpus: Corpus
    held_out: list[Tensor]
    held_out_bytes: int | None
    test: list[Tensor]
    teacher: nn.Module
    caches: compatibility.Digests = compatibility.NO_CACHES


def load_text(config: Config) -> tuple[Corpus, list[Tensor]]:
    """Return the text in the model's token ids, and the held-out batches [B, T], int64.

    Raises:
        ConfigError: there is no such text or tokenizer, or too little text for the evaluation.
        DataError: the text cannot be read, or is too short.
    """
    own_tokenizer = config.model.name if config.model.kind == "hf" else None
    try:
        corpus = load(config.data, own_tokenizer=own_tokenizer)
    except TokenizerError as error:
        key = "data.tokenizer" if config.data.tokenizer else "model.name"
        raise ConfigError(str(error), key=key) from error
    try:
        held_out = eval_batches(
            corpus.held_out,
            batch_size=config.eval.batch_size,
            sequence_length=config.data.sequence_length,
            batches=config.eval.batches,
        )
    except DataError as error:
        raise ConfigError(str(error), key="eval.batches") from error
    return corpus, held_out


def test_batches(config: Config, corpus: Corpus) -> list[Tensor]:
    """Return batches [B, T] of the test text, int64; none, without reading it, unless `eval.test` is set.

    Raises:
        ConfigError: the test text is too short for as many batches as the held-out text has.
    """
    if not config.eval.test:
        return []
    try:
        return eval_batches(
            corpus.test,
            batch_size=config.eval.batch_size,
            sequence_length=config.data.sequence_length,
            batches=config.eval.batches,
            text="test",
        )
    except DataError as error:
        raise ConfigError(f"{error} (data.test_fraction)", key="eval.test") from error


def prepare_inputs(
    config: Config, *, device: Device, stop: StopSignal, progress: Progress, with_caches: bool = True
) -> PreparedInputs:
    """Load the text, train a tiny teacher that is not there yet, load the teacher, check caches of Stage 3.

    Args:
        config: of the run.
        device: of the teacher.
        stop: ends the training of a teacher at a signal.
        progress: called with each part.
        with_caches: check the caches of predictions; not while one of them is built.

    Raises:
        TrainerError: one of them cannot be loaded or built, or they do not fit each other.
    """
    progress("corpus", None)
    corpus, held_out = load_text(config)
    test = test_batches(config, corpus)
    attention = device.attention_for(config.data.sequence_length)
    if config.model.kind == "hf":
        progress(f"loading {config.model.name}", None)
        try:
            name = local_folder(config.model.name)
        except MissingError as error:
            raise ConfigError(str(error), key="model.name") from error
        teacher = load_pretrained(name, dtype=config.model.dtype, attention=attention)
        _check_fit(teacher, config, corpus)
    else:
        folder = train_teacher(
            config, config.model, corpus, held_out, device=device, stop=stop, progress=progress
        )
        teacher = load_tiny(folder / _MODEL_FOLDER, attention=attention)
    teacher = freeze(device.move(teacher))
    if config.data.document_masks:
        separate_documents(teacher, corpus.document_end)
    return PreparedInputs(
        corpus=corpus,
        held_out=held_out,
        held_out_bytes=scored_bytes(corpus, held_out),
        test=test,
        teacher=teacher,
        caches=compatibility.check(config, corpus, teacher) if with_caches else compatibility.NO_CACHES,
    )


def teacher_sha256(config: Config, inputs: PreparedInputs, device: Device) -> str:
    """Return the digest that a run's teacher is known by: of a pretrained one's weights, which takes seconds.

    One that is trained here has that of its recipe: from one processor to another its weights are rounded in
    other ways.
    """
    if config.model.kind == "hf":
        return weights_sha256(inputs.teacher)
    recipe = json.dumps(_recipe(config, config.model, inputs.corpus, device), sort_keys=True)
    return hashlib.sha256(recipe.encode()).hexdigest()


def _check_fit(model: nn.Module, config: Config, corpus: Corpus) -> None:
    """Raise ConfigError if a pretrained model does not fit tokenizer, sequence length or device."""
    # Losses at positions that a model was never trained on are meaningless.
    longest = getattr(model.config, "max_position_embeddings", None)
    if isinstance(longest, int) and config.data.sequence_length > longest:
        raise ConfigError(
            f"{config.data.sequence_length} is more than the model's longest sequence ({longest}); write "
            "that at most",
            key="data.sequence_length",
        )
    embeddings = embedding_count(model)
    if corpus.vocab_size > embeddings:
        raise ConfigError(
            f"its tokenizer has {corpus.vocab_size} entries, but the model only {embeddings} embeddings; "
            "name a model together with the tokenizer that it was trained with",
            key="model.name",
        )
    if found := [ConfigError(each.problem, key=each.key) for each in config.check_depth(depth(model))]:
        raise joined(found)
    if config.stage1_9.max_steps and config.stage1_9.loss_type == "kl":
        output_head(model)
    if config.device.dtype == "float32" and any(p.dtype == torch.bfloat16 for p in model.parameters()):
        raise ConfigError(
            "products of bfloat16 weights are bfloat16; write model.dtype=float32 or device.dtype=bfloat16",
            key="device.dtype",
        )


def prepare_all(config: Config, progress: Progress) -> Prepared:
    """Build the shared inputs of many runs ahead of them; the implementation of `api.prepare`."""
    device, stop = open_device(config.device), StopSignal()
    require_packages(config)
    progress("corpus", None)
    corpus, held_out = load_text(config)
    test_batches(config, corpus)
    if config.model.kind == "hf":
        return Prepared(
            data_sha256=corpus.sha256,
            tokenizer=corpus.tokenizer_dir,
            teacher=config.model.name,
            teacher_loss=None,
        )
    folder = train_teacher(
        config, config.model, corpus, held_out, device=device, stop=stop, progress=progress
    )
    return Prepared(
        data_sha256=corpus.sha256,
        tokenizer=corpus.tokenizer_dir,
        teacher=str(folder / _MODEL_FOLDER),
        teacher_loss=float(from_json(read_regular(folder / _LOSS_FILE))["loss"]),
    )


def train_teacher(
    config: Config,
    model: TinyModelConfig,
    corpus: Corpus,
    held_out: list[Tensor],
    *,
    device: Device,
    stop: StopSignal,
    progress: Progress,
) -> Path:
    """Train a tiny teacher, unless it is cached, and return its folder in the cache."""
    # The evaluation is that of the stored loss.
    evaluation = {"batches": config.eval.batches, "batch_size": config.eval.batch_size}
    spec = _recipe(config, model, corpus, device) | {"eval": evaluation}
    context = StageContext(
        device=dataclasses.replace(device, ranks=ALONE),
        stop=stop,
        watch=lambda step: progress(NAME, step.step / step.of),
    )

    def build(folder: Path) -> None:
        _train(config, model, corpus, held_out, folder, context)

    progress(NAME, None)
    return artifact("teachers", spec, build)


def _recipe(config: Config, model: TinyModelConfig, corpus: Corpus, device: Device) -> dict[str, Any]:
    """Return all that a tiny teacher's weights depend on."""
    muon = muon_dtype(model.teacher.optimizer, device.torch_device)
    return {
        "recipe": 1,  # raise it when the training of teachers changes
        "model": _model(model),
        "data": corpus.order_sha256,
        "vocab_size": corpus.vocab_size,
        "sequence_length": config.data.sequence_length,
        **({"document_masks": True} if config.data.document_masks else {}),
        "device": device.kind,  # not its threads: runs with one and with two share a teacher
        "dtype": dtype_name(device.dtype),
        "muon_dtype": None if muon is None else dtype_name(muon),
        "torch": torch.__version__,
        "transformers": version("transformers"),
    }


def _model(model: TinyModelConfig) -> dict[str, Any]:
    """Return the part of the configuration that a tiny teacher is made from, without the student's dtype."""
    document: dict[str, Any] = without_added({"model": asdict(model)})["model"]
    return {key: value for key, value in document.items() if key != "master_dtype"}


def _train(
    config: Config,
    model: TinyModelConfig,
    corpus: Corpus,
    held_out: list[Tensor],
    folder: Path,
    context: StageContext,
) -> None:
    """Train the tiny teacher, and save it with its held-out loss."""
    recipe, length, device = model.teacher, config.data.sequence_length, context.device
    seed_everything(recipe.seed)
    teacher = device.move(
        build_tiny(
            model,
            vocab_size=corpus.vocab_size,
            sequence_length=length,
            attention=device.attention_for(length),
        )
    )
    if config.data.document_masks:
        separate_documents(teacher, corpus.document_end)
    plan = StagePlan.of(NAME, recipe)
    with corpus.batches(batch_size=recipe.batch_size, sequence_length=length, seed=recipe.seed) as feed:
        train(plan, teacher, cross_entropy(teacher), feed, context)
    measured = held_out_loss(teacher, held_out, device=device, stage=NAME)
    (folder / _LOSS_FILE).write_text(json.dumps({"loss": measured.mean, "sem": measured.sem}) + "\n")
    save(teacher, folder / _MODEL_FOLDER)
