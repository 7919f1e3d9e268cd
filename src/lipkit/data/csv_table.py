"""Tables of numbers in text files, one sample a line."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Float64
from torch import Tensor

from lipkit.data.examples import Examples
from lipkit.errors import ArgumentError, RecordError

# Cells of numbers that are missing.
_MISSING = ("", "nan", "na", "null", "none")
# Characters of one cell that a message shows.
_LONG = 40
# Names of classes that a message shows.
_NAMES = 8
# More classes than any data set has; a label beyond is no class index.
_CLASSES = 10**6


def csv_table(path: str | Path, label: str | None = None, classes: Sequence[str] | None = None) -> Examples:
    """A table with commas: (count, features) as float32, and a column of labels, each line one sample.

    A first line with words in it names the columns. Labels are class indices 0, 1, ...; or names, if `classes` says in
    which order the model has them. Cells that are empty, no number or infinite are refused with their place.
    Cost: one pass over the text.

    Args:
        path: A file in UTF-8 with commas between its cells.
        label: The column of the labels by its name, or by its position from 0; None for the last one.
        classes: The names of the classes in the order of the model's scores; None for their numbers.
    """
    inputs, cells = read_columns(Path(path), label)
    indices = [_index(cell, classes) for cell in cells]
    if None in indices:
        line = indices.index(None)
        raise RecordError(
            f"{path} has the label {cells[line][:_LONG]!r} for sample {line}{_place(Path(path), label)}, expected "
            f"{_expected(classes)}; name the classes in the order of the scores (`classes`, --classes), or the column "
            "of the labels (`label`, --label)."
        )
    labels = torch.tensor([one for one in indices if one is not None])
    names = tuple(classes) if classes else tuple(str(k) for k in range(int(labels.max()) + 1))
    return Examples(inputs, labels, names, Path(path).name)


def _expected(classes: Sequence[str] | None) -> str:
    if not classes:
        return "a whole number from 0"
    some = ", ".join(classes[:_NAMES]) + (", ..." if len(classes) > _NAMES else "")
    return f"one of the {len(classes)} names {some}"


def _place(path: Path, label: str | None) -> str:
    """Which column the labels are read from, and what the first line is taken for."""
    first = _rows(path)[0]
    header = None if _all_numbers(first, label) else first
    at = _column(path, label, header, len(first))
    last = ", the last one," if label is None else ""
    if header is None:
        return f" in column {at}{last} of a table whose first line is a sample"
    return f" in column {at} ({header[at].strip()}){last} of a table whose first line names the columns"


def read_columns(path: Path, label: str | None) -> tuple[Float32[Tensor, "count features"], list[str]]:
    """The features of a table, and the cells of its column of labels as text."""
    rows, header = _split_header(path, label, labelled=True)
    at = _column(path, label, header, len(rows[0]))
    if len(rows[0]) < 2:
        raise RecordError(f"{path} has one column, expected features and a label with commas between them.")
    return torch.from_numpy(_numbers(path, rows, header, at, np.float32)), [row[at].strip() for row in rows]


def read_rows(path: Path, label: str | None) -> tuple[Float64[np.ndarray, "count features"], list[str] | None]:
    """The features of a table in float64, and the cells of its column of labels; all columns and None if `label` is."""
    rows, header = _split_header(path, label, labelled=label is not None)
    at = None if label is None else _column(path, label, header, len(rows[0]))
    if at is not None and len(rows[0]) < 2:
        raise RecordError(f"{path} has one column, expected features and a label with commas between them.")
    return _numbers(path, rows, header, at, np.float64), None if at is None else [row[at].strip() for row in rows]


def _split_header(path: Path, label: str | None, labelled: bool) -> tuple[list[list[str]], list[str] | None]:
    """The samples of a table, all of one width, and its names of columns."""
    rows = _rows(path)
    if len(rows[0]) == 1 and (other := _other_separator(rows[-1])):
        raise RecordError(f"{path} has one column with commas between cells{other}.")
    header, rows = (rows[0], rows[1:]) if not _all_numbers(rows[0], label, labelled) else (None, rows)
    if not rows:
        raise RecordError(f"{path} has names of columns and no samples; give at least one.")
    width = len(rows[0])
    for number, row in enumerate(rows):
        if len(row) != width or (header is not None and len(header) != width):
            expected = width if header is None else len(header)
            raise RecordError(f"{path} has {len(row)} cells for sample {number}, expected {expected} as in line 1.")
    return rows, header


def _numbers(
    path: Path, rows: list[list[str]], header: list[str] | None, at: int | None, dtype: type[np.floating[Any]]
) -> np.ndarray:
    """All columns but that of the labels; a cell that is no finite number is refused with its place."""
    places = [j for j in range(len(rows[0])) if j != at]
    table = np.empty((len(rows), len(places)), dtype=dtype)
    for number, row in enumerate(rows):
        for column, place in enumerate(places):
            # Too large for float32 is infinite there.
            with np.errstate(over="ignore"):
                table[number, column] = _number(row[place])
            if not np.isfinite(table[number, column]):
                name = f" ({header[place]})" if header is not None else ""
                raise RecordError(
                    f"{path} has {row[place][:_LONG]!r} in column {place}{name} of sample {number}, expected a finite "
                    f"number of {np.dtype(dtype)}; {_remedy(row, row[place], at is None)}."
                )
    return table


def _remedy(row: Sequence[str], cell: str, unlabelled: bool) -> str:
    """What to do about a cell that is no finite number."""
    if other := _other_separator(row):
        return other.removeprefix("; ")
    if not math.isnan(_number(cell)) or cell.strip().lower() in _MISSING:
        return "fill such cells, or leave their rows out"
    more = ", or name it if it holds the labels (`label`, --label)" if unlabelled else ""
    return f"leave the column out, or write its words as numbers, 0 and 1 for each of them{more}"


def _other_separator(row: Sequence[str]) -> str:
    """What to say of cells that hold a separator that is no comma; "" if there is none."""
    other = next((one for one in (";", "\t", "|") if any(one in cell for cell in row)), None)
    return "" if other is None else f"; it seems to be separated by {other!r}, so save it with commas"


def _rows(path: Path) -> list[list[str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = [row for row in csv.reader(file) if row]
    except OSError as error:
        raise ArgumentError(f"{path} cannot be read ({error.strerror}); check the path and the file.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise RecordError(f"{path} is no text with commas in UTF-8 ({error}); save it as one.") from error
    if not rows:
        raise RecordError(f"{path} is empty; give a line for each sample.")
    return rows


def _all_numbers(row: Sequence[str], label: str | None, labelled: bool = True) -> bool:
    """Whether a first line is a sample: its features are numbers, and so is every cell but the label."""
    # A cell that is empty or NaN is a number that is missing, which is refused with its place.
    words = [j for j, cell in enumerate(row) if math.isnan(_number(cell)) and cell.strip().lower() not in _MISSING]
    if not labelled:
        return not words
    at = int(label) if label is not None and label.isdecimal() else len(row) - 1
    return not words or words == [at]


def _column(path: Path, label: str | None, header: Sequence[str] | None, width: int) -> int:
    if label is None:
        return width - 1
    names = [] if header is None else [name.strip() for name in header]
    if label in names:
        return names.index(label)
    if label.isdecimal() and int(label) < width:
        return int(label)
    known = f"its columns are {', '.join(names)}" if names else f"it has no names, and the columns 0..{width - 1}"
    raise ArgumentError(f"{path} has no column {label!r} for the labels; {known}.")


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _index(cell: str, classes: Sequence[str] | None) -> int | None:
    if classes and cell in classes:
        return classes.index(cell)
    value = _number(cell)
    # 3.0 is how other programs write the class 3.
    fits = value == value // 1 and 0 <= value < (len(classes) if classes else _CLASSES)
    return int(value) if fits else None
