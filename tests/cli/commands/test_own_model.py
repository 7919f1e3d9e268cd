"""A model and data that a user brings: from the command to the report, interrupted, continued, and mixed up."""

import hashlib
import json
import math
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lipkit.certify.evaluate.records import Records, SampleResult
from lipkit.cli.commands import evaluate as evaluating
from lipkit.cli.commands.evaluation_request import EvaluationRequest
from lipkit.cli.main import Code, main
from lipkit.report.html.claims import read_claims
from lipkit.report.results.contents import Contents

MODELS = """
import torch
from torch import nn
from lipkit import nn as lnn

def images():
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5))

def table():
    return lnn.Sequential(lnn.Linear(6, 8), lnn.MaxMin(), lnn.Linear(8, 3))

def narrow():
    return nn.Linear(6, 2)

def single():
    return nn.Linear(6, 1)

def picked():
    model = nn.Sequential(nn.Linear(6, 6, bias=False), nn.ReLU(), nn.Linear(6, 3, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(6))
        model[2].weight.copy_(torch.eye(6)[:3])
    return model

def turned():
    torch.manual_seed(0)
    turns = [lnn.Linear(6, 6, bias=False) for _ in range(4)]
    model = nn.Sequential(*[part for turn in turns for part in (turn, nn.ReLU())], nn.Linear(6, 3, bias=False))
    with torch.no_grad():
        model[-1].weight.copy_(torch.eye(6)[:3])
    return model

class Pair(nn.Linear):
    def __init__(self):
        super().__init__(6, 3)

    def forward(self, x):
        return super().forward(x), x

def broken():
    model = nn.Linear(6, 3)
    model.weight.data[0, 0] = float("nan")
    return model
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a user, which is the working directory: a file of models, images and a table."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    Path("own_models.py").write_text(MODELS)
    # Labels of three classes only: the model of images has two more.
    np.savez("images.npz", x=rng.random((40, 1, 4, 4)).astype(np.float32), y=np.arange(40) % 3)
    np.savez("table.npz", x=rng.normal(size=(300, 6)).astype(np.float32), y=np.arange(300) % 3)
    return tmp_path


def certify(model: str, data: str, *words: str, command: str = "certify") -> int:
    with torch.random.fork_rng(devices=[]):
        return main([command, f"own_models.py:{model}", "--data", data, "--method", "product", *words])


def contents(folder: str) -> Contents:
    return Contents.from_json(Path(folder, "report.json").read_text())


def sha256(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_an_attack_of_an_own_model_ends_with_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--eps", "1/255,0.1", "--steps", "3", "--box", "0,1", "--seed", "5", "--out", "out", "--json", "a.json")
    assert certify("images", "images.npz", *words, command="attack") == Code.OK
    assert f"report in {Path('out', 'report.html')}" in capsys.readouterr().out
    found, page = contents("out"), Path("out", "report.html").read_text()
    assert found.failures == ()
    assert found.overall.attacked is not None
    assert found.layers
    assert found.spectra
    assert found.spectra.shown
    assert found.depth
    assert found.gallery
    assert found.gallery.hardest
    assert "could not be" not in page
    assert "<h1>own_models.py:images on images.npz: what is proven</h1>" in page
    assert '<h2 id="training">' not in page
    assert "recipe" not in page.lower()
    # Its sources are named by the hashes of the files and of the arrays.
    data = np.load("images.npz")
    inputs, labels = (hashlib.sha256(data[name].tobytes()).hexdigest() for name in ("x", "y"))
    hashes = [claim for claim in read_claims(page) if claim.name.startswith("SHA-256 of ")]
    assert {claim.name.removeprefix("SHA-256 of "): claim.words for claim in hashes} == {
        "weights": sha256("out/model.safetensors"), "test inputs": inputs, "test labels": labels,
        "model code": sha256("own_models.py"),
    }  # fmt: skip
    # Drawn again from its data: the same page and the same shares.
    assert main(["report", "out", "--out", "again", "--json", "b.json"]) == Code.OK
    assert Path("again", "report.html").read_text() == page
    assert json.loads(Path("b.json").read_text()) == json.loads(Path("a.json").read_text())


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_a_warning_is_on_the_terminal_on_the_page_and_in_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    # The model has one answer: its last layer is a bias.
    text = "def always(model=images()):\n    model[3].weight.data.zero_()\n    return model\n"
    Path("own_models.py").write_text(f"{MODELS}\n{text}")
    sentence = "to all 40 samples: a classifier with one answer is robust and useless"
    for model, count in (("always", 1), ("images", 0)):
        assert certify(model, "images.npz", "--eps", "0.1", "--out", model, "--json", "shares.json") == Code.OK
        said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Warning: ")]
        assert [sentence in line for line in said[:count]] == [True] * count
        assert json.loads(Path("shares.json").read_text())["warnings"] == list(contents(model).warnings)
        assert [f"Warning: {one}" for one in contents(model).warnings] == said
        claims = [
            claim.words for claim in read_claims(Path(model, "report.html").read_text()) if "warning" in claim.name
        ]
        assert claims == list(contents(model).warnings)
        assert bool(said) == bool(count)


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_classes_that_the_data_lack_have_a_name() -> None:
    assert certify("images", "images.npz", "--eps", "0.1", "--out", "out") == Code.OK
    found = contents("out")
    assert found.classes == ("0", "1", "2", "3", "4")
    assert {row.name for row in found.by_class} == {"0", "1", "2"}


@pytest.mark.usefixtures("here")
def test_a_certificate_alone_says_what_is_missing() -> None:
    assert certify("table", "table.npz", "--eps", "0.1", "--out", "out") == Code.OK
    page = Path("out", "report.html").read_text()
    assert "No attack was run; only the proven side is known." in page
    assert "The inputs have shape (6,); only images of 1 or 3 channels are shown." in page
    assert "not here: the model was given as it is" in page
    assert "could not be" not in page


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_the_command_of_a_page_makes_it_again() -> None:
    assert certify("table", "table.npz", "--eps", "1/8,0.5", "--norm", "inf", "--samples", "20", "--out", "out") == 0
    first = contents("out")
    program, *words = shlex.split(first.about.command)
    assert program == "lipkit"
    assert words[words.index("--out") + 1] == "out"
    words[words.index("--out") + 1] = "again"
    with torch.random.fork_rng(devices=[]):
        assert main(words) == Code.OK
    again = contents("again")
    assert (again.overall, again.outcomes, again.constant) == (first.overall, first.outcomes, first.constant)
    assert again.about.prints == first.about.prints


@pytest.mark.slow
@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("model", "method", "norm", "expected"),
    [
        # z_a - z_b = relu(x_a) - relu(x_b): 2^(1/2) in l2, 2 in linf and 1 in l1, found in the norm itself.
        ("picked", "product", "2", 2**0.5),
        ("picked", "product", "inf", 2.0),
        ("picked", "product", "1", 1.0),
        # A constant in l2 alone is enlarged: 2^(1/2) times 6^(1/2) for linf, not at all for l1.
        ("picked", "eclipse", "inf", 12**0.5),
        ("picked", "eclipse", "1", 2**0.5),
        # One that measures in both is not lost beside it, nor beside one that knows linf alone and wants a region.
        ("picked", "eclipse, product", "inf", 2.0),
        ("picked", "lipmip,product", "inf", 2.0),
        # Rotations are longer in linf than the roots of the numbers of entries.
        ("turned", "product", "inf", 12**0.5),
        ("turned", "product", "1", 2**0.5),
    ],
)
def test_a_constant_is_found_in_the_norm_of_the_radii(model: str, method: str, norm: str, expected: float) -> None:
    words = ["certify", f"own_models.py:{model}", "--data", "table.npz", "--method", method, "--norm", norm]
    with torch.random.fork_rng(devices=[]):
        assert main([*words, "--eps", "0.1", "--samples", "5", "--out", "out"]) == Code.OK
    # A page says in words how its constant was found.
    assert ("enlarged" in contents("out").constant.method) == (norm != "2")
    assert "Rule" not in contents("out").constant.method
    # The norms are found to 1e-3 or better; ECLipsE repairs its multipliers, which costs as much.
    assert math.exp(contents("out").constant.log_value) == pytest.approx(expected, rel=2e-2)
    # Orthogonal weights are stored smaller than one by a few units of float32.
    assert math.exp(contents("out").constant.log_value) >= expected * (1 - 1e-5)


def test_a_command_holds_all_that_was_asked_for() -> None:
    request = EvaluationRequest(
        "m.py:f", "a b.csv", "0.1", Path("w.pt"), "logits", "0,1", "kind", "a,b", False, "dag", "inf", True, 2.5, 3, 9,
        "worst", 7, 2, True, "-1,1", Path("o"), "cpu", 4, Path("j"),
    )  # fmt: skip
    assert request.command == (
        "lipkit attack m.py:f --data 'a b.csv' --eps 0.1 --weights w.pt --output logits --normalize 0,1 --label kind "
        "--classes a,b --method dag --norm inf --local --local-seconds 2.5 --bisections 3 --samples 9 --attack worst "
        "--steps 7 --restarts 2 --every-class --box -1,1 --out o --device cpu --seed 4"
    )
    assert EvaluationRequest("m.py:f", "digits", "1").command == (
        "lipkit certify m.py:f --data digits --eps 1 --device cpu --seed 0"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_weights_that_came_from_no_file_are_kept() -> None:
    assert certify("table", "table.npz", "--eps", "0.1", "--seed", "7", "--out", "one") == Code.OK
    words = ("--eps", "0.1", "--weights", "one/model.safetensors", "--seed", "8", "--out", "two")
    assert certify("table", "table.npz", *words) == Code.OK
    assert contents("two").outcomes == contents("one").outcomes
    assert contents("two").about.prints == contents("one").about.prints
    assert load_file("one/model.safetensors")
    assert not Path("two", "model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_an_interrupted_evaluation_continues_to_the_same_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--eps", "0.1,0.3", "--steps", "3", "--out")
    assert certify("table", "table.npz", *words, "whole", command="attack") == Code.OK
    write = Records.append

    def stop(self: Records, samples: Iterable[SampleResult]) -> None:
        write(self, samples)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Records, "append", stop)
        assert certify("table", "table.npz", *words, "parts", command="attack") == Code.INTERRUPTED
    assert "the same command continues it" in capsys.readouterr().err
    some = len(Path("parts", "evaluation", "samples-0000.jsonl").read_text().splitlines())
    assert 0 < some < 300
    assert not Path("parts", "report.json").exists()
    # Its report is not there yet, and the way to it is.
    assert main(["report", "parts"]) == Code.USAGE
    said = capsys.readouterr().err
    assert "parts has no report.json; this command continues to it: lipkit attack" in said
    with monkeypatch.context() as patch, torch.random.fork_rng(devices=[]):
        # The constant is not computed twice: one that depends on time or chance would be another.
        patch.setattr(evaluating, "head_pairwise", lambda *_: pytest.fail("computed again"))
        assert main(shlex.split(said.strip().rpartition(": ")[2])[1:]) == Code.OK
    assert contents("parts").outcomes == contents("whole").outcomes
    assert contents("parts").overall == contents("whole").overall
    assert main(["report", "parts"]) == Code.OK


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_another_evaluation_is_not_mixed_in(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--eps", "0.1", "--out", "out")
    assert certify("table", "table.npz", *words) == Code.OK
    kept = {path: path.read_bytes() for path in Path("out").rglob("*") if path.is_file()}

    def refused(said: str) -> None:
        error = capsys.readouterr().err
        assert f"out holds another run ({said}" in error
        assert "continue that one, or give another --out." in error
        assert {path: path.read_bytes() for path in Path("out").rglob("*") if path.is_file()} == kept

    assert certify("table", "table.npz", *words, "--steps", "2", command="attack") == Code.OTHER
    refused("attack was none)")
    assert certify("table", "table.npz", "--eps", "0.2", "--out", "out") == Code.OTHER
    refused("eps was 0.1)")
    assert certify("table", "table.npz", *words, "--seed", "1") == Code.OTHER
    refused("SHA-256 of the weights was ")
    assert certify("table", "table.npz", *words, "--samples", "5") == Code.OTHER
    refused("SHA-256 of the test inputs was ")
    Path("own_models.py").write_text(MODELS + "\n# Another file.\n")
    assert certify("table", "table.npz", *words) == Code.OTHER
    refused("the code of the model was another)")
    Path("own.py").write_text("from lipkit.cli.demo.digits import Digits\n\n\nclass Own(Digits):\n    pass\n")
    assert main(["train", "own.py", "--out", "out", "--quick"]) == Code.OTHER
    refused("a model as it was given, by no recipe)")


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_another_box_is_another_attack(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--eps", "0.1", "--steps", "2", "--samples", "9", "--out", "out")
    assert certify("images", "images.npz", *words, "--box", "0,1", command="attack") == Code.OK
    assert certify("images", "images.npz", *words, "--box", "-1,1", command="attack") == Code.OTHER
    assert "inside the box 0,1)" in capsys.readouterr().err


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("model", "data", "code", "said"),
    [
        ("narrow", "table.npz", Code.USAGE, "has labels up to 2, but own_models.py:narrow gives 2 scores, for"),
        ("single", "table.npz", Code.USAGE, "gives one score, whose sign tells class 0 from class 1, and"),
        ("Pair", "table.npz", Code.USAGE, "gives a tuple with the entries 0, 1; name the one with the"),
        ("broken", "table.npz", Code.OTHER, "own_models.py:broken gives [nan, "),
        ("table", "images.npz", Code.USAGE, "does not take one input of images.npz, of shape (1, 1, 4, 4) with the"),
        ("table", "none.npz", Code.USAGE, "There is no file none.npz"),
    ],
)  # fmt: skip
def test_a_model_that_does_not_fit_the_data_is_told_at_once(
    model: str, data: str, code: Code, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert certify(model, data, "--eps", "0.1", "--out", "out") == code
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not Path("out").exists()


@pytest.mark.usefixtures("here")
def test_places_that_cannot_be_written_are_told_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluating, "head_pairwise", lambda *_: pytest.fail("began"))
    assert certify("table", "table.npz", "--eps", "0.1", "--out", "table.npz/x") == Code.USAGE
    assert "--out table.npz/x cannot be made a folder (Not a directory); name another." in capsys.readouterr().err
    # Asked instead of tried: who runs tests as root may write everywhere.
    monkeypatch.setattr("os.access", lambda *_: False)
    assert certify("table", "table.npz", "--eps", "0.1", "--json", "a.json") == Code.USAGE
    assert "--json a.json may not be written (Permission denied)" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_code_that_the_model_imports_belongs_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    Path("neighbour_of_models.py").write_text("MEAN = 0.0\n")
    Path("own_models.py").write_text(
        "from torch import nn\nfrom neighbour_of_models import MEAN\n\n"
        "class Net(nn.Linear):\n    def __init__(self):\n        super().__init__(6, 3)\n\n"
        "    def forward(self, x):\n        return super().forward(x - MEAN)\n"
    )
    words = ("--eps", "0.1", "--out", "out")
    assert certify("Net", "table.npz", *words) == Code.OK
    assert certify("Net", "table.npz", *words) == Code.OK
    Path("neighbour_of_models.py").write_text("MEAN = 5.0\n")
    sys.modules.pop("neighbour_of_models", None)
    capsys.readouterr()
    assert certify("Net", "table.npz", *words) != Code.OK
    assert "what the model computes has changed" in capsys.readouterr().err
