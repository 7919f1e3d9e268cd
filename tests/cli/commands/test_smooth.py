"""`lipkit smooth` from the command to the report, certificates from its votes, and audits that name forgeries."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lipkit.certify import smoothing as rs
from lipkit.cli.commands.run_commands import read_command
from lipkit.cli.commands.smooth_request import SmoothRequest
from lipkit.cli.inputs.smoothing_words import parse_maps, parse_noise, parse_smoothing_method
from lipkit.cli.main import Code, main
from lipkit.errors import ArgumentError
from support.sealed_files import read_lines, read_object, write_lines, write_object

MODEL = '''"""A small network."""
import torch
from torch import nn


def net() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
'''
COUNT = 8

# Every test runs commands from their words to their files.
pytestmark = pytest.mark.slow


def quietly(*words: str) -> int:
    with torch.random.fork_rng(devices=[]):
        return main(list(words))


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, data and a run on every second of them."""
    root = tmp_path_factory.mktemp("smoothing")
    (root / "net.py").write_text(MODEL)
    rng = np.random.default_rng(0)
    np.savez(root / "data.npz", x=rng.random((2 * COUNT, 1, 4, 4)).astype(np.float32), y=np.arange(2 * COUNT) % 3)
    assert quietly(*words(root), "--out", str(root / "run"), "--json", str(root / "shares.json")) == Code.OK
    return root


def words(root: Path) -> list[str]:
    return [
        "smooth", f"{root / 'net.py'}:net", "--data", str(root / "data.npz"), "--sigma", "0.3", "--n", "400", "--n0",
        "20", "--alpha", "0.01", "--eps", "0,0.1,0.2", "--stride", "2", "--maps", "hardmax,softmax:0.2", "--method",
        "low-variance", "--lipschitz", "dag", "--block", "128",
    ]  # fmt: skip


def test_a_run_leaves_votes_certificates_and_a_report(honest: Path) -> None:
    run = honest / "run"
    names = {"run.json", "model.safetensors", "bound.safetensors", "votes", "certificates.json"}
    assert {one.name for one in run.iterdir()} == {*names, "report.html", "report.json"}
    log = rs.Log.read(run / "votes")
    assert log.noise == rs.Gaussian(0.3)
    assert len(log.images) == COUNT
    shares = json.loads((honest / "shares.json").read_text())
    images = read_object(run / "certificates.json")["images"]
    for row in shares["radii"]:
        proven = [one for one in images if one["predicted"] == one["label"] and one["radius"] > row["eps"]]
        assert row["certified"]["count"] == len(proven)
    assert shares["undecided"] == sum(one["predicted"] == rs.ABSTAIN for one in images)
    data = np.load(honest / "data.npz")
    assert [one["label"] for one in images] == data["y"][::2].tolist()


def test_the_command_of_a_run_is_read_again(honest: Path) -> None:
    stored = read_object(honest / "run" / "run.json")["command"]
    found = read_command(stored)
    assert isinstance(found, SmoothRequest)
    assert found.command == stored
    assert (found.n, found.n0, found.stride, found.sigma) == (400, 20, 2, 0.3)


