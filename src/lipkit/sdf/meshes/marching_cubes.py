"""The zero set of a field as a mesh, evaluated only near where it can be."""

import itertools
import math
import sys
from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from lipkit.errors import ArgumentError, ShapeError, UnsupportedError
from lipkit.rounding.float64 import norm_up
from lipkit.rounding.slacks import ROUNDINGS_8192
from lipkit.sdf._base import Field, constant_of
from lipkit.sdf.exact.solids import check_vector
from lipkit.sdf.meshes.triangles import Triangles, weld

# Blocks of so many cells along each axis are asked first, and halved down to the last size.
_LARGEST: Final = 64
_SMALLEST: Final = 2
_AT_ONCE: Final = 2**15
# Values stand in float32, in units of a cell, where a zero would be on no side.
_TINY: Final = 1e-30


def extract(f: Field, low: Float[Tensor, " 3"], high: Float[Tensor, " 3"], resolution: int) -> Triangles:
    """The zero set of a field in a box as triangles, their normals pointing out of where it is positive.

    Marching cubes on a grid of nodes, values in between linear. A block of cells around a point c is left out where
    |f(c)| > K r, r half its diagonal, for it holds no zero. Parts that are smaller than a cell may be missing. The
    surface is closed unless the zero set meets the faces of the box.

    Guarantee: the cells that are left out hold no zero. The triangles approximate: `deviation` says how well.
    Cost: evaluations near the zero set, about `resolution`^2 times its area, not `resolution`^3.
    Reference: Lorensen, Cline 1987; Lewiner et al. 2003 (scikit-image). The blocks are ours.

    Args:
        low: The corner of the box with the smallest coordinates.
        high: The opposite corner.
        resolution: The number of cells along the longest side; cells are about cubes.
    """
    low, high = check_vector(low, "low"), check_vector(high, "high")
    if f.dim != 3 or len(low) != 3 or len(high) != 3:
        raise ShapeError(f"A box in space has 3 coordinates, got {len(low)}, {len(high)} and a field of {f.dim}.")
    if not bool((low < high).all()):
        raise ArgumentError(f"A box has low < high in every coordinate, got {low.tolist()} and {high.tolist()}.")
    if isinstance(resolution, bool) or not isinstance(resolution, int) or not 1 <= resolution <= 2048:
        raise ArgumentError(f"A resolution is a whole number of cells from 1 to 2048, got {resolution}.")
    side = high - low
    cells = (side / side.max() * resolution - 1e-9).ceil().clamp(min=1).long()
    values = _grid_values(f, low, side / cells, cells)
    if not bool((values > 0).any()) or not bool((values < 0).any()):
        sign = "positive" if bool((values > 0).all()) else "negative"
        raise ArgumentError(
            f"The field is {sign} at all nodes of the grid, so there is no surface in the box from {low.tolist()} to "
            f"{high.tolist()}; move the box, or raise the resolution of {resolution}."
        )
    # Their outside is where values grow in the names of scikit-image, ours where they fall.
    vertices, faces, _, _ = _skimage().marching_cubes(values.numpy(), 0.0, gradient_direction="ascent")
    found = low + torch.from_numpy(vertices.astype(np.float64)) * (side / cells)
    return weld(Triangles(found, torch.from_numpy(faces.astype(np.int64))))


def _grid_values(f: Field, low: Tensor, step: Tensor, cells: Int64[Tensor, " 3"]) -> Float[Tensor, "x y z"]:
    """f at the nodes of a grid, in float32; only the sign is right where no zero is near."""
    constant = constant_of(f)
    shape = [int(count) + 1 for count in cells]
    values = torch.zeros(shape, dtype=torch.float32)
    # Float32 has room for values in units of what f may change by in a cell, whatever the unit of the box is.
    unit = 2.0 ** math.frexp(max(constant * float(norm_up(step, 1)), sys.float_info.min))[1]
    blocks = torch.cartesian_prod(*(torch.arange(0, int(count), _LARGEST) for count in cells)).reshape(-1, 3)
    size = _LARGEST
    while True:
        ends = torch.minimum(blocks + size, cells)
        sign = torch.cat(
            [
                _sure_sign(f, constant, *part)
                for part in zip((low + step * blocks).split(_AT_ONCE), (low + step * ends).split(_AT_ONCE), strict=True)
            ]
        )
        _fill(values, blocks[sign != 0], size, cells, sign[sign != 0])
        blocks = blocks[sign == 0]
        if size == _SMALLEST or len(blocks) == 0:
            break
        size //= 2
        corners = torch.tensor(list(itertools.product((0, size), repeat=3)))
        blocks = (blocks[:, None] + corners).flatten(0, 1)
        blocks = blocks[(blocks < cells).all(1)]
    wanted = torch.zeros(shape, dtype=torch.float32)
    _fill(wanted, blocks, size, cells, torch.ones(len(blocks)))
    for nodes in wanted.nonzero().split(_AT_ONCE):
        with torch.no_grad():
            found = (f(low + step * nodes) / unit).to(torch.float32)
        values[tuple(nodes.T)] = torch.where(found.abs() < _TINY, -_TINY, found)
    return values


def _sure_sign(f: Field, constant: float, low: Float64[Tensor, "n 3"], high: Float64[Tensor, "n 3"]) -> Tensor:
    """The sign of f on boxes where it has no zero, else 0."""
    center = (low + high) / 2
    radius = norm_up(torch.maximum(high - center, center - low), 1)
    found = f.measure(center)
    # Nodes are rounded once more than corners of blocks.
    reach = constant * (radius + ROUNDINGS_8192 * (radius + norm_up(center, 1)))
    return torch.where(found.value.abs() - found.error > reach, found.value.sign(), 0.0)


def _fill(grid: Tensor, blocks: Int64[Tensor, "n 3"], size: int, cells: Int64[Tensor, " 3"], numbers: Tensor) -> None:
    """Write a number to all nodes of each block, those on its faces included."""
    offsets = torch.cartesian_prod(*(torch.arange(size + 1),) * 3)
    for part, number in zip(
        blocks.split(max(1, 2**22 // len(offsets))), numbers.split(max(1, 2**22 // len(offsets))), strict=True
    ):
        nodes = torch.minimum(part[:, None] + offsets, cells).flatten(0, 1)
        grid[tuple(nodes.T)] = number.to(grid.dtype).repeat_interleave(len(offsets))


def _skimage() -> Any:
    try:
        from skimage import measure
    except ModuleNotFoundError as error:
        raise UnsupportedError("Extracting surfaces needs scikit-image; pip install 'lipkit[meshes]'.") from error
    return measure
