"""`lipkit spectral`: the values of the library's game, on the disk block by block, and errors that say what to do."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lipkit._seeds import derive_seed
from lipkit.analysis import GaussianBaseline, ReplacementBaseline, SpectralGame
from lipkit.analysis.frequencies.frequency_bands import Baseline
from lipkit.cli.exit_codes import Code
from lipkit.cli.main import main
from lipkit.data import digits
from lipkit.report.results.spectral_contents import SpectralContents

MODEL = """
import torch
from torch import nn

def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

def few():
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(MODEL)
    return path


def play(model: Path, out: Path, *words: str, name: str = "net", data: str = "digits") -> int:
    return main(["spectral", f"{model}:{name}", "--data", data, "--out", str(out), "--bands", "3", *words])


def read(out: Path) -> SpectralContents:
    return SpectralContents.from_json((out / "spectral.json").read_bytes(), "spectral.json")


@pytest.mark.slow
def test_blocks_join_to_the_game_of_all_images(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # 65 images: a block of 32, and one of 33, because a game needs two images.
    assert play(model, tmp_path / "run", "--samples", "65") == Code.OK
    found = read(tmp_path / "run")
    assert len(list((tmp_path / "run" / "blocks").iterdir())) == 2
    torch.manual_seed(3)
    same = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    _, test = digits().split(397, seed=0)
    known = SpectralGame(same, 3)(test.inputs[:65], test.labels[:65])
    # float32 forward passes in other batches.
    assert found.shapley == pytest.approx(known.shapley.tolist(), abs=1e-5)
    assert found.error == pytest.approx(known.error.tolist(), abs=1e-5)
    assert known.values is not None
    assert found.values == pytest.approx(known.values.tolist(), abs=1e-5)
    assert found.signed == pytest.approx(tuple(known.score_interval()), abs=1e-3)
    assert "score, signed" in capsys.readouterr().out
    page = (tmp_path / "run" / "spectral.html").read_text()
    assert "nothing is certified" in page
    assert "could not" not in page


@pytest.mark.slow
def test_a_game_continues_where_it_was_stopped(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert play(model, out, "--samples", "96") == Code.OK
    whole, blocks = (out / "spectral.json").read_bytes(), sorted((out / "blocks").iterdir())
    assert len(blocks) == 3
    kept = blocks[0].stat().st_mtime_ns
    blocks[1].unlink()
    (out / "spectral.json").unlink()
    assert play(model, out, "--samples", "96") == Code.OK
    assert (out / "spectral.json").read_bytes() == whole
    assert blocks[0].stat().st_mtime_ns == kept
    page = (out / "spectral.html").read_bytes()
    assert main(["report", str(out)]) == Code.OK
    assert (out / "spectral.html").read_bytes() == page


@pytest.mark.slow
@pytest.mark.parametrize("word", ["gaussian", "replacement"])
def test_baselines_are_drawn_for_each_block(
    word: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, numbers = tmp_path / "run", tmp_path / "numbers.json"
    words = ("--samples", "65", "--baseline", word, "--seed", "4", "--json", str(numbers))
    assert play(model, out, *words) == Code.OK
    found = read(out)
    torch.manual_seed(3)
    same = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    _, test = digits().split(397, seed=0)
    each: list[torch.Tensor] = []
    for block, (start, end) in enumerate([(0, 32), (32, 65)]):
        seed = derive_seed(derive_seed(4, block), 1)
        baseline: Baseline = GaussianBaseline(seed=seed) if word == "gaussian" else ReplacementBaseline(seed)
        each.append(SpectralGame(same, 3, baseline=baseline)(test.inputs[start:end], test.labels[start:end]).each)
    assert found.shapley == pytest.approx(torch.cat(each).mean(0).tolist(), abs=1e-5)
    written = json.loads(numbers.read_text())
    assert [band["shapley"] for band in written["bands"]] == list(found.shapley)
    assert [band["standard_error"] for band in written["bands"]] == list(found.error)
    assert list(written["scores"]["printed"].values()) == list(found.printed)
    assert f"--baseline {word}" in found.command
    assert "--json" not in found.command
    # One block less, and the same bits: its draws do not depend on the other one.
    whole = (out / "spectral.json").read_bytes()
    (out / "blocks" / "00001.json").unlink()
    assert play(model, out, *words) == Code.OK
    assert (out / "spectral.json").read_bytes() == whole
    assert play(model, out, "--samples", "65", "--seed", "4") != Code.OK
    assert f"holds another run (baseline was {word})" in capsys.readouterr().err


@pytest.mark.slow
def test_more_orders_have_smaller_errors_and_continue(model: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.npz"
    source = np.random.default_rng(0)
    np.savez(data, x=source.random((40, 1, 26, 26), np.float32), y=source.integers(10, size=40))
    model.write_text(MODEL.replace("nn.Flatten()", "nn.AdaptiveAvgPool2d(8), nn.ReLU(), nn.Flatten()"))
    errors: list[float] = []
    for orders in ("2", "32"):
        out = tmp_path / orders
        words = ("--bands", "13", "--orders", orders, "--baseline", "replacement")
        assert play(model, out, *words, data=str(data)) == Code.OK
        errors.append(sum(read(out).sampling_error))
        whole = (out / "spectral.json").read_bytes()
        (out / "blocks" / "00000.json").unlink()
        assert play(model, out, *words, data=str(data)) == Code.OK
        assert (out / "spectral.json").read_bytes() == whole
    # 16 times the orders: a quarter of the error, up to the error of a deviation of two orders.
    assert 0.15 < errors[1] / errors[0] < 0.4


@pytest.mark.slow
def test_another_game_and_a_damaged_block_are_refused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert play(model, out, "--samples", "40") == Code.OK
    assert play(model, out, "--samples", "40", "--rings", "round") != Code.OK
    assert "holds another run (rings was square)" in capsys.readouterr().err
    block = out / "blocks" / "00000.json"
    data = json.loads(block.read_text())
    data["each"][0][0] += 1.0
    block.write_text(json.dumps(data))
    assert play(model, out, "--samples", "40") != Code.OK
    assert "00000.json does not fit its checksum" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "name", "said"),
    [
        (("--bands", "1"), "net", "at least two bands, got 1"),
        (("--rings", "oval"), "net", "--rings is square or round, got 'oval'"),
        (("--baseline", "one"), "net", "--baseline is zero, gaussian or replacement, got 'one'"),
        (("--json", "."), "net", "--json . is a folder"),
        (("--beta", "1"), "net", "--beta lies in (0, 1), got 1"),
        ((), "few", "classes"),
    ],
)
def test_words_that_mean_nothing_are_refused(
    words: tuple[str, ...], name: str, said: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert play(model, tmp_path / "run", "--samples", "40", *words, name=name) != Code.OK
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run" / "spectral.json").exists()


@pytest.mark.parametrize("case", ["nan", "one image", "no image", "labels"])
def test_data_that_cannot_be_played_are_named(
    case: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = np.zeros((4, 1, 8, 8), np.float32), np.arange(4)
    if case == "nan":
        x[1, 0, 2, 3] = np.nan
    x, y = {"one image": (x[:1], y[:1]), "no image": (x[:0], y[:0]), "labels": (x, y + 90)}.get(case, (x, y))
    path = tmp_path / "data.npz"
    np.savez(path, x=x, y=y)
    assert play(model, tmp_path / "run", data=str(path)) != Code.OK
    said = capsys.readouterr().err
    assert {"nan": "NaN", "one image": "at least two images", "no image": "", "labels": "class"}[case] in said
    assert said.strip()
    assert "Traceback" not in said
    assert not (tmp_path / "run" / "spectral.json").exists()
