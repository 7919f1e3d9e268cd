"""Files of a learned surface: its model, the surface it describes, what was measured, and the result with its page."""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit import sdf
from lipkit._checksums import from_sealed_json, to_sealed_json
from lipkit._files import write_whole
from lipkit.bounds.certificates.json_codec import from_plain, to_plain
from lipkit.cli.commands.surface_request import SurfaceRequest
from lipkit.cli.console import progress
from lipkit.cli.inputs.mesh_file import ClosedMesh
from lipkit.cli.inputs.safetensors_file import model_to, tensors_from
from lipkit.cli.runs.software import describe_software
from lipkit.errors import ArgumentError, LipkitError, RecordError
from lipkit.report.html.fields.surface_page import write_surface_page
from lipkit.report.results.surface_contents import SURFACE, Render, Slice, SurfaceContents
from lipkit.sdf._base import constant_of
from lipkit.sdf.one_class import orthogonal_mlp

MODEL, EXTRACTED, PARTS = "model.safetensors", "surface.ply", "parts"
# Points for means and sampled distances; nodes of a slice along its longest side.
_SAMPLES, _NODES = 50_000, 97
# Room around the mesh, and how close rays end, in diagonals.
_ROOM, _NEAR = 0.08, 2e-4
# Where the camera is, in diagonals: to the right, in front and above.
_FROM, _VIEW = (0.75, -1.25, 0.55), 34.0

T = TypeVar("T")


def store_field(field: sdf.Network, folder: Path) -> None:
    """Write a learned field to the folder of its run."""
    write_whole(folder / MODEL, model_to(field.model))


def read_field(request: SurfaceRequest, folder: Path) -> sdf.Network:
    """The learned field in the folder of a run; nothing is executed."""
    path, model = folder / MODEL, orthogonal_mlp(3, (request.width,) * request.depth).double()
    tensors, _ = tensors_from(path, sealed=True)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise RecordError(
            f"{path} has not the layers of the run's settings; remove it, and run the command."
        ) from error
    if not all(bool(torch.isfinite(one).all()) for one in tensors.values()):
        raise RecordError(f"{path} has a weight that is NaN or infinite; remove it, and run the command.")
    return sdf.Network(model, torch.zeros(1, 3, dtype=torch.float64))


