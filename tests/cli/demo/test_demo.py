"""The demonstration runs, says the kind of every number, says what is true, and refuses a bad folder politely."""

import contextlib
import io
import json
import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import matplotlib.image
import pytest
import torch
from torch import nn

from lipkit.bound import Bound
from lipkit.bounds import Method
from lipkit.cli.console import terminal
from lipkit.cli.demo import demo
from lipkit.cli.demo import norms as demo_norms
from lipkit.cli.demo.digits import Classifier, Digits, train_classifier
from lipkit.cli.demo.ladder import EVERYWHERE, ON_A_REGION, climb, ladder_table, panel
from lipkit.cli.main import main
from lipkit.errors import UnsupportedError
from lipkit.linops import Dense
from lipkit.regions import Everywhere, Region
from lipkit.trace import Network, chain
from lipkit.trace.nodes import RELU

CLASSIFIER = "Lipschitz constant of a classifier"


class Run(NamedTuple):
    """The exit code, the output and the folder of one run."""

    code: int
    text: str
    folder: Path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("demo") / "made" / "on the way"
    random, threads = torch.random.get_rng_state(), torch.get_num_threads()
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
        # Two epochs of the last part; all of it takes a minute.
        patch.setattr(demo, "Digits", lambda seed: Digits(seed=seed).quick())
        code = main(["demo", "--out", str(folder), "--seed", "3", "--json", str(folder.parents[1] / "demo.json")])
    assert torch.equal(torch.random.get_rng_state(), random)
    assert torch.get_num_threads() == threads
    return Run(code, output.getvalue(), folder)


def rows(text: str, columns: int) -> list[list[str]]:
    """The first lines of the rows of the table with so many columns; two blanks or more end a cell."""
    lines = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    return [cells for cells in lines if len(cells) == columns and cells[0] not in {"layer", "method"}]


@pytest.mark.train
def test_ends_well_and_says_where_the_files_are(run: Run):
    assert run.code == 0
    names = ["convergence.png", "convergence.svg", "ladder.png", "ladder.svg"]
    for name in names:
        assert str(run.folder / name) in run.text.splitlines()[-1]
    assert sorted(path.name for path in run.folder.iterdir()) == sorted([*names, "digits"])
    assert (run.folder / "digits" / "report.html").is_file()


@pytest.mark.train
def test_the_printed_numbers_are_in_a_file_too(run: Run):
    found = json.loads((run.folder.parents[1] / "demo.json").read_text())
    assert found["seed"] == 3
    for one, row in zip(found["layers"], rows(run.text, 8), strict=True):
        # A long name goes on in the next line of its cell.
        assert one["layer"].startswith(row[0])
        assert ("x".join(map(str, one["input"])), one["kind"]) == (row[1], row[4].split(",")[0])
        # Five decimals, rounded to the side of the bound.
        assert one["value"] == pytest.approx(float(row[3]), abs=1.01e-5)
        assert one["lower"] == pytest.approx(float(row[2]), abs=1.01e-5)
    assert [one["method"] for one in found["convolution"]] == [
        row[0] for row in rows(run.text, 6) if row[2] in {"yes", "no"}
    ]
    everywhere, near = found["classifier"].values()
    assert {one["method"] for one in everywhere} == EVERYWHERE.keys()
    assert {one["method"] for one in near} == ON_A_REGION.keys()
    assert all(one["value"] > 0 and one["seconds"] >= 0 for one in (*everywhere, *near))
    assert [row["eps"] for row in found["digits"]["radii"]] == [0.25, 0.5]


def test_a_file_for_numbers_in_no_folder_is_refused_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["demo", "--out", str(tmp_path / "out"), "--json", str(tmp_path / "no" / "demo.json")]) == 2
    assert "lies in no folder" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.train
def test_the_figure_is_not_empty(run: Run):
    pixels = matplotlib.image.imread(run.folder / "convergence.png")
    assert min(pixels.shape[:2]) >= 600
    assert 0.01 < (pixels[..., :3] < 0.9).any(-1).mean() < 0.5
    drawing = (run.folder / "convergence.svg").read_text()
    for label in ("Lanczos", "Gram on the torus", "SmallGrid", "Toeplitz", "power iteration", "true norm"):
        assert label in drawing


