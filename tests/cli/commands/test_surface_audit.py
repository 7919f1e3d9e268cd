"""Audits of learned surfaces: an honest run holds, and every forgery is named."""

import base64
import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch

from lipkit import sdf
from lipkit._png import encode_png
from lipkit.cli.exit_codes import Code
from lipkit.cli.inputs.safetensors_file import tensors_from, tensors_to
from lipkit.cli.main import main
from lipkit.cli.runs import surface_files
from lipkit.report.html.fields.surface_page import render_surface_page
from support.sealed_files import read_claims, read_object, write_claims, write_object
from support.small_surface import SMALL, learn, make_run, read_result, write_egg

PARTS = {
    "deviation": "Deviation", "mean": "SurfaceMean", "distances": "SurfaceDistances", "picture": "Render",
    "cut": "Slice",
}  # fmt: skip


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    return make_run(write_egg(place / "egg.ply"), place)


@pytest.fixture
def run(honest: Path, tmp_path: Path) -> Path:
    """A copy that a forger may change."""
    return Path(shutil.copytree(honest, tmp_path / "forged"))


@pytest.mark.train
def test_an_honest_run_holds(honest: Path, capsys: pytest.CaptureFixture[str]):
    numbers = honest.parent / "numbers.json"
    assert main(["audit", str(honest), "--retrain", "--shares", str(numbers)]) == Code.OK
    said = capsys.readouterr().out
    for what in ("training:", "mesh:", "constant:", "deviation:", "result:", "parts:", "page:", "shares:", "holds."):
        assert what in said
    assert main(["audit", str(honest), "--only", "5"]) == Code.USAGE
    assert "has no samples to choose from; leave out --only" in capsys.readouterr().err


@pytest.mark.train
def test_an_audit_measures_without_the_files_of_the_run(run: Path, monkeypatch: pytest.MonkeyPatch):
    """What the run measured is read last, and nothing is taken from it."""

    def refuse(*_: object) -> NoReturn:
        raise AssertionError("a measured part was read before all was measured again")

    measures = surface_files.SurfaceMeasures.gather

    def watched(self: surface_files.SurfaceMeasures, extracted: sdf.Triangles) -> Any:
        with monkeypatch.context() as during:
            during.setattr(surface_files, "read_part", refuse)
            return measures(self, extracted)

    monkeypatch.setattr(surface_files.SurfaceMeasures, "gather", watched)
    assert main(["audit", str(run)]) == Code.OK


# Forgeries. A forger computes every checksum anew, and lets parts and page follow.


def edit(change: Callable[[dict[str, Any]], Any], follow: bool = True) -> Callable[[Path], None]:
    def forge(run: Path) -> None:
        content = read_claims(run / "surface.json")
        change(content)
        write_claims(run / "surface.json", content)
        (run / "surface.html").write_text(render_surface_page(read_result(run)))
        for name, part in PARTS.items() if follow else ():
            write_object(run / "parts" / f"{part}.json", {"part": content[name]})

    return forge


def change_weight(run: Path) -> None:
    tensors, about = tensors_from(run / "model.safetensors", sealed=True)
    tensors["2.bias"] = tensors["2.bias"] + 0.01
    (run / "model.safetensors").write_bytes(tensors_to(tensors, about))


def enlarge_weight(run: Path) -> None:
    """A larger constant than the page says, and else the same layers."""
    tensors, about = tensors_from(run / "model.safetensors", sealed=True)
    tensors["6.weight"] = tensors["6.weight"] * 1.5
    (run / "model.safetensors").write_bytes(tensors_to(tensors, about))


def spoil_weight(run: Path) -> None:
    tensors, about = tensors_from(run / "model.safetensors", sealed=True)
    tensors["2.bias"][0] = torch.nan
    (run / "model.safetensors").write_bytes(tensors_to(tensors, about))


def change_layers(run: Path) -> None:
    tensors, about = tensors_from(run / "model.safetensors", sealed=True)
    del tensors["2.bias"]
    (run / "model.safetensors").write_bytes(tensors_to(tensors, about))


def move_vertex(run: Path) -> None:
    found = sdf.read_mesh(run / "surface.ply")
    vertices = found.vertices.clone()
    vertices[7, 1] += 1e-4
    sdf.write_mesh(sdf.Triangles(vertices, found.faces), run / "surface.ply")


