"""The commands as a user types them: train to a report, certify and attack a model, draw a report again."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lipkit.cli.inputs.recipe_file import recipe_class
from lipkit.cli.inputs.safetensors_file import tensors_from
from lipkit.cli.main import Code, main
from lipkit.cli.runs.folder_lock import lock_folder
from lipkit.cli.runs.run import source
from lipkit.cli.training.recipe import plain_fields
from lipkit.report.results.about import Prints
from lipkit.report.results.contents import Contents
from support.repository import ROOT
from support.sealed_files import write_object

RECIPE = ROOT / "recipes" / "digits.py"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "digits"
    words = ["train", str(RECIPE), "--out", str(folder), "--quick", "--seed", "3", "--json", str(folder) + ".json"]
    with torch.random.fork_rng(devices=[]):
        assert main(words) == Code.OK
    return folder


@pytest.mark.train
def test_a_run_ends_with_a_report(run: Path) -> None:
    assert (run / "report.html").read_text().startswith("<!")
    shares = json.loads(Path(f"{run}.json").read_text())
    assert [row["eps"] for row in shares["radii"]] == [0.25, 0.5]
    assert shares["clean"]["total"] == 397
    for row in shares["radii"]:
        assert row["certified"]["count"] <= row["attacked"]["count"] <= shares["clean"]["count"]
    assert json.loads((run / "run.json").read_text())["fields"]["seed"] == "3"


@pytest.mark.train
def test_the_report_says_what_it_is_about(run: Path) -> None:
    about = Contents.from_json((run / "report.json").read_text()).about
    (settings,) = (json.loads(path.read_text()) for path in (run / "evaluation").glob("*.json"))
    recipe = ROOT / "src" / "lipkit" / "cli" / "demo" / "digits.py"
    weights, source = (hashlib.sha256(path.read_bytes()).hexdigest() for path in (run / "model.safetensors", recipe))
    inputs, labels = settings["data"]["all"]
    assert about.prints == Prints(weights, inputs, labels, source)
    page = (run / "report.html").read_text()
    assert all(found in page for found in (weights, inputs, labels, source))
    assert "<h1>Digits on scikit-learn digits: what is proven</h1>" in page


@pytest.mark.train
@pytest.mark.parametrize(("own", "said"), [("", "my_digits"), ("eights", "eights")])
def test_data_have_their_own_name_or_that_of_their_folder(tmp_path: Path, own: str, said: str) -> None:
    (folder := tmp_path / "my_digits").mkdir()
    (file := tmp_path / "own_recipe.py").write_text(
        "from dataclasses import replace\nfrom lipkit.cli.demo.digits import Digits\n"
        "from lipkit.cli.training import Sets\n"
        "class Own(Digits):\n    def sets(self):\n        both = super().sets()\n"
        f"        return Sets(both.train, replace(both.test, name={own!r}))\n"
    )
    words = ["train", str(file), "--out", str(tmp_path / "run"), "--quick", "--epochs=1", "--data", str(folder)]
    with torch.random.fork_rng(devices=[]):
        assert main(words) == Code.OK
    assert Contents.from_json((tmp_path / "run" / "report.json").read_text()).data.name == said


@pytest.mark.train
def test_the_same_command_again_does_nothing_twice(run: Path) -> None:
    kept = {path.name: path.read_bytes() for path in run.iterdir() if path.suffix in {".jsonl", ".safetensors"}}
    lines = (run / "evaluation" / "samples-0000.jsonl").read_bytes()
    words = ["train", str(RECIPE), "--out", str(run), "--quick", "--seed", "3"]
    with torch.random.fork_rng(devices=[]):
        assert main(words) == Code.OK
    assert {name: (run / name).read_bytes() for name in kept} == kept
    assert (run / "evaluation" / "samples-0000.jsonl").read_bytes() == lines


@pytest.mark.train
def test_another_run_is_not_mixed_in(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(RECIPE), "--out", str(run), "--quick", "--seed", "4"]) == Code.OTHER
    assert "holds another run (seed was 3)" in capsys.readouterr().err


def test_a_recipe_whose_code_changed_is_another_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "own_recipe.py"
    file.write_text("from lipkit.cli.demo.digits import Digits\n\n\nclass Own(Digits):\n    pass\n")
    assert source(recipe_class(file)()) != ""
    (tmp_path / "run").mkdir()
    fields = plain_fields(recipe_class(file)().quick())
    kept = {"recipe": "Own", "source": "of another file", "fields": fields, "command": ""}
    write_object(tmp_path / "run" / "run.json", kept)
    assert main(["train", str(file), "--out", str(tmp_path / "run"), "--quick"]) == Code.OTHER
    assert "the code of the recipe was another" in capsys.readouterr().err
    (tmp_path / "run" / "run.json").write_text("{")
    assert main(["train", str(file), "--out", str(tmp_path / "run"), "--quick"]) == Code.OTHER
    assert "run.json has no checksum" in capsys.readouterr().err


@pytest.mark.train
def test_the_report_is_drawn_again(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run), "--out", str(tmp_path)]) == Code.OK
    assert (tmp_path / "report.html").read_text() == (run / "report.html").read_text()
    assert f"report in {tmp_path / 'report.html'}" in capsys.readouterr().out
    assert main(["report", str(run), "--out", str(tmp_path), "--json", str(tmp_path / "shares.json")]) == Code.OK
    assert json.loads((tmp_path / "shares.json").read_text()) == json.loads(Path(f"{run}.json").read_text())
    assert main(["report", str(run), "--json", str(tmp_path / "no" / "shares.json")]) == Code.USAGE
    assert "lies in no folder" in capsys.readouterr().err
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    assert main(["report", str(tmp_path / "bytes.json")]) == Code.USAGE
    assert "cannot be read (it is no text)" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "nothing")]) == Code.USAGE
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--epoch=3"], "Digits has no field epoch; did you mean epochs?"),
        (["--epochs=x"], "epochs is a whole number, got 'x'"),
        (["--epochs", "3"], "write --key=value"),
        (["--device", "tpu"], "--device is cpu or cuda, got 'tpu'"),
        (["--seed", "1000000000000000000000000000000"], "seed must lie in [0, 2^63), got 10"),
        (["--seed", "-1"], "seed must lie in [0, 2^63), got -1"),
        (["--eps=0.5,0.1"], "radii >= 0 in increasing order, got [0.5, 0.1]"),
    ],
)
def test_bad_settings_stop_before_anything_runs(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(RECIPE), "--out", str(tmp_path / "run"), *words]) == Code.USAGE
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_file_without_a_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.py").write_text("x = 1\n")
    assert main(["train", str(tmp_path / "empty.py"), "--out", str(tmp_path / "run")]) == Code.USAGE
    assert "must define one recipe" in capsys.readouterr().err
    assert main(["train", str(tmp_path / "none.py"), "--out", str(tmp_path / "run")]) == Code.USAGE
    assert "There is no file" in capsys.readouterr().err


MODEL = """
import torch
from torch import nn
def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "user_model.py").write_text(MODEL)
    return f"{tmp_path / 'user_model.py'}:make"


