"""The teacher that a student is initialised from: a pretrained model, or a small one that is trained here.

The first phase of a run, before `pipeline`: called by `__main__`, and by `api.prepare` ahead of many runs.
That of `model=tiny` and of a rung of `model=ladder` is trained once on the corpus and cached; that of
`model=hf` is the pretrained model itself.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from pydantic_core import from_json
from torch import nn

from sweeps.text.regular_file import read_regular
from trainer.cache import artifact
from trainer.config import Config, TrainedHereConfig
from trainer.data.corpus import Corpus
from trainer.data.inputs import Inputs, prepare_inputs
from trainer.data.remote import local_folder
from trainer.devices.device import Device, open_device
from trainer.devices.dtypes import dtype_name
from trainer.distributed.ranks import ALONE
from trainer.errors import ConfigError, MissingError, joined
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
    separate_documents,
    weights_sha256,
)
from trainer.models.host_layers import place_teacher
from trainer.models.scale_rule import scale_initial
from trainer.optim.build import require_packages
from trainer.optim.muon import muon_dtype
from trainer.result import version
from trainer.training.context import StageContext, StagePlan
from trainer.training.evaluation import held_out_loss
from trainer.training.loop import train
from trainer.training.preemption import StopSignal

NAME = "teacher"
_LOSS_FILE = "held_out.json"
_MODEL_FOLDER = "model"


def prepare_teacher(
    config: Config, inputs: Inputs, *, device: Device, stop: StopSignal, progress: Progress
) -> nn.Module:
    """Return the frozen teacher, where `device.teacher` says; a tiny one is trained first, unless cached.

    Raises:
        TrainerError: it cannot be loaded or trained, or does not fit text and device.
    """
    attention = device.attention_for(config.data.sequence_length)
    if config.model.kind == "hf":
        progress(f"loading {config.model.name}", None)
        try:
            name = local_folder(config.model.name)
        except MissingError as error:
            raise ConfigError(str(error), key="model.name") from error
        teacher = load_pretrained(name, dtype=config.model.dtype, attention=attention)
        _check_fit(teacher, config, inputs.corpus)
    else:
        folder = train_teacher(config, config.model, inputs, device=device, stop=stop, progress=progress)
        teacher = load_tiny(folder / _MODEL_FOLDER, attention=attention)
    teacher = place_teacher(freeze(teacher), device)
    if config.data.document_masks:
        separate_documents(teacher, inputs.corpus.document_end)
    return teacher


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
        output_head(model)  # raises for a model without one
    if config.device.dtype == "float32" and any(p.dtype == torch.bfloat16 for p in model.parameters()):
        raise ConfigError(
            "products of bfloat16 weights are bfloat16; write model.dtype=float32 or device.dtype=bfloat16",
            key="device.dtype",
        )


def train_teacher(
    config: Config,
    model: TrainedHereConfig,
    inputs: Inputs,
    *,
    device: Device,
    stop: StopSignal,
    progress: Progress,
) -> Path:
    """Train a tiny teacher and measure its held-out loss, unless it is cached; return its folder there.

    It has no checkpoints: the cache has all of a teacher or none.
    """
    recipe, corpus, length = model.teacher, inputs.corpus, config.data.sequence_length
    context = StageContext(
        # One process trains it, and the others wait for the lock of the cache: nothing to average with. It is
        # not compiled: runs with and without a compiler share it, whichever of them comes first.
        device=dataclasses.replace(device, ranks=ALONE, compile=False),
        stop=stop,
        watch=lambda step: progress(NAME, step.step / step.of),
        scale_rule=config.scale_rule,
    )

    def build(folder: Path) -> None:
        torch.manual_seed(recipe.seed)
        attention = device.attention_for(length)
        teacher = build_tiny(
            model,
            vocab_size=corpus.vocab_size,
            sequence_length=length,
            attention=attention,
            end=corpus.document_end,
        )
        scale_initial(teacher, config.scale_rule)
        teacher = device.move(teacher)
        if config.data.document_masks:
            separate_documents(teacher, corpus.document_end)
        with corpus.batches(batch_size=recipe.batch_size, sequence_length=length, seed=recipe.seed) as feed:
            plan = StagePlan.from_config(NAME, recipe.with_carried_lr(length))
            train(plan, teacher, cross_entropy(teacher), feed, context)
        measured = held_out_loss(teacher, inputs.held_out, device=context.device, stage=NAME)
        (folder / _LOSS_FILE).write_text(json.dumps({"loss": measured.mean}) + "\n")
        save(teacher, folder / _MODEL_FOLDER)

    progress(NAME, None)
    # The evaluation decides the stored loss, and no weight.
    evaluation = {"batches": config.eval.batches, "batch_size": config.eval.batch_size}
    return artifact("teachers", _recipe(config, model, corpus, device) | {"eval": evaluation}, build)


def _recipe(config: Config, model: TrainedHereConfig, corpus: Corpus, device: Device) -> dict[str, Any]:
    """Return all that a tiny teacher's weights depend on."""
    muon = muon_dtype(model.teacher.optimizer, device.torch_device)
    rule = {"scale_rule": asdict(config.scale_rule)} if config.scale_rule.type != "none" else {}
    return rule | {
        "recipe": 1,  # raise it when the training of teachers changes
        # Without the dtype of the student's weights.
        "model": {key: value for key, value in asdict(model).items() if key != "master_dtype"},
        "data": corpus.order_sha256,
        "vocab_size": corpus.vocab_size,
        "sequence_length": config.data.sequence_length,
        "document_masks": config.data.document_masks,
        "device": device.kind,  # not its threads: runs with one and with two share a teacher
        "dtype": dtype_name(device.dtype),
        "muon_dtype": None if muon is None else dtype_name(muon),
        "torch": torch.__version__,
        "transformers": version("transformers"),
    }


def teacher_sha256(config: Config, corpus: Corpus, teacher: nn.Module, device: Device) -> str:
    """Return the digest that a run's teacher is known by: of a pretrained one's weights, which takes seconds.

    One that is trained here has that of its recipe: from one processor to another its weights are rounded in
    other ways.
    """
    if config.model.kind == "hf":
        return weights_sha256(teacher)
    recipe = json.dumps(_recipe(config, config.model, corpus, device), sort_keys=True)
    return hashlib.sha256(recipe.encode()).hexdigest()


def prepare_all(config: Config, progress: Progress) -> Prepared:
    """Build the shared inputs of many runs ahead of them; the implementation of `api.prepare`."""
    device = open_device(config.device)
    require_packages(config)
    inputs = prepare_inputs(config, progress)
    teacher, loss = "", None
    if config.model.kind == "hf":
        teacher = config.model.name
    else:
        folder = train_teacher(
            config, config.model, inputs, device=device, stop=StopSignal(), progress=progress
        )
        teacher = str(folder / _MODEL_FOLDER)
        loss = float(from_json(read_regular(folder / _LOSS_FILE))["loss"])
    return Prepared(
        data_sha256=inputs.corpus.sha256,
        tokenizer=inputs.corpus.tokenizer_dir,
        teacher=teacher,
        teacher_loss=loss,
    )