def drop_face(run: Path) -> None:
    found = sdf.read_mesh(run / "surface.ply")
    sdf.write_mesh(sdf.Triangles(found.vertices, found.faces[1:]), run / "surface.ply")


def change_page(run: Path) -> None:
    page = run / "surface.html"
    page.write_text(page.read_text() + " ")


def change_claim(run: Path) -> None:
    page = run / "surface.html"
    text, count = re.subn(
        r'(data-claim="largest \|f\|, at most" value="[^"]*">)[^<]*', r"\g<1>0.01 %", page.read_text()
    )
    assert count
    page.write_text(text)


def change_part(run: Path) -> None:
    part = read_object(run / "parts" / "SurfaceMean.json")
    part["part"]["mean"] /= 2
    write_object(run / "parts" / "SurfaceMean.json", part)


def change_identity(run: Path) -> None:
    known = read_object(run / "run.json")
    known["fields"]["steps"] = "6000"
    write_object(run / "run.json", known)


def narrow(content: dict[str, Any]) -> None:
    """An end that no sample disproves: below what is proven, above what is known of the largest value."""
    ends = content["deviation"]
    ends["upper"] = 0.5 * (ends["lower"] + ends["upper"])


@edit
def change_numbers(content: dict[str, Any]) -> None:
    content["deviation"]["lower"] *= 1.001
    content["mean"]["mean"] *= 0.99
    content["distances"]["hausdorff"] *= 0.5
    content["diagonal"] *= 1.01
    content["faces"] = 33
    content["holes"] = 1


def paint(content: dict[str, Any]) -> None:
    content["picture"]["png"] = base64.b64encode(encode_png(np.zeros((3, 12, 12), np.uint8))).decode()


def move_slice(content: dict[str, Any]) -> None:
    content["cut"]["values"][40] += 1e-6


SEEN = "surface.json"
NUMBERS = (
    "deviation.lower is", "mean.mean is", "distances.hausdorff is", "diagonal is", "faces is 33 there, and 32",
    "holes is 1 there, and 0",
)  # fmt: skip
FORGERIES: dict[str, tuple[Callable[[Path], None], str, tuple[str, ...]]] = {
    "a weight": (change_weight, SEEN, ("mean.mean is", "deviation.upper is", "cut.values[0] is")),
    "a larger weight": (enlarge_weight, SEEN, ("the constant is 0.99999",)),
    "a weight of NaN": (spoil_weight, "model.safetensors", ("has a weight that is NaN or infinite",)),
    "other layers": (change_layers, "model.safetensors", ("has not the layers of the run's settings",)),
    "a vertex of the mesh": (move_vertex, "surface.ply", ("a vertex is 0.0001 from where the field has it",)),
    "a face of the mesh": (drop_face, "surface.ply", ("the surface is of",)),
    "no mesh": (lambda run: (run / "surface.ply").unlink(), "surface.ply", ("cannot be read (there is no such file)",)),
    "a narrow end": (edit(narrow), SEEN, ("deviation.upper is",)),
    "an end below the truth": (
        edit(lambda c: c["deviation"].update(upper=0.01, lower=0.0)),
        SEEN,
        ("deviation.upper",),
    ),
    "numbers of the result": (change_numbers, SEEN, NUMBERS),
    "the constant": (edit(lambda c: c.update(constant=0.5)), SEEN, ("the constant is 0.5",)),
    "the kind": (edit(lambda c: c.update(kind="exact")), SEEN, ("kind is exact there, and upper",)),
    "a setting": (edit(lambda c: c["settings"][0].__setitem__(1, "9")), SEEN, ("settings[0][1] is 9",)),
    "the picture": (edit(paint), SEEN, ("picture.png is",)),
    "the slice": (edit(move_slice), SEEN, ("cut.values[40] is",)),
    "the command": (edit(lambda c: c.update(command=c["command"] + " --steps 90")), SEEN, ("the command is",)),
    "a part": (change_part, "SurfaceMean.json", ("has other numbers than surface.json",)),
    "no part": (lambda run: (run / "parts/Slice.json").unlink(), "Slice.json", ("cannot be read",)),
    "a setting of the run": (change_identity, "run.json", ("the setting steps is 6000 there, and 150",)),
    "a claim of the page": (change_claim, "surface.html", ("largest |f|, at most: 0.01 %",)),
    "the end of the page": (change_page, "surface.html", ("is not what its data give",)),
    "no result": (lambda run: (run / "surface.json").unlink(), SEEN, ("cannot be read",)),
}


