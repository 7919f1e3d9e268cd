"""Rows of numbers with or without labels, from a .npz or a .csv file."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final
from zipfile import ZipFile

import numpy as np
from jaxtyping import Float64, Int64

from lipkit.data._numpy_files import read_npz
from lipkit.data.csv_table import read_rows
from lipkit.errors import ArgumentError, LipkitError, NonFiniteError, ShapeError

# Rows from which a scale of each column can be told, and a test of them still means something.
_LEAST = 3


@final
@dataclass(frozen=True, eq=False)
class LabelledRows:
    """Rows of numbers; labels are 0 for normal ones and 1 for anomalies, None where nobody knows."""

    rows: Float64[np.ndarray, "n d"]
    labels: Int64[np.ndarray, " n"] | None

    @classmethod
    def read(cls, path: Path, label: str | None) -> "LabelledRows":
        """The rows of a file; whatever no detector can learn from is refused in one sentence.

        Args:
            path: A .npz file with X (rows of numbers) and, where there are labels, y; or a .csv file.
            label: The column of labels in a .csv file, by name or position; None where there is none.
        """
        if path.suffix not in (".npz", ".csv"):
            raise ArgumentError(
                f"DATA is a .npz file with X, and y where there are labels, or a .csv file; got {path}."
            )
        if not path.is_file():
            raise ArgumentError(f"There is no file {path}; DATA names a .npz or a .csv file with rows of numbers.")
        if path.suffix == ".csv":
            rows, cells = read_rows(path, label)
            labels = None if cells is None else _labels_of_cells(path, cells)
        elif label is not None:
            raise ArgumentError(f"--label names a column of a .csv file, and {path} is none; leave it out.")
        else:
            rows, labels = _archive(path)
        _check(path, rows, labels)
        return cls(rows, labels)

    def find_label(self) -> int | None:
        """The last column that holds 0 and 1 and nothing else, where nothing is labelled; labels are written so."""
        if self.labels is not None:
            return None
        binary = np.flatnonzero((np.isin(self.rows, (0.0, 1.0))).all(0))
        return int(binary[-1]) if len(binary) else None

    @property
    def hashes(self) -> dict[str, str]:
        """The SHA-256 of the rows and of the labels, by name."""
        named = {"rows": self.rows, "labels": self.labels}
        return {
            f"SHA-256 of the {name}": hashlib.sha256(np.ascontiguousarray(one).tobytes()).hexdigest()
            for name, one in named.items()
            if one is not None
        }

    def choose_training(self, share: float, seed: int) -> Int64[np.ndarray, " m"]:
        """The rows to learn from: that share of the normal ones, drawn by `seed`, and all where nothing is labelled."""
        if self.labels is None:
            return np.arange(len(self.rows))
        normal = np.flatnonzero(self.labels == 0)
        chosen = np.random.default_rng(seed).permutation(normal)[: int(share * len(normal))]
        if len(chosen) < _LEAST:
            raise ArgumentError(
                f"--train {share:g} of {len(normal)} normal rows leaves {len(chosen)} to learn from; it takes "
                f"{_LEAST} at least, so give more rows or a larger share."
            )
        if len(chosen) == len(normal):
            raise ArgumentError(f"--train {share:g} leaves no normal row to test on; give a smaller share.")
        return chosen


def _archive(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    try:
        (rows,) = read_npz(path, ("X",))
        with ZipFile(path) as archive:
            labels = read_npz(path, ("y",))[0] if "y.npy" in archive.namelist() else None
    except LipkitError as error:
        said = str(error).rstrip(".")
        raise ArgumentError(
            f"{path} is no .npz file with an array X ({said}); numpy.savez(path, X=rows, y=labels) writes one."
        ) from error
    if rows.ndim != 2:
        raise ShapeError(
            f"{path} has X of shape {rows.shape}, expected (rows, columns); X.reshape(len(X), -1) is flat."
        )
    if labels is not None and labels.shape != rows.shape[:1]:
        raise ShapeError(f"{path} has y of shape {labels.shape} for {len(rows)} rows; give one label a row, 0 or 1.")
    if labels is not None:
        _check_labels(path, np.unique(labels).tolist())
        labels = labels.astype(np.int64)
    return rows.astype(np.float64, order="C"), labels


def _labels_of_cells(path: Path, cells: Sequence[str]) -> np.ndarray:
    try:
        labels = np.array([float(cell) for cell in cells])
    except ValueError:
        labels = None
    if labels is None:
        _check_labels(path, sorted(set(cells)))
    assert labels is not None
    _check_labels(path, np.unique(labels).tolist())
    return labels.astype(np.int64)


def _check_labels(path: Path, found: Sequence[object]) -> None:
    """Refuse labels that are not both 0 and 1."""
    if not set(found) <= {0, 1}:
        shown = ", ".join(map(str, found[:5]))
        raise ArgumentError(
            f"{path} has the labels {shown}; 0 is for normal rows and 1 for anomalies, so write those in their place."
        )
    if len(found) == 1:
        kind, other = ("normal", "anomalies") if found[0] == 0 else ("an anomaly", "normal rows")
        raise ArgumentError(
            f"Every row of {path} is labelled {kind}; add {other}, or leave the labels out to learn from all rows."
        )


def _check(path: Path, rows: np.ndarray, labels: np.ndarray | None) -> None:
    if len(rows) < _LEAST or not rows.shape[1]:
        raise ArgumentError(
            f"{path} has {len(rows)} rows of {rows.shape[1]} numbers; give {_LEAST} rows at least, and better hundreds."
        )
    wrong = np.argwhere(~np.isfinite(rows))
    if len(wrong):
        row, column = wrong[0].tolist()
        raise NonFiniteError(
            f"{path} is NaN or infinite in row {row}, column {column} ({len(wrong)} entries); remove or fill them."
        )
    constant = np.flatnonzero(np.ptp(rows if labels is None else rows[labels == 0], axis=0) == 0)
    if len(constant):
        kind = "" if labels is None else " over the normal rows"
        raise ArgumentError(
            f"Column {constant[0]} of {path} is constant{kind}, so its unit is unknown ({len(constant)} such columns); "
            "remove it."
        )