def test_a_run_continues_and_refuses_others(honest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = shutil.copytree(honest / "run", tmp_path / "run")
    lines = run / "votes" / "samples-0000.jsonl"
    whole, certificates = lines.read_bytes(), (run / "certificates.json").read_bytes()
    write_lines(lines, read_lines(lines)[:5])
    (run / "certificates.json").unlink()
    assert quietly(*words(honest), "--out", str(run)) == Code.OK
    assert lines.read_bytes() == whole
    assert (run / "certificates.json").read_bytes() == certificates
    assert quietly(*words(honest), "--seed", "1", "--out", str(run)) == Code.OTHER
    assert "seed was 0" in capsys.readouterr().err


def test_other_certificates_come_from_the_votes(honest: Path, tmp_path: Path) -> None:
    # The model is not needed any more.
    run = shutil.copytree(honest / "run", tmp_path / "run")
    file = tmp_path / "again.json"
    again = ["recertify", str(run), "--alpha", "0.2", "--method", "cohen", "--eps", "0,0.1,0.2", "--json", str(file)]
    assert quietly(*again) == Code.OK
    wanted = rs.recertify(run / "votes", [0.0, 0.1, 0.2], alpha=0.2, method=rs.Cohen())
    found = json.loads(file.read_text())
    shares = wanted.evaluation.overall.certified
    assert [row["certified"]["count"] for row in found["radii"]] == [one.count for one in shares]
    assert found["alpha"] == 0.2
    assert quietly(*again[:-2], "--norm", "inf", "--json", str(file)) == Code.OK
    assert (json.loads(file.read_text())["norm"], json.loads(file.read_text())["through"]) == ("inf", 2.0)
    assert quietly("recertify", str(run), "--method", "low-variance", "--lipschitz") == Code.OK


def test_the_report_is_drawn_again_from_the_votes(honest: Path, tmp_path: Path) -> None:
    run = shutil.copytree(honest / "run", tmp_path / "run")
    page, data = (run / "report.html").read_bytes(), (run / "report.json").read_bytes()
    (run / "report.html").write_text("nothing")
    (run / "report.json").write_text("nothing")
    assert quietly("report", str(run), "--json", str(tmp_path / "shares.json")) == Code.OK
    assert (run / "report.html").read_bytes() == page
    assert (run / "report.json").read_bytes() == data
    assert (tmp_path / "shares.json").read_bytes() == (honest / "shares.json").read_bytes()


def test_too_few_samples_are_warned_of_before_anything_runs(honest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = words(honest)[:6]
    assert quietly(*plain, "--n", "5", "--n0", "2", "--samples", "1", "--eps", "0") == Code.OK
    assert "n=5 samples prove nothing at alpha=0.001" in re.sub(r"\s+", " ", capsys.readouterr().out)


def test_bfloat16_and_other_noise(honest: Path, tmp_path: Path) -> None:
    plain = [*words(honest)[:6], "--n", "64", "--n0", "8", "--samples", "2", "--eps", "0,0.1", "--alpha", "0.05"]
    assert quietly(*plain, "--precision", "bfloat16", "--out", str(tmp_path / "half")) == Code.OK
    settings = read_object(tmp_path / "half" / "votes" / "settings.json")
    assert settings["precision"] == "torch.float32, autocast to torch.bfloat16"
    assert quietly("audit", str(tmp_path / "half")) == Code.OK
    assert quietly(*plain, "--noise", "laplace", "--out", str(tmp_path / "laplace")) == Code.OK
    log = rs.Log.read(tmp_path / "laplace" / "votes")
    assert log.noise.p == 1.0
    assert quietly(*plain, "--method", "anytime:0.05", "--block", "16", "--out", str(tmp_path / "early")) == Code.OK
    assert quietly("audit", str(tmp_path / "early")) == Code.OK


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--sigma", "0"], "--sigma is the standard deviation"),
        (["--noise", "pink"], "--noise is gaussian, uniform or laplace, got 'pink'"),
        (["--method", "guess"], "--method is intersection-union"),
        (["--method", "anytime"], "or anytime:RADIUS"),
        (["--maps", "softmax:-1"], "number from 1e-30 to 1e30, got -1.0"),
        (["--maps", "hardmax:1"], "--maps lists hardmax"),
        (["--maps", "hardmax,hardmax"], "twice"),
        (["--alpha", "1.5"], "--alpha is a probability"),
        (["--precision", "int8"], "--precision is float32 or bfloat16"),
        (["--norm", "3"], "--norm is 1, 2 or inf"),
        (["--eps", "a"], "--eps lists radii"),
        (["--lipschitz", "auto"], "--lipschitz says nothing of hard votes"),
    ],
)
def test_words_that_mean_nothing_are_refused(
    more: list[str], said: str, honest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = [*words(honest)[:6], "--samples", "1"]
    assert quietly(*plain, *more) == Code.USAGE
    assert said in capsys.readouterr().err


def test_noise_has_the_standard_deviation_that_is_asked_for() -> None:
    for name in ("gaussian", "uniform", "laplace"):
        law = parse_noise(name, 0.7)
        from lipkit.certify.smoothing.sources import Stream, open_source

        drawn = law.draw(open_source(0, 0, Stream.PROOF, 0, torch.zeros((), dtype=torch.float64)), (200_000,))
        # The standard error of a standard deviation is at most sqrt((kurtosis - 1) / 4n): 0.35 % for Laplace.
        assert float(drawn.std()) == pytest.approx(0.7, rel=0.02)
    assert parse_maps("hardmax, softmax:0.5, sparsemax:2:3") == (
        rs.Hardmax(), rs.Softmax(0.5), rs.Sparsemax(mass=3.0, temperature=2.0),
    )  # fmt: skip
    assert parse_smoothing_method("anytime:0.5") == rs.Anytime(0.5)
    with pytest.raises(ArgumentError):
        parse_maps("")


def test_an_honest_run_passes(honest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quietly("audit", str(honest / "run"), "--shares", str(honest / "shares.json")) == Code.OK
    out = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert f"votes: those of {COUNT} images came out again bit by bit" in out
    assert "bit for bit" in out
    assert quietly("audit", str(honest / "run"), "--only", "3") == Code.AUDIT_PARTIAL


def line(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """A forger who changes the line of image 4, and its checksum."""

    def forge(run: Path) -> None:
        path = run / "votes" / "samples-0000.jsonl"
        lines = read_lines(path)
        change(lines[4])
        write_lines(path, lines)

    return forge


def file(name: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def forge(run: Path) -> None:
        content = read_object(run / name)
        change(content)
        write_object(run / name, content)

    return forge


def moved_votes(one: dict[str, Any]) -> None:
    top = one["counts"].index(max(one["counts"]))
    rival = one["counts"].index(min(one["counts"]))
    one["counts"][top] -= 1
    one["counts"][rival] += 1


def better_moments(one: dict[str, Any]) -> None:
    one["moments"][0]["second"][0] *= 1 - 1e-9


def all_agree(one: dict[str, Any]) -> None:
    one["counts"] = [400 if k == one["label"] else 0 for k in range(3)]


def larger_radius(content: dict[str, Any]) -> None:
    content["images"][3]["radius"] += 1e-12


def repeated(run: Path) -> None:
    path = run / "votes" / "samples-0000.jsonl"
    lines = read_lines(path)
    write_lines(path, [*lines, lines[0]])


def dropped(run: Path) -> None:
    path = run / "votes" / "samples-0000.jsonl"
    write_lines(path, read_lines(path)[:-1])


def swapped(run: Path) -> None:
    path = run / "votes" / "samples-0000.jsonl"
    lines = read_lines(path)
    other = next(i for i, one in enumerate(lines) if one["counts"] != lines[0]["counts"])
    lines[0]["counts"], lines[other]["counts"] = lines[other]["counts"], lines[0]["counts"]
    write_lines(path, lines)


def other_page(run: Path) -> None:
    path = run / "report.html"
    path.write_text(path.read_text().replace(f" of {COUNT}", f" of {COUNT - 1}"))


def damaged(run: Path) -> None:
    path = run / "votes" / "samples-0000.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"spent": 400', b'"spent": 401', 1))


FORGERIES: dict[str, tuple[Callable[[Path], None], str]] = {
    "one vote moved": (line(moved_votes), "the counts of image 4"),
    "all votes agree": (line(all_agree), "the counts of image 4"),
    "a smaller variance": (line(better_moments), "the sums of squares of Softmax(temperature=0.2) of image 4"),
    "another label": (line(lambda one: one.update(label=(one["label"] + 1) % 3)), "the label of image 4"),
    "another input": (line(lambda one: one.update(digest="0" * 16)), "the hash of the input of image 4"),
    "votes of two images swapped": (swapped, "the counts of image 0"),
    "an image twice": (repeated, "9 lines for 8 samples"),
    "an image left out": (dropped, "lacks sample 7"),
    "more samples than were drawn": (file("votes/settings.json", lambda one: one.update(n=4000)), "400 of 4000"),
    "another seed": (file("votes/settings.json", lambda one: one.update(seed=1)), "seed is 1 there, and 0 recomputed"),
    "a larger radius": (file("certificates.json", larger_radius), "images[3].radius"),
    "a smaller alpha": (file("certificates.json", lambda one: one.update(alpha=0.001)), "alpha is 0.001 there"),
    "another command": (
        file("run.json", lambda one: one["fields"].update(alpha="0.001")), "the setting alpha is 0.001 there",
    ),
    "a page that claims more": (other_page, "report.html"),
    "a broken line": (damaged, "does not fit its checksum"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_named(name: str, honest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forge, said = FORGERIES[name]
    run = shutil.copytree(honest / "run", tmp_path / "run")
    forge(run)
    assert quietly("audit", str(run)) == Code.AUDIT_FAILED
    assert said in capsys.readouterr().err


def test_another_model_is_named(honest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "net.py"
    other.write_text(MODEL.replace("manual_seed(5)", "manual_seed(6)"))
    assert quietly("audit", str(honest / "run"), "--model", f"{other}:net") == Code.AUDIT_FAILED
    assert "the hash of the code" in capsys.readouterr().err