@pytest.mark.train
@pytest.mark.parametrize("name", FORGERIES)
def test_forgeries_are_named(name: str, run: Path, capsys: pytest.CaptureFixture[str]):
    forge, file, what = FORGERIES[name]
    forge(run)
    assert main(["audit", str(run)]) == Code.AUDIT_FAILED
    said = capsys.readouterr().err
    for one in what:
        assert any(file in line and one in line for line in said.splitlines()), said


@pytest.mark.train
def test_other_weights_that_are_honestly_measured_are_not_of_the_training(
    run: Path, honest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """A forger puts in the model of another seed, and measures all of it: only a second training tells."""
    egg = honest.parent / "egg.ply"
    assert learn(egg, tmp_path / "other", *SMALL, "--seed", "1") == Code.OK
    for one in run.iterdir():
        if one.name != "run.json":
            shutil.rmtree(one) if one.is_dir() else one.unlink()
    shutil.copy(tmp_path / "other" / "model.safetensors", run)
    assert learn(egg, run) == Code.OK
    assert main(["audit", str(run)]) == Code.OK
    assert main(["audit", str(run), "--retrain"]) == Code.AUDIT_FAILED
    assert "model.safetensors has other weights" in capsys.readouterr().err


@pytest.mark.train
def test_another_mesh_is_named_and_a_moved_one_is_found(
    run: Path, honest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    shutil.copy(honest.parent / "egg.ply", tmp_path / "moved.ply")
    assert main(["audit", str(run), "--data", str(tmp_path / "moved.ply")]) == Code.OK
    found = sdf.read_mesh(tmp_path / "moved.ply")
    sdf.write_mesh(sdf.Triangles(found.vertices * 1.001, found.faces), tmp_path / "other.ply")
    capsys.readouterr()
    assert main(["audit", str(run), "--data", str(tmp_path / "other.ply")]) == Code.AUDIT_FAILED
    said = capsys.readouterr().err.splitlines()
    assert "the setting SHA-256 of the mesh" in said[1]
    assert len(said) == 2
    assert main(["audit", str(run), "--data", str(tmp_path / "none.ply")]) == Code.USAGE


@pytest.mark.train
def test_on_another_machine_ends_that_hold_are_enough_and_the_picture_is_left(
    run: Path, capsys: pytest.CaptureFixture[str]
):
    def widen(content: dict[str, Any]) -> None:
        content["software"] = "lipkit of elsewhere"
        content["deviation"]["upper"] *= 1.01
        paint(content)

    edit(widen)(run)
    assert main(["audit", str(run)]) == Code.AUDIT_PARTIAL
    assert "The picture was drawn on lipkit of elsewhere" in capsys.readouterr().out
    # Ends that are narrower than what is proven here are not believed.
    edit(narrow)(run)
    assert main(["audit", str(run)]) == Code.NOT_PROVEN
    assert "another machine found the deviation between" in capsys.readouterr().err
    edit(lambda content: content["deviation"].update(lower=0.0, upper=0.01))(run)
    assert main(["audit", str(run)]) == Code.AUDIT_FAILED
    assert "deviation.upper is 0.01" in capsys.readouterr().err


@pytest.mark.train
@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("constant", math.nan), ("diagonal", 0.0), ("diagonal", 1e308), ("deviation.upper", math.inf),
        ("mean.mean", -1.0), ("cut.at", math.nan), ("distances.back.mean", math.nan),
    ],
)  # fmt: skip
def test_numbers_that_no_run_writes_are_mismatches(
    place: str, value: float, run: Path, capsys: pytest.CaptureFixture[str]
):
    content = inner = read_claims(run / "surface.json")
    *way, last = place.split(".")
    for name in way:
        inner = inner[name]
    inner[last] = value
    write_claims(run / "surface.json", content)
    assert main(["audit", str(run)]) == Code.AUDIT_FAILED
    said = capsys.readouterr().err
    assert "surface.json" in said
    assert "Traceback" not in said


@pytest.mark.train
def test_shares_of_another_run_are_named(run: Path, honest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    numbers = json.loads((honest.parent / "numbers.json").read_text())
    numbers["chamfer"] /= 2
    (tmp_path / "numbers.json").write_text(json.dumps(numbers))
    assert main(["audit", str(run), "--shares", str(tmp_path / "numbers.json")]) == Code.AUDIT_FAILED
    assert "chamfer is" in capsys.readouterr().err
