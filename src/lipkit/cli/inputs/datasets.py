"""Data sets by the words of a command line."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from lipkit import data
from lipkit.data import Examples
from lipkit.data._numpy_files import read_npz
from lipkit.errors import ArgumentError, RecordError

_FOLDERS: dict[str, Callable[[Path], Examples]] = {
    "mnist": lambda folder: data.mnist(folder, train=False, official=True),
    "fashion-mnist": lambda folder: data.fashion_mnist(folder, train=False, official=True),
    "cifar10": lambda folder: data.cifar10(folder, train=False, official=True),
}
# More classes than any data set has; a label beyond is no class index.
_CLASSES = 10**6


def test_set(words: str) -> Examples:
    """The test examples that `digits`, `mnist:FOLDER`, `fashion-mnist:FOLDER`, `cifar10:FOLDER` or a .npz file name.

    A .npz file holds `x`, floating point, and `y`, class indices.
    """
    name, colon, folder = words.partition(":")
    if words == "digits":
        return data.digits().split(397, seed=0)[1]
    if colon and name in _FOLDERS:
        return _FOLDERS[name](Path(folder))
    if words.endswith(".npz"):
        return _archive(Path(words))
    known = ", ".join(f"{one}:FOLDER" for one in _FOLDERS)
    raise ArgumentError(f"--data is digits, {known} or a .npz file with x and y, got {words!r}.")


def _archive(path: Path) -> Examples:
    if not path.is_file():
        raise ArgumentError(f"There is no file {path}; --data names a .npz file with arrays x and y.")
    try:
        x, y = read_npz(path, ("x", "y"))
    except RecordError as error:
        raise ArgumentError(
            f"{path} is no .npz file with arrays x and y ({error}); numpy.savez(path, x=..., y=...) writes one."
        ) from error
    if x.dtype.kind != "f" or y.dtype.kind not in "iu":
        raise ArgumentError(f"{path} needs x as floating point and y as class indices, got {x.dtype} and {y.dtype}.")
    if y.ndim != 1 or x.shape[:1] != y.shape:
        raise ArgumentError(
            f"{path} needs x of shape (N, ...) and y of shape (N,), one index an input, got {x.shape} and {y.shape}."
        )
    if not len(y):
        raise ArgumentError(f"{path} holds no samples; give at least one.")
    if not (y.min() >= 0 and y.max() < _CLASSES):
        raise ArgumentError(f"{path} has labels {y.min()}..{y.max()}; class indices lie in 0..{_CLASSES - 1}.")
    labels = torch.from_numpy(y.astype(np.int64))
    classes = tuple(str(k) for k in range(int(labels.max()) + 1))
    inputs = x.astype(np.float64 if x.dtype == np.float64 else np.float32, order="C")
    return Examples(torch.from_numpy(inputs), labels, classes, path.name)
