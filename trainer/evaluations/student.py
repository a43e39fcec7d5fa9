"""The finished student as hooks get it: continuations of prompts, and log-likelihoods.

Shapes: B prompts, T tokens of the longest, V entries of the vocabulary, D the hidden width.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from sweeps.text.atomic_file import atomic_write
from trainer.config import Config
from trainer.devices.device import Device
from trainer.layout import SAMPLES_FILE
from trainer.models.causal_lm import inputs, run

_ROWS = 16
"""Prompts that are continued at once."""


@dataclass(frozen=True, kw_only=True)
class FinishedStudent:
    """A student at the end of its run, fully quantised.

    Args:
        model: of transformers, in evaluation mode, on the device.
        tokenizer: a `tokenizers.Tokenizer`.
        end: id of the token that ends a text; None: there is none.
        folder: that a hook may write files to; it exists.
        tokenizer_folder: for `transformers.AutoTokenizer`.
    """

    model: nn.Module
    tokenizer: Any
    end: int | None
    device: Device
    config: Config
    folder: Path
    tokenizer_folder: Path

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without special tokens."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without special tokens."""
        return str(self.tokenizer.decode(list(ids)))

    def continuations(
        self, prompts: Sequence[str], tokens: int, *, done: Callable[[str], bool] | None = None
    ) -> list[str]:
        """Return the likeliest continuation of each prompt, token by token (greedy).

        Args:
            prompts: texts of at least one token.
            tokens: at most so many are added; fewer where the text ends, or where prompt and continuation
                would be longer than the model's positions.
            done: whether a continuation is long enough.
        """
        found: list[str] = []
        for start in range(0, len(prompts), _ROWS):
            rows = [self.encode(prompt) for prompt in prompts[start : start + _ROWS]]
            added: list[list[int]] = [[] for _ in rows]
            going = [row for row, ids in enumerate(rows) if ids]  # indices of rows that are not done
            for _ in range(tokens):
                going = [row for row in going if len(rows[row]) + len(added[row]) < self.positions]
                if not going:
                    break
                likeliest = self._likeliest_tokens([rows[row] + added[row] for row in going])
                for row, token in zip(going, likeliest, strict=True):
                    if token != self.end:
                        added[row].append(token)
                ended = {row for row, token in zip(going, likeliest, strict=True) if token == self.end}
                ended |= {row for row in going if done is not None and done(self.decode(added[row]))}
                going = [row for row in going if row not in ended]
            found += map(self.decode, added)
        return found

    def log_likelihood(self, context: Sequence[int], continuation: Sequence[int]) -> tuple[float, bool]:
        """Return the log probability of ids after a context, in nats, and whether each is the likeliest."""
        # The last token is only predicted, so that one more than the positions fits.
        kept = max(1, self.positions + 1 - len(continuation))
        ids = [*context[-kept:], *continuation]
        with torch.no_grad(), self.device.autocast():
            # The model's own: some scale or cap what their head returns.
            logits_BTV = run(self.model, self._padded_batch([ids[:-1]])).logits
        ours_CV = logits_BTV[0, -len(continuation) :].float()
        target_C1 = torch.tensor(list(continuation), device=ours_CV.device).unsqueeze(-1)
        log_probabilities_C = ours_CV.log_softmax(-1).gather(-1, target_C1)
        return float(log_probabilities_C.sum()), bool((ours_CV.argmax(-1) == target_C1.squeeze(-1)).all())

    @torch.no_grad()
    def _likeliest_tokens(self, rows: Sequence[Sequence[int]]) -> list[int]:
        """Return the likeliest next token of each row. Padding follows a row, so nothing attends to it."""
        model, ids_BT = cast(Any, self.model), self._padded_batch(rows)
        rows_B = torch.arange(len(rows), device=ids_BT.device)
        last_B = torch.tensor([len(row) - 1 for row in rows], device=ids_BT.device)
        with self.device.autocast():
            hidden_BTD: Tensor = model.get_decoder()(**inputs(model, ids_BT)).last_hidden_state
            # Of the last tokens alone. A scale or a cap behind the head leaves the order of logits as it is.
            logits_BV: Tensor = model.get_output_embeddings()(hidden_BTD[rows_B, last_B])
        found: list[int] = logits_BV.argmax(-1).tolist()
        return found

    def _padded_batch(self, rows: Sequence[Sequence[int]]) -> Tensor:
        longest = max(map(len, rows))
        padded = [[*row, *[0] * (longest - len(row))] for row in rows]
        return self.device.place(torch.tensor(padded, dtype=torch.long))

    @property
    def positions(self) -> int:
        """Return the tokens of the longest sequence that the model computes."""
        return int(cast(Any, self.model).config.max_position_embeddings)


def write_samples(student: FinishedStudent) -> None:
    """Continue the prompts of the configuration and write `samples.json` into the run's folder.

    Raises:
        OSError: the disk refuses it.
    """
    asked = student.config.samples
    texts = student.continuations(asked.prompts, asked.tokens)
    samples = [{"prompt": prompt, "text": text} for prompt, text in zip(asked.prompts, texts, strict=True)]
    document = {"schema": 1, "tokens": asked.tokens, "samples": samples}
    with atomic_write(student.folder / SAMPLES_FILE) as draft:
        draft.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
