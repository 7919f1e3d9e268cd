"""Models and data as users have them: tables, single scores, regressions, outputs with names, and normalisations."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import lipkit
from lipkit import bounds
from lipkit.certify import head_pairwise
from lipkit.cli.commands.evaluate import find_constants
from lipkit.cli.commands.regression import WithZero
from lipkit.cli.main import Code, main
from lipkit.errors import NeedsRegion
from support.sealed_files import read_lines, write_lines

MODELS = """
from collections import namedtuple

import torch
from torch import nn

Answer = namedtuple("Answer", "scores hidden")
WEIGHT = [[3.0, 4.0], [0.0, 0.0]]

def linear(rows=WEIGHT):
    model = nn.Linear(2, len(rows), bias=False)
    model.weight.data = torch.tensor(rows)
    return model

def score():
    return linear([[3.0, 4.0]])

def moves():
    return linear([[3.0, 4.0], [1.0, 0.0], [0.0, 0.5]])

class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = linear()

    def forward(self, x):
        return {"hidden": x, "logits": self.inner(x)}

class Tuple(Named):
    def forward(self, x):
        return Answer(self.inner(x), x)

class Bare(Named):
    def forward(self, x):
        return [x, self.inner(x)]

class Transformers(Named):
    def forward(self, x):
        from transformers.modeling_outputs import SequenceClassifierOutput
        return SequenceClassifierOutput(logits=self.inner(x))

