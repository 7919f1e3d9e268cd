"""Tables of text: read as they are, with every cell that is no number named."""

from pathlib import Path

import pytest
import torch

from lipkit.data import csv_table
from lipkit.errors import ArgumentError, RecordError


def write(folder: Path, text: str) -> Path:
    path = folder / "t.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_labels_are_the_last_column_or_a_named_one(tmp_path: Path):
    last = csv_table(write(tmp_path, "1,2.5,0\n-3,4e-1,2\n"))
    assert torch.equal(last.inputs, torch.tensor([[1, 2.5], [-3, 0.4]]))
    assert last.labels.tolist() == [0, 2]
    assert last.classes == ("0", "1", "2")
    assert last.name == "t.csv"
    named = csv_table(write(tmp_path, '\ufeffa,"kind",b\n1,1.0,2\n\n3,0,4\n'), "kind")
    assert torch.equal(named.inputs, torch.tensor([[1.0, 2], [3, 4]]))
    assert named.labels.tolist() == [1, 0]
    assert csv_table(write(tmp_path, "1,7,8\n0,5,6\n"), "0").labels.tolist() == [1, 0]


def test_words_are_labels_in_the_order_that_is_given(tmp_path: Path):
    path = write(tmp_path, "a,b,kind\n1,2,cat\n3,4,dog\n5,6,1\n")
    assert csv_table(path, None, ("dog", "cat")).labels.tolist() == [1, 0, 1]
    # A first line whose only word is its label is a sample.
    assert csv_table(write(tmp_path, "1,2,cat\n3,4,dog\n"), None, ("dog", "cat")).labels.tolist() == [1, 0]
    with pytest.raises(
        RecordError,
        match=r"label 'cat' for sample 0 in column 2, the last one, .* is a sample, expected a whole number",
    ):
        csv_table(path)
    with pytest.raises(
        RecordError, match=r"label 'dog' for sample 1 .* expected one of the 2 names cow, cat; name the classes"
    ):
        csv_table(path, None, ("cow", "cat"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b,y\n1,x,0\n", r"has 'x' in column 1 \(b\) of sample 0"),
        ("a,b,y\n1,,0\n", r"has '' in column 1 \(b\) of sample 0"),
        ("1,2,0\n1,inf,0\n", "has 'inf' in column 1 of sample 1"),
        ("1,2,0\n1,1e39,0\n", "has '1e39' in column 1 of sample 1"),
        ("1,2,0\n1,nan,0\n", "has 'nan' in column 1 of sample 1"),
        # A first line with a missing number is a sample, not names of columns that would go unseen.
        ("1,nan,0\n1,2,0\n", "has 'nan' in column 1 of sample 0"),
        (",2,0\n1,2,0\n", "has '' in column 0 of sample 0"),
        ("1,2,0\n1,0\n", "has 2 cells for sample 1, expected 3"),
        ("a,y\n1,2,0\n", "has 3 cells for sample 0, expected 2"),
        ("1,2,-1\n", "label '-1' for sample 0"),
        ("1,2,0.5\n", "label '0.5' for sample 0"),
        ("", "is empty"),
        ("a,b,y\n", "no samples"),
        ("1\n2\n", "one column"),
        ("a;b;c\n1;2;0\n", "one column.*separated by ';', so save it with commas"),
        ("a|b|y\n1,5|2|0\n", r"one column.*separated by '\|', so save it with commas"),
        ("1,5;2,0\n1,6;2,0\n", "'6;2' in column 1 .* of sample 0.*separated by ';', so save it with commas"),
        ("a,b,y\n1,red,0\n", "'red' in column 1 .b. of sample 0.*leave the column out, or write its words as numbers"),
        ("1,nan,0\n", "fill such cells, or leave their rows out"),
    ],
)
def test_what_is_no_table_is_refused_with_its_place(tmp_path: Path, text: str, said: str):
    with pytest.raises(RecordError, match=said):
        csv_table(write(tmp_path, text))


def test_files_and_columns_that_are_not_there(tmp_path: Path):
    with pytest.raises(ArgumentError, match="cannot be read"):
        csv_table(tmp_path / "none.csv")
    with pytest.raises(ArgumentError, match="no column 'z' for the labels; its columns are a, b, y"):
        csv_table(write(tmp_path, "a,b,y\n1,2,0\n"), "z")
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe1,2")
    with pytest.raises(RecordError, match="no text with commas in UTF-8"):
        csv_table(tmp_path / "b.csv")
