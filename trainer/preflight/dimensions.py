"""Dimensions of a model of the Llama family, from its configuration alone; no weight is made or loaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from trainer.config import Config, RecoveryConfig
from trainer.config.model import MasterDtype
from trainer.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Dimensions:
    """Sizes of a model, for the estimates of memory, disk and time.

    Args:
        heads: query heads of a layer.
        vocabulary: rows of the embedding table.
        tied: whether embedding table and head are one matrix.
        weight_bytes: of one parameter.
        vectors: parameters of a layer that are in no matrix, SubLN's gains left out.
        cast: whether loading casts the weights. Others are pages of their file.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    key_heads: int
    head_size: int
    vocabulary: int
    tied: bool
    weight_bytes: int
    vectors: int
    cast: bool = False

    @property
    def layer_matrices(self) -> list[tuple[int, int]]:
        """Return [outputs, inputs] of the linear layers of one decoder layer."""
        queries, keys = self.heads * self.head_size, self.key_heads * self.head_size
        attention = [(queries, self.hidden), (keys, self.hidden), (keys, self.hidden), (self.hidden, queries)]
        inner = (self.intermediate, self.hidden)
        return [*attention, inner, inner, (self.hidden, self.intermediate)]

    @property
    def matrices(self) -> Iterator[tuple[int, int]]:
        """Return those of all layers, which become ternary."""
        return (shape for _ in range(self.layers) for shape in self.layer_matrices)

    @property
    def embeddings(self) -> list[tuple[int, int]]:
        """Return the shapes of embedding table and head, one if they are tied."""
        return [(self.vocabulary, self.hidden)] * (1 if self.tied else 2)

    @property
    def gains(self) -> int:
        """Return the number of parameters that are in no matrix."""
        return self.layers * self.vectors + self.hidden

    @property
    def parameters(self) -> int:
        """Return the number of parameters, tied ones once."""
        return sum(o * i for o, i in (*self.matrices, *self.embeddings)) + self.gains

    def as_student(self, *, layers: int | None, subln: bool, master_dtype: MasterDtype) -> Dimensions:
        """Return the dimensions of a student of so many layers (None: all), with SubLN's gains or without."""
        more = self.heads * self.head_size + self.intermediate if subln else 0
        size = {"auto": self.weight_bytes, "float32": 4, "bfloat16": 2}[master_dtype]
        return replace(self, layers=layers or self.layers, vectors=self.vectors + more, weight_bytes=size)

    @property
    def multiplied(self) -> int:
        """Return the number of weights that each token is multiplied by."""
        return sum(o * i for o, i in self.matrices) + self.vocabulary * self.hidden

    def forward_flops(self, sequence_length: int) -> int:
        """Return the operations of a forward pass per token, as `trainer.cost.flops` counts them."""
        return 2 * self.multiplied + 4 * sequence_length * self.layers * self.heads * self.head_size


@dataclass(frozen=True, kw_only=True)
class AdapterDimensions(Dimensions):
    """Sizes of the adapters on a model, all that `recovery` trains; the other fields are the model's."""

    rank: int
    targets: str

    @classmethod
    def for_student(cls, student: Dimensions, config: RecoveryConfig) -> AdapterDimensions:
        """Return the sizes of a student's adapters, which are float32."""
        sizes = {field.name: getattr(student, field.name) for field in fields(Dimensions)}
        return cls(**sizes | {"weight_bytes": 4}, rank=config.rank, targets=config.targets)

    @property
    def layer_matrices(self) -> list[tuple[int, int]]:
        """Return [outputs, inputs] of A and B of one decoder layer."""
        ternary = super().layer_matrices
        chosen = {"all": ternary, "attention": ternary[:4], "mlp": ternary[4:]}[self.targets]
        return [shape for o, i in chosen for shape in ((self.rank, i), (o, self.rank))]

    @property
    def embeddings(self) -> list[tuple[int, int]]:
        """Return nothing: they are frozen."""
        return []

    @property
    def gains(self) -> int:
        """Return 0: they are frozen."""
        return 0


def teacher_dimensions(config: Config, pretrained: Any = None) -> Dimensions:
    """Return the dimensions of the model that the student is made from; `blueprint` reads `data.tokenizer`.

    Args:
        pretrained: transformers' configuration, for `model=hf`.

    Raises:
        ConfigError: the pretrained configuration lacks a size.
    """
    model, found = config.model, pretrained
    if model.kind != "hf":
        return Dimensions(
            layers=model.layers,
            hidden=model.hidden_size,
            intermediate=model.intermediate_size,
            heads=model.heads,
            key_heads=model.heads,
            head_size=model.hidden_size // model.heads,
            vocabulary=config.data.vocab_size,
            tied=False,
            weight_bytes=4,
            vectors=2 * model.hidden_size,
        )
    try:
        head_size = getattr(found, "head_dim", None) or found.hidden_size // found.num_attention_heads
        stored = str(getattr(found, "dtype", None) or "float32")
        dtype = stored if model.dtype == "auto" else model.dtype
        return Dimensions(
            layers=found.num_hidden_layers,
            hidden=found.hidden_size,
            intermediate=found.intermediate_size,
            heads=found.num_attention_heads,
            key_heads=getattr(found, "num_key_value_heads", None) or found.num_attention_heads,
            head_size=head_size,
            vocabulary=found.vocab_size,
            tied=bool(getattr(found, "tie_word_embeddings", False)),
            weight_bytes=2 if "16" in dtype else 4,
            # Two norms a layer, and Qwen3's two of queries and keys; biases are negligible.
            vectors=2 * found.hidden_size + (2 * head_size if found.model_type.startswith("qwen3") else 0),
            cast=model.dtype not in ("auto", stored.removeprefix("torch.")),
        )
    except AttributeError as error:
        raise ConfigError(
            f"the model's configuration does not tell its {error.name}", key="model.name"
        ) from error