def test_certify_and_attack_a_model_of_the_user(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "d.npz", x=rng.random((30, 1, 8, 8)).astype(np.float32), y=np.arange(30) % 10)
    words = ["--data", str(tmp_path / "d.npz"), "--eps", "1/255,0.5", "--json", str(tmp_path / "out.json")]
    assert main(["certify", model, *words]) == Code.OK
    certified = json.loads((tmp_path / "out.json").read_text())
    assert main(["attack", model, *words, "--steps", "5", "--box", "0,1", "--every-class"]) == Code.OK
    attacked = json.loads((tmp_path / "out.json").read_text())
    assert certified["radii"][0]["eps"] == 1 / 255
    assert [row["certified"] for row in attacked["radii"]] == [row["certified"] for row in certified["radii"]]
    assert certified["radii"][0]["attacked"] is None
    said = capsys.readouterr()
    assert "clean" in said.out
    assert said.err.count(f"No --weights: the weights are those that {model} makes.\n") == 2
    # The classes add up to the whole.
    assert [one["class"] for one in attacked["classes"]] == list(range(10))
    for i in (0, 1):
        for what in ("certified", "attacked"):
            counts = [one["radii"][i][what]["count"] for one in attacked["classes"]]
            assert sum(counts) == attacked["radii"][i][what]["count"]
    assert "class, samples: clean; certified at each radius\n0, 3: " in said.out
    assert "class, samples: clean; from certified to left by the attack, at each radius\n0, 3: " in said.out


def test_named_weights_need_no_remark(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).state_dict(), tmp_path / "w.pt")
    words = ["--data", "digits", "--samples", "5", "--eps", "0.1", "--weights", str(tmp_path / "w.pt")]
    assert main(["certify", model, *words]) == Code.OK
    assert "No --weights" not in capsys.readouterr().err


