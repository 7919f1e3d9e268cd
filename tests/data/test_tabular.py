"""ADBench tables: npz files of numbers, whole or not at all."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from lipkit.data import adbench
from lipkit.errors import ArgumentError, LipkitError, RecordError

TABLE = np.array([[1.5, -2], [0, 3e5], [7, 1e-3]])
LABELS = np.array([0, 1, 0])


def save(path: Path, **arrays: np.ndarray) -> Path:
    np.savez_compressed(path, **arrays)  # pyright: ignore[reportArgumentType]
    return path


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float64, np.int16, np.uint8, ">f4"])
def test_what_is_written_comes_back(tmp_path: Path, order, dtype):
    table = np.array(np.arange(12).reshape(4, 3), dtype, order=order)
    found = adbench(save(tmp_path / "t.npz", X=table, y=np.array([0, 0, 1, 1], np.int32)))
    assert torch.equal(found.inputs, torch.arange(12.0).reshape(4, 3))
    assert found.labels.tolist() == [0, 0, 1, 1]
    assert found.classes == ("normal", "anomaly")


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({"X": TABLE}, r"has no y.npy, only \['X.npy'\]"),
        ({"X": TABLE[0], "y": LABELS[:2]}, r"X of shape \(2,\)"),
        ({"X": TABLE, "y": LABELS[:2]}, r"y of shape \(2,\)"),
        ({"X": TABLE[:0], "y": LABELS[:0]}, r"X of shape \(0, 2\)"),
        ({"X": TABLE, "y": LABELS + 1}, r"the labels \[1, 2\] in y, expected 0 and 1"),
        ({"X": TABLE * np.nan, "y": LABELS}, "nan in row 0, column 0 of X"),
        ({"X": TABLE * 1e34, "y": LABELS}, r"3e\+39 in row 1, column 1 of X, expected finite numbers of float32"),
        ({"X": TABLE.astype(str), "y": LABELS}, "X.npy holds values of type <U32, expected numbers"),
        ({"X": TABLE.astype(complex), "y": LABELS}, "X.npy holds values of type complex128, expected numbers"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, arrays: dict[str, np.ndarray], complaint: str):
    with pytest.raises(RecordError, match=f"{tmp_path / 't.npz'}.*{complaint}"):
        adbench(save(tmp_path / "t.npz", **arrays))


class Trap:
    """Leaves a trace where it is unpickled."""

    path = ""

    def __reduce__(self):
        return (Path.mkdir, (Path(self.path),))


def test_objects_are_not_unpickled(tmp_path: Path):
    trap = Trap()
    trap.path = str(tmp_path / "executed")
    save(tmp_path / "t.npz", X=np.array([[trap]], object), y=LABELS[:1])
    with pytest.raises(RecordError, match=r"X.npy holds values of type object, expected numbers"):
        adbench(tmp_path / "t.npz")
    assert not (tmp_path / "executed").exists()
    # The trap is one: NumPy falls for it where it may.
    with np.load(tmp_path / "t.npz", allow_pickle=True) as table:
        table["X"]
    assert (tmp_path / "executed").exists()


def test_a_table_cut_at_any_byte_is_refused(tmp_path: Path):
    path = save(tmp_path / "t.npz", X=TABLE, y=LABELS)
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        with pytest.raises(RecordError, match=str(path)):
            adbench(path)


@pytest.mark.parametrize("value", [1, 8, 255])
def test_a_table_changed_at_any_byte_is_refused_or_says_the_same(tmp_path: Path, value: int):
    path = save(tmp_path / "t.npz", X=TABLE, y=LABELS)
    whole = path.read_bytes()
    refused = 0
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= value
        path.write_bytes(bytes(changed))
        try:
            found = adbench(path)
        except LipkitError as error:
            assert str(path) in str(error)  # noqa: PT017
            refused += 1
        else:
            # Dates and the like in the heads of the archive.
            assert torch.equal(found.inputs, torch.from_numpy(TABLE).float())
            assert found.labels.tolist() == LABELS.tolist()
    assert refused > len(whole) // 2


@pytest.mark.parametrize(
    ("member", "complaint"),
    [
        (b"", "X.npy is no readable .npy array"),
        (b"\x93NUMPY\x09\x00" + bytes(50), "X.npy is no readable .npy array"),
        (b"\x93NUMPY\x01\x00\x05\x00{'a':", "X.npy is no readable .npy array"),
    ],
)
def test_a_member_that_is_no_array_is_named(tmp_path: Path, member: bytes, complaint: str):
    path = save(tmp_path / "t.npz", y=LABELS)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("X.npy", member)
    with pytest.raises(RecordError, match=complaint):
        adbench(path)


@pytest.mark.parametrize("shape", ["(99999999999, 99999)", "(3, 1)", "(3, 3)", "(-3, -2)"])
def test_a_header_that_promises_another_size_reserves_nothing(tmp_path: Path, shape: str):
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    member = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + TABLE.tobytes()
    path = save(tmp_path / "t.npz", y=LABELS)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("X.npy", member)
    with pytest.raises(RecordError, match=r"X.npy has 48 bytes after its header"):
        adbench(path)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(ArgumentError, match=f"{tmp_path / 'none.npz'} cannot be read"):
        adbench(tmp_path / "none.npz")
