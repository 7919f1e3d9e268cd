"""Data sets by the words of a command line."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lipkit import data
from lipkit.data import Examples, csv_table
from lipkit.data._numpy_files import read_npz
from lipkit.data.csv_table import read_columns
from lipkit.errors import ArgumentError, RecordError

_FOLDERS: dict[str, Callable[[Path], Examples]] = {
    "mnist": lambda folder: data.mnist(folder, train=False, official=True),
    "fashion-mnist": lambda folder: data.fashion_mnist(folder, train=False, official=True),
    "cifar10": lambda folder: data.cifar10(folder, train=False, official=True),
}
# More classes than any data set has; a label beyond is no class index.
_CLASSES = 10**6


def test_set(words: str, label: str | None, classes: Sequence[str] | None) -> Examples:
    """The test examples that `digits`, `mnist:FOLDER`, `fashion-mnist:FOLDER`, `cifar10:FOLDER` or a file name.

    A .npz file holds `x`, floating point, and `y`, class indices; a .csv file a column of labels (`csv_table`), which
    `label` names, and whose words `classes` has in the order of the model.
    """
    name, colon, folder = words.partition(":")
    _check_label(words, label)
    if words == "digits":
        return data.digits().split(397, seed=0)[1]
    if colon and name in _FOLDERS:
        return _FOLDERS[name](Path(folder))
    if words.endswith(".npz"):
        return _archive(Path(words))
    if words.endswith(".csv"):
        return csv_table(_check_csv(words), label, classes)
    raise ArgumentError(f"--data is digits, {_known()}, a .npz file with x and y or a .csv file, got {words!r}.")


def test_inputs(words: str, label: str | None) -> Tensor:
    """The inputs alone, for models without classes: of a .npz file its x, of a .csv file all columns but one."""
    _check_label(words, label)
    if words.endswith(".npz"):
        return _inputs(Path(words), _arrays(Path(words), ("x",))[0])
    if words.endswith(".csv"):
        return read_columns(_check_csv(words), label)[0]
    return test_set(words, None, None).inputs


def _known() -> str:
    return ", ".join(f"{one}:FOLDER" for one in _FOLDERS)


def _check_label(words: str, label: str | None) -> None:
    if label is not None and not words.endswith(".csv"):
        raise ArgumentError(f"--label names a column of a .csv file, and --data is {words}; leave it out.")


def _check_csv(words: str) -> Path:
    if not Path(words).is_file():
        raise ArgumentError(f"There is no file {words}; --data names a .csv file with a line for each sample.")
    return Path(words)


def _arrays(path: Path, names: tuple[str, ...]) -> tuple[np.ndarray, ...]:
    listed = " and ".join(names)
    if not path.is_file():
        raise ArgumentError(f"There is no file {path}; --data names a .npz file with arrays x and y.")
    try:
        return read_npz(path, names)
    except RecordError as error:
        made = ", ".join(f"{name}=..." for name in names)
        raise ArgumentError(
            f"{path} is no .npz file with array{'s' if len(names) > 1 else ''} {listed} ({error}); "
            f"numpy.savez(path, {made}) writes one."
        ) from error


def _inputs(path: Path, x: np.ndarray) -> Tensor:
    if x.dtype.kind != "f" or x.ndim < 2 or not len(x):
        raise ArgumentError(
            f"{path} needs x as floating point of shape (N, ...), got {x.dtype} of shape {x.shape}{_say_remedy(x)}."
        )
    return torch.from_numpy(x.astype(np.float64 if x.dtype == np.float64 else np.float32, order="C"))


def _say_remedy(x: np.ndarray) -> str:
    return "; x.astype('float32') / 255 makes numbers in [0, 1] of bytes" if x.dtype == np.uint8 else ""


def _archive(path: Path) -> Examples:
    x, y = _arrays(path, ("x", "y"))
    if x.dtype.kind != "f" or y.dtype.kind not in "iu":
        raise ArgumentError(
            f"{path} needs x as floating point and y as class indices, got {x.dtype} and {y.dtype}{_say_remedy(x)}."
        )
    if y.ndim != 1 or x.shape[:1] != y.shape:
        raise ArgumentError(
            f"{path} needs x of shape (N, ...) and y of shape (N,), one index an input, got {x.shape} and {y.shape}"
            f"{'; y.argmax(1) makes indices of rows with one 1' if y.ndim == 2 and y.shape[1] > 1 else ''}."
        )
    if not len(y):
        raise ArgumentError(f"{path} holds no samples; give at least one.")
    if not (y.min() >= 0 and y.max() < _CLASSES):
        raise ArgumentError(f"{path} has labels {y.min()}..{y.max()}; classes are whole numbers from 0.")
    labels = torch.from_numpy(y.astype(np.int64))
    classes = tuple(str(k) for k in range(int(labels.max()) + 1))
    return Examples(_inputs(path, x), labels, classes, path.name)