@pytest.mark.parametrize(("command", "program"), [("certify", False), ("attack", False), ("bound", True)])
def test_the_help_offers_what_is_taken(command: str, program: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == Code.OK
    assert (".pt2" in capsys.readouterr().out) is program


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--data", "digits", "--eps", "x"], "--eps lists radii"),
        (["--data", "digits", "--eps", "0.1", "--norm", "3"], "--norm is 1, 2 or inf"),
        (["--data", "letters", "--eps", "0.1"], "--data is digits, mnist:FOLDER"),
        (["--data", "mnist:/no/such/folder", "--eps", "0.1"], "/no/such/folder"),
        (["--data", "digits", "--eps", "0.1", "--seed", "1" + 30 * "0"], "--seed must lie in [0, 2^63), got 10"),
        (["--data", "digits", "--eps", "0.1", "--seed", "-1"], "--seed must lie in [0, 2^63), got -1"),
        (["--data", "digits", "--eps", "0.5,0.1"], "increasing order"),
    ],
)
def test_wrong_words_are_named(model: str, words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certify", model, *words]) == Code.USAGE
    assert said in capsys.readouterr().err


def test_a_file_of_no_samples_is_named(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "none.npz", x=np.zeros((0, 1, 8, 8), np.float32), y=np.zeros(0, np.int64))
    assert main(["certify", model, "--data", str(tmp_path / "none.npz"), "--eps", "0.1"]) == Code.USAGE
    assert "none.npz holds no samples" in capsys.readouterr().err
    np.savez(tmp_path / "named.npz", inputs=np.zeros((2, 1, 8, 8), np.float32), labels=np.zeros(2, np.int64))
    assert main(["certify", model, "--data", str(tmp_path / "named.npz"), "--eps", "0.1"]) == Code.USAGE
    assert "has no x.npy, y.npy, only ['inputs.npy', 'labels.npy']" in capsys.readouterr().err
    # One array by itself, under a name that promises several.
    with (tmp_path / "single.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    assert main(["certify", model, "--data", str(tmp_path / "single.npz"), "--eps", "0.1"]) == Code.USAGE
    assert "is no .npz file with arrays x and y" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (np.zeros((3, 64)), np.zeros((3, 1), np.int64), "y of shape (N,), one index an input, got (3, 64) and (3, 1)."),
        (np.zeros((3, 64)), np.eye(3, dtype=np.int64), "y.argmax(1) makes indices"),
        (np.zeros((3, 64), np.uint8), np.arange(3), "x.astype('float32') / 255 makes numbers in [0, 1] of bytes"),
        (np.zeros((3, 64)), np.zeros(2, np.int64), "got (3, 64) and (2,)."),
        (np.zeros((3, 64)), np.zeros(3), "got float64 and float64."),
    ],
)
def test_arrays_that_do_not_fit_are_named(
    model: str, x: np.ndarray, y: np.ndarray, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "odd.npz", x=x, y=y)
    assert main(["certify", model, "--data", str(tmp_path / "odd.npz"), "--eps", "0.1"]) == Code.USAGE
    assert said in capsys.readouterr().err


@pytest.mark.train
def test_the_weights_of_a_run_are_plain_tensors(run: Path, tmp_path: Path) -> None:
    shutil.copy(run / "model.safetensors", tmp_path)
    found, _ = tensors_from(tmp_path / "model.safetensors")
    assert all(bool(torch.isfinite(value).all()) for value in found.values())


def _forged(shape: str) -> bytes:
    """An .npy file of sixteen bytes whose header asks for more."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(10 + len(header) + 1) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(16)


@pytest.mark.parametrize("shape", ["(1000000000000, 64)", "(4000000000, 1, 8, 8)", "(-1, 64)"])
def test_an_archive_that_asks_for_more_memory_than_it_holds_is_refused(
    model: str, shape: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with zipfile.ZipFile(tmp_path / "giant.npz", "w") as archive:
        archive.writestr("x.npy", _forged(shape))
        archive.writestr("y.npy", _forged("(4,)"))
    assert main(["certify", model, "--data", str(tmp_path / "giant.npz"), "--eps", "0.1"]) == Code.USAGE
    said = capsys.readouterr().err
    assert len(said.strip().splitlines()) == 1
    assert "x.npy has 16 bytes after its header" in said
    (tmp_path / "giant.npy").write_bytes(_forged(shape))
    words = ["--shape", "1,8,8", "--ball", "1", "--at", str(tmp_path / "giant.npy")]
    assert main(["bound", model, *words]) == Code.USAGE
    assert "giant.npy has 16 bytes after its header" in capsys.readouterr().err


def test_an_array_beyond_the_cap_is_refused_before_it_is_read(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "large.npz", x=np.zeros((30, 1, 8, 8), np.float32), y=np.zeros(30, np.int64))
    monkeypatch.setattr("lipkit.data._numpy_files._LARGEST", 30 * 64 * 4 - 1)
    assert main(["certify", model, "--data", str(tmp_path / "large.npz"), "--eps", "0.1"]) == Code.USAGE
    assert "x.npy has 7808 bytes, and at most 7679 are read; give a part of it" in capsys.readouterr().err


@pytest.mark.train
def test_two_runs_do_not_share_a_folder(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    commands = (
        ["certify", model, "--data", "digits", "--samples", "5", "--eps", "0.1"],
        ["train", str(RECIPE), "--quick", "--epochs=1"],
    )
    for words in commands:
        folder = out / words[0]
        folder.mkdir(parents=True)
        with lock_folder(folder, leads=True), torch.random.fork_rng(devices=[]):
            assert main([*words, "--out", str(folder)]) == Code.OTHER
            assert f"{folder} is in use by another run" in capsys.readouterr().err
        assert not (folder / "report.json").exists()
        # The lock ends with the run that held it.
        with torch.random.fork_rng(devices=[]):
            assert main([*words, "--out", str(folder)]) == Code.OK


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="pipes break by signals elsewhere only")
def test_a_reader_that_leaves_early_is_no_error(model: str, tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    words = ["bound", model, "--shape", "1,8,8", "--method", "product", "--json", str(tmp_path / "paper.json")]
    command = [sys.executable, "-m", "lipkit.cli.main", *words]
    ended = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert ended.returncode == Code.OK, ended.stderr
    assert "Traceback" not in ended.stderr
    assert (tmp_path / "paper.json").exists()
