"""Settings that a recipe cannot run with: named, before anything is written, and the folder stays free."""

import json
from pathlib import Path

import pytest
import torch

from lipkit.cli.main import Code, main
from support.repository import ROOT

DIGITS = ROOT / "recipes" / "digits.py"


def _train(out: Path, *words: str, recipe: Path = DIGITS) -> int:
    with torch.random.fork_rng(devices=[]):
        return main(["train", str(recipe), "--out", str(out), "--quick", *words])


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--learning_rate=-1", r"Digits does not run with --learning_rate=-1: ValueError: Invalid learning rate"),
        ("--depth=-1", "Digits does not run with --depth=-1: RuntimeError: mat1 and mat2 shapes"),
        ("--learning_rate=inf", "A learning rate is a finite number of at least 0, got inf. The settings given are"),
        ("--temperature=-1", "The settings given are --temperature=-1."),
        ("--width=33", "The settings given are --width=33."),
    ],
)
def test_a_value_that_does_not_fit_is_named_and_leaves_the_folder_free(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], word: str, said: str
) -> None:
    assert _train(tmp_path, word) in (Code.USAGE, Code.OTHER)
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert said in last
    assert not (tmp_path / "run.json").exists()
    assert not (tmp_path / "checkpoint.safetensors").exists()


@pytest.mark.train
def test_a_folder_that_was_refused_data_takes_the_right_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = ROOT / "recipes" / "mnist_crm.py"
    for _ in range(2):
        # The second time it is the data that is missing again, not the folder that holds another run.
        assert _train(tmp_path, "--data", str(tmp_path / "nowhere"), recipe=recipe) == Code.USAGE
        assert "nowhere" in capsys.readouterr().err
    assert _train(tmp_path, "--epochs=1") == Code.OK


@pytest.mark.train
def test_quick_runs_obey_what_is_asked(tmp_path: Path) -> None:
    assert _train(tmp_path, "--epochs=1", "--width=64", "--eps=0.1,0.2") == Code.OK
    fields = json.loads((tmp_path / "run.json").read_text())["fields"]
    assert (fields["epochs"], fields["width"], fields["eps"]) == ("1", "64", "0.1,0.2")


def test_an_error_of_the_recipe_itself_keeps_its_traceback(tmp_path: Path) -> None:
    recipe = tmp_path / "broken.py"
    recipe.write_text(
        "from dataclasses import dataclass\n"
        "from lipkit.cli.demo.digits import Digits\n"
        "@dataclass(frozen=True)\n"
        "class Broken(Digits):\n"
        "    def model(self):\n"
        "        raise KeyError('a mistake')\n"
    )
    with pytest.raises(KeyError, match="a mistake"):
        _train(tmp_path / "run", recipe=recipe)


@pytest.mark.train
def test_a_page_calls_the_number_that_was_watched_by_its_name(tmp_path: Path) -> None:
    assert _train(tmp_path, recipe=ROOT / "recipes" / "koch.py") == Code.OK
    page = (tmp_path / "report.html").read_text()
    assert "mean absolute error of the distance" in page
    assert "The constant of the network at" not in page