@pytest.mark.train
def test_the_ladder_is_drawn(run: Run):
    pixels = matplotlib.image.imread(run.folder / "ladder.png")
    assert 0.01 < (pixels[..., :3] < 0.9).any(-1).mean() < 0.5
    drawing = (run.folder / "ladder.svg").read_text()
    for label in (*EVERYWHERE, *ON_A_REGION, "the truth is here", "upper bound", "lower bound", "radius 0.1"):
        assert label in drawing


@pytest.mark.train
def test_every_layer_comes_with_its_kind_and_an_enclosure(run: Run):
    found = rows(run.text, 8)
    assert len(found) == len(demo_norms.layers(3)) == 9
    for _, _, lower, bound, kind, gap, milliseconds, why in found:
        assert re.match(r"exact|upper bound", kind)
        assert 0 < float(lower) <= float(bound)
        # The promise of the default accuracy, 1 %, and of zero padding near its torus.
        assert (float(gap.rstrip("%")) / 100 if gap.endswith("%") else float(gap)) <= 0.02
        assert ": " in why
        assert float(milliseconds) >= 0
    randomised = [row for row in found if "Lanczos" in row[7]]
    assert randomised
    assert all("fails <= 1e-09" in row[4] for row in randomised)


@pytest.mark.train
def test_the_norms_that_are_known_are_the_known_ones(run: Run):
    norms = {row[0]: float(row[3]) for row in rows(run.text, 8)}
    modules = {layer.name: layer.module for layer in demo_norms.layers(3)}
    linear, scaling = modules["Linear 512 -> 256"], modules["BatchNorm2d, evaluation"]
    assert isinstance(linear, nn.Linear)
    assert isinstance(scaling, nn.BatchNorm2d)
    assert scaling.running_var is not None
    # Six digits are printed, and the proof of a matrix is asked for within 1e-6.
    assert norms["Linear 512 -> 256"] == pytest.approx(torch.linalg.matrix_norm(linear.weight, 2).item(), abs=2e-5)
    assert norms["Linear 256, orthogonal"] == pytest.approx(1, abs=2e-5)
    # One unit of the last digit: bounds are rounded up.
    assert norms["AvgPool2d 2x2"] == pytest.approx(0.5, abs=1.5e-6)
    slopes = scaling.weight / (scaling.running_var + scaling.eps).sqrt()
    assert norms["BatchNorm2d, evaluation"] == pytest.approx(slopes.max().item(), abs=1e-5)
    circular = modules["the same, circular padding"]
    assert isinstance(circular, nn.Conv2d)
    spectrum = torch.fft.fft2(circular.weight.detach().double(), s=(28, 28)).permute(2, 3, 0, 1)
    largest = torch.linalg.matrix_norm(spectrum, 2).max().item()
    assert norms["the same, circular padding"] == pytest.approx(largest, abs=1e-5)


@pytest.mark.train
def test_one_convolution_shows_the_estimate_below_and_the_bounds_above(run: Run):
    found = {row[0]: row for row in rows(run.text.partition(CLASSIFIER)[0], 6)}
    values = {name: float(row[3]) for name, row in found.items()}
    assert list(values.values()) == sorted(values.values())
    weight = torch.eye(8 * 144, dtype=torch.float64).reshape(-1, 8, 12, 12)
    truth = torch.linalg.matrix_norm(
        demo_norms.convolution(8, 12, 3).to(torch.float64).apply(weight).flatten(1), 2
    ).item()
    assert values["SVD"] == pytest.approx(truth, abs=1e-5)
    for name, (_, kind, certifies, _, away, _) in found.items():
        assert (certifies == "yes") == kind.startswith(("exact", "upper bound"))
        if name == "SVD":
            continue
        # Five decimals and hundredths of a percent.
        assert float(away.rstrip("%")) / 100 == pytest.approx(values[name] / truth - 1, abs=2e-4)
        assert math.copysign(1, values[name] - truth) == (1 if certifies == "yes" else -1)
    kinds = {row[1].split(",")[0] for row in found.values()}
    assert kinds == {"exact", "upper bound", "lower bound", "estimate"}


def rungs(run: Run) -> list[dict[str, tuple[float, str]]]:
    """Value and kind by method, of the table for the whole space and of the one around a digit."""
    return [
        {row[0]: (float(row[1]), row[2]) for columns in (5, 6) for row in rows(text, columns)}
        for text in run.text.split(CLASSIFIER)[1:]
    ]


