"""CIFAR-10 and CIFAR-100 from the folders and archives they are published as."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import numpy as np
import torch
from jaxtyping import UInt8

from lipkit.data._file_bytes import Archive, Folder, Store, demand_original
from lipkit.data._restricted_pickle import byte_array, load_plain
from lipkit.data.class_names import CIFAR10, CIFAR100
from lipkit.data.examples import Examples
from lipkit.errors import ArgumentError, RecordError

_PIXELS: Final = 3 * 32 * 32


@final
@dataclass(frozen=True)
class _Label:
    """One label of an image: what the pickled version calls it, and how many classes it has."""

    key: str
    classes: int


@final
@dataclass(frozen=True)
class _Batch:
    """One file of a set: its name without ending, its images, and the SHA-256 of their labels and pixels in a row."""

    name: str
    count: int
    sha256: str


@final
@dataclass(frozen=True)
class _Published:
    """The files of one published set."""

    stem: str
    folders: tuple[str, str]
    labels: tuple[_Label, ...]
    train: tuple[_Batch, ...]
    test: tuple[_Batch, ...]


_TEN = _Published(
    stem="cifar-10",
    folders=("cifar-10-batches-bin", "cifar-10-batches-py"),
    labels=(_Label("labels", 10),),
    train=(
        _Batch("data_batch_1", 10_000, "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
        _Batch("data_batch_2", 10_000, "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
        _Batch("data_batch_3", 10_000, "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
        _Batch("data_batch_4", 10_000, "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
        _Batch("data_batch_5", 10_000, "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
    ),
    test=(_Batch("test_batch", 10_000, "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),),
)
_HUNDRED = _Published(
    stem="cifar-100",
    folders=("cifar-100-binary", "cifar-100-python"),
    labels=(_Label("coarse_labels", 20), _Label("fine_labels", 100)),
    train=(_Batch("train", 50_000, "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29"),),
    test=(_Batch("test", 10_000, "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a"),),
)


def cifar10(folder: str | Path, train: bool = True, *, official: bool = False, batch: int | None = None) -> Examples:
    """Small photographs of ten classes, (count, 3, 32, 32) pixels in [0, 1]: 50,000 for training, 10,000 for testing.

    Args:
        folder: Holds the binary files (`data_batch_1.bin` ...), the Python ones (`data_batch_1` ..., read without
            executing anything), a folder `cifar-10-batches-bin` or `-py` with them, or the archive
            `cifar-10-binary.tar.gz` or `-python.tar.gz`. The first found is read; all give the same order.
        train: The training images, or those for testing.
        official: Demands the published content by its SHA-256, which alone notices a changed pixel.
        batch: How many images each file has, for a part of the set; 10,000 where it is None. Nothing else in the
            binary format tells that a file was cut.

    Reference: Krizhevsky, 2009.
    """
    return _read(Path(folder), train, _TEN, CIFAR10, official, batch)


def cifar100(folder: str | Path, train: bool = True, *, official: bool = False, batch: int | None = None) -> Examples:
    """The same with a hundred classes (the fine ones) and one file for each split; arguments as for `cifar10`."""
    return _read(Path(folder), train, _HUNDRED, CIFAR100, official, batch)


def _read(
    folder: Path, train: bool, of: _Published, classes: tuple[str, ...], official: bool, batch: int | None
) -> Examples:
    if batch is not None and batch < 1:
        raise ArgumentError(f"A batch has at least 1 image, got batch={batch}.")
    files = of.train if train else of.test
    store, ending = _find(folder, of, files)
    parts: list[np.ndarray] = []
    for one in files:
        name = one.name + ending
        count = one.count if batch is None else batch
        place, data = store.place(name), store.read(name)
        part = _binary(place, data, of, count) if ending else _python(place, data, of, count)
        if official:
            demand_original(place, part.tobytes(), one.sha256)
        _demand_labels(place, part, of)
        parts.append(part)
    name = f"{of.stem.upper()} {'training' if train else 'test'} set"
    return _examples(np.concatenate(parts), of, classes, name)


def _find(folder: Path, of: _Published, files: tuple[_Batch, ...]) -> tuple[Store, str]:
    """Where the files are, and the ending of their names: `.bin`, or nothing for the Python ones."""
    for store, ending in _places(folder, of):
        if any(store.has(one.name + ending) for one in files):
            return store, ending
    raise ArgumentError(
        f"{folder} has neither {files[0].name}.bin nor {files[0].name}, no folder {' or '.join(of.folders)} with them, "
        f"and no archive {of.stem}-binary.tar.gz or {of.stem}-python.tar.gz; name the folder of the set, "
        "or get it with lipkit.data.fetch."
    )


def _places(folder: Path, of: _Published) -> Iterator[tuple[Store, str]]:
    binary, python = of.folders
    yield Folder(folder), ".bin"
    yield Folder(folder / binary), ".bin"
    yield Folder(folder), ""
    yield Folder(folder / python), ""
    yield Archive(folder / f"{of.stem}-binary.tar.gz", folder=binary), ".bin"
    yield Archive(folder / f"{of.stem}-python.tar.gz", folder=python), ""


def _binary(place: str, data: bytes, of: _Published, count: int) -> UInt8[np.ndarray, "count bytes"]:
    width = len(of.labels) + _PIXELS
    if len(data) != count * width:
        raise RecordError(
            f"{place} has {len(data)} bytes, expected {count} images of {width} bytes ({count * width}); "
            "get it again from its source."
        )
    return np.frombuffer(data, np.uint8).reshape(count, width)


def _python(place: str, data: bytes, of: _Published, count: int) -> UInt8[np.ndarray, "count bytes"]:
    batch = load_plain(place, data)
    keys = ("data", *(label.key for label in of.labels))
    if missing := [key for key in keys if key not in batch]:
        raise RecordError(f"{place} has no {' and no '.join(missing)}, only {sorted(batch)[:8]}.")
    pixels = byte_array(f"{place}: data", batch["data"])
    if pixels.shape != (count, _PIXELS):
        raise RecordError(f"{place} has data of shape {pixels.shape}, expected {(count, _PIXELS)}.")
    columns: list[np.ndarray] = []
    for label in of.labels:
        values = batch[label.key]
        if not isinstance(values, list) or len(values) != count or not all(_is_byte(value) for value in values):
            raise RecordError(
                f"{place} has {label.key} that are not a list of {count} numbers in 0..{label.classes - 1}."
            )
        columns.append(np.array(values, np.uint8)[:, None])
    return np.concatenate([*columns, pixels], axis=1)


def _is_byte(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < 256


def _demand_labels(place: str, records: UInt8[np.ndarray, "count bytes"], of: _Published) -> None:
    for column, label in enumerate(of.labels):
        if (largest := int(records[:, column].max(initial=0))) >= label.classes:
            at = int(records[:, column].argmax())
            raise RecordError(
                f"{place} has {largest} in {label.key} at place {at}, expected 0..{label.classes - 1}; get it again."
            )


def _examples(
    records: UInt8[np.ndarray, "count bytes"], of: _Published, classes: tuple[str, ...], name: str
) -> Examples:
    first = len(of.labels)
    pixels = records[:, first:].astype(np.float32).reshape(-1, 3, 32, 32)
    return Examples(
        torch.from_numpy(pixels).div_(255), torch.from_numpy(records[:, first - 1].astype(np.int64)), classes, name
    )
