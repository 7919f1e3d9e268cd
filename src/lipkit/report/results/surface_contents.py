"""What the page of a learned surface shows, as plain data."""

import base64
import math
from dataclasses import dataclass
from typing import final

from lipkit._checksums import from_sealed_json, to_sealed_json
from lipkit.bounds.certificates.json_codec import from_plain, to_plain
from lipkit.errors import ArgumentError, RecordError
from lipkit.sdf import Deviation, SurfaceDistances, SurfaceMean

# The file of the result in the folder of a run.
SURFACE = "surface.json"


@final
@dataclass(frozen=True)
class Render:
    """A picture as a PNG file, in base64."""

    side: int
    png: str

    def __post_init__(self) -> None:
        # The text goes into a page as it is.
        try:
            content = base64.b64decode(self.png, validate=True)
        except ValueError as error:
            raise ArgumentError(f"A picture is a PNG file in base64, got {self.png[:20]!r}.") from error
        if not content.startswith(b"\x89PNG"):
            raise ArgumentError(f"A picture is a PNG file, got one that begins with {content[:4]!r}.")


@final
@dataclass(frozen=True)
class Slice:
    """Values of the field, and exact distances, on a grid of a plane through the middle: row by row, upwards.

    `axes` names the axes to the right, upwards, and the one that is held `at` a value.
    """

    axes: tuple[str, str, str]
    at: float
    across: tuple[float, ...]
    up: tuple[float, ...]
    values: tuple[float, ...]
    exact: tuple[float, ...]

    def __post_init__(self) -> None:
        count = len(self.across) * len(self.up)
        if len(self.values) != count or len(self.exact) != count or count < 4:
            raise ArgumentError(f"A slice has a value at each of {count} nodes, got {len(self.values)}.")
        if not all(map(math.isfinite, (self.at, *self.across, *self.up, *self.values, *self.exact))):
            raise ArgumentError("A slice has finite coordinates and values, and some here are not.")


@final
@dataclass(frozen=True)
class SurfaceContents:
    """The result of `lipkit surface`. JSON both ways, exactly. Lengths are in units of the mesh.

    `faces` and `holes` are of the mesh that was learned, caps included; `constant` is that of the field in l2, rounded
    up. `deviation` encloses the largest |f| on the mesh, `mean` estimates its mean; `distances` are from the extracted
    surface to the mesh and back.
    """

    mesh: str
    command: str
    settings: tuple[tuple[str, str], ...]
    software: str
    vertices: int
    faces: int
    holes: int
    diagonal: float
    constant: float
    kind: str
    deviation: Deviation
    mean: SurfaceMean
    extracted_faces: int
    distances: SurfaceDistances
    picture: Render
    cut: Slice

    def __post_init__(self) -> None:
        if not self.diagonal > 0:
            raise ArgumentError(f"A mesh has a diagonal > 0, got {self.diagonal}.")
        found = self.distances
        lengths = (
            self.diagonal,
            self.deviation.lower,
            self.deviation.upper,
            self.mean.mean,
            self.mean.standard_error,
            found.forth.mean,
            found.back.mean,
            found.hausdorff,
            self.constant,
        )
        wrong = [one for one in lengths if not 0 <= one < math.inf]
        if wrong:
            raise ArgumentError(f"What is measured of a surface are finite numbers >= 0, got {wrong[0]}.")

    def lines(self) -> list[str]:
        """The result in words."""
        share = 100 / self.diagonal
        found = self.distances
        return [
            f"constant {self.constant:.6g} ({self.kind}), {self.faces} faces, diagonal {self.diagonal:.6g}",
            f"|f| on the surface, in percent of the diagonal: mean {self.mean.mean * share:.4f}, largest proven "
            f"between {self.deviation.lower * share:.4f} and {self.deviation.upper * share:.4f}",
            f"surface of f, {self.extracted_faces} faces: Chamfer distance {found.chamfer * share:.4f}, Hausdorff "
            f"distance at least {found.hausdorff * share:.4f} (sampled)",
        ]

    def to_json(self) -> bytes:
        """As JSON text, with a checksum."""
        return to_sealed_json(to_plain(self, SurfaceContents)) + b"\n"  # pyright: ignore[reportArgumentType]

    @classmethod
    def from_json(cls, content: bytes, where: str) -> "SurfaceContents":
        """The contents that `to_json` wrote; anything else raises a `RecordError` that names `where`."""
        data = from_sealed_json(content.removesuffix(b"\n"), where, "run its command again")
        try:
            return from_plain(data, cls)  # pyright: ignore[reportArgumentType]
        except (ValueError, RecursionError) as error:
            said = str(error).replace("The certificate", "it")
            raise RecordError(f"{where} is no result of a surface ({said}); run its command again.") from error
