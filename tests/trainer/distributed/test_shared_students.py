"""The student that a shared run saves is the one that it has measured, whole and fit for export."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pretrained import save_stand_in
from shared_runs import Started, metrics

from trainer.api import MODEL_FOLDER, check, quote
from trainer.data.inputs import prepare_inputs
from trainer.devices.device import open_device
from trainer.export.__main__ import main as export
from trainer.models.student_folder import load
from trainer.training.evaluation import held_out_loss

pytestmark = pytest.mark.timeout(600)  # several processes, each of which loads torch

Start = Callable[..., Started]
Alone = Callable[..., Path]

PRODUCTS = ("float32", "bfloat16")
MASTERS = ("float32", "bfloat16")


def forms() -> list[object]:
    """(parallel, dtype of products, dtype of master weights): the quick suite has the one of most casts."""
    return [
        pytest.param(
            *(parallel, products, masters),
            id=f"{parallel}-{products}-of-{masters}",
            marks=()
            if (parallel, products, masters) == ("fsdp", "bfloat16", "float32")
            else pytest.mark.slow,
        )
        for parallel in ("none", "ddp", "fsdp")
        for products in PRODUCTS
        for masters in MASTERS
        if not (products == "float32" and masters == "bfloat16")  # refused
    ]


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama in bfloat16 whose embeddings and head are one matrix."""
    return save_stand_in(tmp_path_factory.mktemp("pretrained"), "smollm2")


@pytest.mark.parametrize(("parallel", "products", "masters"), forms())
def test_the_saved_student_has_the_loss_that_the_run_reports(
    parallel: str,
    products: str,
    masters: str,
    start: Start,
    alone: Alone,
    small: tuple[str, ...],
    pretrained: Path,
    tmp_path: Path,
) -> None:
    common = tuple(override for override in small if not override.startswith(("model.", "data.vocab_size=")))
    common += (
        "model=hf",
        f"model.name={quote(str(pretrained))}",
        f"model.dtype={masters}",
        f"model.master_dtype={masters}",
    )
    common += (f"device.dtype={products}", "save_model=true")
    folder = tmp_path / "run"
    if parallel == "none":
        alone(folder, common=common)
    else:
        started = start(folder, f"device.parallel={parallel}", common=common)
        assert started.end() == [0, 0], started.output(0) + started.output(1)
        assert "warning" not in started.output(0)

    saved = load(folder / MODEL_FOLDER)
    assert {str(tensor.dtype) for tensor in saved.model.parameters()} == {f"torch.{masters}"}
    config = check(common)
    loss = held_out_loss(
        saved.model, prepare_inputs(config).held_out, device=open_device(config.device), stage="here"
    )
    assert loss.mean == pytest.approx(metrics(folder)["final_loss"], rel=1e-6)
    assert export([str(folder), str(tmp_path / "out"), "--format", "dense"]) == 0
    assert not (folder / "checkpoints").exists()
