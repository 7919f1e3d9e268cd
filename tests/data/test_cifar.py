"""CIFAR in its published forms: all say the same, and damaged ones say nothing."""

import io
import os
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipkit.data import cifar10, cifar100
from lipkit.errors import ArgumentError, LipkitError, RecordError

COUNT = 2
TRAIN = [f"data_batch_{place}" for place in range(1, 6)]
RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (6, COUNT, 3072), dtype=np.uint8)
LABELS = RANDOM.integers(0, 10, (6, COUNT), dtype=np.uint8)


def binary(batch: int) -> bytes:
    """One label and 3072 pixels for each image."""
    return b"".join(bytes([label]) + bytes(row) for label, row in zip(LABELS[batch], PIXELS[batch], strict=True))


def modern(batch: int, protocol: int = 2) -> bytes:
    """As Python 3 writes it."""
    content = {
        b"data": PIXELS[batch],
        b"labels": LABELS[batch].tolist(),
        b"batch_label": b"batch",
        b"filenames": [b"a"],
    }
    return pickle.dumps(content, protocol=protocol)


def classic(batch: int) -> bytes:
    """As the published files were written, by Python 2: the same instructions, put together by hand."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value + b"q\x01"

    raw = PIXELS[batch].tobytes()
    shape = b"K" + bytes([COUNT]) + b"M" + (3072).to_bytes(2, "little") + b"\x86"
    dtype = b"cnumpy\ndtype\nq\x02" + text(b"u1") + b"K\x00K\x01\x87Rq\x03(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xff"
    dtype += b"J\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\nq\x04cnumpy\nndarray\nq\x05K\x00\x85" + text(b"b") + b"\x87Rq\x06"
    array += b"(K\x01" + shape + dtype + b"\x89T" + len(raw).to_bytes(4, "little") + raw + b"q\x07tb"
    labels = b"]q\x08(" + b"".join(b"K" + bytes([label]) for label in LABELS[batch]) + b"e"
    return (
        b"\x80\x02}q\x09("
        + text(b"data")
        + array
        + text(b"labels")
        + labels
        + text(b"batch_label")
        + text(b"b")
        + b"u."
    )


def test_the_hand_made_pickle_is_one():
    # So that the reader is tested on what Python itself understands.
    found = pickle.loads(classic(3), encoding="latin-1")
    assert (found["data"] == PIXELS[3]).all()
    assert found["labels"] == LABELS[3].tolist()


def write(folder: Path, form: Callable[[int], bytes], ending: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for batch, name in enumerate([*TRAIN, "test_batch"]):
        (folder / (name + ending)).write_bytes(form(batch))
    return folder


def archive(path: Path, folder: str, form: Callable[[int], bytes], ending: str) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for batch, name in enumerate([*TRAIN, "test_batch"]):
            member = tarfile.TarInfo(f"{folder}/{name}{ending}")
            member.size = len(form(batch))
            tar.addfile(member, io.BytesIO(form(batch)))
    return path.parent


LAYOUTS = {
    "binary": lambda path: write(path, binary, ".bin"),
    "binary below": lambda path: write(path / "cifar-10-batches-bin", binary, ".bin").parent,
    "Python 3": lambda path: write(path, modern, ""),
    "Python 3, protocol 4": lambda path: write(path, lambda batch: modern(batch, 4), ""),
    "Python 2": lambda path: write(path / "cifar-10-batches-py", classic, "").parent,
    "binary, packed": lambda path: archive(path / "cifar-10-binary.tar.gz", "cifar-10-batches-bin", binary, ".bin"),
    "Python 2, packed": lambda path: archive(path / "cifar-10-python.tar.gz", "cifar-10-batches-py", classic, ""),
}


@pytest.mark.parametrize("prepare", LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout_says_the_same(tmp_path: Path, prepare: Callable[[Path], Path]):
    folder = prepare(tmp_path)
    train, test = cifar10(folder, batch=COUNT), cifar10(str(folder), train=False, batch=COUNT)
    assert train.inputs.shape == (5 * COUNT, 3, 32, 32)
    # Red, green and blue planes after each other, rows in each.
    truth = torch.from_numpy(PIXELS).reshape(6, COUNT, 3, 32, 32) / torch.tensor(255.0)
    assert torch.equal(train.inputs, truth[:5].flatten(0, 1))
    assert torch.equal(test.inputs, truth[5])
    assert train.labels.tolist() == LABELS[:5].flatten().tolist()
    assert test.labels.tolist() == LABELS[5].tolist()
    assert train.classes[3] == "cat"


def test_a_hundred_classes(tmp_path: Path):
    (tmp_path / "train.bin").write_bytes(bytes([19, 99]) + bytes(PIXELS[0, 0]) + bytes([0, 7]) + bytes(PIXELS[0, 1]))
    content = {"data": PIXELS[0, :1], "fine_labels": [52], "coarse_labels": [3], "filenames": ["a"]}
    (tmp_path / "cifar-100-python").mkdir()
    (tmp_path / "cifar-100-python" / "test").write_bytes(pickle.dumps(content, protocol=2))
    train, test = cifar100(tmp_path, batch=2), cifar100(tmp_path, train=False, batch=1)
    assert [train.classes[label] for label in train.labels] == ["worm", "beetle"]
    assert torch.equal(train.inputs[1].flatten(), torch.from_numpy(PIXELS[0, 1]) / torch.tensor(255.0))
    assert [test.classes[label] for label in test.labels] == ["oak_tree"]
    assert len(set(train.classes)) == 100
    assert sorted(train.classes) == list(train.classes)


def test_a_class_that_is_none_is_named(tmp_path: Path):
    write(tmp_path, binary, ".bin")
    changed = bytearray(binary(2))
    changed[3073] = 10
    (tmp_path / "data_batch_3.bin").write_bytes(bytes(changed))
    with pytest.raises(RecordError, match=r"data_batch_3.bin has 10 in labels at place 1, expected 0..9"):
        cifar10(tmp_path, batch=COUNT)
    (tmp_path / "test.bin").write_bytes(bytes([20, 0]) + bytes(3072))
    with pytest.raises(RecordError, match=r"test.bin has 20 in coarse_labels at place 0, expected 0..19"):
        cifar100(tmp_path, train=False, batch=1)


def test_an_empty_folder_and_a_missing_batch_are_named(tmp_path: Path):
    with pytest.raises(ArgumentError, match=f"{tmp_path} has neither data_batch_1.bin nor data_batch_1, no folder"):
        cifar10(tmp_path)
    write(tmp_path, binary, ".bin")
    (tmp_path / "data_batch_1.bin").unlink()
    with pytest.raises(ArgumentError, match=f"{tmp_path} has no file data_batch_1.bin, though"):
        cifar10(tmp_path, batch=COUNT)
    with pytest.raises(ArgumentError, match="batch=0"):
        cifar10(tmp_path, batch=0)


def test_a_batch_cut_after_a_whole_image_is_refused(tmp_path: Path):
    write(tmp_path, binary, ".bin")
    with pytest.raises(RecordError, match=r"data_batch_1.bin has 6146 bytes, expected 10000 images of 3073 bytes"):
        cifar10(tmp_path)
    write(tmp_path / "py", modern, "")
    with pytest.raises(RecordError, match=r"data_batch_1 has data of shape \(2, 3072\), expected \(10000, 3072\)"):
        cifar10(tmp_path / "py")


@pytest.mark.parametrize(("form", "ending"), [(binary, ".bin"), (modern, ""), (classic, "")])
@given(data=st.data())
def test_a_batch_cut_anywhere_is_refused(
    tmp_path_factory: pytest.TempPathFactory, form: Callable[[int], bytes], ending: str, data: st.DataObject
):
    folder = tmp_path_factory.mktemp("cut")
    whole = form(5)
    path = folder / f"test_batch{ending}"
    # At the ends most of all, where the structure is; a batch is mostly pixels.
    cut = data.draw(st.one_of(st.integers(0, 200), st.integers(len(whole) - 200, len(whole) - 1), st.integers(0, 6000)))
    path.write_bytes(whole[:cut])
    with pytest.raises(RecordError, match=str(path)):
        cifar10(folder, train=False, batch=COUNT)
    path.write_bytes(whole + b"\0")
    with pytest.raises(RecordError, match=str(path)):
        cifar10(folder, train=False, batch=COUNT)


@pytest.mark.parametrize("form", [modern, classic])
def test_a_pickle_changed_in_its_structure_is_refused_or_read_whole(tmp_path: Path, form: Callable[[int], bytes]):
    whole, random = form(5), np.random.default_rng(1)
    structure = [*range(min(300, len(whole))), *range(len(whole) - 100, len(whole))]
    path = tmp_path / "test_batch"
    refused = 0
    for place in structure:
        changed = bytearray(whole)
        changed[place] ^= int(random.integers(1, 256))
        path.write_bytes(bytes(changed))
        try:
            found = cifar10(tmp_path, train=False, batch=COUNT)
        except LipkitError as error:
            assert str(path) in str(error)  # noqa: PT017
            refused += 1
        else:
            # A pixel, a label or a name that does not matter may be another one, nothing more.
            assert found.inputs.shape == (COUNT, 3, 32, 32)
    assert refused > 50


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_a_damaged_archive_is_refused(tmp_path: Path, place: float):
    folder = LAYOUTS["binary, packed"](tmp_path)
    path = folder / "cifar-10-binary.tar.gz"
    whole = path.read_bytes()
    for damaged in (whole[: int(place * len(whole))], whole[:100] + bytes([whole[100] ^ 255]) + whole[101:]):
        path.write_bytes(damaged)
        with pytest.raises(RecordError, match=str(path)):
            cifar10(folder, batch=COUNT)


def test_an_archive_of_something_else_is_refused(tmp_path: Path):
    archive(tmp_path / "cifar-10-binary.tar.gz", "holidays", binary, ".bin")
    with pytest.raises(RecordError, match=r"tar.gz has no cifar-10-batches-bin/data_batch_1.bin"):
        cifar10(tmp_path, batch=COUNT)
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as tar:
        link = tarfile.TarInfo("cifar-10-batches-bin/test_batch.bin")
        link.type = tarfile.DIRTYPE
        tar.addfile(link)
    with pytest.raises(RecordError, match="is no plain file"):
        cifar10(tmp_path, train=False, batch=COUNT)


class Hostile:
    """An object that calls a function of its choice when it is unpickled."""

    def __init__(self, function: Callable, *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 1, 2, 4, 5])
def test_a_hostile_pickle_is_not_executed(tmp_path: Path, protocol: int):
    trace = tmp_path / "executed"
    attacks = [
        Hostile(os.mkdir, str(trace)),
        {b"data": Hostile(os.mkdir, str(trace)), b"labels": [0]},
        {b"data": PIXELS[0, :1], b"labels": [Hostile(os.mkdir, str(trace))]},
    ]
    for attack in attacks:
        (tmp_path / "test_batch").write_bytes(pickle.dumps(attack, protocol=protocol))
        with pytest.raises(RecordError, match="test_batch"):
            cifar10(tmp_path, train=False, batch=1)
        assert not trace.exists()
    # Names of numpy that are not needed must not be called either.
    for module, name in (("numpy", "load"), ("numpy.core.multiarray", "fromfile"), ("_codecs", "decode")):
        (tmp_path / "test_batch").write_bytes(
            b"\x80\x02c" + f"{module}\n{name}\n".encode() + b"U\x01ax\x01\x00\x00\x00b\x86R."
        )
        with pytest.raises(RecordError, match="test_batch"):
            cifar10(tmp_path, train=False, batch=1)
    (tmp_path / "test_batch").write_bytes(pickle.dumps(attacks[-1], protocol=protocol))
    # The attack is one: Python itself would fall for it.
    pickle.loads((tmp_path / "test_batch").read_bytes())
    assert trace.exists()


@pytest.mark.parametrize("name", [b"c_codecs\nencode\n", b"cnumpy\ndtype\n", b"cnumpy.core.multiarray\n_reconstruct\n"])
def test_a_pickle_cannot_change_what_it_names(tmp_path: Path, name: bytes):
    # A state given to the named object itself: Python would set its attributes.
    (tmp_path / "test_batch").write_bytes(b"\x80\x02" + name + b"}U\x07changedK\x01sb.")
    with pytest.raises(RecordError, match="test_batch"):
        cifar10(tmp_path, train=False, batch=1)
    write(tmp_path, modern, "")
    assert cifar10(tmp_path, train=False, batch=COUNT).labels.tolist() == LABELS[5].tolist()


def test_a_pickle_that_asks_for_memory_is_refused(tmp_path: Path):
    # A place in the memo beyond 4e9, for which the reader in C would reserve 64 GB; and a text of that length.
    for content in (
        b"\x80\x02}r\xff\xff\xff\xff.",
        b"\x80\x02X\xff\xff\xff\xffa.",
        b"\x80\x04\x95" + b"\xff" * 7 + b"\x7f.",
    ):
        (tmp_path / "test_batch").write_bytes(content)
        with pytest.raises(RecordError, match="test_batch"):
            cifar10(tmp_path, train=False, batch=1)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ([1, 2], "test_batch is a pickle of a list, expected a dictionary"),
        ({"labels": [1]}, "test_batch has no data, only"),
        ({"data": PIXELS[0, :1], "labels": [1, 2]}, "labels that are not a list of 1 numbers"),
        ({"data": PIXELS[0, :1], "labels": ["cat"]}, "labels that are not a list of 1 numbers"),
        ({"data": PIXELS[0, :1], "labels": [300]}, "labels that are not a list of 1 numbers"),
        ({"data": PIXELS[0, :1, :30], "labels": [1]}, r"data of shape \(1, 30\)"),
        ({"data": PIXELS[0, :1].astype(np.float32), "labels": [1]}, "data is not an array of unsigned bytes"),
        ({"data": np.asfortranarray(PIXELS[0]), "labels": [1, 2]}, "data is not an array of unsigned bytes"),
        ({"data": [1.5], "labels": [1]}, "data is not an array of unsigned bytes"),
        ({"data": PIXELS[0, :1], 7: [1]}, "test_batch has the key 7, expected text"),
        ({"labels": [1], 7: [1], b"x": 1}, "test_batch has the key 7, expected text"),
        (
            {"data": PIXELS[0, :1], "labels": [1], b"labels": [2]},
            "test_batch has the key labels twice, as text and as bytes",
        ),
    ],
)
def test_a_pickle_of_something_else_is_refused(tmp_path: Path, content: object, complaint: str):
    (tmp_path / "test_batch").write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(RecordError, match=complaint):
        cifar10(tmp_path, train=False, batch=1)


@pytest.mark.parametrize("prepare", LAYOUTS.values(), ids=LAYOUTS)
def test_only_the_original_is_official(tmp_path: Path, prepare: Callable[[Path], Path]):
    with pytest.raises(RecordError, match=r"data_batch_1.* is not the original: its content has SHA-256"):
        cifar10(prepare(tmp_path), official=True, batch=COUNT)
