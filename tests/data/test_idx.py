"""IDX files: what is written comes back, and what is damaged does not."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipkit.data import Examples, fashion_mnist, mnist
from lipkit.errors import ArgumentError, LipkitError, RecordError

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
PIXELS = np.random.default_rng(0).integers(0, 256, (3, 28, 28), dtype=np.uint8)
CLASSES = np.array([7, 0, 9], np.uint8)


def idx(array: np.ndarray, magic: int | None = None) -> bytes:
    """An IDX file by the letter of its format."""
    magic = 0x800 + array.ndim if magic is None else magic
    return struct.pack(f">{1 + array.ndim}I", magic, *array.shape) + array.tobytes()


def write(folder: Path, images: bytes | None = None, labels: bytes | None = None) -> Path:
    (folder / IMAGES).write_bytes(idx(PIXELS) if images is None else images)
    (folder / LABELS).write_bytes(idx(CLASSES) if labels is None else labels)
    return folder


def write_packed(folder: Path) -> Path:
    (folder / f"{IMAGES}.gz").write_bytes(gzip.compress(idx(PIXELS), mtime=0))
    (folder / f"{LABELS}.gz").write_bytes(gzip.compress(idx(CLASSES), mtime=0))
    return folder


def same(found: Examples) -> bool:
    pixels = torch.from_numpy(PIXELS) / torch.tensor(255.0)
    return torch.equal(found.inputs[:, 0], pixels) and found.labels.tolist() == CLASSES.tolist()


@pytest.mark.parametrize("prepare", [write, write_packed])
def test_what_is_written_comes_back(tmp_path: Path, prepare):
    found = mnist(prepare(tmp_path))
    assert found.inputs.shape == (3, 1, 28, 28)
    assert found.inputs.dtype == torch.float32
    assert torch.equal(found.inputs[:, 0], torch.from_numpy(PIXELS) / torch.tensor(255.0))
    assert found.labels.tolist() == [7, 0, 9]
    assert found.classes == tuple("0123456789")


def test_pixels_reach_both_ends_of_the_unit_interval(tmp_path: Path):
    ends = np.zeros((1, 28, 28), np.uint8)
    ends[0, 3, 5] = 255
    found = mnist(write(tmp_path, idx(ends), idx(np.array([1], np.uint8))))
    # The place matters too: rows before columns.
    assert found.inputs[0, 0, 3, 5] == 1
    assert found.inputs.sum() == 1


def test_the_test_split_and_the_spelling_with_a_dot(tmp_path: Path):
    (tmp_path / "t10k-images.idx3-ubyte").write_bytes(idx(PIXELS))
    (tmp_path / "t10k-labels.idx1-ubyte").write_bytes(idx(CLASSES))
    found = fashion_mnist(str(tmp_path), train=False)
    assert found.classes[int(found.labels[0])] == "Sneaker"
    assert len(found.classes) == 10


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(ArgumentError, match=f"{tmp_path} has no file {IMAGES} or"):
        mnist(tmp_path)
    write(tmp_path)
    (tmp_path / LABELS).unlink()
    with pytest.raises(ArgumentError, match=f"{tmp_path} has no file {LABELS} or"):
        mnist(tmp_path)


@pytest.mark.parametrize(
    ("images", "labels", "complaint"),
    [
        (b"", None, f"{IMAGES} has 0 bytes, expected a header of 16"),
        (idx(PIXELS)[:9], None, f"{IMAGES} has 9 bytes, expected a header of 16"),
        (idx(PIXELS, 0x801), None, f"{IMAGES} begins with 0x00000801, expected 0x00000803"),
        (gzip.compress(idx(PIXELS)), None, f"{IMAGES} begins with 0x1f8b0800, expected 0x00000803"),
        (idx(PIXELS)[:-1], None, f"{IMAGES} has 2367 bytes, but its header .3 x 28 x 28. asks for 2368"),
        (idx(PIXELS) + b"\0", None, f"{IMAGES} has 2369 bytes, but its header"),
        (idx(PIXELS[:, :27]), None, f"{IMAGES} holds images of 27 x 28 pixels, expected 28 x 28"),
        (idx(PIXELS[:0]), idx(CLASSES[:0]), f"{IMAGES} holds nothing"),
        (None, idx(PIXELS), f"{LABELS} begins with 0x00000803, expected 0x00000801"),
        (None, idx(CLASSES[:2]), f"{LABELS} has 2 labels for the 3 images of .*{IMAGES}"),
        (None, idx(np.array([7, 10, 2], np.uint8)), f"{LABELS} has the label 10 at place 1, expected 0..9"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, images: bytes | None, labels: bytes | None, complaint: str):
    with pytest.raises(RecordError, match=complaint):
        mnist(write(tmp_path, images, labels))


@pytest.mark.parametrize("name", [IMAGES, LABELS])
@given(data=st.data())
def test_a_file_cut_anywhere_is_refused(tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject):
    folder = write(tmp_path_factory.mktemp("cut"))
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(RecordError, match=name):
        mnist(folder)


def test_a_packed_file_cut_at_any_byte_is_refused(tmp_path: Path):
    # Images that pack well, so that every cut can be tried.
    (tmp_path / f"{IMAGES}.gz").write_bytes(gzip.compress(idx(np.zeros((3, 28, 28), np.uint8))))
    (tmp_path / f"{LABELS}.gz").write_bytes(gzip.compress(idx(CLASSES)))
    mnist(tmp_path)
    for name in (IMAGES, LABELS):
        path = tmp_path / f"{name}.gz"
        whole = path.read_bytes()
        for cut in range(len(whole)):
            path.write_bytes(whole[:cut])
            with pytest.raises(RecordError, match=f"{name}.gz"):
                mnist(tmp_path)
        path.write_bytes(whole)


@given(place=st.integers(0, 15), value=st.integers(1, 255))
def test_a_changed_header_is_refused(tmp_path_factory: pytest.TempPathFactory, place: int, value: int):
    changed = bytearray(idx(PIXELS))
    changed[place] ^= value
    with pytest.raises(RecordError, match=IMAGES):
        mnist(write(tmp_path_factory.mktemp("header"), bytes(changed)))


@given(data=st.data())
def test_a_changed_packed_file_is_refused_or_says_the_same(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
):
    folder = write_packed(tmp_path_factory.mktemp("changed"))
    path = folder / data.draw(st.sampled_from([f"{IMAGES}.gz", f"{LABELS}.gz"]))
    changed = bytearray(path.read_bytes())
    # The head of a gzip file has a date and other things without meaning, the rest is under its CRC.
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(changed))
    try:
        found = mnist(folder)
    except LipkitError as error:
        assert path.name in str(error)  # noqa: PT017
    else:
        assert same(found)


def test_a_stream_that_never_ends_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lipkit.data._file_bytes.LARGEST", 1000)
    with pytest.raises(RecordError, match=r"train-images.* unpacks to more than 1000 bytes"):
        mnist(write_packed(tmp_path))


@pytest.mark.parametrize("read", [mnist, fashion_mnist])
def test_only_the_original_is_official(tmp_path: Path, read):
    write(tmp_path)
    with pytest.raises(RecordError, match=f"{IMAGES} is not the original: its content has SHA-256 .*official=False"):
        read(tmp_path, official=True)
    assert len(read(tmp_path)) == 3


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path):
    write(tmp_path)
    (tmp_path / LABELS).unlink()
    (tmp_path / LABELS).mkdir()
    with pytest.raises(ArgumentError, match=LABELS):
        mnist(tmp_path)
