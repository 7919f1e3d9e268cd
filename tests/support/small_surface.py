"""A run of `lipkit surface` that takes a second: a convex mesh of few triangles, and settings for a small network."""

from pathlib import Path

import torch

from lipkit import sdf
from lipkit.cli.exit_codes import Code
from lipkit.cli.main import main
from lipkit.report.results.surface_contents import SurfaceContents
from support.meshes import icosphere

SMALL = (
    "--width", "16", "--depth", "3", "--steps", "150", "--batch", "128", "--samples", "2000", "--rate", "0.02",
    "--tolerance", "2", "--evaluations", "3000", "--resolution", "12", "--pixels", "12",
)  # fmt: skip


def write_egg(path: Path) -> Path:
    """An ellipsoid of 32 triangles, with half axes 1, 1.5 and 2."""
    vertices, faces = icosphere(1)
    sdf.write_mesh(sdf.Triangles(vertices * torch.tensor([1.0, 1.5, 2.0]), faces), path)
    return path


def make_run(egg: Path, folder: Path) -> Path:
    """The folder of an honest run of an egg, made in `folder`, and numbers.json beside it."""
    assert learn(egg, folder / "run", *SMALL, "--json", str(folder / "numbers.json")) == Code.OK
    return folder / "run"


def learn(mesh: Path, out: Path, *words: str) -> int:
    """The exit code of the command with these words, or the small settings."""
    return main(["surface", str(mesh), "--out", str(out), *(words or SMALL)])


def read_result(run: Path) -> SurfaceContents:
    """The result in the folder of a run."""
    return SurfaceContents.from_json((run / "surface.json").read_bytes(), "surface.json")
