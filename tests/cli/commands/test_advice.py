"""What the command line says about several outputs, missing axes, columns of a table and names of classes."""

from pathlib import Path

import pytest
import torch

from lipkit.cli.main import Code, main

MODELS = """
import torch
from torch import nn

class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        hidden = torch.relu(self.body(x))
        return {"logits": self.head(hidden), "hidden": hidden}

class Listed(Named):
    def forward(self, x):
        return tuple(super().forward(x).values())

def plain():
    return nn.Linear(4, 3)

def constant():
    model = nn.Linear(4, 3)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(torch.tensor([0.0, 5.0, 0.0]))
    return model

def images():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 3))

def rows():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
"""
ROWS = ["1,2,3,4,0", "2,3,4,5,1", "0,1,0,1,2"]
TABLES = {
    "named.csv": ["a,b,c,d,kind", *ROWS],
    "bare.csv": ROWS,
    "words.csv": ["a,b,c,d,kind", "1,2,3,4,cat", "2,3,4,5,dog", "0,1,0,1,bird"],
    "first.csv": ["kind,a,b,c,d", "0,1.5,2,3,4", "1,2.5,3,4,5", "2,0.5,1,0,1"],
    "years.csv": ["2019,2020,2021,2022,kind", "1,2,3,4,0"],
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(MODELS)
    for name, lines in TABLES.items():
        Path(name).write_text("\n".join(lines) + "\n")


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with torch.random.fork_rng(devices=[]):
        code = main(list(words))
    printed = capsys.readouterr()
    return code, " ".join((printed.err + printed.out).split())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("Named",),
            "returns 2 tensors; name one of them by output (--output on the command line): logits (0), hidden",
        ),
        (
            ("Named", "--output", "scores"),
            "no tensor called 'scores'; output (--output on the command line) is one of:",
        ),
        (("Named", "--output", "5"), "no tensor called 5;"),
        (("Listed",), "by output (--output on the command line): 0, 1."),
        (("plain", "--output", "logits"), "returns one tensor, so output 'logits' names nothing; leave it out."),
    ],
)
def test_outputs_are_named_as_they_exist(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], sentence: str):
    code, text = said(capsys, "bound", f"own.py:{words[0]}", "--shape", "4", *words[1:])
    assert code not in (Code.OK, 1)
    assert sentence in text


@pytest.mark.parametrize("output", ["logits", "0"])
def test_an_output_that_is_named_is_bounded(capsys: pytest.CaptureFixture[str], output: str):
    assert said(capsys, "bound", "own.py:Named", "--shape", "4", "--output", output)[0] == Code.OK


def test_a_shape_without_channels_is_told_what_the_model_takes(capsys: pytest.CaptureFixture[str]):
    code, text = said(capsys, "bound", "own.py:images", "--shape", "8,8")
    assert code != Code.OK
    assert "no channels" in text
    assert "--shape 1,8,8 on the command line" in text
    assert said(capsys, "bound", "own.py:images", "--shape", "1,8,8")[0] == Code.OK


def test_a_model_without_channels_takes_a_shape_without_them(capsys: pytest.CaptureFixture[str]):
    code, text = said(capsys, "bound", "own.py:rows", "--shape", "8,8")
    assert code == Code.OK
    assert "inputs (8, 8)" in text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("words.csv",),
            "label 'cat' for sample 0 in column 4 (kind), the last one, of a table whose first line names",
        ),
        (("words.csv",), "name the classes in the order of the scores (`classes`, --classes), or the column"),
        (
            ("years.csv",),
            "label 'kind' for sample 0 in column 4, the last one, of a table whose first line is a sample",
        ),
        (("words.csv", "--classes", "cat,dog"), "label 'bird' for sample 2 in column 4 (kind)"),
        (("words.csv", "--classes", "cat,dog"), "expected one of the 2 names cat, dog;"),
        (("first.csv",), "labels up to 4, but own.py:plain gives 3 scores"),
        (("first.csv",), "or name the column of its labels by --label, without which it is the last one."),
        (("named.csv", "--label", "sort"), "no column 'sort' for the labels; its columns are a, b, c, d, kind."),
        (("bare.csv", "--label", "kind"), "no column 'kind' for the labels; it has no names, and the columns 0..4."),
        (("named.csv", "--classes", "a,b,c,d"), "--classes has 4 names (a, ..., d), and the model gives 3 scores;"),
    ],
)
def test_columns_and_classes_are_named(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], sentence: str):
    table, *options = words
    if table == "first.csv":
        Path(table).write_text("kind,a,b,c,d\n0,1.5,2,3,4\n1,2.5,3,4,3\n")
    code, text = said(capsys, "certify", "own.py:plain", "--data", table, "--eps", "0.1", *options)
    assert code != Code.OK
    assert sentence in text


@pytest.mark.parametrize(("options", "name"), [(("--classes", "cat,dog,bird"), "class 1 (dog),"), ((), "class 1,")])
def test_warnings_call_classes_by_their_names(capsys: pytest.CaptureFixture[str], options: tuple[str, ...], name: str):
    code, text = said(capsys, "certify", "own.py:constant", "--data", "named.csv", "--eps", "0.1", *options)
    assert code == Code.OK
    assert f"The model gave the same answer, {name} to all 3 samples" in text
