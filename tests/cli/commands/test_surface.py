"""`lipkit surface`: the numbers of the library, files that continue, clear errors."""

import base64
import json
import shutil
import signal
import struct
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
import torch
from scipy.spatial import KDTree

from lipkit import sdf
from lipkit.cli.commands.run_commands import read_command
from lipkit.cli.commands.surface_request import SurfaceRequest
from lipkit.cli.exit_codes import Code
from lipkit.cli.inputs.mesh_file import ClosedMesh
from lipkit.cli.inputs.safetensors_file import tensors_from
from lipkit.cli.main import main
from lipkit.cli.runs import surface_files
from support.meshes import box_mesh
from support.programs.run import PROGRAMS, run_program
from support.small_surface import SMALL, learn, make_run, read_result, write_egg


@pytest.fixture(scope="module")
def egg(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_egg(tmp_path_factory.mktemp("meshes") / "egg.ply")


@pytest.fixture(scope="module")
def honest(egg: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(egg, tmp_path_factory.mktemp("runs"))


@pytest.fixture
def run(honest: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(honest, tmp_path / "run"))


def points_on(surface: sdf.Triangles, count: int) -> np.ndarray:
    """Points uniform by area, drawn here: a square folded onto each triangle."""
    random = np.random.default_rng(5)
    a, b, c = surface.corners.numpy().swapaxes(0, 1)
    area = np.linalg.norm(np.cross(b - a, c - a), axis=1)
    chosen = random.choice(len(a), count, p=area / area.sum())
    u, v = random.random((2, count, 1))
    u, v = np.where(u + v > 1, 1 - u, u), np.where(u + v > 1, 1 - v, v)
    return a[chosen] + u * (b - a)[chosen] + v * (c - a)[chosen]


def values_of(run: Path, points: np.ndarray) -> np.ndarray:
    """The stored network, evaluated here: layers with halves sorted between them."""
    tensors, _ = tensors_from(run / "model.safetensors", sealed=True)
    layers = sorted({int(name.split(".")[0]) for name in tensors})
    x = torch.from_numpy(points)
    for place in layers:
        x = x @ tensors[f"{place}.weight"].mT + tensors[f"{place}.bias"]
        if place != layers[-1]:
            x = torch.cat([torch.minimum(*x.chunk(2, 1)), torch.maximum(*x.chunk(2, 1))], 1)
    return x.flatten().numpy()


def test_options_that_are_left_out_are_those_of_the_library(tmp_path: Path):
    assert SurfaceRequest(mesh="bunny.obj", out=tmp_path).training == sdf.Surface()
    # As the command line gives them, too.
    asked = read_command("lipkit surface bunny.obj --out run")
    assert isinstance(asked, SurfaceRequest)
    assert asked.training == sdf.Surface()


def test_a_quick_run_has_a_tenth_of_the_work(tmp_path: Path):
    asked = SurfaceRequest(mesh="bunny.obj", out=tmp_path, quick=True, samples=4000, batch=1024)
    assert (asked.training.steps, asked.training.samples, asked.training.batch) == (600, 400, 400)


@pytest.mark.train
def test_the_weights_are_those_of_the_library(honest: Path, egg: Path):
    again = sdf.Surface(width=16, depth=3, steps=150, batch=128, samples=2000, rate=0.02)(sdf.read_mesh(egg))
    stored, _ = tensors_from(honest / "model.safetensors", sealed=True)
    known = again.model.state_dict()
    assert stored.keys() == known.keys()
    assert all(torch.equal(stored[name], known[name]) for name in known)


@pytest.mark.train
def test_the_deviation_and_the_mean_are_those_of_points_drawn_here(honest: Path, egg: Path):
    found = read_result(honest)
    points = points_on(sdf.read_mesh(egg), 20_000)
    size = np.abs(values_of(honest, points))
    assert size.max() <= found.deviation.upper
    # Of 20,000 points on an area of about 27 one is within 0.1 of any other, and f changes no faster than its constant.
    assert found.deviation.lower <= size.max() + 0.1
    assert found.deviation.lower >= size.max() - found.deviation.tolerance
    # Both means are of points drawn at random; five standard errors of each.
    assert abs(size.mean() - found.mean.mean) < 5 * (found.mean.standard_error + size.std() / len(size) ** 0.5)
    assert 1 - 1e-6 <= found.constant <= 1 + 1e-6
    assert found.diagonal == pytest.approx(2 * (1 + 1.5**2 + 2**2) ** 0.5, rel=1e-12)


@pytest.mark.train
def test_the_mesh_file_is_where_the_field_is_zero(honest: Path, egg: Path):
    found, surface = read_result(honest), sdf.read_mesh(honest / "surface.ply")
    assert found.extracted_faces == len(surface.faces)
    # A vertex is on an edge of a cell with a zero of f, so |f| is at most the length of an edge: 4.9 / 12.
    assert np.abs(values_of(honest, surface.vertices.numpy())).max() < 0.41
    forth, back = points_on(surface, 20_000), points_on(sdf.read_mesh(egg), 20_000)
    there, here = KDTree(back).query(forth)[0], KDTree(forth).query(back)[0]
    # Points stand in for surfaces: the nearest one is some hundredths farther than the surface.
    assert found.distances.chamfer == pytest.approx((there.mean() + here.mean()) / 2, abs=0.03)
    assert found.distances.hausdorff == pytest.approx(max(there.max(), here.max()), abs=0.1)


@pytest.mark.train
def test_the_slice_has_values_of_the_field_and_true_distances(honest: Path, egg: Path):
    cut, surface = read_result(honest).cut, sdf.read_mesh(egg)
    # Across the shortest side, x.
    assert cut.axes == ("y", "z", "x")
    points = np.array([(cut.at, y, z) for z in cut.up for y in cut.across])
    assert np.array(cut.values) == pytest.approx(values_of(honest, points), abs=1e-12)
    distance, _ = KDTree(points_on(surface, 100_000)).query(points)
    assert np.abs(cut.exact) == pytest.approx(distance, abs=0.05)
    # Inside of a convex solid is what is behind each face.
    a, b, c = surface.corners.numpy().swapaxes(0, 1)
    behind = (((points[:, None] - a) * np.cross(b - a, c - a)).sum(2) < 0).all(1)
    clear = distance > 0.05
    assert ((np.array(cut.exact) > 0) == behind)[clear].all()
    assert behind.any()


@pytest.mark.train
@pytest.mark.parametrize(("up", "axes"), [("x", ("z", "x", "y")), ("y", ("z", "y", "x")), ("z", ("y", "z", "x"))])
def test_the_slice_stands_upright_and_shows_the_longer_of_the_other_sides(
    up: str, axes: tuple[str, str, str], honest: Path, egg: Path, tmp_path: Path
):
    # Half axes 1, 1.5 and 2: of the two that are not up the shorter one is held.
    request = SurfaceRequest(mesh=str(egg), out=tmp_path, up=up, width=16, depth=3)
    field = surface_files.read_field(request, honest)
    cut = surface_files.SurfaceMeasures(request, ClosedMesh.read(egg, False), field, None)._cut()
    assert cut.axes == axes
    points = torch.zeros(len(cut.values), 3, dtype=torch.float64)
    places = torch.tensor([[across, height] for height in cut.up for across in cut.across], dtype=torch.float64)
    right, upwards, held = ("xyz".index(axis) for axis in axes)
    points[:, right], points[:, upwards], points[:, held] = places[:, 0], places[:, 1], cut.at
    assert torch.equal(torch.tensor(cut.values, dtype=torch.float64), field(points))


@pytest.mark.train
def test_files_and_words_say_the_same_numbers(
    honest: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    found, numbers = read_result(honest), json.loads((honest.parent / "numbers.json").read_text())
    assert numbers["deviation"] == vars(found.deviation)
    assert numbers["mean"] == vars(found.mean)
    assert (numbers["chamfer"], numbers["constant"]) == (found.distances.chamfer, found.constant)
    head = base64.b64decode(found.picture.png)[:24]
    assert struct.unpack(">II", head[16:]) == (12, 12)
    page = (run / "surface.html").read_bytes()
    (run / "surface.html").unlink()
    assert main(["report", str(run), "--json", str(tmp_path / "again.json")]) == Code.OK
    assert (run / "surface.html").read_bytes() == page
    assert json.loads((tmp_path / "again.json").read_text()) == numbers
    assert "page in" in capsys.readouterr().out


@pytest.mark.train
def test_a_run_continues_with_what_is_missing(run: Path, honest: Path, egg: Path, capsys: pytest.CaptureFixture[str]):
    kept = {name: (run / name).stat().st_mtime_ns for name in ("model.safetensors", "parts/Deviation.json")}
    for name in ("surface.json", "surface.html", "surface.ply", "parts/Render.json", "parts/SurfaceDistances.json"):
        (run / name).unlink()
    assert learn(egg, run) == Code.OK
    assert {name: (run / name).stat().st_mtime_ns for name in kept} == kept
    assert (run / "surface.ply").read_bytes() == (honest / "surface.ply").read_bytes()
    before, after = read_result(honest), read_result(run)
    # The command names another folder.
    assert {**vars(after), "command": ""} == {**vars(before), "command": ""}
    assert learn(egg, run, *SMALL, "--seed", "5") == Code.OTHER
    assert "holds another run (seed was 0)" in capsys.readouterr().err


@pytest.mark.train
def test_an_interrupted_run_ends_as_an_undisturbed_one(
    egg: Path, honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def stop(*_: object, **__: object) -> NoReturn:
        raise KeyboardInterrupt

    run = tmp_path / "run"
    with monkeypatch.context() as during:
        during.setattr(sdf.Surface, "__call__", stop)
        assert learn(egg, run) == Code.INTERRUPTED
    assert not list(run.glob("*"))
    with monkeypatch.context() as during:
        during.setattr(surface_files.sdf, "render", stop)
        assert learn(egg, run) == Code.INTERRUPTED
    assert "the same command continues it" in capsys.readouterr().err
    assert not (run / "surface.json").exists()
    assert (run / "parts" / "Deviation.json").is_file()
    with monkeypatch.context() as during:
        # It is not trained again.
        during.setattr(sdf.Surface, "__call__", stop)
        assert learn(egg, run) == Code.OK
    before, after = read_result(honest), read_result(run)
    assert {**vars(after), "command": ""} == {**vars(before), "command": ""}


@pytest.mark.process
@pytest.mark.train
def test_a_killed_run_ends_like_one_that_was_not(egg: Path, honest: Path, tmp_path: Path):
    run, program = tmp_path / "run", PROGRAMS / "killed_command.py"
    killed = run_program(program, ["90", "surface", str(egg), "--out", str(run), *SMALL], 300)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    assert sorted(one.name for one in run.iterdir()) == ["checkpoint.safetensors", "run.json"]
    assert learn(egg, run, *SMALL, "--rate", "0.01") == Code.OTHER
    assert learn(egg, run) == Code.OK
    assert (run / "model.safetensors").read_bytes() == (honest / "model.safetensors").read_bytes()
    assert not (run / "checkpoint.safetensors").exists()
    before, after = read_result(honest), read_result(run)
    assert {**vars(after), "command": ""} == {**vars(before), "command": ""}


@pytest.mark.train
def test_damaged_parts_are_named(run: Path, egg: Path, capsys: pytest.CaptureFixture[str]):
    part = run / "parts" / "SurfaceMean.json"
    whole = part.read_text()
    part.write_text(whole.replace('"mean": 0', '"mean": 1'))
    assert part.read_text() != whole
    assert learn(egg, run) == Code.OTHER
    assert "SurfaceMean.json does not fit its checksum" in capsys.readouterr().err
    part.write_text(whole)
    (run / "model.safetensors").write_bytes((run / "model.safetensors").read_bytes()[:500])
    assert learn(egg, run) == Code.USAGE
    assert "model.safetensors is no readable safetensors file" in capsys.readouterr().err


@pytest.mark.train
def test_holes_are_capped_on_demand(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    vertices, faces = box_mesh((0, 0, 0), (1, 2, 3))
    sdf.write_mesh(sdf.Triangles(vertices, faces[1:]), tmp_path / "open.obj")
    assert learn(tmp_path / "open.obj", tmp_path / "run") == Code.USAGE
    assert "open.obj is open, so it has no inside: its faces end at a loop of edges" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert learn(tmp_path / "open.obj", tmp_path / "run", *SMALL, "--close-holes") == Code.OK
    found = read_result(tmp_path / "run")
    # A cap of a triangle is a fan of three.
    assert (found.holes, found.faces, found.vertices) == (1, 14, 9)
    assert ", one hole capped" in (tmp_path / "run" / "surface.html").read_text()


FLAT = "v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\nf 1 3 2\n"
FILES: dict[str, tuple[str, str, str]] = {
    "no file": ("egg.ply", "", "There is no file"),
    "an empty mesh": ("mesh.off", "OFF\n0 0 0\n", "has 0 vertices and 0 triangles; a mesh needs both"),
    "an empty file": ("mesh.obj", "", "has 0 vertices and 0 triangles; a mesh needs both"),
    "other text": ("mesh.off", "hello\n", "cannot be read as a mesh"),
    "another format": ("mesh.txt", "hello\n", "Mesh files end in .obj, .ply, .stl, .off, got mesh.txt"),
    "an open mesh": ("mesh.obj", "v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n", "mesh.obj is open, so it has no inside"),
    "a sheet": ("mesh.obj", FLAT, "mesh.obj encloses no volume, so it has no inside"),
    "a point": ("mesh.obj", "v 0 0 0\nv 0 0 0\nv 0 0 0\nf 1 2 3\nf 1 3 2\n", "its vertices are not all the same"),
    "NaN": ("mesh.obj", FLAT.replace("v 1 0 0", "v nan 0 0"), "NaN or infinite coordinates"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_files_without_a_solid_are_one_sentence(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file, content, said = FILES[name]
    if name != "no file":
        (tmp_path / file).write_text(content)
    assert learn(tmp_path / file, tmp_path / "run") in (Code.USAGE, Code.OTHER)
    error = capsys.readouterr().err.strip()
    assert said in error
    assert len(error.splitlines()) == 1
    assert not list((tmp_path / "run").glob("*"))


WORDS: dict[str, tuple[tuple[str, ...], str]] = {
    "an odd width": (("--width", "7"), "width is even"),
    "a rate of NaN": (("--rate", "nan"), "rate is a finite number > 0, got nan"),
    "a batch above the samples": (("--batch", "3000"), "batch is at most samples = 2000, got 3000"),
    "no tolerance": (("--tolerance", "0"), "--tolerance is a finite number > 0, got 0"),
    "an endless tolerance": (("--tolerance", "inf"), "--tolerance is a finite number > 0, got inf"),
    "a fine grid": (("--resolution", "5000"), "--resolution is at most 2048, got 5000"),
    "another axis": (("--up", "w"), "--up is x, y or z, got 'w'"),
    "a negative seed": (("--seed", "-1"), "--seed must lie in [0, 2^63), got -1"),
    "a file of no folder": (("--json", "nowhere/numbers.json"), "lies in no folder that exists"),
    # Typer's own words.
    "no steps": (("--steps", "0"), "'--steps'"),
}


@pytest.mark.parametrize("name", WORDS)
def test_words_that_mean_nothing_are_refused(
    name: str, egg: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):  # fmt: skip
    words, said = WORDS[name]
    assert learn(egg, tmp_path / "run", *SMALL, *words) == Code.USAGE
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.train
def test_a_field_without_a_surface_says_so(egg: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = [*SMALL, "--steps", "1", "--rate", "1e-9"]
    assert learn(egg, tmp_path / "run", *words) == Code.USAGE
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("The field has no surface after 1 steps; give more --steps")
