"""Text as bytes for benchmarks: which files were read (with a hash), what a model may train on, and paragraphs."""

import hashlib
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Paragraphs(NamedTuple):
    """Bytes of paragraphs, (count, length) with zeros behind the end, and the number of the document of each."""

    bytes: Tensor
    documents: Tensor


class Corpus(NamedTuple):
    """Text to learn a language from, and paragraphs of some documents, which are no part of it."""

    text: Tensor
    train: Paragraphs
    chosen_on: Paragraphs
    reported_on: Paragraphs
    documents: tuple[str, ...]
    sha256: str
    files: int


def read_corpus(folder: Path | None, documents: int, labelled: int, held: int, length: int, most: int) -> Corpus:
    """The text files of a folder, or the interpreter's own library where none is named.

    The largest `documents` files are those to tell apart. Each is cut into blocks of eight paragraphs; every fourth
    block trains, every fourth is chosen on, every fourth reported on, and the rest joins the text. So no sentence is
    in two parts. Each part takes the same number of paragraphs of each document.

    Args:
        folder: Holds .txt files, at any depth.
        documents: Number of documents to tell apart; fewer where the folder has fewer.
        labelled: Paragraphs to train on, all documents together.
        held: Paragraphs to choose on, and as many to report on.
        length: Bytes of a paragraph that are kept.
        most: Bytes of text to learn a language from, at most.
    """
    files = _files(folder)
    contents = [path.read_bytes() for path in files]
    digest = hashlib.sha256()
    for content in contents:
        digest.update(hashlib.sha256(content).digest())
    order = sorted(range(len(files)), key=lambda at: (-len(contents[at]), at))
    told = order[: min(documents, len(order))]
    if len(told) < 2:
        raise ValueError(f"{folder} has {len(told)} text files; two documents are needed to tell one from another.")
    parts: list[list[list[bytes]]] = [[], [], []]
    text: list[bytes] = []
    for at in told:
        blocks = _blocks(contents[at], length)
        for part in range(3):
            parts[part].append([one for block in blocks[part::4] for one in block])
        text += [b"\n\n".join(block) for block in blocks[3::4]]
    text += [contents[at] for at in order[len(told) :]]
    joined = b"\n\n".join(text)[:most]
    sizes = (labelled, held, held)
    train, chosen_on, reported_on = (
        _stack(part, size // len(told), length) for part, size in zip(parts, sizes, strict=True)
    )
    bytes_of = torch.from_numpy(np.frombuffer(joined, dtype=np.uint8).copy())
    names = tuple(files[at].name for at in told)
    return Corpus(bytes_of, train, chosen_on, reported_on, names, digest.hexdigest(), len(files))


def _files(folder: Path | None) -> list[Path]:
    if folder is not None:
        return sorted(folder.rglob("*.txt"))
    library = Path(sysconfig.get_paths()["stdlib"])
    return sorted(path for path in library.rglob("*.py") if "site-packages" not in path.parts)


def _blocks(content: bytes, length: int) -> list[list[bytes]]:
    """Eight paragraphs each; lines are gathered until a paragraph has half of the length, and cut at the length."""
    found: list[bytes] = []
    gathered = b""
    for piece in content.replace(b"\r", b"").replace(b"\0", b"").split(b"\n"):
        gathered += piece + b"\n"
        if len(gathered) >= length // 2:
            found.append(gathered.strip()[:length])
            gathered = b""
    kept = [one for one in found if len(one) >= length // 4]
    return [kept[at : at + 8] for at in range(0, len(kept), 8)]


def _stack(documents: Sequence[Sequence[bytes]], each: int, length: int) -> Paragraphs:
    rows: list[np.ndarray] = []
    labels: list[int] = []
    random = np.random.default_rng(0)
    for label, paragraphs in enumerate(documents):
        for at in random.permutation(len(paragraphs))[:each]:
            row = np.zeros(length, dtype=np.uint8)
            row[: len(paragraphs[at])] = np.frombuffer(paragraphs[at], dtype=np.uint8)
            rows.append(row)
            labels.append(label)
    return Paragraphs(torch.from_numpy(np.stack(rows)), torch.tensor(labels))