@pytest.fixture(scope="module")
def digits() -> Classifier:
    return train_classifier(3)


@pytest.mark.train
def test_the_rungs_bound_the_classifier(run: Run, digits: Classifier):
    assert digits.accuracy > 0.9
    everywhere, near = rungs(run)
    assert everywhere.keys() == EVERYWHERE.keys()
    assert near.keys() == ON_A_REGION.keys()
    weights = [layer.weight for layer in digits.model if isinstance(layer, nn.Linear)]
    assert [tuple(weight.shape) for weight in weights] == [(32, 64), (32, 32), (10, 32)]
    product = math.prod(torch.linalg.matrix_norm(weight.double(), 2).item() for weight in weights)
    # Five digits, rounded up, of norms that are proven to within 1e-6.
    assert product <= everywhere["Product"][0] <= product * (1 + 2e-4)
    jacobians = torch.func.vmap(torch.func.jacrev(digits.model))(digits.images)
    steepness = torch.linalg.matrix_norm(jacobians, 2)
    for table, least in ((everywhere, steepness.max().item()), (near, steepness[0].item())):
        above = [value for value, kind in table.values() if kind == "upper bound"]
        below = [value for value, kind in table.values() if kind == "lower bound"]
        assert len(above) + len(below) == len(table)
        # The Jacobians are evaluated in float32.
        assert least <= min(above) * (1 + 1e-4)
        assert max(below) <= min(above)
    # The point of the ladder: the best global bound beats the product, the local one the global one.
    assert everywhere["LipSDP"][0] < 0.95 * product
    assert near["Condensed"][0] < everywhere["LipSDP"][0]


@pytest.mark.train
def test_training_is_repeatable(digits: Classifier):
    again = train_classifier(3)
    assert all(torch.equal(a, b) for a, b in zip(digits.model.parameters(), again.model.parameters(), strict=True))
    assert torch.equal(digits.images, again.images)


def test_a_method_that_refuses_leaves_its_reason():
    network = chain([Dense(torch.eye(3))] * 2, RELU)
    reason = UnsupportedError("There is no moon on Tuesdays.")

    @dataclass(frozen=True)
    class Lunar(Method):
        def _bound(self, network: Network, region: Region) -> Bound:
            raise reason

    found = climb(network, Everywhere(), {"Product": EVERYWHERE["Product"], "Lunar": Lunar()})
    assert found[1].result is reason
    assert [point.label for point in panel("heading", found).points] == ["Product"]
    console = terminal()
    with console.capture() as printed:
        console.print(ladder_table("A title", found))
    assert re.search(r"Lunar +refused .*There is no moon on Tuesdays\.", printed.get())


def blocked(folder: Path) -> dict[str, Path]:
    (folder / "file").write_text("occupied")
    return {"is a file": folder / "file", "cannot be written": folder / "file" / "below"}


@pytest.mark.parametrize("words", ["is a file", "cannot be written"])
def test_a_bad_folder_ends_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str):
    out = blocked(tmp_path)[words]
    assert main(["demo", "--out", str(out)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert re.fullmatch(rf"--out {re.escape(str(out))} {words}.*; name .*folder.*\.\n", said.err)
    assert (tmp_path / "file").read_text() == "occupied"


def test_a_folder_without_permission_ends_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    assert main(["demo", "--out", str(tmp_path)]) == 2
    assert "cannot be written (Permission denied); name another folder." in capsys.readouterr().err


@pytest.mark.parametrize("seed", ["-1", str(2**63)])
def test_a_seed_out_of_range_ends_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: str):
    assert main(["demo", "--out", str(tmp_path), "--seed", seed]) == 2
    assert capsys.readouterr().err == f"--seed must lie in [0, 2^63), got {seed}.\n"


def test_without_a_folder_there_is_a_usage(capsys: pytest.CaptureFixture[str]):
    assert main(["demo"]) == 2
    assert "--out" in capsys.readouterr().err


def test_a_missing_extra_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    # None in sys.modules is how Python marks a module that cannot be imported.
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert main(["demo", "--out", str(tmp_path)]) == 2
    assert "needs rich.console" in capsys.readouterr().err


def test_missing_data_is_missed_before_anything_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert main(["demo", "--out", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "The digits need scikit-learn; pip install 'lipkit[data]' brings it.\n"