class Bowl(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = linear([[3.0, 4.0]])

    def forward(self, x):
        return self.inner(x).squeeze(1)

def plane():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
"""
# For the linear model: class 0 where 3 a + 4 b > 0, at a distance of |3 a + 4 b| / 5.
ROWS = ((1.0, 1.0, 0), (0.5, 0.0, 0), (-1.0, 0.5, 1), (1.0, -0.5, 1))
DISTANCES = (1.4, 0.3, 0.2, 0.0)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("own_models.py").write_text(MODELS)
    Path("t.csv").write_text("kind,a,b\n" + "".join(f"{y},{a},{b}\n" for a, b, y in ROWS))
    x = torch.randn(24, 2, generator=torch.Generator().manual_seed(0)).numpy()
    np.savez("points.npz", x=3 * x, y=np.arange(24) % 3)
    return tmp_path


def certify(model: str, *words: str, command: str = "certify") -> int:
    with torch.random.fork_rng(devices=[]):
        return main([command, f"own_models.py:{model}", "--method", "product", *words])


def shares(model: str, *words: str) -> list[int]:
    """How many of the four points are certified within 0.25 and 1."""
    table = ("--data", "t.csv", "--label", "kind", "--eps", "0.25,1", "--json", "a.json")
    assert certify(model, *table, *words) == Code.OK
    found = json.loads(Path("a.json").read_text())
    return [radius["certified"]["count"] for radius in found["radii"]]


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_every_kind_of_output_gives_the_shares_of_its_scores():
    expected = [sum(d > eps for d in DISTANCES) for eps in (0.25, 1.0)]
    assert shares("linear") == expected == [2, 1]
    assert shares("Named", "--output", "logits") == expected
    assert shares("Named", "--output", "1") == expected
    assert shares("Tuple", "--output", "scores") == expected
    assert shares("Bare", "--output", "1") == expected
    pytest.importorskip("transformers")
    assert shares("Transformers", "--output", "logits") == expected


@pytest.mark.usefixtures("here")
def test_a_single_score_decides_by_its_sign(capsys: pytest.CaptureFixture[str]):
    # Its positive side is class 1, and three of the four points are on the other side of what the labels say.
    assert shares("score", "--classes", "below,above") == [0, 0]
    assert "above" in capsys.readouterr().out
    Path("t.csv").write_text("kind,a,b\n" + "".join(f"{1 - y},{a},{b}\n" for a, b, y in ROWS))
    assert shares("score") == [2, 1]


@pytest.mark.usefixtures("here")
def test_radii_are_in_units_of_the_data_before_normalisation():
    # Twice as steep after division by one half: distances of the points to 3 (2 a) + 4 (2 b) = 0 stay as they are.
    assert shares("linear", "--normalize", "0,0.5") == [2, 1]
    # 3 a + 4 (4 b) = 0 has the distances |3 a + 16 b| / 16.28: 1.167, 0.092, 0.307, 0.
    assert shares("linear", "--normalize", "0:0,1:0.25") == [2, 1]
    # Shifted by 0.5: 3 (a - 0.5) + 4 (b - 0.5) = 0 at 0.7, -0.4 (wrong), 0.9, 0.5 from the points.
    assert shares("linear", "--normalize", "0.5,1") == [3, 0]


@pytest.mark.usefixtures("here")
def test_a_regression_says_how_far_each_output_moves(capsys: pytest.CaptureFixture[str]):
    words = ("--data", "t.csv", "--label", "kind", "--eps", "0.1,2", "--regression", "--json", "a.json")
    assert certify("moves", *words) == Code.OK
    found = json.loads(Path("a.json").read_text())
    for output, truth in zip(found["outputs"], (5.0, 1.0, 0.5), strict=True):
        # Products of norms of one linear layer are exact up to a few roundings of float32 weights.
        assert truth <= output["constant"] <= truth * (1 + 1e-6)
        assert [move["at_most"] for move in output["moves"]] == pytest.approx([0.1 * truth, 2 * truth], rel=1e-6)
        assert all(move["at_most"] >= truth * move["eps"] for move in output["moves"])
    assert "output 2: 0.05" in capsys.readouterr().out
    Path("x.csv").write_text("1,2,7.25\n3,4,-1\n")
    assert certify("moves", "--data", "x.csv", "--eps", "0.1", "--regression", "--norm", "inf") == Code.OK
    # In linf the first output moves by 3 + 4 for one.
    assert "output 0: 0.70000" in capsys.readouterr().out


@pytest.mark.usefixtures("here")
def test_a_regression_may_give_one_number_without_an_axis(capsys: pytest.CaptureFixture[str]):
    assert certify("Bowl", *TABLE, "--regression") == Code.OK
    assert "output 0: 0.500001 within 0.1 (constant 5.00001)" in capsys.readouterr().out


@pytest.mark.usefixtures("here")
def test_a_regression_is_as_sharp_as_the_bound_of_the_whole_model():
    words = (*TABLE, "--regression", "--method", "liplt", "--json", "a.json")
    assert certify("plane", *words) == Code.OK
    found = json.loads(Path("a.json").read_text())["outputs"][0]["constant"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    model, x = model.requires_grad_(requires_grad=False), torch.zeros(1, 2)
    by_rows = float(head_pairwise(WithZero(model), x, bounds.LipLT()).value[0, 1])
    whole = lipkit.lipschitz(model, x, bounds.LipLT())
    assert float(whole.value) < by_rows * 0.95
    # Both are rounded up, by less than a millionth.
    assert float(whole.value) * (1 - 1e-6) <= found <= float(whole.value) * (1 + 1e-6)
    assert whole.lower is not None
    assert found >= float(whole.lower.value)


TABLE = ("--data", "t.csv", "--label", "kind", "--eps", "0.1")
REFUSED = [
    ("Named", TABLE, "gives a dict with the entries hidden, logits; name the one with the scores by --output"),
    ("Named", (*TABLE, "--output", "scores"), "without a tensor 'scores'; --output is one of its entries: hidden, log"),
    ("Bare", (*TABLE, "--output", "2"), "without a tensor '2'; --output is one of its entries: 0, 1"),
    ("linear", (*TABLE, "--output", "logits"), "gives one tensor, so --output logits names nothing"),
    ("linear", (*TABLE, "--normalize", "1:2:3,1"), "has 3 means, but the inputs have 2 channels"),
    ("linear", (*TABLE, "--normalize", "0,1:1:1"), "has 3 deviations, but the inputs have 2 channels"),
    ("linear", (*TABLE, "--normalize", "0,0"), "needs finite means and deviations above 0"),
    ("linear", (*TABLE, "--normalize", "0"), "--normalize is MEAN,STD such as"),
    ("linear", (*TABLE, "--classes", "a,b,c"), "--classes has 3 names (a, ..., c), and the model gives 2 scores"),
    ("linear", (*TABLE, "--classes", "a,a"), "'a' twice"),
    ("linear", (*TABLE, "--classes", "names.txt"), "There is no file names.txt"),
    ("linear", ("--data", "t.csv", "--label", "size", "--eps", "1"), "no column 'size' for the labels"),
    ("linear", ("--data", "points.npz", "--label", "kind", "--eps", "1"), "--label names a column of a .csv file"),
    ("linear", ("--data", "none.csv", "--eps", "1"), "There is no file none.csv"),
    ("linear", (*TABLE, "--local-seconds", "1"), "belong to --local"),
    ("linear", (*TABLE, "--local", "--local-seconds", "0"), "--local-seconds is the time for one sample"),
    ("moves", (*TABLE, "--regression", "--out", "out"), "to report, so --out does not fit"),
    ("moves", (*TABLE, "--regression", "--local"), "to report, so --local does not fit"),
    ("score", ("--data", "points.npz", "--eps", "1"), "gives one score, whose sign tells class 0 from class 1"),
]


@pytest.mark.usefixtures("here")
def test_what_does_not_fit_is_one_sentence_before_anything_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a bound was computed")

    monkeypatch.setattr("lipkit.cli.commands.evaluate.find_constants", never)
    for model, words, said in REFUSED:
        assert certify(model, *words) == Code.USAGE, said
        told = capsys.readouterr().err.strip()
        assert said in told
        assert "\n" not in told
    assert certify("linear", *TABLE, "--attack", "best", command="attack") == Code.USAGE
    assert "--attack is pgd or worst, got 'best'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_an_audit_repeats_the_proofs_near_each_sample(capsys: pytest.CaptureFixture[str]):
    words = ("--data", "points.npz", "--eps", "0.02,0.2", "--local", "--steps", "3", "--attack", "worst")
    assert certify("net", *words, "--normalize", "0.1:0.2,2", "--out", "out", command="attack") == Code.OK
    assert "samples are proven by what holds near them" in capsys.readouterr().out
    assert "on the ball around each" in Path("out", "report.html").read_text()
    assert main(["audit", "out"]) == Code.OK
    assert "radii of all 24 came out again" in capsys.readouterr().out
    shutil.copytree("out", "forged")
    file = Path("forged", "evaluation", "samples-0000.jsonl")
    lines = read_lines(file)
    at = next(i for i, line in enumerate(lines) if line["proof"])
    # A larger ball, on which nothing was proven.
    write_lines(file, [line | ({"radius": 9.0, "ball": 9.0} if i == at else {}) for i, line in enumerate(lines)])
    assert main(["audit", "forged"]) == Code.AUDIT_FAILED
    assert f"the radius of sample {lines[at]['index']}" in capsys.readouterr().err
    # A proof where none was asked for.
    write_lines(file, [line | ({"proof": "because"} if i == at else {}) for i, line in enumerate(lines)])
    assert main(["audit", "forged"]) == Code.AUDIT_FAILED


@pytest.mark.parametrize("command", ["certify", "attack"])
def test_the_help_has_no_pictures_for_words_between_colons(command: str, capsys: pytest.CaptureFixture[str]):
    assert main([command, "--help"]) == Code.OK
    found = capsys.readouterr().out
    assert "M1:M2:M3" in found
    # Pictures lie beyond the basic plane and among the symbols; frames of the help do not.
    assert not [letter for letter in found if ord(letter) > 0xFFFF or letter == "\u24c2"]


def test_a_model_without_a_constant_is_sent_to_the_command_that_has_regions():
    class Square(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * x

    model = nn.Sequential(Square(), nn.Linear(2, 3)).eval()
    with pytest.raises(NeedsRegion, match="needs a constant on the whole space; lipkit bound has --ball and --box"):
        find_constants(model, torch.ones(1, 2), (bounds.DAG(),), 2.0)
