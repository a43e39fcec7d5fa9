"""Losses of a chunk of logits, eager and compiled: `python -m benchmarks.chunk_losses`.

Compiled as `device.compile=layers` does it. CPU milliseconds of the best of several turns, without the
products before and after; and wall seconds of the first call, which compiles.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from trainer.losses.chunked import ChunkLogits, ChunkLosses, chunk_losses, chunk_tokens, suitable_elements


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", type=int, nargs="+", default=[4_096, 16_384, 49_152])
    parser.add_argument("--turns", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| losses | tokens x words | eager, ms | compiled, ms | ratio | first call, s |")
    print("|---|---|---|---|---|---|")
    for words in arguments.vocabulary:
        tokens = chunk_tokens((4096,), words, suitable_elements(torch.device("cpu")))
        for taught in (False, True):
            ms, first = _measured(_logits(tokens, words, taught), arguments.turns)
            row = f"{tokens} x {words:,} | {ms[0]:.1f} | {ms[1]:.1f} | {ms[1] / ms[0]:.2f} | {first:.1f} |"
            print(f"| {'CE and KL' if taught else 'CE'} | {row}", flush=True)


def _logits(tokens: int, words: int, taught: bool) -> ChunkLogits:
    ours, theirs = torch.randn(2, tokens, words)
    return ChunkLogits(ours=ours, theirs=theirs if taught else None, labels=torch.randint(words, (tokens,)))


def _measured(logits: ChunkLogits, turns: int) -> tuple[list[float], float]:
    compute = torch.compile(chunk_losses, dynamic=False)
    numbers = (torch.tensor(0.5), torch.tensor(2.0)) if logits.theirs is not None else (1.0, 1.0)

    def once(function: Callable[..., ChunkLosses]) -> float:
        begun = time.process_time()
        function(logits, *numbers, 4096)
        return 1000 * (time.process_time() - begun)

    begun = time.perf_counter()
    compute(logits, *numbers, 4096)
    first = time.perf_counter() - begun
    found = [[once(function) for function in (chunk_losses, compute)] for _ in range(turns)]
    return [min(column) for column in zip(*found, strict=True)], first


if __name__ == "__main__":
    main()
