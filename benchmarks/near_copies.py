"""Cost of keeping near-copies out of streamed training text: `python -m benchmarks.near_copies`.

Documents of 4,000 characters, cut from the standard library, are compared with as much measured text as
streamed runs have by default (held-out and test text of 262,144 tokens each), and encoded by a byte-level BPE
of 8,192 entries, as a feed does with each of its documents. CPU time of one thread, the best of some turns,
which take turns, so that other work on the machine matters little. Prints a row of a Markdown table.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from trainer.data.encoder import Encoder
from trainer.data.near_copies import NearCopies
from trainer.data.stdlib import documents
from trainer.data.tokenizer import train_bpe

LENGTH = 4000  # characters
MEASURED = 2 * 262_144  # tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--documents", type=int, default=500)
    arguments = parser.parse_args()
    texts = [document.data.decode() for document in documents()]
    pieces = [
        text[start : start + LENGTH] for text in texts for start in range(0, len(text) - LENGTH, LENGTH)
    ]
    Random(0).shuffle(pieces)
    trained, others = pieces[: arguments.documents], pieces[arguments.documents :]
    with tempfile.TemporaryDirectory() as folder:
        train_bpe(texts[::6], 8192, Path(folder))
        encode = Encoder.open(Path(folder))
    tokens = sum(map(len, encode(trained)))
    measured = others[: MEASURED * len(trained) // tokens]
    began = time.process_time()
    copies = NearCopies.build(measured)
    built = time.process_time() - began
    checked, encoded = _best(
        [lambda: sum(map(copies.has, trained)), lambda: sum(map(len, encode(trained)))], arguments.turns
    )
    print("| measured documents | seconds to index | near-copies among | check, µs | tokenizer, µs | share |")
    print("| --- | --- | --- | --- | --- | --- |")
    found, per = sum(map(copies.has, trained)), 1e6 / len(trained)
    print(
        f"| {len(measured)} | {built:.2f} | {found} of {len(trained)} | {checked * per:.0f} a document, "
        f"{checked * 1e6 / tokens:.2f} a token | {encoded * per:.0f} a document, "
        f"{encoded * 1e6 / tokens:.2f} a token | {checked / encoded:.0%} |"
    )


def _best(tasks: list[Callable[[], object]], turns: int) -> list[float]:
    """Return the least CPU seconds of each task."""
    seconds: list[list[float]] = [[] for _ in tasks]
    for _ in range(turns):
        for task, own in zip(tasks, seconds, strict=True):
            before = time.process_time()
            task()
            own.append(time.process_time() - before)
    return [min(own) for own in seconds]


if __name__ == "__main__":
    main()