@final
@dataclass(frozen=True, eq=False)
class SurfaceMeasures:
    """Everything that is measured of a field; a part that is in `folder` already is not measured again."""

    request: SurfaceRequest
    mesh: ClosedMesh
    field: sdf.Network
    # None where nothing is kept.
    folder: Path | None

    def gather(self, extracted: sdf.Triangles) -> SurfaceContents:
        """Everything that the page shows. Cost: that of the parts that are missing."""
        request, mesh = self.request, self.mesh.mesh
        diagonal = mesh.triangles.diagonal
        found = self._part(
            "proving the deviation", sdf.Deviation,
            lambda: _stated(sdf.deviation(
                self.field, mesh, request.tolerance / 100 * diagonal, request.fewer(request.evaluations)
            )),
        )  # fmt: skip
        return SurfaceContents(
            mesh=Path(request.mesh).name, command=request.command,
            settings=tuple(sorted({**request.options, **self.mesh.hashes}.items())), software=describe_software(),
            vertices=len(mesh.vertices), faces=len(mesh.faces), holes=self.mesh.holes, diagonal=diagonal,
            constant=constant_of(self.field), kind=self.field.bound.kind.name.lower(), deviation=found,
            mean=self._part(
                "measuring the mean", sdf.SurfaceMean,
                lambda: sdf.mean_deviation(self.field, mesh, _SAMPLES, request.seed),
            ),
            extracted_faces=len(extracted.faces),
            distances=self._part(
                "measuring distances", sdf.SurfaceDistances,
                lambda: sdf.surface_distances(extracted, mesh, _SAMPLES, request.seed),
            ),
            picture=self._part("drawing the picture", Render, self._draw),
            cut=self._part("evaluating a slice", Slice, self._cut),
        )  # fmt: skip

    def extract(self) -> sdf.Triangles:
        """The surface of the field as a mesh, from its file if there is one."""
        path = None if self.folder is None else self.folder / EXTRACTED
        if path is not None and path.is_file():
            return sdf.read_mesh(path)
        low, high = self._box()
        with progress() as doing:
            doing("extracting the surface")
            try:
                found = sdf.extract(self.field, low, high, self.request.smaller(self.request.resolution))
            except ArgumentError as error:
                raise ArgumentError(
                    f"The field has no surface after {self.request.training.steps} steps; give more --steps or "
                    "another --rate, and another --out."
                ) from error
        if path is not None:
            sdf.write_mesh(found, path)
        return found

    def _part(self, what: str, hint: type[T], make: Callable[[], T]) -> T:
        """A part by its type, which names its file."""
        path = None if self.folder is None else part_file(self.folder, hint)
        if path is not None and path.is_file():
            return read_part(path, hint)
        with progress() as doing:
            doing(what)
            found = make()
        if path is not None:
            path.parent.mkdir(exist_ok=True)
            write_whole(path, to_sealed_json({"part": to_plain(found, hint)}))
        return found

    def _box(self) -> tuple[Float64[Tensor, " 3"], Float64[Tensor, " 3"]]:
        corners = self.mesh.mesh.triangles.corners.flatten(0, 1)
        room = _ROOM * self.mesh.mesh.triangles.diagonal
        return corners.amin(0) - room, corners.amax(0) + room

    def _draw(self) -> Render:
        low, high = self._box()
        center, diagonal = (low + high) / 2, self.mesh.mesh.triangles.diagonal
        side, up = self.request.smaller(self.request.pixels), self.request.axis
        # The other two axes in the order that keeps right hands right.
        place = center.clone()
        for axis, share in zip(((up + 1) % 3, (up + 2) % 3, up), _FROM, strict=True):
            place[axis] += share * diagonal
        camera = sdf.Camera(
            _point(place), _point(center), _point(torch.eye(3, dtype=torch.float64)[up]), _VIEW
        )  # fmt: skip
        far = 2 * diagonal + float((high - low).norm())
        drawn = sdf.render(self.field, camera, far, side, side, tolerance=_NEAR * diagonal)
        return Render(side, base64.b64encode(drawn.png()).decode())

    def _cut(self) -> Slice:
        low, high = self._box()
        # Upright, and across the shorter of the other two sides, where it is the largest.
        up = self.request.axis
        right, held = sorted(({0, 1, 2} - {up}), key=lambda axis: float(low[axis] - high[axis]))
        step = float((high - low).max()) / (self.request.smaller(_NODES) - 1)
        lines = [torch.arange(float(low[i]), float(high[i]) + step / 2, step, dtype=torch.float64) for i in (right, up)]
        ups, acrosses = torch.meshgrid(lines[1], lines[0], indexing="ij")
        points = torch.empty((ups.numel(), 3), dtype=torch.float64)
        at = float((low[held] + high[held]) / 2)
        points[:, right], points[:, up], points[:, held] = acrosses.flatten(), ups.flatten(), at
        values, exact = (tuple(one.measure(points).value.tolist()) for one in (self.field, self.mesh.mesh))
        axes = ("xyz"[right], "xyz"[up], "xyz"[held])
        return Slice(axes, at, tuple(lines[0].tolist()), tuple(lines[1].tolist()), values, exact)


def plain_surface(contents: SurfaceContents) -> dict[str, Any]:
    """The numbers of the page as JSON, without its pictures."""
    found = contents.distances
    return {
        "faces": contents.faces, "holes": contents.holes, "diagonal": contents.diagonal, "constant": contents.constant,
        "kind": contents.kind, "deviation": vars(contents.deviation), "mean": vars(contents.mean),
        "extracted_faces": contents.extracted_faces, "chamfer": found.chamfer, "hausdorff": found.hausdorff,
    }  # fmt: skip


def publish_surface(folder: Path, contents: SurfaceContents) -> Path:
    """Write the result and its page; returns where the page is."""
    with progress() as doing:
        doing("writing the page")
        write_whole(folder / SURFACE, contents.to_json())
        return write_surface_page(contents, folder)


def part_file(folder: Path, hint: type) -> Path:
    """Where the part of a type is in the folder of a run."""
    return folder / PARTS / f"{hint.__name__}.json"


def read_part(path: Path, hint: type[T]) -> T:
    """A part that was measured, from its file."""
    remedy = "remove it, and run the same command again"
    data = from_sealed_json(path.read_bytes(), str(path), remedy)
    try:
        return from_plain(data["part"], hint)
    except (KeyError, LipkitError, ValueError) as error:
        raise RecordError(f"{path} is no part of a surface; {remedy}.") from error


def _stated(found: sdf.Deviation) -> sdf.Deviation:
    """The deviation as a file states it: without the field, which is stored by itself."""
    return sdf.Deviation(found.lower, found.upper, found.tolerance, found.evaluations)


def _point(place: Float64[Tensor, " 3"]) -> tuple[float, float, float]:
    x, y, z = place.tolist()
    return x, y, z
