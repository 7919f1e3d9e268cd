"""Pictures of solids, by rays that are proven to meet nothing before what they show."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit._files import write_whole
from lipkit._png import encode_png
from lipkit.errors import ArgumentError, ShapeError
from lipkit.sdf._base import Field
from lipkit.sdf.rays.trace import trace

Point = tuple[float, float, float]

# Where the light comes from, in parts of the camera's right, up and back: over its left shoulder.
_LIGHT = (-0.5, 0.8, 0.9)
# Colours from 0 to 1: of a surface, of the background at the top and at the bottom.
_SURFACE, _TOP, _BOTTOM = (0.72, 0.78, 0.86), (1.0, 1.0, 1.0), (0.86, 0.88, 0.91)
# The share of light that comes from everywhere, and how much of a colour the direction of the surface decides.
_AMBIENT, _TINT = 0.25, 0.2
# Points whose gradients are taken together.
_PIECE = 2**15


@final
@dataclass(frozen=True)
class Camera:
    """A pinhole that looks from `position` at `target`.

    Args:
        position: Where it is.
        target: What is in the middle of the picture.
        up: A direction that points upwards in the picture.
        angle: How many degrees the height of the picture spans.
    """

    position: Point
    target: Point = (0.0, 0.0, 0.0)
    up: Point = (0.0, 0.0, 1.0)
    angle: float = 40.0

    def __post_init__(self) -> None:
        if not 0 < self.angle < 180:
            raise ArgumentError(f"A camera spans an angle between 0 and 180 degrees, got {self.angle}.")
        axes = self.axes()
        if not bool((axes.norm(dim=1) > 1 - 1e-6).all()):
            raise ArgumentError(
                f"A camera at {self.position} that looks at {self.target} needs another target than its position, and "
                f"`up` may not point along its view, got {self.up}."
            )

    def axes(self) -> Float64[Tensor, "3 3"]:
        """Unit vectors to the right, upwards, and backwards."""
        position, target, up = (torch.tensor(one, dtype=torch.float64) for one in (self.position, self.target, self.up))
        back = torch.nn.functional.normalize(position - target, dim=0)
        right = torch.nn.functional.normalize(torch.linalg.cross(up, back), dim=0)
        return torch.stack([right, torch.linalg.cross(back, right), back])

    def directions(self, width: int, height: int) -> Float64[Tensor, "height width 3"]:
        """Directions through the centers of the pixels, from the top row down."""
        half = math.tan(math.radians(self.angle) / 2)
        columns = (2 * torch.arange(width, dtype=torch.float64) + 1 - width) / height
        rows = (height - 1 - 2 * torch.arange(height, dtype=torch.float64)) / height
        right, up, back = self.axes()
        return half * (columns[None, :, None] * right + rows[:, None, None] * up) - back


@final
@dataclass(frozen=True, eq=False)
class Picture:
    """Colours from 0 to 1, and how far every pixel can see: the length proven free, infinite where nothing is met."""

    colors: Float64[Tensor, "3 height width"]
    depth: Float64[Tensor, "height width"]

    def png(self) -> bytes:
        """The picture as a PNG file."""
        return encode_png(_bytes(self.colors))

    def depth_png(self) -> bytes:
        """The depth as a grey PNG file: near is bright, nothing is black."""
        seen = self.depth.isfinite()
        if not bool(seen.any()):
            return encode_png(_bytes(torch.zeros_like(self.depth)[None]))
        near, far = float(self.depth[seen].min()), float(self.depth[seen].max())
        shade = 1 - 0.8 * (self.depth - near) / max(far - near, 1e-300)
        return encode_png(_bytes(torch.where(seen, shade, 0.0)[None]))

    def save(self, path: Path) -> None:
        """Write the picture as a PNG file, all or nothing."""
        write_whole(path, self.png())


def render(
    f: Field,
    camera: Camera,
    far: float,
    width: int = 512,
    height: int = 512,
    samples: int = 1,
    tolerance: float | None = None,
    device: torch.device | None = None,
) -> Picture:
    """A picture of the solid f > 0: what each ray meets first, shaded by its normal -grad f/|grad f|.

    Guarantee: f has no zero on the ray of a pixel before its depth (`trace`). Colours are a picture, no more.
    Cost: width height samples^2 rays.

    Args:
        f: A field of points in space.
        camera: Where the picture is taken from.
        far: How far rays go.
        width: Pixels in a row.
        height: Pixels in a column.
        samples: Rays in a pixel, along each side; the mean colour and the smallest depth count.
        tolerance: How close to a surface rays end, as for `trace`.
        device: Where to compute; that of the CPU if it is left out.
    """
    if f.dim != 3:
        raise ShapeError(f"Pictures are of fields in three dimensions, got {f.dim}.")
    if min(width, height, samples) < 1:
        raise ArgumentError(f"A picture has at least one pixel and sample, got {width} x {height}, {samples} samples.")
    rows, columns = height * samples, width * samples
    directions = camera.directions(columns, rows).reshape(-1, 3).to(device)
    origins = directions.new_tensor(camera.position).expand_as(directions)
    found = trace(f, origins, directions, far, tolerance)
    units = torch.nn.functional.normalize(directions, dim=1)
    colors = _background(rows, columns).to(directions)
    met = found.hit.nonzero().squeeze(1)
    colors[met] = _shade(f, origins[met] + found.distance[met, None] * units[met], units[met], camera)
    depth = torch.where(found.hit, found.distance, math.inf)
    shape = (height, samples, width, samples)
    return Picture(
        colors.reshape(*shape, 3).mean((1, 3)).permute(2, 0, 1).cpu(), depth.reshape(shape).amin((1, 3)).cpu()
    )


def _shade(
    f: Field, points: Float64[Tensor, "n 3"], views: Float64[Tensor, "n 3"], camera: Camera
) -> Float64[Tensor, "n 3"]:
    gradients = [f.gradient(piece) for piece in points.split(_PIECE)]
    normals = -torch.nn.functional.normalize(torch.cat([*gradients, points[:0]]), dim=1)
    # From inside one sees the back of a surface.
    normals = torch.where((normals * views).sum(1, keepdim=True) > 0, -normals, normals)
    axes = camera.axes().to(points)
    light = torch.nn.functional.normalize(points.new_tensor(_LIGHT) @ axes, dim=0)
    # Light reaches around edges, so that sides in the shade keep their shape.
    bright = _AMBIENT + (1 - _AMBIENT) * (1 + normals @ light) / 2
    tint = 1 + _TINT * (normals @ axes.mT)
    return (points.new_tensor(_SURFACE) * tint * bright[:, None]).clamp(0.0, 1.0)


def _background(rows: int, columns: int) -> Float64[Tensor, "pixels 3"]:
    share = torch.linspace(0, 1, rows, dtype=torch.float64)[:, None]
    top, bottom = (torch.tensor(one, dtype=torch.float64) for one in (_TOP, _BOTTOM))
    return (top * (1 - share) + bottom * share).repeat_interleave(columns, dim=0)


def _bytes(colors: Float[Tensor, "channels height width"]) -> np.ndarray:
    return (colors.clamp(0.0, 1.0) * 255).round().to(torch.uint8).numpy(force=True)
